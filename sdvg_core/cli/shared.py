"""Options shared by several commands. Those of settings come from dataclass fields, and are set only if given."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from ..errors import BadInput
from ..pocket import POCKET
from ..settings.context import PRESETS
from ..settings.execution import AUTO, Execution
from ..settings.fields import TYPE_WORDS, Setting, impossible_path, settings_of
from ..settings.load import LoadOptions, ModelOptions
from ..settings.request import ClipFile
from ..settings.route import (
    DEFAULT_PRESET,
    POLICIES,
    ROUTE_PRESETS,
    At,
    Budget,
    Gate,
    Refine,
    Route,
    Stride,
    WorstFrame,
)
from ..weights.model_files import KNOWN_FILES

PRESET_DEFAULTS = (Route, Gate, WorstFrame, At, Stride, Refine, Budget)
"""Their defaults are a preset's, so the help does not state them."""
YES_NO = {"yes": True, "no": False}


def file_path(text: str) -> Path:
    """Return a path. Raises argparse's error for a name that no system allows."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give one, or leave the option out")
    if impossible_path(text):
        raise argparse.ArgumentTypeError("the path is too long or has a NUL byte; give another")
    return Path(text)


def clip_file(text: str) -> ClipFile:
    """Return a named clip from NAME=PATH. Raises argparse's error for other text."""
    name, _, path = text.partition("=")
    file = file_path(path)
    try:
        return ClipFile(f"#{name.removeprefix('#')}", file)
    except BadInput as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None


READERS: Mapping[Any, Callable[[str], Any]] = {
    Path: file_path,
    ClipFile: clip_file,
    int: int,
    float: float,
    str: str,
}


def add_settings(
    group: argparse._ActionsContainer, config: type, only: Collection[str] = (), but: Collection[str] = ()
) -> None:
    """Declare an option for every field of a settings dataclass that has help text.

    `only`: fields to declare, all if empty. `but`: fields to leave out.
    """
    for name, setting in settings_of(config).items():
        if not setting.help or (only and name not in only) or name in but:
            continue
        kinds = [kind for kind in setting.kinds if kind is not NoneType]
        default = setting.default
        usual = f" ({default:g})" if isinstance(default, float) else f" ({default})"
        if default in (None, "", ()) or config in PRESET_DEFAULTS:
            usual = ""
        details: dict[str, Any] = {"help": setting.help.replace("%", "%%") + usual, "metavar": setting.metavar}
        if kinds[0] is bool:
            details = {"help": details["help"], "action": argparse.BooleanOptionalAction}
        elif get_origin(kinds[0]) is tuple:
            details |= {"nargs": "+", "action": "extend", "type": _reader(get_args(kinds[0]), setting)}
        elif setting.choices and len(kinds) == 1 and not setting.metavar:
            details["choices"] = setting.choices
        else:
            details["type"] = _reader(setting.kinds, setting)
        group.add_argument(*setting.flags, dest=setting.dest, default=argparse.SUPPRESS, **details)


def _reader(kinds: Sequence[Any], setting: Setting) -> Callable[[str], Any]:
    """Return the converter from text to a setting's value, which has one of `kinds`."""
    read = next((READERS[kind] for kind in kinds if kind in READERS), str)

    def value(text: str) -> Any:
        return text if text in setting.choices else read(text)

    value.__name__ = getattr(read, "__name__", "value")  # argparse names it in errors
    return value


def model_setting(text: str) -> tuple[str, Any]:
    """Return a model setting from NAME=VALUE. Raises argparse's error for an unknown name or value."""
    spelled = {setting.flags[0].removeprefix("--"): setting for setting in settings_of(ModelOptions).values()}
    word, _, value = text.partition("=")
    if word not in spelled or not value:
        raise argparse.ArgumentTypeError(f"{text!r:.60} sets nothing; give NAME=VALUE of {', '.join(spelled)}")
    name = spelled[word].name
    kinds = [kind for kind in spelled[word].kinds if kind is not NoneType]
    choices = tuple(YES_NO) if kinds == [bool] else spelled[word].choices
    if not choices:
        try:
            return name, READERS[kinds[0]](value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word} is {value!r:.60}; give {TYPE_WORDS[kinds[0]]}") from None
    if value not in choices:
        raise argparse.ArgumentTypeError(f"there is no {word} {value!r:.60}; choose {', '.join(choices)}")
    return name, YES_NO.get(value, value)


NAMED_SIZES = {"landscape": (832, 480), "portrait": (480, 832), "square": (624, 624)}
"""Width and height by name: the trained sizes, and a square with as many pixels."""


