"""One video: from loaded models and a request to the output files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..causal_wan.generator import go_on
from ..devices.device import device_clock
from ..devices.environment import versions_on
from ..engine.parts import Engine
from ..engine.records import BlockRecord
from ..engine.run import Made, Run, plan_run
from ..engine.types import Span
from ..errors import BadInput
from ..files.outputs import LATENTS, PICTURE, REPORT, VIDEO, Staging
from ..files.video import Mp4Writer
from ..report.assemble import assemble_report, notes_on
from ..report.picture import route_picture
from ..report.run_report import RunReport
from ..text.prompts import Conditions
from .journal import Entry, Journal
from .latents import save_latents
from .loading import Loaded
from .request import Beginning, VideoRequest


def render(
    loaded: Loaded,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    staging: Staging,
    journal: Journal,
    on_block: Callable[[BlockRecord], None],
    *,
    on_pass: Callable[[str], None] = go_on,
    prompt_in_report: bool = False,
) -> RunReport:
    """Make one video; write video, latents, report and picture into `staging`; return the report.

    Each block goes into `journal` once it is committed; blocks already in there are not made again. `on_pass`:
    called before every forward pass. `prompt_in_report`: also in the picture; without it, each prompt is hashed.
    """
    run = _plan(loaded, loaded.build(before_pass=on_pass), request, beginning, conditions, journal.before)
    records = [entry.record for entry in journal.before]
    with Mp4Writer(staging.path(VIDEO), request.fps) as video:
        timeline = run.nothing
        for after, frames in run.replay():
            video.add(frames)
            timeline = after
        for emitted in run.blocks(timeline):
            journal.add(emitted.block.latents, emitted.record)
            video.add(emitted.frames)
            records.append(emitted.record)
            timeline = emitted.timeline
            on_block(emitted.record)

    block_frames = run.engine.target.block_frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": journal.digest}
    save_latents(staging.path(LATENTS), timeline.history.latents(0, timeline.history.frames), noted)
    report = _report(loaded, run, request, conditions, records, len(journal.before))
    if not prompt_in_report:
        report = report.without_prompts()
    staging.path(REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(report).save(staging.path(PICTURE), format="PNG")
    return report


def _plan(
    loaded: Loaded,
    engine: Engine,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    entries: Sequence[Entry],
) -> Run:
    run = plan_run(
        engine,
        request.router,
        conditions,
        blocks=request.blocks,
        seed=request.seed,
        width=beginning.width,
        height=beginning.height,
        drafter_context=request.drafter_context,
        given=beginning.clip if beginning.image is None else engine.codec.encode(beginning.image),
        made=[Made(latents=entry.latents, decision=entry.record.decision) for entry in entries],
        ahead=loaded.device if loaded.parts.execution.overlap else None,
        clock=device_clock(loaded.device, loaded.side),
    )
    _check_unfinished(entries, run.spans)
    return run


def _check_unfinished(entries: Sequence[Entry], spans: Sequence[Span]) -> None:
    for number, entry in enumerate(entries):
        if number >= len(spans) or entry.record.span != spans[number]:
            raise BadInput(
                f"block {number + 1} of the unfinished video is not the one this request has there; leave "
                "--resume out to start over"
            )


def _report(
    loaded: Loaded,
    run: Run,
    request: VideoRequest,
    conditions: Conditions,
    records: Sequence[BlockRecord],
    resumed: int,
) -> RunReport:
    texts = [condition.gate_text for _, condition in conditions.entries]
    notes = notes_on(loaded.parts.execution, loaded.scorer, texts, loaded.kernel_notes)
    if resumed:
        notes += (f"Blocks 1 to {resumed} of this run were made before it was interrupted; it was then resumed.",)
    return assemble_report(
        run,
        records,
        loaded.parts,
        fps=request.fps,
        versions=versions_on(loaded.parts.device),
        notes=notes,
        continue_from=request.continue_from.name if request.continue_from else None,
        start_image=request.start_image.name if request.start_image else None,
    )
