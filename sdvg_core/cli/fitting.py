"""Whether the real pair fits in a GPU's memory, and what is copied over in every pass: `doctor --vram`.

Bytes are computed from the models' sizes; nothing is loaded.
"""

from __future__ import annotations

import argparse
from argparse import SUPPRESS
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from ..settings.execution import AUTO, KvDtype
from ..settings.load import DecoderName
from ..settings.request import DEFAULT_BLOCKS, DEFAULT_HEIGHT, DEFAULT_WIDTH
from ..settings.route import DEFAULT_PRESET, ROUTE_PRESETS
from .shared import add_size

if TYPE_CHECKING:
    from ..memory.plan import Plan
    from ..memory.sizes import Stored

STORED_AS: Mapping[str, Stored | None] = {
    "auto": None,
    "default": "plain",
    "fp8_e4m3fn": "fp8",
    "int8": "int8",
    "w4a8": "w4a8",
}
"""Choice -> how the target's linear weights are stored; None for plain or fp8, whichever copies less."""
CONVERTED: tuple[Stored, ...] = ("int8", "w4a8")
"""What a file is that `convert` makes."""
SMALL = 24.0
"""GB of the largest card for which smaller files are planned too."""
CARDS = (8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 80.0)
USUAL_REQUEST: Mapping[str, Any] = {
    "width": DEFAULT_WIDTH,
    "height": DEFAULT_HEIGHT,
    "blocks": DEFAULT_BLOCKS,
    "preset": DEFAULT_PRESET,
    "weight_dtype": None,
    "drafter_dtype": "plain",
    "kv_dtype": AUTO,
    "control": False,
    "vae": "wan",
    "side_device": False,
    "command_line": False,
}
"""The options that say what should fit, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("whether the real pair fits")
    group.add_argument(
        "--vram",
        type=float,
        nargs="*",
        metavar="GB",
        help="on a GPU of this size as sold, such as 24; without a number on this machine's, or on the usual sizes",
    )
    add_size(group)
    group.add_argument(
        "--blocks", type=int, default=SUPPRESS, help=f"blocks of latent frames (default {DEFAULT_BLOCKS})"
    )
    group.add_argument(
        "--preset",
        choices=tuple(ROUTE_PRESETS),
        default=SUPPRESS,
        help=f"who makes which block, as in generate (default {DEFAULT_PRESET})",
    )
    group.add_argument(
        "--weight-dtype",
        choices=tuple(STORED_AS),
        default=SUPPRESS,
        help="of the target (default: in ComfyUI auto, fp8 where it copies less; else default, as stored); int8, "
        "w4a8: a file that convert makes",
    )
    group.add_argument(
        "--drafter-dtype",
        choices=CONVERTED,
        default=SUPPRESS,
        help="a drafter's file that convert makes (default: bfloat16)",
    )
    group.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default=SUPPRESS, help="of keys and values (default bfloat16)"
    )
    group.add_argument(
        "--control", action="store_true", default=SUPPRESS, help="with the published control modules (VACE)"
    )
    group.add_argument(
        "--vae", choices=get_args(DecoderName), default=SUPPRESS, help="the decoder of the video (default wan)"
    )
    group.add_argument(
        "--side-device",
        action="store_true",
        default=SUPPRESS,
        help="VAE and scorer use a second device; --vram is for the first",
    )
    group.add_argument(
        "--command-line", action="store_true", default=SUPPRESS, help="with generate, not in ComfyUI"
    )


def stated_options(options: argparse.Namespace) -> list[str]:
    """Return the options, other than --vram, that say what should fit."""
    names = [name for name in vars(options) if name in USUAL_REQUEST]
    return ["--size" if name in ("width", "height") else f"--{name.replace('_', '-')}" for name in names]


def show_fit(options: argparse.Namespace) -> None:
    """Print a plan for each amount of memory."""
    from ..memory.plan import layout, plan_table, plan_text

    plans = plans_for(options)
    small = [plan for plan in plans if plan.vram <= SMALL and plan.request.stored not in CONVERTED]
    with_files = [[_with_file(plan, form) for plan in small] for form in CONVERTED if small]
    if len(plans) == 1:
        print(plan_text(plans[0]))
        for [plan] in with_files:
            print(f"With a file in {plan.stored}: {layout(plan) if plan.fits else 'it does not fit either'}.")
        return
    where = plans[0].request.where
    print(f"{where[0].upper()}{where[1:]}:", plan_table(plans), sep="\n")
    for plans in with_files:
        print(f"With a file in {plans[0].stored}, which convert makes:", plan_table(plans), sep="\n")
    print("doctor --vram GB says more.")


def _with_file(whole: Plan, form: Stored) -> Plan:
    """Return the plan of the same run with a smaller file of the target."""
    from ..memory.plan import plan

    return plan(whole.vram, replace(whole.request, stored=form), card=True)


def plans_for(options: argparse.Namespace) -> list[Plan]:
    """Return a plan for each amount of memory: those given, this machine's GPU, or the usual sizes."""
    import torch

    from ..causal_wan.config import CONTROL_BLOCKS
    from ..engine.plan import plan_blocks
    from ..memory.plan import plan
    from ..memory.sizes import IN_COMFYUI, SOLD_UNIT, PlanRequest
    from ..settings.load import LoadOptions

    asked = argparse.Namespace(**{**USUAL_REQUEST, **vars(options)})
    request = PlanRequest(
        width=asked.width,
        height=asked.height,
        blocks=asked.blocks,
        execution=replace(IN_COMFYUI, kv_dtype=asked.kv_dtype),
        side=asked.side_device,
        drafter_stored=asked.drafter_dtype,
        vae=asked.vae,
    )
    if asked.control:
        models = (request.drafter, request.target)
        drafter, target = (replace(m, control_blocks=CONTROL_BLOCKS[m.config.size]) for m in models)
        request = replace(request, drafter=drafter, target=target)
    if asked.command_line:
        usual = LoadOptions()
        execution = replace(usual.execution, kv_dtype=asked.kv_dtype)
        request = replace(
            request, where="on the command line", stored="plain", vae_dtype=usual.vae_dtype, execution=execution
        )
    if asked.weight_dtype:
        request = replace(request, stored=STORED_AS[asked.weight_dtype])
    sizes = {role: model.block_frames for role, model in request.models.items()}
    route = plan_blocks(ROUTE_PRESETS[asked.preset], blocks=request.blocks, block_frames=sizes)
    request = replace(request, needed=route.models_needed)
    amounts = options.vram or CARDS
    if torch.cuda.is_available() and not options.vram:
        amounts = (torch.cuda.get_device_properties(0).total_memory / SOLD_UNIT,)
    return [plan(amount, request, card=True) for amount in amounts]
