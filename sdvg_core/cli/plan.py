"""Say how the real pair fits in a GPU's memory, and what is copied over in every pass.

Bytes are computed from the models' sizes; nothing is loaded. Without --vram, plans for this machine's GPU, or
prints a table of the usual sizes if it has none. It speaks of ComfyUI; with --command-line, of generate.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from ..settings.execution import KvDtype
from ..settings.load import DecoderName
from ..settings.route import DEFAULT_PRESET, ROUTER_PRESETS
from .shared import SIZES, add_size

if TYPE_CHECKING:
    from ..memory.plan import Plan

WEIGHT_DTYPES: Mapping[str, bool | None] = {"auto": None, "default": False, "fp8_e4m3fn": True}
"""Choice -> whether the target's linear weights are fp8; None for the choice that copies less."""
USUAL = (8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 80.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--vram", type=float, nargs="+", metavar="GB", help="as sold, such as 24 (default: this machine's GPU)"
    )
    video = parser.add_argument_group("video")
    add_size(video)
    parser.set_defaults(width=SIZES["landscape"][0], height=SIZES["landscape"][1])
    video.add_argument("--blocks", type=int, default=9, help="blocks of latent frames (default 9)")
    video.add_argument(
        "--preset",
        choices=tuple(ROUTER_PRESETS),
        default=DEFAULT_PRESET,
        help=f"who makes which block, as in generate (default {DEFAULT_PRESET})",
    )
    models = parser.add_argument_group("models")
    models.add_argument(
        "--weight-dtype",
        choices=tuple(WEIGHT_DTYPES),
        help="of the target (default: in ComfyUI auto, fp8 where it copies less; else default, as stored)",
    )
    models.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default="auto", help="of keys and values (default bfloat16)"
    )
    models.add_argument("--control", action="store_true", help="with the published control modules (VACE)")
    models.add_argument(
        "--vae", choices=get_args(DecoderName), default="wan", help="the decoder of the video (default wan)"
    )
    device = parser.add_argument_group("device")
    device.add_argument(
        "--side-device", action="store_true", help="VAE and scorer use a second device; --vram is for the first"
    )
    device.add_argument("--command-line", action="store_true", help="plan for generate, not for ComfyUI")


def run(options: argparse.Namespace) -> int:
    """Print a plan for each amount of memory."""
    from ..memory.plan import plan_table, plan_text

    plans = plans_for(options)
    if len(plans) == 1:
        print(plan_text(plans[0]))
        return 0
    where = plans[0].request.where
    print(f"{where[0].upper()}{where[1:]}:", plan_table(plans), "plan --vram GB says more.", sep="\n")
    return 0


def plans_for(options: argparse.Namespace) -> list[Plan]:
    """Return a plan for each amount of memory: those given, this machine's GPU, or the usual sizes."""
    import torch

    from ..causal_wan.config import CONTROL_BLOCKS
    from ..engine.plan import plan_blocks
    from ..memory.plan import plan
    from ..memory.sizes import IN_COMFYUI, SOLD_UNIT, PlanRequest
    from ..settings.load import LoadOptions

    request = PlanRequest(
        width=options.width,
        height=options.height,
        blocks=options.blocks,
        execution=replace(IN_COMFYUI, kv_dtype=options.kv_dtype),
        side=options.side_device,
        vae=options.vae,
    )
    if options.control:
        models = (request.drafter, request.target)
        drafter, target = (replace(m, control_blocks=CONTROL_BLOCKS[m.config.size]) for m in models)
        request = replace(request, drafter=drafter, target=target)
    if options.command_line:
        usual = LoadOptions()
        execution = replace(usual.execution, kv_dtype=options.kv_dtype)
        request = replace(
            request, where="on the command line", fp8=False, vae_dtype=usual.vae_dtype, execution=execution
        )
    if options.weight_dtype:
        request = replace(request, fp8=WEIGHT_DTYPES[options.weight_dtype])
    sizes = {role: model.block_frames for role, model in request.models.items()}
    route = plan_blocks(ROUTER_PRESETS[options.preset], blocks=request.blocks, block_frames=sizes)
    request = replace(request, needed=route.models_needed)
    amounts = options.vram or USUAL
    if torch.cuda.is_available() and not options.vram:
        amounts = (torch.cuda.get_device_properties(0).total_memory / SOLD_UNIT,)
    return [plan(amount, request, card=True) for amount in amounts]
