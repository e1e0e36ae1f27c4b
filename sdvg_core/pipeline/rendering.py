"""One video: from loaded models and a request to the output files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..causal_wan.generator import go_on
from ..devices.device import device_clock, versions_on
from ..engine.protocols import Engine
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse
from ..engine.run import Run, make_run
from ..engine.store import Store
from ..errors import BadInput
from ..files.outputs import BLOCKS, LATENTS, PICTURE, REPORT, VIDEO, Staging
from ..files.video import Mp4Writer
from ..report.assemble import FAST_NOTE, assemble_report, notes_on
from ..report.picture import route_picture
from ..report.run_report import RunReport
from ..text.prompts import Conditions
from .journal import Entry, Journal
from .latents import STILL, save_latents
from .loading import Loaded
from .request import ResolvedRequest, VideoRequest
from .results import recall_from, save_results


def render(
    loaded: Loaded,
    request: VideoRequest,
    resolved: ResolvedRequest,
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
    run = plan_video(loaded, loaded.build(before_pass=on_pass), request, resolved, conditions, store)
    _check_unfinished(journal.before, run)
    # Blocks from before this very run was interrupted keep the seconds they took.
    records = [entry.record for entry in journal.before]
    first_new = run.spans[0].index + len(records)
    comment = FAST_NOTE if loaded.parts.vae.get("tae_kind") else None
    with Mp4Writer(staging.path(VIDEO), request.fps, comment) as video:
        began = None
        for shown in run.play(stop):
            block = shown.timeline.history.blocks[-1]
            if shown.record and block.span.index >= first_new:
                journal.add(block.latents, shown.record)
                records.append(shown.record)
                on_block(shown.record)
            if shown.left:
                began = began or run.clock()
                on_delivery(shown.left)
            for delivered in shown.delivered:
                video.add(delivered.frames())
        delivery_seconds = (run.clock() - began if began else 0.0) if loaded.parts.judge else None

    block_frames = run.engine.target.block_frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": journal.digest}
    if run.still:
        noted[STILL] = run.still
    history = shown.timeline.history
    save_latents(staging.path(LATENTS), history.latents(0, history.frames), noted)
    save_results(staging.path(BLOCKS), store.newest, loaded.by_files)
    report = replace(
        _report(loaded, run, request, resolved, conditions, records, len(journal.before), reuse),
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
    resolved: ResolvedRequest,
    conditions: Conditions,
    store: Store | None = None,
) -> Run:
    """Return the run of a request. `store`: where blocks are taken from and put; None to do neither."""
    return make_run(
        engine,
        resolved.plan,
        conditions,
        seed=request.seed,
        width=resolved.width,
        height=resolved.height,
        drafter_context=request.drafter_context,
        given=resolved.given(engine.codec),
        reuse=None if store is None else Reuse(store=store, identities=loaded.identify()),
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
    resolved: ResolvedRequest,
    conditions: Conditions,
    records: Sequence[BlockRecord],
    resumed: int,
    reuse: Path | None,
) -> RunReport:
    texts = [condition.gate_text for _, condition in conditions.entries]
    notes = resolved.notes + notes_on(loaded.parts.execution, loaded.scorer, texts, loaded.notes)
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
