"""Render one video: from loaded models and a resolved request to the output files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from ..decoders.open import FAST_NOTE
from ..devices.device import device_clock, versions_on
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse, Store
from ..files.outputs import BLOCKS_FOLDER, LATENTS, REPORT, ROUTE_PICTURE, VIDEO
from ..files.sound import add_sound
from ..files.video import Mp4Writer
from ..loading.load import Models
from ..report.assemble import assemble_report, notes_on
from ..report.picture import route_picture
from ..report.progress import RouteBar
from ..report.run_report import RunReport
from ..settings.fields import as_json
from ..settings.load import load_as_json
from ..text.prompts import Conditions
from ..weights.latents import lead_metadata, save_latents
from .blocks import BlockFiles
from .fingerprint import MOST_DIFFERENCES
from .resolve import ResolvedRequest


def render_blocks(
    loaded: Models,
    resolved: ResolvedRequest,
    conditions: Conditions,
    work: Path,
    digest: str,
    bar: RouteBar,
    *,
    reuse: Sequence[Path] = (),
    stop: Callable[[], bool] = bool,
) -> Generator[BlockRecord, None, RunReport]:
    """Make one video, write video, latents and blocks into the folder `work`, and return the report.

    Each block is written when it is committed, and its record is yielded then. Blocks in `work` and in the folders
    `reuse` are not made again.
    `digest`: of the request, stored with the latents. `stop`: called after every block; True ends the video there.
    """
    store = Store()
    blocks = BlockFiles(work / BLOCKS_FOLDER)
    blocks.recall(store, *reuse)
    store.begin_run()
    engine = loaded.build(needed=resolved.plan.models_needed, before_pass=bar.step)
    earlier = Reuse(store=store, part_keys=loaded.part_keys)
    run = resolved.prepare_run(engine, conditions, earlier, device_clock(loaded.device, loaded.side))
    request = resolved.request
    # Blocks made before this run was interrupted keep their seconds.
    records: list[BlockRecord] = []
    resumed = 0
    used_again = False
    comment = FAST_NOTE if loaded.settings["vae"]["tae_kind"] else None
    with Mp4Writer(work / VIDEO, request.fps, comment) as video:
        frames = 0
        for shown in run.play(stop):
            if shown.record:
                results = store.take_used()
                records.append(blocks.add(len(records) + 1, shown.record, results))
                store.drop(results)  # written, and no later block needs it
                used_again |= shown.record.reused
                if shown.record.reused and not records[-1].reused:
                    resumed = len(records)
                bar.block(shown.record)
            video.add(
                resolved.control_footage.paste(shown.frames, frames) if resolved.control_footage else shown.frames
            )
            frames += shown.frames.shape[1]
            if shown.record:
                yield records[-1]

    block_frames = run.plan.spans[0].frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": digest}
    history = shown.history
    latents = history.latents(0, history.frames)
    noted |= lead_metadata(resolved.plan.lead, latents)
    save_latents(work / LATENTS, latents, noted)
    more = []
    if resolved.sound and (problem := add_sound(work / VIDEO, resolved.sound)):
        more.append(problem)
    if reuse and not used_again:
        more.append("Nothing of the earlier video could be used again: it followed from something else.")
    more += _notes_on_files(resumed, blocks.damaged)
    texts = [condition.text for _, condition in conditions.entries]
    return assemble_report(
        run,
        records,
        loaded.settings,
        fps=request.fps,
        versions=versions_on(loaded.settings["device"]),
        notes=(*resolved.notes, *notes_on(loaded.execution, loaded.scorer, texts, loaded.notes), *more),
        request=as_json(request),
        load=load_as_json(loaded.options),
    )


def finished(blocks: Generator[BlockRecord, None, RunReport]) -> RunReport:
    """Make all blocks of a video; return its report."""
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            report: RunReport = end.value
            return report


def _notes_on_files(resumed: int, damaged: Sequence[str]) -> Iterator[str]:
    """Yield notes on blocks of an interrupted run. `resumed`: their number. `damaged`: names of files."""
    if resumed:
        yield f"Blocks 1 to {resumed} of this run were made before it was interrupted; it was then resumed."
    if damaged:
        yield f"Not as they were written, and so not used again: {', '.join(damaged[:MOST_DIFFERENCES])}."


def write_report(report: RunReport, work: Path) -> None:
    """Write the report and the route picture, which never shows the prompt."""
    (work / REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(report.without_prompts()).save(work / ROUTE_PICTURE, format="PNG")
