"""Carry out `bench`: time every route with randomly initialised models."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch

from sdvg_core.causal_wan.backends import choose_attention
from sdvg_core.choices import AUTO
from sdvg_core.devices.compiling import check_compile
from sdvg_core.devices.device import check_device, device_clock
from sdvg_core.devices.dtypes import DTYPES
from sdvg_core.devices.execution import Execution
from sdvg_core.errors import BadInput
from sdvg_core.plan import PlanRequest

from .check import compare_videos, video_of
from .gauges import gauge_of
from .measure import Bench, Sample, WarmUp, rounds
from .models import Models, random_models
from .results import SCHEMA, conditions, summarise_cases, summarise_memory
from .room import check_room, no_room, room_for
from .routes import Route, default_routes, parse_route
from .scales import SCALES, Scale
from .table import check_text, result_text
from .variants import OURS, Case, Variant, cases, parse_variant, set_up

INTERRUPTED = 130
NOTE = "Weights are random and decisions scripted: the times are real, but they say nothing about quality."
CHECK_ROUTE = "r=2"
SERIAL_NOTE = (
    "Each part is timed after the device has finished it; the parts add up to a little less than the video."
)


def run(options: argparse.Namespace) -> int:
    """Make the models, warm up, run the routes, and print the results, complete or not."""
    if options.repeats < 1:
        raise BadInput(f"--repeats must be at least 1, but is {options.repeats}; ask for 1 or more")
    scale = SCALES[options.scale]
    request = _request(options, scale.request)
    routes = _routes(options, scale, request.blocks)
    variants = _variants(options.executions, request)
    device = _device(scale.device if options.device == AUTO else options.device, scale)
    beside = _device(options.side_device, scale) if options.side_device else device
    for model in (request.drafter, request.target):
        choose_attention(options.attention, device=device, dtype=DTYPES[request.dtype], head_dim=model.head_dim)
    for variant in variants:
        check_compile(variant.execution.compile, device)
    room = room_for(request, variants, side=beside != device)
    check_room(room, device, beside, options.fp8)
    carry_out = _check if options.check else _bench
    try:
        return carry_out(options, request, (device, beside), cases(routes, variants))
    except torch.OutOfMemoryError as error:
        raise no_room(room, device, f"{device} ran out during the run") from error


Devices = tuple[torch.device, torch.device]
"""One for the transformers, one for VAE and scorer."""


def _bench(options: argparse.Namespace, request: PlanRequest, devices: Devices, todo: Sequence[Case]) -> int:
    samples: dict[Case, list[Sample]] = {case: [] for case in todo}
    warm_ups: dict[str, WarmUp] = {}
    models, bench = _open(options, request, devices, todo)

    def show(*, interrupted: bool) -> None:
        result = {
            "benchmark": "sdvg",
            **_asked(options, request),
            "repeats": options.repeats,
            "warm_up_seconds": {name: done.seconds for name, done in warm_ups.items()},
            "interrupted": interrupted,
            "conditions": conditions(request, models, bench.setups, fp8=options.fp8),
            "cases": summarise_cases(samples),
            "memory": summarise_memory(models, request, warm_ups, fp8=options.fp8),
            "notes": [NOTE, SERIAL_NOTE],
        }
        print(json.dumps(result, allow_nan=False) if options.json else result_text(result))

    def get_ready(case: Case) -> None:
        say(f"warming up, {case.variant.name}")
        warm_ups[case.variant.name] = bench.warm_up(case)

    def work() -> None:
        for number, (case, sample) in enumerate(rounds(bench, todo, options.repeats, get_ready), 1):
            samples[case].append(sample)
            name = f"{case.route.name}, {case.variant.name}"
            say(f"video {number}/{len(todo) * options.repeats}: {name}: {sample.video:.3f} s")

    return _to_the_end(work, show, warm_ups)


def _check(options: argparse.Namespace, request: PlanRequest, devices: Devices, todo: Sequence[Case]) -> int:
    """Print how much each execution's video differs from ours, on one route. Ours is made a second time too."""
    route = parse_route(CHECK_ROUTE, request.blocks)
    ours = parse_variant(OURS.name, request.execution)
    asked = [case.variant for case in todo if not case.variant.as_published]
    checked = [Case(route=route, variant=variant) for variant in dict.fromkeys((ours, *asked))]
    models, bench = _open(options, request, devices, checked)
    found: list[dict[str, Any]] = []

    def show(*, interrupted: bool) -> None:
        result = {
            "benchmark": "sdvg check",
            **_asked(options, request),
            "route": route.script,
            "interrupted": interrupted,
            "conditions": conditions(request, models, bench.setups, fp8=options.fp8),
            "checks": found,
        }
        print(json.dumps(result, allow_nan=False) if options.json else check_text(result))

    def work() -> None:
        plain = video_of(bench, checked[0])
        for case in checked:
            say(f"making {route.name}, {case.variant.name}")
            found.append({"execution": case.variant.name, **compare_videos(plain, video_of(bench, case))})

    return _to_the_end(work, show, found)