class Size(argparse.Action):
    """Sets width and height from a name or from text such as 640x352."""

    def __call__(self, _: object, options: argparse.Namespace, value: Any, name: str | None = None) -> None:
        """Set width and height. Raises argparse's error if the value is no size."""
        try:
            options.width, options.height = NAMED_SIZES.get(value) or map(int, value.split("x"))
        except ValueError:
            sentence = f"{value!r:.60} is no size; give {', '.join(NAMED_SIZES)} or 640x352"
            raise argparse.ArgumentError(self, sentence) from None


def add_size(group: argparse._ActionsContainer) -> None:
    """Declare --size, a name or pixels; without it, the size of the models or of the clip is used."""
    words = f"{', '.join(NAMED_SIZES)}, or such as 640x352, multiples of 16"
    group.add_argument("--size", action=Size, help=words)


def add_output(parser: argparse.ArgumentParser, numbered: str) -> None:
    """Declare --output. `numbered`: folder of the numbered ones that are used without it."""
    words = f"folder to write into (default ./{numbered}/001, 002 ..., or where this very command was begun)"
    parser.add_argument("--output", type=file_path, metavar="FOLDER", help=words)


def add_overwrite(group: argparse._ActionsContainer) -> None:
    """Declare --overwrite."""
    words = "make the video again, and replace what is in --output once it is whole (default: what is there stays)"
    group.add_argument("--overwrite", action="store_true", help=words)


def add_preset(parser: argparse.ArgumentParser, others: str = "") -> argparse._ArgumentGroup:
    """Declare --preset; return its group. `others`: what becomes of the default if other options are given."""
    group = parser.add_argument_group("router", "who makes a block")
    group.add_argument(
        "--preset",
        choices=tuple(ROUTE_PRESETS),
        help="fast: the target makes block 1, and the drafter all others. balanced: also blocks 2 and 5, of which "
        "the drafter makes three steps. careful: the first 4 blocks, of three of which the drafter makes two. "
        "paper: the gate at -0.7. hybrid: the same, but four frames are scored first, and three steps handed over. "
        f"Default: {DEFAULT_PRESET}{others}",
    )
    return group


def add_router_options(parser: argparse.ArgumentParser) -> None:
    """Declare the router's options, which override the preset's."""
    group = add_preset(parser, "; paper if an option of the router is given, and options override the preset")
    group.add_argument("--policy", choices=tuple(POLICIES), default=argparse.SUPPRESS, help=", ".join(POLICIES))
    add_settings(group, Gate, only=("tau", "by"))
    add_settings(group, WorstFrame)
    add_settings(group, At)
    add_settings(group, Stride, only=("n",))
    add_settings(group, Refine)
    add_settings(group, Gate, only=("forced_blocks", "bail_out"))
    add_settings(group, Route)
    add_settings(group, Budget)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for model files, devices and dtypes."""
    group = parser.add_argument_group("models", "files not given are taken from --models by their usual names")
    group.add_argument(
        "--models",
        type=file_path,
        help=f"folder of models (default ./models); {POCKET}: the embedded miniature, for any machine",
    )
    for known in KNOWN_FILES:
        group.add_argument(
            f"--{known.role.replace('_', '-')}", type=file_path, metavar="FILE", help=f"usually {known.names[0]}"
        )
    group.add_argument(
        "--control-modules",
        type=file_path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="VACE modules for --control, for drafter or target, whichever they fit; alone or in whole checkpoints",
    )
    group.add_argument("--tokenizer", type=file_path, help="for the text encoder, if its file has none")
    for role in ("drafter", "target"):
        group.add_argument(
            f"--{role}-settings",
            type=model_setting,
            nargs="+",
            action="extend",
            default=[],
            metavar="NAME=VALUE",
            help=f"preset={AUTO} (default), {', '.join(PRESETS)}; and what is other than the preset's, such as "
            "cache=incremental window=9 sink=3 (latent frames), context-frames=6, block-frames=1, "
            "schedule=1000,625, first-schedule=1000, weights=raw, the drafter's draft-steps=3; for long clips "
            "relative=yes, recache=yes, flush=yes, keep-first-frame=yes, context-memory=memrope",
        )
    devices = parser.add_argument_group("devices, dtypes, and how models run")
    devices.add_argument(
        "--device",
        default=AUTO,
        help="for drafter and target: cpu, cuda, cuda:1 ...; auto (default): a GPU if there is one; of several "
        "videos such as cuda:0,cuda:1, each on one of them",
    )
    add_settings(devices, LoadOptions)
    add_settings(devices, Execution)
