"""Render one video: from loaded models and a resolved request to the output files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from ..decoders.open import FAST_NOTE
from ..devices.device import device_clock, versions_on
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse, Store
from ..engine.types import Block, History
from ..files.outputs import BLOCKS_FOLDER, LATENTS, REPORT, ROUTE_PICTURE, VIDEO
from ..files.sound import add_sound
from ..files.video import Mp4Writer
from ..loading.load import Models
from ..report.assemble import assemble_report, notes_on
from ..report.joins import joins, levels_of
from ..report.picture import route_picture
from ..report.progress import RouteBar
from ..report.run_report import RunReport
from ..settings.fields import as_json
from ..settings.load import load_as_json
from ..text.prompts import Conditions
from ..weights.latents import SavedShot, lead_metadata, save_latents, shots_metadata
from .blocks import BlockFiles
from .film import ResolvedFilm
from .fingerprint import MOST_DIFFERENCES


def render_blocks(
    loaded: Models,
    film: ResolvedFilm,
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
    engine = loaded.build(needed=film.models_needed, before_pass=bar.step)
    earlier = Reuse(store=store, part_keys=loaded.part_keys)
    runs = film.prepare_runs(engine, conditions, earlier, device_clock(loaded.device, loaded.side))
    request = film.request
    # Blocks made before this run was interrupted keep their seconds.
    records: list[BlockRecord] = []
    resumed = 0
    used_again = False
    comment = FAST_NOTE if loaded.settings["vae"]["tae_kind"] else None
    made: dict[int, tuple[Block, ...]] = {}  # by number of the run; not its history, which holds a decoder's state
    levels: dict[int, list[Tensor]] = {}  # of the frames, by number of the run
    with Mp4Writer(work / VIDEO, request.fps, comment) as video, closing(film.play(runs, stop)) as played:
        for block in played:
            record = block.shown.record
            made[block.run] = block.shown.history.blocks
            if record:
                results = store.take_used()
                records.append(blocks.add(len(records) + 1, record, results))
                store.drop(results)  # written, and no later block needs it
                used_again |= record.reused
                if record.reused and not records[-1].reused:
                    resumed = len(records)
                bar.block(record)
            if block.frames.shape[1]:
                video.add(block.frames)
            if block.frames.shape[1] and len(runs) > 1:
                levels.setdefault(block.run, []).append(levels_of(block.frames))
            if record:
                yield records[-1]

    block_frames = runs[0].plan.spans[0].frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": digest}
    parts = [History(of_run).latents(0, of_run[-1].span.stop) for of_run in made.values()]
    latents = torch.cat([part.to(parts[-1]) for part in parts], dim=2)
    firsts = (0, *accumulate(part.shape[2] for part in parts[:-1]))
    noted |= lead_metadata(runs[0].plan.lead, latents)
    noted |= shots_metadata(
        [
            SavedShot(resolved.shot, first, run.plan.lead.start_image_frames)
            for resolved, run, first in zip(film.runs, runs, firsts, strict=False)
        ]
    )
    save_latents(work / LATENTS, latents, noted)
    more = []
    if film.sound and (problem := add_sound(work / VIDEO, film.sound)):
        more.append(problem)
    if reuse and not used_again:
        more.append("Nothing of the earlier video could be used again: it followed from something else.")
    more += _notes_on_files(resumed, blocks.damaged)
    texts = [condition.text for _, condition in conditions.entries]
    return assemble_report(
        runs,
        records,
        loaded.settings,
        fps=request.fps,
        versions=versions_on(loaded.settings["device"]),
        notes=(*film.notes, *notes_on(loaded.execution, loaded.scorer, texts, loaded.notes), *more),
        request=as_json(request),
        load=load_as_json(loaded.options),
        joins=joins([torch.cat(of_shot).cpu() for of_shot in levels.values()]),
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
