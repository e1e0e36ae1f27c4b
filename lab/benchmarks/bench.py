"""Time every route with randomly initialised models. Downloads nothing and writes nothing.

Full scale runs the 14B and 1.3B transformers, the Wan VAE and ImageReward on a CUDA device. Tiny scale runs
anywhere in seconds, to check that the numbers are complete, not that they are fast.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch

from sdvg_core.causal_wan.attention import choose_attention
from sdvg_core.cli import INTERRUPTED, Parser
from sdvg_core.devices.compiling import check_compile
from sdvg_core.devices.device import DTYPES, check_device, device_clock
from sdvg_core.errors import BadInput
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.settings.execution import AUTO, AttentionChoice, Execution, KvDtype
from tests.support.random_models import SCALES, random_models

from .measure import Bench, Gauge, Sample, WarmUp, rounds
from .results import SCHEMA, conditions, result_text, summarise_cases, summarise_memory
from .variants import (
    MARKS,
    OURS,
    Case,
    default_routes,
    parse_route,
    parse_variant,
    set_up,
)

NOTES = [
    "Weights are random and decisions planned: the times are real, but they say nothing about quality.",
    "Each part is timed after the device has finished it; the parts add up to a little less than the video.",
]


def make_parser() -> Parser:
    """Return the parser of the benchmark's options."""
    parser = Parser(prog="python -m lab.benchmarks", description=__doc__)
    option = parser.add_argument
    option("--scale", choices=SCALES, default="full", help="size of the models and the video")
    option(
        "--routes",
        nargs="+",
        metavar="ROUTE",
        help="target-only, draft-only, anchor-only, r=N: N rejected blocks, cascade=N: the same by four "
        "frames, first=M: M blocks by the target, stride=N: every Nth; with +K, K steps of each but the first are "
        "handed over (default: the scale's)",
    )
    option(
        "--executions",
        nargs="+",
        default=[OURS.name],
        metavar="EXECUTION",
        help=f"ours (the default), or options that make it faster: {', '.join(MARKS)}, also joined by +",
    )
    option("--repeats", type=int, default=3, help="rounds over all routes (default 3)")
    option("--blocks", type=int, default=9, help="blocks of a video (default 9)")
    option("--size", metavar="WxH", help="in pixels (default 832x480; at tiny scale 32x16)")
    option("--device", default=AUTO, help="cuda, cuda:1 ... (default: cuda; cpu at tiny scale)")
    option("--dtype", choices=DTYPES, help="of the transformers (default bfloat16; at tiny scale float32)")
    option("--vae-dtype", choices=DTYPES, help="default float16; at tiny scale float32")
    option(
        "--reward-dtype",
        choices=("float32", "float16"),
        help="of the scorer (default float16; at tiny scale float32)",
    )
    option("--attention", choices=get_args(AttentionChoice), default=AUTO, help="kernel, in every execution")
    option("--kv-dtype", choices=get_args(KvDtype), default=AUTO, help="of keys and values, in every execution")
    option("--fp8", choices=("stored", "fast"), help="of the target's linear weights; fast: multiply in it")
    option("--json", action="store_true", help="print one line of JSON instead of the table")
    return parser


def bench(words: Sequence[str] | None) -> int:
    """Make the models, warm up, run the routes, and print the results, complete or not."""
    options = make_parser().parse_args(words)
    if options.repeats < 1:
        raise BadInput(f"--repeats is {options.repeats}; give 1 or more")
    request, todo = asked(options)
    variants = tuple(dict.fromkeys(case.variant for case in todo))
    device = _device(options)
    for model in (request.drafter.config, request.target.config):
        choose_attention(options.attention, device=device, dtype=DTYPES[request.dtype], head_dim=model.head_dim)
    for variant in variants:
        check_compile(variant.execution.compile, device)
    try:
        return _run(options, request, device, todo)
    except torch.OutOfMemoryError as error:
        raise BadInput(f"{device} ran out of memory; add --fp8 stored, or a smaller --size") from error


