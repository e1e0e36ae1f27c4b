"""Say how the real pair fits in a GPU's memory, and how long a block would take.

Bytes are computed from the models' sizes, seconds from published rates; nothing is loaded. Without --vram, plans
for this machine's GPU, or prints a table of the usual sizes if it has none.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import get_args

from ..causal_wan.config import PUBLISHED
from ..causal_wan.presets import PRESETS, get_preset
from ..decoders import JUDGES, DecoderName
from ..devices.execution import Execution, KvDtype
from ..engine.router import DEFAULT_PRESET, ROUTER_PRESETS
from ..errors import BadInput
from ..plan.rates import A6000, H100, RATES, Rates
from .shared import SIZES as PIXELS
from .shared import add_size

SIZES = {name: "14B" if name == "krea-14b" else "1.3B" for name in PRESETS if name != "custom"}
"""Of the models that a preset is for."""

USUAL = (12.0, 16.0, 24.0, 32.0, 48.0, 80.0)
# Memory is sold in units of 2^30 bytes. A plan counts in 1e9 and leaves the difference to the driver.
SOLD_UNIT = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--vram", type=float, nargs="+", metavar="GB", help="as sold, such as 24 (default: this machine's GPU)"
    )
    parser.add_argument("--json", action="store_true", help="print the plans as JSON, one line each")
    video = parser.add_argument_group("video")
    add_size(video)
    parser.set_defaults(width=PIXELS["landscape"][0], height=PIXELS["landscape"][1])
    video.add_argument("--blocks", type=int, default=9, help="blocks of latent frames (default 9)")
    video.add_argument(
        "--preset",
        choices=tuple(ROUTER_PRESETS),
        help=f"who makes which block, as in generate (default {DEFAULT_PRESET})",
    )
    video.add_argument("--budget", type=float, metavar="SHARE", help="as in generate")
    models = parser.add_argument_group("models")
    for role, preset in (("drafter", "self-forcing-1.3b"), ("target", "krea-14b")):
        models.add_argument(
            f"--{role}-preset",
            choices=tuple(SIZES),
            default=preset,
            metavar="PRESET",
            help=f"which says its size too (default {preset})",
        )
    models.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default="auto", help="of keys and values (default bfloat16)"
    )
    models.add_argument(
        "--vae", choices=get_args(DecoderName), default="wan", help="the decoder of the video (default wan)"
    )
    models.add_argument(
        "--judge-vae", choices=JUDGES, help="a fast decoder for drafts, as in generate (default: the same)"
    )
    device = parser.add_argument_group("device")
    device.add_argument(
        "--side-device", action="store_true", help="VAE and scorer use a second device; --vram is for the first"
    )
    device.add_argument("--rates", choices=tuple(RATES), help="GPU whose published speed to predict with")


def run(options: argparse.Namespace) -> int:
    """Print a plan for each amount of memory."""
    import torch

    from ..plan.budget import spend
    from ..plan.choose import plan
    from ..plan.request import PlanRequest
    from ..plan.text import plan_table, plan_text

    request = PlanRequest(
        width=options.width,
        height=options.height,
        blocks=options.blocks,
        router=ROUTER_PRESETS[options.preset or DEFAULT_PRESET],
        drafter=PUBLISHED[SIZES[options.drafter_preset]],
        target=PUBLISHED[SIZES[options.target_preset]],
        drafter_preset=get_preset(options.drafter_preset),
        target_preset=get_preset(options.target_preset),
        execution=Execution(kv_dtype=options.kv_dtype),
        side=options.side_device,
        vae=options.vae,
        judge=options.judge_vae,
        rates=RATES[options.rates] if options.rates else _guess_rates(),
    )
    if options.budget is not None:
        if options.preset:
            raise BadInput("--budget chooses who makes which block, but so does --preset; leave one of them out")
        bought = spend(options.budget, request.router, request)
        request = replace(request, router=bought.router)
        if not options.json:
            print(bought.note)
    amounts = options.vram or ((device_gigabytes(),) if torch.cuda.is_available() else USUAL)
    plans = [plan(amount, request) for amount in amounts]
    if options.json:
        print("\n".join(json.dumps(found.as_dict(), allow_nan=False) for found in plans))
    elif len(plans) > 1:
        print(plan_table(plans))
        print(f"Seconds per block, and per video of {request.blocks}; rates of the {request.rates.source}.")
        print("Predicted, not measured; plan --vram GB says more.")
    else:
        print(plan_text(plans[0]))
    return 0


def device_gigabytes() -> float:
    """Return the memory of this machine's first GPU, in GB as sold."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / SOLD_UNIT


def _guess_rates() -> Rates:
    """Return the published rates of the device most like this machine's."""
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return H100 if any(part in name for part in ("H100", "H200", "GH200", "B200")) else A6000
