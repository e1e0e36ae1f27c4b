"""The options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from ..causal_wan.presets import MEMORIES, POLICIES, PRESETS
from ..causal_wan.schedule import SCHEDULES
from ..checkpoints.model_files import KNOWN_FILES
from ..checkpoints.state_dicts import Weights
from ..decoders import StatedKind
from ..devices.execution import AUTO, DTYPE_NAMES, Attention, CompileMode, KvDtype, WeightDtype
from ..engine.router import DEFAULT_PRESET, ROUTER_PRESETS
from ..engine.router import POLICIES as ROUTER_POLICIES
from ..engine.types import DrafterContext
from ..pocket import POCKET
from ..scorers import Crop


def file_path(text: str) -> Path:
    """Return a path. Argparse prints the error if no system has such a file."""
    longest = max((len(part.encode(errors="surrogatepass")) for part in Path(text).parts), default=0)
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give one, or leave the option out")
    if "\0" in text or longest > 255 or len(text) > 4095:  # bytes of a name and of a path, as on most systems
        raise argparse.ArgumentTypeError("the path is too long or has a NUL byte; give another")
    return Path(text)


def gigabytes(text: str) -> float | str:
    """Return an amount of memory, or a word for one. Argparse prints the error if it is neither."""
    if text in (AUTO, "all"):
        return text
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r:.60} is no amount of memory; give GB such as 16, auto or all")
    return amount


YES_NO = ("yes", "no")
SETTINGS: Mapping[str, Callable[[str], object] | tuple[str, ...]] = {
    "preset": str,
    "cache": POLICIES,
    "window": int,
    "sink": int,
    "context-frames": int,
    "block-frames": int,
    "schedule": str,
    "first-schedule": str,
    "draft-steps": int,
    "weights": get_args(Weights),
    "recache": YES_NO,
    "relative": YES_NO,
    "flush": YES_NO,
    "keep-first-frame": YES_NO,
    "context-memory": MEMORIES,
}
"""The settings of a single model, and their types."""


def setting(text: str) -> tuple[str, object]:
    """Return a model's setting, by name and value. Argparse prints the error for an unknown one."""
    name, _, value = text.partition("=")
    kind = SETTINGS.get(name)
    if kind is None or not value:
        raise argparse.ArgumentTypeError(f"{text!r:.60} sets nothing; give NAME=VALUE of {', '.join(SETTINGS)}")
    if not isinstance(kind, tuple):
        return name, kind(value)
    if value not in kind:
        raise argparse.ArgumentTypeError(f"there is no {name} {value!r:.60}; choose {', '.join(kind)}")
    return name, value


PARTS = ("vae", "text", "reward")
"""The parts besides drafter and target that have a dtype of their own."""
SIZES = {"landscape": (832, 480), "portrait": (480, 832), "square": (624, 624)}
"""What the models were trained at, and a square of as many pixels."""


class Size(argparse.Action):
    """Takes a size, by name or such as 640x352, for width and height."""

    def __call__(self, _: object, options: argparse.Namespace, value: Any, name: str | None = None) -> None:
        """Set both. Argparse prints the error if it is not a size."""
        try:
            options.width, options.height = SIZES.get(value) or map(int, value.split("x"))
        except ValueError:
            sentence = f"{value!r:.60} is no size; give {', '.join(SIZES)} or 640x352"
            raise argparse.ArgumentError(self, sentence) from None


class Dtypes(argparse.Action):
    """Takes dtypes, of drafter and target or such as vae=bfloat16, for `dtype`, `vae_dtype` and so on."""

    def __call__(self, _: object, options: argparse.Namespace, value: Any, name: str | None = None) -> None:
        """Set them. Argparse prints the error if one is not a dtype."""
        for word in value:
            part, _, dtype = word.rpartition("=")
            names = (*DTYPE_NAMES, AUTO) if part == "reward" else DTYPE_NAMES
            if part not in ("", *PARTS) or dtype not in names:
                sentence = f"{word!r:.60} is no dtype; give {', '.join(DTYPE_NAMES)}, or such as {PARTS[0]}=float16"
                raise argparse.ArgumentError(self, sentence)
            setattr(options, f"{part}_dtype" if part else "dtype", dtype)


