"""Make videos from prompts.

Writes video.mp4, latents.safetensors, report.json and route.png into the output folder; with a list of prompts,
into one numbered folder each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ..loading import Loaded, LoadOptions, check_models, encode_prompts, load_engine
from ..model_files import ModelFiles
from ..outputs import check_writable, staged_outputs
from ..progress import RouteBar
from ..prompts import PromptSchedule, one_prompt, read_prompt_list, read_prompt_schedule
from ..rendering import VideoRequest, render
from ..report import RunReport
from ..summary import summarise
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
    reports = make_videos(model_files(options), load, request, prompts, options.output, options.gate_prompt)
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


def make_videos(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompts: tuple[PromptSchedule, ...],
    output: Path,
    gate_prompt: str | None = None,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make a video for each entry of `prompts`; return its folder and report."""
    checked = check_models(files, load)
    steps = _Relay()
    embeddings = encode_prompts(files, (text for p in prompts for text in p.texts), load)
    loaded = load_engine(files, load, checked, steps)
    made = []
    for number, prompt in enumerate(prompts, 1):
        folder = output if len(prompts) == 1 else output / f"{number:04d}"
        with staged_outputs(folder) as staging, closing(_bar(request, loaded)) as bar:
            steps.listener = bar.step
            report = render(loaded, request, prompt.conditions(embeddings, gate_prompt), staging, bar.block)
        made.append((folder, report))
    return made


def _bar(request: VideoRequest, loaded: Loaded) -> RouteBar:
    return RouteBar(request.blocks, steps=len(loaded.engine.target.timesteps))


class _Relay:
    """Passes on what the generators report to the bar of the video at hand."""

    listener: Callable[[str], None] | None = None

    def __call__(self, kind: str) -> None:
        if self.listener:
            self.listener(kind)
