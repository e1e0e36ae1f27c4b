"""The options of `generate` and `demo`, and the values they stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from ..causal_wan.presets import PRESETS
from ..causal_wan.schedule import SCHEDULES
from ..checkpoints.model_files import KNOWN_FILES, ModelFiles, find_models
from ..devices.compiling import CompileMode
from ..devices.dtypes import DTYPES
from ..devices.execution import AUTO, Attention, Execution, KvDtype, VaeLayers
from ..engine.router import Aggregation, Policy, RouterConfig
from ..engine.speculate import DrafterContext
from ..errors import BadInput
from ..pipeline.options import LoadOptions, ModelOptions
from ..pipeline.request import VideoRequest


def add_video_options(parser: argparse.ArgumentParser, *, size: bool = True) -> None:
    """What the video is to be."""
    group = parser.add_argument_group("video")
    if size:
        group.add_argument("--width", type=int, help="pixels, a multiple of 16 (default 832)")
        group.add_argument("--height", type=int, help="pixels, a multiple of 16 (default 480)")
    group.add_argument("--blocks", type=int, default=9, help="blocks of latent frames to make (default 9)")
    group.add_argument("--seed", type=int, default=42, help="default 42")
    group.add_argument("--fps", type=float, default=16.0, help="pixel frames per second of the mp4 (default 16)")
    group.add_argument(
        "--drafter-context",
        choices=get_args(DrafterContext),
        default="committed",
        help="whose blocks the drafter goes on from: the video's (default) or its own drafts",
    )
    group.add_argument(
        "--overlap",
        action="store_true",
        help="start generating the next block while the newest is decoded: the same video, in more memory",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on after the last block of the same command if it was stopped; leave whole videos as they are",
    )
    group.add_argument(
        "--prompt-in-report",
        action="store_true",
        help="write the prompts into report.json and route.png; without it report.json has a hash of each",
    )


def add_router_options(parser: argparse.ArgumentParser) -> None:
    """Who makes a block. The defaults are the paper's."""
    group = parser.add_argument_group("router", "who makes a block; the defaults are the paper's")
    defaults = RouterConfig()
    group.add_argument("--policy", choices=get_args(Policy), default=defaults.policy)
    group.add_argument(
        "--tau", type=float, default=defaults.tau, help="keep a draft from this score on (default -0.7)"
    )
    group.add_argument("--aggregation", choices=get_args(Aggregation), default=defaults.aggregation)
    group.add_argument("--quantile", type=float, default=defaults.quantile, help="for --aggregation quantile")
    group.add_argument(
        "--rate", type=float, default=defaults.rate, help="chance that --policy random keeps a draft"
    )
    group.add_argument("--router-seed", type=int, default=defaults.seed, help="of --policy random")
    group.add_argument(
        "--draft-share",
        type=float,
        default=defaults.draft_share,
        help="share of blocks --policy percentile wants drafted",
    )
    group.add_argument(
        "--script",
        help="for --policy scripted, a letter per block of the clip, such as raaraaaaa: a and r score the draft, "
        "then keep or reject it; d keeps it unscored; t lets the target make the block",
    )
    group.add_argument("--no-force-first", action="store_true", help="let the drafter make the first block too")
    group.add_argument(
        "--bail-out", type=int, default=0, help="target-only after so many rejections in a row (0: never)"
    )
    group.add_argument(
        "--repair-step", type=int, default=0, help="on rejection, go on after so many of the draft's steps"
    )
    group.add_argument(
        "--gate-prompt", help="what the scorer reads instead of the prompt; it sees 35 tokens at most"
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which files, and how they are run."""
    group = parser.add_argument_group("models", "what is not given is looked for in --models under its usual name")
    group.add_argument("--models", type=Path, default=Path("models"), help="folder of models (default ./models)")
    for known in KNOWN_FILES:
        group.add_argument(
            f"--{known.role.replace('_', '-')}", type=Path, metavar="FILE", help=f"usually {known.names[0]}"
        )
    group.add_argument("--tokenizer", type=Path, help="of the text encoder, if its file holds none")
    for role in ("drafter", "target"):
        names = ", ".join((AUTO, *PRESETS))
        group.add_argument(f"--{role}-preset", default=AUTO, metavar="PRESET", help=f"one of {names}")
        group.add_argument(
            f"--{role}-cache", choices=("recompute", "incremental"), help="context policy", dest=f"{role}_policy"
        )
        group.add_argument(
            f"--{role}-context-frames", type=int, metavar="N", help="latent frames passed anew (recompute)"
        )
        group.add_argument(f"--{role}-window", type=int, metavar="N", help="latent frames kept (incremental)")
        group.add_argument(
            f"--{role}-sink", type=int, metavar="N", help="first latent frames that stay (incremental)"
        )
    group.add_argument("--block-frames", type=int, metavar="N", help="latent frames per block, for both models")
    group.add_argument("--schedule", help=f"{', '.join(SCHEDULES)}, or timesteps such as 1000,750,500")
    group.add_argument(
        "--crop", choices=("center", "squash", "tiles"), default="center", help="what the scorer sees of a frame"
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Where and how precisely the models compute."""
    group = parser.add_argument_group("devices")
    group.add_argument("--device", default="cpu", help="of drafter and target: cpu, cuda, cuda:1 ... (default cpu)")
    group.add_argument("--side-device", help="of text encoder, VAE and scorer (default: --device)")
    names = list(DTYPES)
    group.add_argument("--dtype", choices=names, help="of drafter and target (default: as stored)")
    group.add_argument("--vae-dtype", choices=names, default="float32")
    group.add_argument(
        "--vae-layers",
        choices=get_args(VaeLayers),
        default="diffusers",
        help="order of the VAE's work: diffusers' own (default), a CPU's for tiny widths, a GPU's for float16",
    )
    group.add_argument("--text-dtype", choices=names, default="bfloat16")
    group.add_argument("--reward-dtype", choices=names, default="float32")
    add_kernel_options(group)


def add_kernel_options(group: argparse._ArgumentGroup) -> None:
    """How the transformers attend, and what they keep."""
    group.add_argument(
        "--attention",
        choices=get_args(Attention),
        default=AUTO,
        help="kernel of drafter and target; auto is the best exact one, sage rounds to 8 bits (default auto)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=get_args(KvDtype),
        default=AUTO,
        help="what keys and values are kept in: as computed (default auto), or rounded to half of bfloat16's bytes",
    )
    group.add_argument(
        "--compile",
        choices=get_args(CompileMode),
        default="off",
        help="compile the transformers and the VAE decoder (default)",
    )


def video_request(options: argparse.Namespace) -> VideoRequest:
    """Return what is asked for. Raises `BadInput` for values that cannot be."""
    return VideoRequest(
        blocks=options.blocks,
        seed=options.seed,
        width=options.width,
        height=options.height,
        fps=options.fps,
        drafter_context=options.drafter_context,
        router=router_config(options),
        continue_from=getattr(options, "continue_from", None),
        start_image=getattr(options, "start_image", None),
    )


def router_config(options: argparse.Namespace) -> RouterConfig:
    """Return the router's settings."""
    if options.policy == "scripted" and options.script is None:
        raise BadInput("expected a script for the policy scripted, but got none; add --script raaraaaaa")
    return RouterConfig(
        policy=options.policy,
        tau=options.tau,
        aggregation=options.aggregation,
        quantile=options.quantile,
        rate=options.rate,
        seed=options.router_seed,
        draft_share=options.draft_share,
        script=options.script or "",
        force_first=not options.no_force_first,
        bail_out=options.bail_out,
        repair_step=options.repair_step,
    )


def load_options(options: argparse.Namespace) -> LoadOptions:
    """Return how the models are to be run."""
    return LoadOptions(
        drafter=_model_options(options, "drafter"),
        target=_model_options(options, "target"),
        schedule=options.schedule,
        device=options.device,
        side_device=options.side_device,
        dtype=options.dtype,
        vae_dtype=options.vae_dtype,
        text_dtype=options.text_dtype,
        reward_dtype=options.reward_dtype,
        crop=options.crop,
        execution=execution(options, options.vae_layers),
    )


def execution(options: argparse.Namespace, vae_layers: VaeLayers) -> Execution:
    """Return how the models are executed."""
    return Execution(
        attention=options.attention,
        kv_dtype=options.kv_dtype,
        vae_layers=vae_layers,
        compile=options.compile,
        overlap=getattr(options, "overlap", False),
    )


def _model_options(options: argparse.Namespace, role: str) -> ModelOptions:
    return ModelOptions(
        preset=getattr(options, f"{role}_preset"),
        policy=getattr(options, f"{role}_policy"),
        block_frames=options.block_frames,
        context_frames=getattr(options, f"{role}_context_frames"),
        window=getattr(options, f"{role}_window"),
        sink=getattr(options, f"{role}_sink"),
    )


def model_files(options: argparse.Namespace, *, scorer: bool = True) -> ModelFiles:
    """Return the files of the run. `scorer`: whether it scores anything.

    Raises `BadInput` naming every file that is missing, and where to get it.
    """
    found = find_models(options.models)
    known_files = [known for known in KNOWN_FILES if scorer or known.role not in ("reward", "vocabulary")]
    paths = {known.role: getattr(options, known.role) or found[known.role] for known in known_files}
    missing = [known for known in known_files if paths[known.role] is None and known.role != "vocabulary"]
    if missing:
        first = missing[0]
        raise BadInput(
            f"expected {' and '.join(known.role for known in missing)}, but none was given or found in "
            f"{options.models}; get {first.names[0]} from {first.source}, or run python -m sdvg_core doctor"
        )
    needed = {role: path for role, path in paths.items() if path is not None}
    for role, path in needed.items():
        if not path.exists():
            raise BadInput(f"expected the {role} at {path}, but there is nothing; check the path")
    return ModelFiles(**needed, tokenizer=options.tokenizer)