def add_video_options(parser: argparse.ArgumentParser, *, demo: bool = False) -> None:
    """Declare the options that describe the video. `demo`: only those that the demo has too."""
    group = parser.add_argument_group("video")
    group.add_argument(
        "--blocks",
        type=int,
        help="blocks of latent frames to make (default 9; with --restyle or --control what its clip has)",
    )
    group.add_argument(
        "--directions",
        default="",
        metavar="LETTERS",
        help="one letter per block: . the router decides, t the target makes it, d the draft is kept; a and r "
        "score the draft first, then keep or reject it",
    )
    group.add_argument(
        "--overwrite", action="store_true", help="replace what is in --output (default: what is there stays)"
    )
    if demo:
        group.add_argument("--seed", type=int, default=42, help="default 42")
        return
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on in --output alone: refuse what another request left there, and leave finished videos alone",
    )
    group.add_argument(
        "--seed", "--seeds", dest="seeds", type=int, nargs="+", default=[42], help="each its video (default 42)"
    )
    add_size(group)
    group.add_argument("--fps", type=float, default=16.0, help="pixel frames a second of the mp4 (default 16)")
    group.add_argument(
        "--drafter-context",
        choices=get_args(DrafterContext),
        default="committed",
        help="the blocks the drafter continues: those of the video (committed, default) or its own drafts",
    )
    group.add_argument(
        "--private", action="store_true", help="a hash in place of every prompt in report.json and the table"
    )
    group.add_argument(
        "--takes",
        default="",
        help="other noise for single blocks, such as 6:2,8:3 (block 6 take 2, block 8 take 3); later ones follow "
        "from it",
    )
    group.add_argument(
        "--reuse",
        type=file_path,
        metavar="FOLDER",
        help="an earlier video; its blocks are used again where they are provably the same",
    )


def add_size(group: argparse._ArgumentGroup) -> None:
    """Declare the size, by name or in pixels; by default it is that of the models or the clip."""
    group.add_argument("--size", action=Size, help=f"{', '.join(SIZES)}, or such as 640x352, multiples of 16")
    group.set_defaults(width=None, height=None)


