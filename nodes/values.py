"""Check values that arrive over a wire against the schema: ComfyUI does not, and some wires carry anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy.sd import CLIP, VAE
from comfy_api.latest import io
from torch import Tensor

from ..sdvg_core.engine import protocols
from ..sdvg_core.errors import BadInput
from ..sdvg_core.report.run_report import RunReport
from .sockets import Prompts, Report, RewardModel, Router, RouterValue

# A socket's type -> what travels over it.
KINDS = {
    "MODEL": ModelPatcher,
    "CLIP": CLIP,
    "VAE": VAE,
    "CONDITIONING": list,
    "LATENT": dict,
    "IMAGE": Tensor,
    "STRING": str,
    "BOOLEAN": bool,
    Router.io_type: RouterValue | protocols.Router,
    Report.io_type: RunReport,
    RewardModel.io_type: protocols.Scorer,
    Prompts.io_type: tuple,
}
NUMBERS = {"INT": (int, "a whole number"), "FLOAT": (int | float, "a number")}
LONGEST_SHOWN, LARGEST_SHOWN = 60, 10**30


def check_values(inputs: Iterable[Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise `BadInput` unless the schema allows every value.

    For a dynamic combo, only the inputs of the chosen option are checked; its node checks that the option exists.
    """
    for one in inputs:
        value = values.get(one.id)
        if value is None and (one.optional or one.id not in values):
            continue
        wanted = _wanted(one, value)
        if wanted:
            raise BadInput(f"{prefix}{one.id} is {shown(value)}, not {wanted}; change it or its wire")
        if isinstance(one, io.DynamicCombo.Input) and isinstance(value, dict):
            for option in one.options:
                if option.key == value.get(one.id):
                    _check_option(option, one.id, value, f"{prefix}{one.id}")


def _check_option(option: Any, name: str, value: Mapping[str, Any], path: str) -> None:
    unknown = value.keys() - {name, *(one.id for one in option.inputs)}
    if unknown:
        raise BadInput(f"{path} has no {shown(min(unknown, key=str))} under {option.key}; change its wire")
    check_values(option.inputs, value, f"{path}.")


def _wanted(one: Any, value: Any) -> str:
    """Return in words what an input takes, or an empty string if `value` fits."""
    kind = one.get_io_type()
    if kind in NUMBERS:
        of, words = NUMBERS[kind]
        sound = isinstance(value, of) and not isinstance(value, bool) and one.min <= value <= one.max
        return "" if sound else f"{words} from {one.min} to {one.max}"
    if isinstance(one, io.Combo.Input):
        return "" if value in one.options else f"one of {', '.join(map(str, one.options))}"
    return "" if isinstance(value, KINDS.get(kind, object)) else f"{_article(kind)} {kind}"


def _article(kind: str) -> str:
    return "an" if kind.startswith((*"AEIO", "SDVG")) else "a"


def shown(value: Any) -> str:
    """Return a value as short printable text; for anything but a plain value, only its type."""
    if isinstance(value, int) and abs(value) >= LARGEST_SHOWN:
        return "a number of many digits"
    if value is None:
        return "nothing"
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
