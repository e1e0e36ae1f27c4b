"""Carry out `plan`: how the real pair fits in memory, and how long a block would take."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import torch

from ..causal_wan.config import PUBLISHED
from ..causal_wan.presets import get_preset
from ..devices.execution import Execution
from ..engine.router import RouterConfig
from ..engine.router_presets import ROUTER_PRESETS
from ..errors import BadInput
from ..plan.budget import spend
from ..plan.choose import plan
from ..plan.rates import A6000, H100, RATES, Rates
from ..plan.request import PlanRequest
from ..plan.text import plan_table, plan_text

USUAL = (12.0, 16.0, 24.0, 32.0, 48.0, 80.0)
# Memory is sold in units of 2^30 bytes. A plan counts in 1e9 and leaves the difference to the driver.
SOLD_UNIT = 2**30


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
