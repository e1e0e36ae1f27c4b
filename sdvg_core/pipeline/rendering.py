"""One video: from loaded models and a request to the output files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..causal_wan.generator import go_on
from ..devices.device import device_clock, versions_on
from ..engine.delivery import InOrder
from ..engine.parts import Engine
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse
from ..engine.run import Run, plan_run
from ..engine.store import Store
from ..errors import BadInput
from ..files.outputs import BLOCKS, LATENTS, PICTURE, REPORT, VIDEO, Staging
from ..files.video import Mp4Writer
from ..report.assemble import FAST_NOTE, assemble_report, notes_on
from ..report.picture import route_picture
from ..report.run_report import RunReport
from ..text.prompts import Conditions
from .journal import Entry, Journal
from .latents import save_latents
from .loading import Loaded
from .request import Beginning, VideoRequest
from .results import recall_from, save_results


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
    on_delivery: Callable[[int], None] = lambda blocks_left: None,
    reuse: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    private: bool = False,
) -> RunReport:
    """Make one video; write video, latents, report, picture and blocks into `staging`; return the report.

    Each block goes into `journal` once it is committed; blocks already in there are not made again, nor those of
    the video in the folder `reuse`. `on_pass`: called before every forward pass; `on_delivery`: before every block
    that is decoded after the last one was made, with how many there are left. `stop`: asked after every block
    whether to end there. `private`: whether the report has a hash in place of each prompt; the picture has none.
    """
    store = Store()
    if reuse:
        recall_from(reuse, store)
    journal.follow(store)
    store.begin_run()
    journal.made_with(loaded.identify())
    run = plan_video(loaded, loaded.build(before_pass=on_pass), request, beginning, conditions, store)
    _check_unfinished(journal.before, run)
    # Blocks from before this very run was interrupted keep the seconds they took.
    records = [entry.record for entry in journal.before]
    for block, record in list(zip(run.reused_blocks, run.reused, strict=True))[len(records) :]:
        journal.add(block.latents, record)
        records.append(record)
        on_block(record)
    comment = FAST_NOTE if loaded.parts.vae.get("tae_kind") else None
    with Mp4Writer(staging.path(VIDEO), request.fps, comment) as video:
        timeline, pixels = run.nothing, InOrder(video.add)
        for again in run.replay():
            pixels.add(again.delivered)
            timeline = again.timeline
        for emitted in run.blocks(timeline):
            journal.add(emitted.block.latents, emitted.record)
            pixels.add(emitted.delivered)
            records.append(emitted.record)
            timeline = emitted.timeline
            on_block(emitted.record)
            if stop():
                break
        began = run.clock()
        for blocks_left in pixels.finish():
            on_delivery(blocks_left)
        delivery_seconds = run.clock() - began if loaded.parts.judge else None

    block_frames = run.engine.target.block_frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": journal.digest}
    save_latents(staging.path(LATENTS), timeline.history.latents(0, timeline.history.frames), noted)
    save_results(staging.path(BLOCKS), store.newest, loaded.by_files)
    report = replace(
        _report(loaded, run, request, beginning, conditions, records, len(journal.before), reuse),
        delivery_seconds=delivery_seconds,
    )
    hidden = report.without_prompts()
    report = hidden if private else report
    staging.path(REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(hidden).save(staging.path(PICTURE), format="PNG")
    return report


def plan_video(
    loaded: Loaded,
    engine: Engine,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    store: Store | None = None,
) -> Run:
    """Return the run of a request. `store`: where blocks are taken from and put; None to do neither."""
    return plan_run(
        engine,
        beginning.router,
        conditions,
        blocks=request.blocks,
        seed=request.seed,
        width=beginning.width,
        height=beginning.height,
        drafter_context=request.drafter_context,
        given=beginning.clip if beginning.image is None else engine.codec.encode(beginning.image),
        directions=request.directions,
        takes=request.takes,
        reuse=None if store is None else Reuse(store=store, identities=loaded.identify()),
        ahead=loaded.device if loaded.parts.execution.overlap else None,
        side=loaded.side,
        clock=device_clock(loaded.device, loaded.side),
    )


def _check_unfinished(entries: Sequence[Entry], run: Run) -> None:
    for number, entry in enumerate(entries):
        if number >= len(run.reused) or entry.record.span != run.reused[number].span:
            raise BadInput(
                f"block {number + 1} of the unfinished video is not the one this request has there; name another "
                "folder to start over"
            )


def _report(
    loaded: Loaded,
    run: Run,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    records: Sequence[BlockRecord],
    resumed: int,
    reuse: Path | None,
) -> RunReport:
    texts = [condition.gate_text for _, condition in conditions.entries]
    notes = beginning.notes + notes_on(loaded.parts.execution, loaded.scorer, texts, loaded.notes)
    if reuse and not run.reused:
        notes += ("Nothing of the earlier video could be used again: it followed from something else.",)
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
