"""Time every route with randomly initialised models. Downloads nothing and writes nothing.

Full scale runs the 14B and 1.3B transformers, the Wan VAE and ImageReward on a CUDA device. Proportional scale runs
models in their proportions on any machine, in eight minutes of one core: what the order of work is worth, not
how fast a GPU is. Tiny scale runs in seconds, to check that the numbers are complete, not that they are fast.
"""

from __future__ import annotations

import argparse
from typing import get_args

from sdvg_core.choices import (
    AUTO,
    DTYPE_NAMES,
    Attention,
    KvDtype,
)

from .scales import SCALES
from .variants import DECODERS, MARKS, USUAL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--scale", choices=SCALES, default="full", help="size of the models and the video")
    parser.add_argument(
        "--routes",
        nargs="+",
        metavar="ROUTE",
        help="target-only, draft-only, anchor-only, bail-out, r=N: N rejected blocks, first=M or first=M+K: M "
        "blocks by the target, K steps of each but the first handed over (default: the scale's)",
    )
    parser.add_argument(
        "--executions",
        nargs="+",
        default=list(USUAL),
        metavar="EXECUTION",
        help="ours; as-published, the authors' order of work; or options that make ours faster: "
        f"{', '.join((*MARKS, *DECODERS))}, also joined by + "
        f"(default: {' '.join(USUAL)})",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="measure no time; print how much each execution's video differs from ours",
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all routes (default 3)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of a video (default 9)")
    parser.add_argument("--size", metavar="WxH", help="in pixels (default 832x480, or the small scale's own)")
    parser.add_argument("--device", default=AUTO, help="cuda, cuda:1 ... (default: cuda; cpu at small scales)")
    parser.add_argument("--side-device", help="for VAE and scorer, in every execution (default: --device)")
    names = DTYPE_NAMES
    parser.add_argument(
        "--dtype", choices=names, help="of the transformers (default bfloat16; small scales float32)"
    )
    parser.add_argument("--vae-dtype", choices=names, help="default float16; small scales float32")
    parser.add_argument("--reward-dtype", choices=names, help="default float32")
    parser.add_argument(
        "--attention", choices=get_args(Attention), default=AUTO, help="attention kernel, in every execution"
    )
    parser.add_argument(
        "--kv-dtype", choices=get_args(KvDtype), default=AUTO, help="of keys and values, in every execution"
    )
    parser.add_argument("--fp8", action="store_true", help="keep the target's linear weights in fp8")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
