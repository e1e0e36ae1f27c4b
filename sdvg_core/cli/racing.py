"""The work of `demo`: three videos of one prompt, a block of each in turn, and the race that compares them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from ..devices.device import device_line, resolved_threads
from ..engine.records import BlockRecord
from ..engine.run import Run
from ..errors import count
from ..files.outputs import LATENTS, whole_file
from ..files.video import Mp4Writer
from ..loading.headers import FileHeaders, check_models
from ..loading.load import load_decoder
from ..pocket.figures import figures_of
from ..pocket.grammar import understand
from ..pocket.race import Lane, cost_of, race_frames
from ..pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from ..pocket.world import Scene
from ..report.run_report import RunReport
from ..report.summary import route_in_words
from ..settings.route import First, Route, TargetOnly
from ..text.prompts import one_prompt
from ..videos.asked import Batch
from ..videos.batch import BatchPlan, plan_videos
from ..videos.film import resolve_film
from ..videos.folders import State
from ..videos.maker import StopRequest, VideoMaker, make_videos, show_bar
from ..videos.rendering import finished
from ..weights.latents import load_latents
from .making import IN_WORLD, exit_code, say, warn
from .options import video_request

COMPARISON = "comparison.mp4"
SMALL_ALONE = "Small model alone"
BOTH_MODELS = "Both"
LARGE_ALONE = "Large model alone"
ALONE = {SMALL_ALONE: Route(First(0)), LARGE_ALONE: Route(TargetOnly())}
"""The routes of one model."""


def demo(options: argparse.Namespace, prompt: str) -> int:
    """Make the demo's video and its race; return the exit code."""
    scene, note = understand(prompt)
    if note:
        warn(note)
    with resolved_threads(embedded=True):
        return _demo(options, scene)


def _demo(options: argparse.Namespace, scene: Scene) -> int:
    request = video_request(options, IN_WORLD)
    load = pocket_options()
    say(device_line(load.device, load.dtype))
    stopping = StopRequest()
    batch = Batch(
        files=replace(trained_set(), vae=pocket_fast_vae()),
        load=load,
        request=request,
        prompts=(one_prompt(scene.text),),
        output=options.output or Path("out/demo"),
        named=options.output is not None,
        overwrite=options.overwrite,
    )
    say(f"Two tiny models, a small and a large one, will make {count(request.blocks, 'block')} of {scene.text!r}.")
    lanes: tuple[Lane, ...] = ()
    with plan_videos(batch) as planned:
        (video,) = planned.videos
        is_new = video.state is State.NEW
        if is_new:
            for note in planned.notes:
                warn(note)
            say(
                "The small one alone, both, and the large one alone each make a block in turn, from the same noise."
            )
            report, lanes = _race(batch, planned, scene, stopping)
            folder = video.folder
    if not is_new:
        ((folder, report),) = make_videos(batch, stopping=stopping, say=say, warn=warn, bars=sys.stderr)
    if lanes:
        with whole_file(folder / COMPARISON) as path, Mp4Writer(path, report.fps) as film:
            for frame in race_frames(lanes, scene.text, report.fps):
                film.add(frame)
        _print_race(lanes)
    elif options.overwrite:  # the comparison there is of an earlier video
        (folder / COMPARISON).unlink(missing_ok=True)
    route = route_in_words(report)
    say(f"{route[0].upper()}{route[1:]}.")
    has_race = (folder / COMPARISON).exists()
    if not has_race and not stopping.asked:
        say("There is no race, as this video was begun before; add --overwrite to make it anew, with the race.")
    shown = f"{COMPARISON} shows the race, " if has_race else ""
    say(f"Look at {folder}: {shown}video.mp4 both models' video, route.png who made which block, report.json all.")
    return exit_code(stopping, whole=len(report.blocks) == request.blocks)


