"""Run a protocol of configurations over prompts and seeds, and compare them.

Writes rows.jsonl, gains.jsonl, summary.json, table.md and plots into the output folder. It can be interrupted at
any time: run it again with the same options and it makes only what is missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..shared import (
    add_device_options,
    add_model_options,
    file_path,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--output", type=file_path, default=Path("out/study"), help="folder to write into, or to continue in"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-plots", action="store_true", help="make no plots (they need matplotlib)")
    _add_protocol_options(parser)
    _add_calibration_options(parser)
    _add_work_options(parser)
    add_model_options(parser)
    parser.set_defaults(models=None)
    add_device_options(parser)


def _add_protocol_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("protocol", "the embedded models and their world, unless models are given")
    group.add_argument("--prompts", type=int, default=50, metavar="N", help="how many prompts (default 50)")
    group.add_argument(
        "--prompt-file",
        type=file_path,
        help="prompts, one per line, perhaps with a class: '[animals] a dog runs'; the first N are used",
    )
    group.add_argument("--seeds", type=int, nargs="+", default=[42], metavar="SEED", help="default 42")
    group.add_argument(
        "--configurations",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these; patterns work, as in 'reward-min@*'",
    )
    group.add_argument(
        "--every-route",
        action="store_true",
        help="instead, make every route that leaves the target the first block, for the room above the first m: "
        "2^(blocks - 1) videos a prompt, which share their beginnings",
    )
    group.add_argument("--tau", type=float, nargs="+", metavar="TAU", help="thresholds of the reward sweeps")
    group.add_argument("--blocks", type=int, default=9, help="blocks of latent frames per video (default 9)")
    group.add_argument("--width", type=int, help="pixels (default 64; 832 with given models)")
    group.add_argument("--height", type=int, help="pixels (default 64; 480 with given models)")
    group.add_argument("--no-gains", action="store_true", help="do not measure what the target would have gained")
    group.add_argument(
        "--external",
        metavar="COMMAND",
        help="also measure with a program that prints a number, such as 'score.py {video} {prompt}'",
    )
    group.add_argument("--external-timeout", type=float, default=600.0, metavar="SECONDS", help="default 600")
    group.add_argument("--fps", type=float, default=16.0, help="of the mp4 that program reads (default 16)")


def _add_calibration_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calibrate",
        action="store_true",
        help="instead, choose tau for a draft share or a speed-up; with --judge-vae, compare its scores of drafts "
        "with the full VAE's, and find its tau for a --tau of the full VAE (--judge-vae pocket: the embedded one)",
    )
    goal = group.add_mutually_exclusive_group()
    goal.add_argument("--draft-share", type=float, metavar="SHARE", help="of all blocks, such as 0.8")
    goal.add_argument("--speed-up", type=float, metavar="FACTOR", help="over target-only, such as 1.5")


def _add_work_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("work")
    group.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core; 1 on a GPU)")
    group.add_argument("--ray", metavar="ADDRESS", help="spread the work over a Ray cluster: its address, or local")
    group.add_argument(
        "--memory",
        type=float,
        default=1.0,
        metavar="GB",
        help="for shared decoded blocks, per worker; 0 shares none",
    )
