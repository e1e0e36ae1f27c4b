"""Say how the real pair fits in a GPU's memory, and how long a block would take.

Bytes are computed from the models' sizes, seconds from published rates; nothing is loaded. Without --vram, plans
for this machine's GPU, or prints a table of the usual sizes if it has none.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import get_args

import torch

from ..causal_wan.config import PUBLISHED
from ..causal_wan.presets import PRESETS, get_preset
from ..devices.compiling import CompileMode
from ..devices.dtypes import DTYPES
from ..devices.execution import AUTO, Execution, KvDtype, VaeLayers
from ..engine.router import RouterConfig
from ..engine.router_presets import ROUTER_PRESETS
from ..errors import BadInput
from ..plan import PlanRequest, plan, plan_text, spend
from ..plan.decoders import JUDGES, DecoderName
from ..plan.rates import A6000, H100, RATES, Rates
from ..plan.request import PAPER_REJECTED, PCIE_GB_PER_SECOND
from ..plan.text import plan_table

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
    video.add_argument("--width", type=int, default=832, help="pixels, a multiple of 16 (default 832)")
    video.add_argument("--height", type=int, default=480, help="pixels, a multiple of 16 (default 480)")
    video.add_argument("--blocks", type=int, default=9, help="blocks of latent frames (default 9)")
    video.add_argument("--steps", type=int, help="denoising steps per block of both models (default: the presets')")
    video.add_argument(
        "--rejected",
        type=float,
        default=PAPER_REJECTED,
        metavar="SHARE",
        help=f"of the drafts that are scored (default {PAPER_REJECTED}, as in the paper at tau -0.7)",
    )
    video.add_argument(
        "--preset",
        choices=list(ROUTER_PRESETS),
        default="paper",
        help="who makes which block, as in generate (default paper)",
    )
    video.add_argument("--forced-blocks", type=int, metavar="M", help="as in generate")
    video.add_argument("--handover", type=int, metavar="K", help="as in generate")
    video.add_argument("--budget", type=float, metavar="SHARE", help="as in generate")
    models = parser.add_argument_group("models")
    for role, size, preset in (("drafter", "1.3B", "self-forcing-1.3b"), ("target", "14B", "krea-14b")):
        models.add_argument(f"--{role}-size", choices=list(PUBLISHED), default=size)
        models.add_argument(f"--{role}-preset", choices=list(PRESETS), default=preset, metavar="PRESET")
    models.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default="auto", help="of keys and values (default bfloat16)"
    )
    models.add_argument(
        "--vae", choices=get_args(DecoderName), default="wan", help="the decoder of the video (default wan)"
    )
    models.add_argument(
        "--judge-vae", choices=JUDGES, help="a fast decoder for drafts, as in generate (default: the same)"
    )
    models.add_argument("--vae-dtype", choices=list(DTYPES), default="float16")
    models.add_argument("--vae-layers", choices=get_args(VaeLayers), default=AUTO, help="as in generate")
    models.add_argument("--reward-dtype", choices=list(DTYPES), default="float32")
    models.add_argument("--compile", choices=get_args(CompileMode), default="off", help="as in generate")
    models.add_argument("--overlap", action="store_true", help="as in generate")
    device = parser.add_argument_group("device")
    device.add_argument(
        "--side-device", action="store_true", help="VAE and scorer use a second device; --vram is for the first"
    )
    device.add_argument(
        "--pcie",
        type=float,
        default=PCIE_GB_PER_SECOND,
        metavar="GB_PER_SECOND",
        help="from main memory to the GPU (default 20: PCIe 4.0 x16, pinned; assumed, not measured)",
    )
    device.add_argument("--rates", choices=list(RATES), help="GPU whose published speed to predict with")


def run(options: argparse.Namespace) -> int:
    """Print a plan for each amount of memory."""
    request = PlanRequest(
        width=options.width,
        height=options.height,
        blocks=options.blocks,
        steps=options.steps,
        rejected=options.rejected,
        router=_router(options),
        drafter=PUBLISHED[options.drafter_size],
        target=PUBLISHED[options.target_size],
        drafter_preset=get_preset(options.drafter_preset),
        target_preset=get_preset(options.target_preset),
        execution=Execution(
            kv_dtype=options.kv_dtype,
            vae_layers=options.vae_layers,
            compile=options.compile,
            overlap=options.overlap,
        ),
        side=options.side_device,
        vae=options.vae,
        judge=options.judge_vae,
        vae_dtype=options.vae_dtype,
        reward_dtype=options.reward_dtype,
        pcie=options.pcie,
        rates=RATES[options.rates] if options.rates else _guess_rates(),
    )
    if options.budget is not None:
        if options.preset != "paper" or options.forced_blocks is not None or options.handover is not None:
            raise BadInput(
                "--budget chooses who makes which block, but there is also a preset, forced blocks or a handover; "
                "leave them out"
            )
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


def _router(options: argparse.Namespace) -> RouterConfig:
    given = {name: getattr(options, name) for name in ("forced_blocks", "handover")}
    return replace(ROUTER_PRESETS[options.preset], **{name: n for name, n in given.items() if n is not None})


def device_gigabytes() -> float:
    """Return the memory of this machine's first GPU, in GB as sold."""
    return torch.cuda.get_device_properties(0).total_memory / SOLD_UNIT


def _guess_rates() -> Rates:
    """Return the published rates of the device most like this machine's."""
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return H100 if any(part in name for part in ("H100", "H200", "GH200", "B200")) else A6000
