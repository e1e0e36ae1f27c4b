"""Time every route with models of random weights: nothing is downloaded, nothing is written.

At full scale the 14B and 1.3B transformers, the Wan VAE and ImageReward on a CUDA device; at tiny scale the same in
seconds on any machine, as a check that the numbers are complete, not that they are fast.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..bench.execution import EXECUTIONS, Case, Execution, cases
from ..bench.gauges import gauge_of
from ..bench.measure import WARM_UP_SCRIPT, Sample, Studio, one_of_each, rounds
from ..bench.models import random_models
from ..bench.results import SCHEMA, conditions, summarise_cases, summarise_memory
from ..bench.routes import Route, default_routes, parse_route
from ..bench.scales import SCALES, Scale
from ..bench.table import result_text
from ..errors import BadInput
from ..loading import DTYPES, check_device, device_clock
from ..plan import PlanRequest, plan, plan_text
from ..plan.setting import Setting, Sizes, most, step_parts
from ..plan.sizes import GB

INTERRUPTED = 130
NOTE = "Weights are random and decisions scripted: these are times, and say nothing about quality."
SERIAL_NOTE = "Every part waits for the device before it is booked; parts add up to a little less than the video."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="size of models and video")
    parser.add_argument(
        "--routes",
        nargs="+",
        metavar="ROUTE",
        help="target-only, draft-only, anchor-only, bail-out, or r=N: N rejected blocks (default: the usual)",
    )
    parser.add_argument(
        "--executions",
        nargs="+",
        choices=list(EXECUTIONS),
        default=list(EXECUTIONS),
        help="ours, and the authors' order of work (default: both)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all routes (default 3)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of a video (default 9)")
    parser.add_argument("--size", metavar="WxH", help="pixels (default 832x480; 32x16 at tiny scale)")
    parser.add_argument("--device", help="cuda, cuda:1 ... (default cuda; cpu at tiny scale)")
    names = list(DTYPES)
    parser.add_argument("--dtype", choices=names, help="of the transformers (default bfloat16; float32 when tiny)")
    parser.add_argument("--vae-dtype", choices=names, help="default float16; float32 when tiny")
    parser.add_argument("--reward-dtype", choices=names, help="default float32")
    parser.add_argument("--fp8", action="store_true", help="keep the target's linear weights in fp8")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")


def run(options: argparse.Namespace) -> int:
    """Make the models, warm up, go round the routes, and print what there is, complete or not."""
    if options.repeats < 1:
        raise BadInput(f"expected --repeats of at least 1, but got {options.repeats}; ask for 1 or more")
    scale = SCALES[options.scale]
    request = _request(options, scale.request)
    routes, executions = _routes(options, request.blocks), tuple(EXECUTIONS[name] for name in options.executions)
    device = _device(options.device or scale.device, scale)
    _check_room(request, device, options.fp8)
    try:
        return _bench(options, request, device, cases(routes, executions))
    except torch.OutOfMemoryError as error:
        raise _no_room(request, device, "ran out on the way") from error


def _bench(options: argparse.Namespace, request: PlanRequest, device: torch.device, todo: Sequence[Case]) -> int:
    say: Callable[[str], None] = partial(print, file=sys.stderr, flush=True)
    samples: dict[Case, list[Sample]] = {case: [] for case in todo}
    peaks: dict[Execution, dict[str, int]] = {}
    say(f"making {request.drafter.size} and {request.target.size} models on {device}")
    models = random_models(request, device, fp8=options.fp8)
    studio = Studio(models=models, request=request, clock=device_clock(device), gauge=gauge_of(device))
    interrupted = False
    try:
        for case in one_of_each(todo):
            say(f"warming up, {case.execution.name}")
            peaks[case.execution] = studio.warm_up(case)
        for number, (case, sample) in enumerate(rounds(studio, todo, options.repeats), 1):
            samples[case].append(sample)
            name = f"{case.route.name}, {case.execution.name}"
            say(f"video {number}/{len(todo) * options.repeats}: {name}: {sample.video:.3f} s")
    except KeyboardInterrupt:
        interrupted = True
        say("sdvg: interrupted; what follows is what there is")
    executions = tuple(dict.fromkeys(case.execution for case in todo))
    result = {
        "benchmark": "sdvg",
        "schema": SCHEMA,
        "scale": options.scale,
        "width": request.width,
        "height": request.height,
        "blocks": request.blocks,
        "repeats": options.repeats,
        "warm_up_blocks": len(WARM_UP_SCRIPT),
        "interrupted": interrupted,
        "conditions": conditions(request, device, executions, fp8=options.fp8),
        "cases": summarise_cases(samples),
        "memory": summarise_memory(models, request, peaks, fp8=options.fp8),
        "notes": [NOTE, SERIAL_NOTE],
    }
    print(json.dumps(result, allow_nan=False) if options.json else result_text(result))
    return INTERRUPTED if interrupted else 0


def _request(options: argparse.Namespace, base: PlanRequest) -> PlanRequest:
    given = {name: getattr(options, name) for name in ("blocks", "dtype", "vae_dtype", "reward_dtype")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.size:
        changes["width"], changes["height"] = parse_size(options.size)
    if changes.get("reward_dtype") == "bfloat16":
        raise BadInput("expected --reward-dtype float32 or float16, but got bfloat16; use float16")
    return replace(base, **changes)


def parse_size(text: str) -> tuple[int, int]:
    """Read a size such as 832x480. Raises `BadInput` if it is none."""
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise BadInput(f"expected a size such as 832x480, but got {text!r}; give width, x and height in pixels")
    return int(width), int(height)


def _routes(options: argparse.Namespace, blocks: int) -> tuple[Route, ...]:
    if not options.routes:
        return default_routes(blocks)
    return tuple(parse_route(name, blocks) for name in dict.fromkeys(options.routes))


def _device(name: str, scale: Scale) -> torch.device:
    if scale.device == "cuda" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise BadInput(
            f"expected a CUDA device for the full-size models, but got {name} and "
            f"{'there is one' if torch.cuda.is_available() else 'there is none here'}; bench --scale tiny runs on "
            "any machine, and so do plan, demo, study and doctor"
        )
    return check_device(name)


def _check_room(request: PlanRequest, device: torch.device, fp8: bool) -> None:
    """Refuse, with the plan for this device, what would run out of memory."""
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    needed = most(step_parts(request, Sizes.of(request, fp8=fp8), Setting(fp8=fp8)))
    if needed > free:
        raise _no_room(request, device, f"has {free / GB:.1f} GB free of the {needed / GB:.1f} GB that are needed")


def _no_room(request: PlanRequest, device: torch.device, why: str) -> BadInput:
    free, _ = torch.cuda.mem_get_info(device)
    print(plan_text(plan(max(free / GB, 0.1), request)), file=sys.stderr)
    return BadInput(
        f"expected room on {device} for all models at once, for the benchmark moves nothing, but it {why}; add "
        "--fp8, or take a smaller --size"
    )