def _to_the_end(work: Callable[[], None], show: Callable[..., None], done: Sized) -> int:
    """Do the work and show the result. If it is interrupted or fails, show what is `done` so far."""
    try:
        work()
    except KeyboardInterrupt:
        say("sdvg: interrupted; these are the results so far")
        show(interrupted=True)
        return INTERRUPTED
    except Exception:
        # One execution that fails should not cost us minutes of measurements.
        if done:
            show(interrupted=True)
        raise
    show(interrupted=False)
    return 0


def _asked(options: argparse.Namespace, request: PlanRequest) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "scale": options.scale,
        "width": request.width,
        "height": request.height,
        "blocks": request.blocks,
    }


def _open(
    options: argparse.Namespace, request: PlanRequest, devices: Devices, todo: Sequence[Case]
) -> tuple[Models, Bench]:
    device, beside = devices
    say(f"making {request.drafter.size} and {request.target.size} models on {device}, VAE and scorer on {beside}")
    models = random_models(request, device, beside, fp8=options.fp8)
    variants = dict.fromkeys(case.variant for case in todo)
    bench = Bench(
        setups=set_up(variants, models, request),
        request=request,
        clock=device_clock(*devices),
        model_clock=device_clock(device),
        gauge=gauge_of(*devices),
    )
    return models, bench


def _variants(names: Sequence[str], request: PlanRequest) -> tuple[Variant, ...]:
    return tuple(parse_variant(name, request.execution) for name in dict.fromkeys(names))


def say(text: str) -> None:
    """Report progress on stderr, apart from the results on stdout."""
    print(text, file=sys.stderr, flush=True)


def _request(options: argparse.Namespace, base: PlanRequest) -> PlanRequest:
    given = {name: getattr(options, name) for name in ("blocks", "dtype", "vae_dtype", "reward_dtype")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changes["execution"] = Execution(attention=options.attention, kv_dtype=options.kv_dtype)
    if options.size:
        changes["width"], changes["height"] = parse_size(options.size)
    if changes.get("reward_dtype") == "bfloat16":
        raise BadInput("the scorer runs in float32 or float16, but --reward-dtype is bfloat16; use float16")
    return replace(base, **changes)


def parse_size(text: str) -> tuple[int, int]:
    """Read a size such as 832x480. Raises `BadInput` if `text` is not one."""
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise BadInput(f"a size reads such as 832x480, but got {text!r}; give width, x and height in pixels")
    return int(width), int(height)


def _routes(options: argparse.Namespace, scale: Scale, blocks: int) -> tuple[Route, ...]:
    if not options.routes:
        return default_routes(blocks, scale.routes)
    return tuple(parse_route(name, blocks) for name in dict.fromkeys(options.routes))


def _device(name: str, scale: Scale) -> torch.device:
    if scale.device == "cuda" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise BadInput(
            f"the full-size models need a CUDA device, but got {name} and "
            f"{'there is one' if torch.cuda.is_available() else 'this machine has none'}; bench --scale "
            "proportional and bench --scale tiny run on any machine, and so do plan, demo, study and doctor"
        )
    return check_device(name)