def asked(options: argparse.Namespace) -> tuple[PlanRequest, tuple[Case, ...]]:
    """Return models and video, and every route in every execution that was asked for."""
    base = SCALES[options.scale]
    given = {name: getattr(options, name) for name in ("blocks", "dtype", "vae_dtype", "reward_dtype")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.size:
        changes["width"], changes["height"] = parse_size(options.size)
    execution = Execution(attention=options.attention, kv_dtype=options.kv_dtype)
    request = replace(base, execution=execution, **changes)
    names = dict.fromkeys(options.routes or ())
    routes = tuple(parse_route(name, request.blocks) for name in names) or default_routes(request.blocks)
    variants = [parse_variant(name, execution) for name in dict.fromkeys(options.executions)]
    return request, tuple(Case(route=route, variant=variant) for variant in variants for route in routes)


def parse_size(text: str) -> tuple[int, int]:
    """Read a size such as 832x480. Raises `BadInput` if `text` is not one."""
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise BadInput(f"{text!r} is no size; give width x height in pixels, as 832x480")
    return int(width), int(height)


def _device(options: argparse.Namespace) -> torch.device:
    full = options.scale == "full"
    name = options.device if options.device != AUTO else "cuda" if full else "cpu"
    if full and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise BadInput(f"the full-size models need a CUDA device, not {name}; try --scale tiny")
    return check_device(name)


def _run(options: argparse.Namespace, request: PlanRequest, device: torch.device, todo: Sequence[Case]) -> int:
    """Make the models, time the cases and print the result; what is done so far if it is interrupted or fails."""
    sizes = " and ".join(model.config.size for model in request.models.values())
    say(f"making {sizes} models on {device}")
    models = random_models(request, device, fp8=options.fp8)
    bench = Bench(
        setups=set_up(dict.fromkeys(case.variant for case in todo), models, request),
        request=request,
        clock=device_clock(device),
        gauge=Gauge(device),
    )
    samples: dict[Case, list[Sample]] = {case: [] for case in todo}
    warm_ups: dict[str, WarmUp] = {}
    interrupted = True
    try:
        _measure(bench, todo, options.repeats, samples, warm_ups)
        interrupted = False
    except KeyboardInterrupt:
        say("sdvg: interrupted; these are the results so far")
    finally:
        # One execution that fails should not cost us minutes of measurements.
        result = {
            "benchmark": "sdvg",
            "schema": SCHEMA,
            "scale": options.scale,
            **{name: getattr(request, name) for name in ("width", "height", "blocks")},
            "interrupted": interrupted,
            "conditions": conditions(request, models, bench.setups, fp8=bool(options.fp8)),
            "repeats": options.repeats,
            "warm_up_seconds": {name: seconds for name, (seconds, _) in warm_ups.items()},
            "cases": summarise_cases(samples),
            "memory": summarise_memory(models, request, warm_ups, fp8=bool(options.fp8)),
            "notes": NOTES,
        }
        print(json.dumps(result, allow_nan=False) if options.json else result_text(result))
    return INTERRUPTED if interrupted else 0


def _measure(
    bench: Bench,
    todo: Sequence[Case],
    repeats: int,
    samples: dict[Case, list[Sample]],
    warm_ups: dict[str, WarmUp],
) -> None:
    """Time every case, and write what each video took into `samples` and `warm_ups` as soon as it is made."""

    def get_ready(case: Case) -> None:
        say(f"warming up, {case.variant.name}")
        warm_ups[case.variant.name] = bench.warm_up(case)

    for number, (case, sample) in enumerate(rounds(bench, todo, repeats, get_ready), 1):
        samples[case].append(sample)
        name = f"{case.route.name}, {case.variant.name}"
        say(f"video {number}/{len(todo) * repeats}: {name}: {sample.video:.3f} s")


def say(text: str) -> None:
    """Report progress on stderr, apart from the results on stdout."""
    print(text, file=sys.stderr, flush=True)
