"""Say how the real pair fits in a GPU's memory, and how long a block would take.

Bytes are computed from the models' sizes, seconds from published rates; nothing is loaded. Without --vram, plans
for this machine's GPU, or prints a table of the usual sizes if it has none.
"""

from __future__ import annotations

import argparse
from typing import get_args

from ...causal_wan.config import PUBLISHED
from ...causal_wan.presets import PRESETS
from ...decoders import JUDGES, DecoderName
from ...devices.execution import AUTO, DTYPE_NAMES, CompileMode, KvDtype, VaeLayers
from ...engine.router_presets import ROUTER_PRESETS
from ...plan.rates import PAPER_REJECTED, PCIE_GB_PER_SECOND, RATES
from .shared import vae_layers


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
        choices=tuple(ROUTER_PRESETS),
        default="paper",
        help="who makes which block, as in generate (default paper)",
    )
    video.add_argument("--forced-blocks", type=int, metavar="M", help="as in generate")
    video.add_argument("--handover", type=int, metavar="K", help="as in generate")
    video.add_argument("--budget", type=float, metavar="SHARE", help="as in generate")
    models = parser.add_argument_group("models")
    for role, size, preset in (("drafter", "1.3B", "self-forcing-1.3b"), ("target", "14B", "krea-14b")):
        models.add_argument(f"--{role}-size", choices=tuple(PUBLISHED), default=size)
        models.add_argument(f"--{role}-preset", choices=tuple(PRESETS), default=preset, metavar="PRESET")
    models.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default="auto", help="of keys and values (default bfloat16)"
    )
    models.add_argument(
        "--vae", choices=get_args(DecoderName), default="wan", help="the decoder of the video (default wan)"
    )
    models.add_argument(
        "--judge-vae", choices=JUDGES, help="a fast decoder for drafts, as in generate (default: the same)"
    )
    models.add_argument("--vae-dtype", choices=DTYPE_NAMES, default="float16")
    models.add_argument(
        "--vae-layers", type=vae_layers, choices=get_args(VaeLayers), default=AUTO, help="as in generate"
    )
    models.add_argument("--reward-dtype", choices=DTYPE_NAMES, default="float32")
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
    device.add_argument("--rates", choices=tuple(RATES), help="GPU whose published speed to predict with")