def add_router_options(parser: argparse.ArgumentParser, *, demo: bool = False) -> None:
    """Declare the router's options; those that are not given are the preset's. `demo`: those that it has too."""
    parser.set_defaults(usual_preset=DEFAULT_PRESET)
    group = parser.add_argument_group("router", "who makes a block; options override the preset")
    group.add_argument(
        "--preset",
        choices=tuple(ROUTER_PRESETS),
        help="fast, balanced, careful: the target makes the first 1, 2, 4 blocks, and the drafter half of the "
        "steps of all these but the first. paper: --gate -0.7. hybrid: the same with --cascade 0.2 --handover 3. "
        f"Default: {DEFAULT_PRESET}; paper if an option of the router is given",
    )
    group.add_argument(
        "--gate",
        "--tau",
        dest="tau",
        metavar="TAU",
        type=float,
        help="reward gate (paper): keep a draft whose worst frame scores at least this (paper: -0.7)",
    )
    if demo:
        return
    group.add_argument(
        "--handover",
        type=int,
        metavar="K",
        help="of a block that the target makes, the drafter makes the first K denoising steps (0: none)",
    )
    group.add_argument(
        "--budget",
        type=float,
        metavar="SHARE",
        help="instead: spend this share of what the target alone would cost, such as 0.5, on the first blocks",
    )
    group.add_argument("--policy", metavar="POLICY", help=", ".join(ROUTER_POLICIES))
    group.add_argument(
        "--stride", type=int, metavar="N", help="the target makes blocks 1, 1 + N, 1 + 2N and so on of the route"
    )
    group.add_argument(
        "--forced-blocks",
        type=int,
        metavar="M",
        help="the target makes the clip's first M blocks under every policy; --policy first drafts all others",
    )
    group.add_argument(
        "--aggregation",
        metavar="HOW",
        help="the frames' scores as one: min (the worst frame), mean, or a quantile as a number, such as 0.1",
    )
    group.add_argument(
        "--cascade",
        type=float,
        metavar="MARGIN",
        help="score four frames of a draft first: below tau they reject it, MARGIN above it they keep it, in "
        "between the others are scored too (inf: those of every draft that is kept)",
    )
    group.add_argument("--bail-out", type=int, help="target-only after this many rejections in a row (0: never)")
    group.add_argument(
        "--gate-prompt", help="text the scorer reads instead of the prompt; it sees only the first 35 tokens"
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the model files and how they run."""
    group = parser.add_argument_group("models", "files not given are taken from --models by their usual names")
    group.add_argument(
        "--models",
        type=file_path,
        default=Path("models"),
        help=f"folder of models (default ./models); {POCKET}: the embedded miniature, for any machine",
    )
    for known in KNOWN_FILES:
        group.add_argument(
            f"--{known.role.replace('_', '-')}", type=file_path, metavar="FILE", help=f"usually {known.names[0]}"
        )
    group.add_argument(
        "--lora",
        dest="loras",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE[:STRENGTH]",
        help="LoRAs for drafter or target, whichever they fit",
    )
    group.add_argument(
        "--control-modules",
        type=file_path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="VACE modules for --control, for drafter or target, whichever they fit; alone or in whole checkpoints",
    )
    group.add_argument(
        "--tae-kind",
        choices=get_args(StatedKind),
        default=AUTO,
        help="of a TAEHV whose file's name does not say its kind (default auto)",
    )
    group.add_argument("--tokenizer", type=file_path, help="for the text encoder, if its file has none")
    for role in ("drafter", "target"):
        group.add_argument(
            f"--{role}-settings",
            type=setting,
            nargs="+",
            action="extend",
            default=[],
            metavar="NAME=VALUE",
            help=f"preset={AUTO} (default), {', '.join(PRESETS)}; and what is other than the preset's, such as "
            "cache=incremental window=9 sink=3 (latent frames), context-frames=6, block-frames=1, "
            "schedule=1000,625, first-schedule=1000, weights=raw, the drafter's draft-steps=3; for long clips "
            "relative=yes, recache=yes, flush=yes, keep-first-frame=yes, context-memory=memrope",
        )
    group.add_argument("--schedule", help=f"of both: {', '.join(SCHEDULES)}, or timesteps such as 1000,750,500")
    group.add_argument("--crop", choices=get_args(Crop), default="center", help="part of a frame the scorer sees")


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for devices and dtypes."""
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--device",
        default=AUTO,
        help="for drafter and target: cpu, cuda, cuda:1 ...; auto (default): a GPU if there is one; of several "
        "videos such as cuda:0,cuda:1, each on one of them",
    )
    group.add_argument("--side-device", help="for text encoder, VAE and scorer (default: --device)")
    group.add_argument(
        "--vram",
        type=gigabytes,
        default=AUTO,
        metavar="GB",
        help="what a video may take of the GPU; layers of drafter and target without room are copied over in every "
        "pass, with the same result. auto (default): what is free; all: no plan",
    )
    group.add_argument(
        "--weight-dtype",
        choices=get_args(WeightDtype),
        default="default",
        help="of the target: default (as stored), or rounded to fp8, half the bytes of bfloat16",
    )
    group.add_argument(
        "--dtype",
        action=Dtypes,
        nargs="+",
        metavar="[PART=]DTYPE",
        help=f"of drafter and target (default: as stored): {', '.join(DTYPE_NAMES)}; and such as vae=float16 "
        "(default float32), text=float32 (bfloat16), reward=float32 (auto: float16 on CUDA, else float32)",
    )
    group.add_argument(
        "--attention",
        choices=get_args(Attention),
        default=AUTO,
        help="kernel for drafter and target; auto takes the best exact one, sage rounds to 8 bits (default auto)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=get_args(KvDtype),
        default=AUTO,
        help="of the K/V cache: as computed (default auto), or rounded to 8 bits, half the bytes of bfloat16",
    )
    group.add_argument(
        "--compile",
        choices=get_args(CompileMode),
        default="off",
        help="off (used if not given), or default: compile the transformers and the VAE decoder",
    )
