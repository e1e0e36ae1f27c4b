"""Make videos from prompts.

Writes video.mp4, latents.safetensors, report.json and route.png into the output folder; with a list of prompts,
into one numbered folder each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.model_files import ModelFiles
from ..errors import BadInput
from ..files.outputs import LATENTS, REPORT, check_room, check_writable, staged_outputs
from ..pipeline.identity import Identity, digest_of, identify
from ..pipeline.journal import Journal, drop_unfinished, find_unfinished
from ..pipeline.latents import load_latents
from ..pipeline.loading import Loaded, LoadOptions, check_device, check_models, encode_prompts, load_engine
from ..pipeline.rendering import VideoRequest, predict_bytes, render
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..report.summary import summarise
from ..text.prompts import Conditions, PromptSchedule, one_prompt, read_prompt_list, read_prompt_schedule
from .options import (
    add_device_options,
    add_model_options,
    add_router_options,
    add_video_options,
    load_options,
    model_files,
    video_request,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="what the video is to show")
    prompt.add_argument("--prompt-file", type=Path, help="prompts, one video per line")
    prompt.add_argument(
        "--prompt-schedule",
        type=Path,
        help="prompts of one video: per line the block (from 1) it holds from, a colon, the text",
    )
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder to write into (default ./out)")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one line a video")
    add_video_options(parser)
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--continue-from", type=Path, metavar="LATENTS", help="latents.safetensors of a clip to go on from"
    )
    begin.add_argument("--start-image", type=Path, metavar="PICTURE", help="the video's first frame")
    add_router_options(parser)
    add_model_options(parser)
    add_device_options(parser)


def run(options: argparse.Namespace) -> int:
    """Make the videos that were asked for."""
    request, load = video_request(options), load_options(options)
    prompts = read_prompts(options)
    check_writable(options.output)
    files, gate = model_files(options), options.gate_prompt
    shown = options.prompt_in_report
    reports = make_videos(
        files, load, request, prompts, options.output, gate, options.resume, prompt_in_report=shown
    )
    for folder, report in reports:
        print(json.dumps(report.as_dict()) if options.json else f"{summarise(report)}\nWritten to {folder}")
    return 0


def read_prompts(options: argparse.Namespace) -> tuple[PromptSchedule, ...]:
    """Return the prompts of each video."""
    if options.prompt_file:
        return read_prompt_list(options.prompt_file)
    if options.prompt_schedule:
        return (read_prompt_schedule(options.prompt_schedule),)
    return (one_prompt(options.prompt),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One of the videos to make: its place, its prompts, and what it follows from.

    `number`, `of`: which of how many it is. `unfinished`: the hidden folder of a run to go on with. `there`:
    whether it has been made already.
    """

    number: int
    of: int
    folder: Path
    prompt: PromptSchedule
    identity: Identity
    unfinished: Path | None = None
    there: bool = False


def make_videos(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompts: tuple[PromptSchedule, ...],
    output: Path,
    gate_prompt: str | None = None,
    resume: bool = False,
    *,
    prompt_in_report: bool = False,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make a video for each entry of `prompts`; return its folder and report.

    `resume`: go on with what stopped runs of the same request left, and leave videos that are there as they are.
    """
    check_device(load.device)
    checked = check_models(files, load)
    videos = [
        Video(
            number=number,
            of=len(prompts),
            folder=output if len(prompts) == 1 else output / f"{number:04d}",
            prompt=prompt,
            identity=identify(files, load, request, prompt, gate_prompt),
        )
        for number, prompt in enumerate(prompts, 1)
    ]
    if resume:
        videos = [_look_up(video) for video in videos]
    to_make = [video for video in videos if not video.there]
    check_room(output, len(to_make) * predict_bytes(request, files.vae, checked.target_preset.block_frames))
    made = {}
    if to_make:
        steps = _Relay()
        embeddings = encode_prompts(files, (text for v in to_make for text in v.prompt.texts), load)
        loaded = load_engine(files, load, checked, steps)
        for video in to_make:
            conditions = video.prompt.conditions(embeddings, gate_prompt)
            made[video.folder] = _make(video, loaded, request, conditions, steps, prompt_in_report)
    return [(v.folder, made[v.folder] if v.folder in made else read_report(v.folder / REPORT)) for v in videos]


def _look_up(video: Video) -> Video:
    """See what of a video is there. Raises `BadInput` if another one is in its place."""
    unfinished = find_unfinished(video.folder, video.identity)
    there = (video.folder / LATENTS).is_file() and unfinished is None
    if there and load_latents(video.folder / LATENTS).metadata.get("request") != digest_of(video.identity):
        raise BadInput(
            f"expected an unfinished video, or this one, in {video.folder}, but another one is there, whole; name "
            "another folder, or leave --resume out to replace it"
        )
    return replace(video, unfinished=unfinished, there=there)


def _make(
    video: Video,
    loaded: Loaded,
    request: VideoRequest,
    conditions: Conditions,
    steps: _Relay,
    prompt_in_report: bool,
) -> RunReport:
    with staged_outputs(video.folder, video.unfinished) as staging:
        journal = Journal(staging.journal, video.identity)
        with _hint_at_resume(video, journal, request.blocks), closing(_bar(request, loaded)) as bar:
            bar.made_before([entry.record for entry in journal.before])
            steps.listener = bar.step
            report = render(
                loaded, request, conditions, staging, journal, bar.block, prompt_in_report=prompt_in_report
            )
    drop_unfinished(video.folder, video.identity)
    return report


@contextmanager
def _hint_at_resume(video: Video, journal: Journal, blocks: int) -> Iterator[None]:
    """Whatever stops the run, say what is kept of it."""
    try:
        yield
    except BaseException:
        kept = [f"{video.number - 1} of {video.of} videos"] if video.number > 1 else []
        kept += [f"{journal.blocks} of {blocks} blocks of {video.folder}"] if journal.blocks else []
        if kept:
            print(
                f"sdvg: kept {' and '.join(kept)}; the same command with --resume goes on after that",
                file=sys.stderr,
            )
        raise


def _bar(request: VideoRequest, loaded: Loaded) -> RouteBar:
    return RouteBar(request.blocks, steps=len(loaded.engine.target.timesteps))


class _Relay:
    """Passes on what the generators report to the bar of the video at hand."""

    listener: Callable[[str], None] | None = None

    def __call__(self, kind: str) -> None:
        if self.listener:
            self.listener(kind)