def _race(
    batch: Batch, planned: BatchPlan, scene: Scene, stopping: StopRequest
) -> tuple[RunReport, tuple[Lane, ...]]:
    """Make three videos, a block of each in turn; return the report of both models' and the lanes.

    The two others are not written. Each has its own contexts and decoder state, and re-uses nothing. If the run was
    stopped, there are no lanes.
    """
    (video,) = planned.videos
    request = batch.request
    headers = check_models(batch.files, batch.load)
    presets = {role: model.preset for role, model in headers.models.items()}
    maker = _load(batch, planned, headers)
    embeddings = planned.embed()
    conditions = video.prompt.conditions(embeddings)
    for route in ALONE.values():  # what is called first takes longer
        for _ in maker.run_of(replace(request, route=route, blocks=1), conditions).blocks():
            pass
    latents: dict[str, list[Tensor]] = {title: [] for title in ALONE}
    alone = {
        title: _blocks_of(maker.run_of(replace(request, route=route), conditions), latents[title])
        for title, route in ALONE.items()
    }
    bar = show_bar(video, 1, sys.stderr)
    both = maker.make_blocks(video, embeddings, bar, lambda: stopping.asked)
    turns = {SMALL_ALONE: alone[SMALL_ALONE], BOTH_MODELS: both, LARGE_ALONE: alone[LARGE_ALONE]}
    records: dict[str, list[BlockRecord]] = {title: [] for title in turns}
    with stopping.listen(), closing(both):
        while len(records[LARGE_ALONE]) < request.blocks and not stopping.asked:
            for title, blocks in turns.items():
                records[title].append(next(blocks))
        report = finished(both)
    if stopping.asked:
        return report, ()
    # The VAE decodes what is shown, as the TAEHV, whose time is measured, blurs a clip's first frame.
    codec = load_decoder(trained_set().vae, batch.load)
    clips = {title: torch.cat(parts, dim=2) for title, parts in latents.items()}
    clips[BOTH_MODELS] = load_latents(video.folder / LATENTS).latents
    frames = {title: codec.decode(clip)[0][0] for title, clip in clips.items()}
    whole = cost_of(records[LARGE_ALONE], presets)
    return report, tuple(
        Lane(
            _title(title, records[title]),
            frames[title],
            tuple(records[title]),
            costs=tuple(cost_of(records[title][: made + 1], presets) / whole for made in range(request.blocks)),
            figures=figures_of(frames[title], scene, _seams(records[title])),
        )
        for title in turns
    )


def _seams(records: Sequence[BlockRecord]) -> tuple[int, ...]:
    """Return the first pixel frames of all blocks but the first."""
    return tuple(accumulate(record.pixel_frames for record in records[:-1]))


def _title(title: str, records: Sequence[BlockRecord]) -> str:
    by_large = sum(record.author == "target" for record in records)
    return (
        f"{title}: {by_large} of {count(len(records), 'block')} by the large one" if title == BOTH_MODELS else title
    )


def _load(batch: Batch, planned: BatchPlan, headers: FileHeaders) -> VideoMaker:
    """Load both models, and the scorer if the route asks for it."""
    files = replace(planned.batch.files, drafter=batch.files.drafter, target=batch.files.target)
    batch = replace(planned.batch, files=files)
    return VideoMaker(batch, headers, None, cache(partial(resolve_film, headers=headers)))


def _blocks_of(run: Run, latents: list[Tensor]) -> Iterator[BlockRecord]:
    """Make the blocks of a run; add their latents to `latents`, and yield their records."""
    for emitted in run.blocks():
        latents.append(emitted.block.latents)
        yield emitted.record


HEADS = ("", "cost", "likeness", "last block", "at its place", "last block", "seconds")


def _print_race(lanes: Sequence[Lane]) -> None:
    """Print what each video cost, how like it is to what was asked, and where its moving thing is."""
    rows = (HEADS, *map(_row, lanes))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for title, *cells in rows:
        columns = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        say("  ".join((title.ljust(widths[0]), *columns)))
    say("Likeness: to what was asked. At its place: in how many frames the moving thing is where it should be.")


def _row(lane: Lane) -> tuple[str, ...]:
    """Return the cells of a video in the table of the race."""
    figures = lane.figures
    likeness = (f"{figures[name]:.1f} dB" for name in ("quality", "last_block_quality"))
    places = (_share(figures[name]) for name in ("at_its_place", "last_block_at_its_place"))
    return lane.title, f"{lane.cost:.0%}", *likeness, *places, f"{lane.seconds:.2f}"


def _share(value: float) -> str:
    """Return a share as text; none, if no frame counts."""
    return "-" if math.isnan(value) else f"{value:.0%}"
