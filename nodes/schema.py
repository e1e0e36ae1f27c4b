"""Build node schemas, and reject inputs, options and values that do not fit them.

ComfyUI ignores unknown inputs silently and does not check values that arrive over a wire, so the nodes do. A workflow
saved in the browser carries the pack's version on our nodes (web/pack_version.js); in API form it does not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy.sd import CLIP, VAE
from comfy_api.latest import Input, io
from torch import Tensor, strided

from ..sdvg_core import __version__
from ..sdvg_core.engine import protocols
from ..sdvg_core.errors import BadInput, see
from ..sdvg_core.report.run_report import RunReport
from ..sdvg_core.settings.fields import settings_of
from .host.sockets import (
    PromptEntry,
    PromptsSocket,
    ReportSocket,
    RouterSocket,
    RouterValue,
    ScorerSocket,
    StartSocket,
    StartValue,
)
from .host.vae import LATENT_CHANNELS

logger = logging.getLogger(__name__)

PACK = "sdvg"
NODE_WORDS = json.loads((Path(__file__).parents[1] / "locales/en/nodeDefs.json").read_text(encoding="utf-8"))
"""Display names, descriptions and tooltips in English. ComfyUI takes other languages from `locales` itself."""
NOT_WIRED = object()
"""The default of a socket in `validate_inputs`: kept without a wire; with a wire, ComfyUI passes None."""
LONGEST_VERSION = 40
MOST_NAMED = 8
NEWER = "if the workflow is from a newer version" + see("A node is missing or red after an update")
UPDATE = f"update SDVG, which is {__version__}, {NEWER}"


def node_schema(node_id: str, *, hidden: Sequence[io.Hidden] = (), **fields: Any) -> io.Schema:
    """Return the schema of a node, with texts from `NODE_WORDS`. Its node gets every input of the prompt, known or not."""
    words = NODE_WORDS[node_id]
    for name, widget in every_input(fields["inputs"]):
        widget.tooltip = words["inputs"][name.replace(".", "_")]["tooltip"]
    for number, output in enumerate(fields["outputs"]):
        output.tooltip = words["outputs"][str(number)]["tooltip"]
    fields |= {name: words[name] for name in ("display_name", "description")}
    hidden = [*hidden, io.Hidden.extra_pnginfo]
    return io.Schema(node_id, category="SDVG", accept_all_inputs=True, hidden=hidden, **fields)


def widget(config: type, name: str, *, called: str = "", **more: Any) -> Any:
    """Return the widget of a settings field, with its default, range or choices. `more` overrides them.

    `called`: its name on the node, if that is not the field's.
    """
    known = settings_of(config)[name]
    kinds = [kind for kind in known.kinds if kind is not NoneType]
    details = {"default": known.default, **(known.widget or {}), **more}
    if known.choices:
        return io.Combo.Input(called or name, options=list(known.choices), **details)
    if kinds[0] in (int, float):
        details = {"min": known.least, "max": known.most, **details}
        if kinds[0] is float:
            details |= {bound: float(details[bound]) for bound in ("min", "max")}
    return WIDGETS[kinds[0]](called or name, **details)


def known_inputs_only(execute: Callable[..., io.NodeOutput]) -> Callable[..., io.NodeOutput]:
    """Make a node's `execute` check its inputs against the schema first. Goes below `@classmethod`.

    Raises `BadInput` for unknown inputs and for values that do not fit. Those in a class's `OLDER_INPUTS`, which it had
    in older workflows, are handed on as they are.
    """

    @wraps(execute)
    def checked(cls: type[io.ComfyNode], **inputs: Any) -> io.NodeOutput:
        schema = cls.define_schema()
        known = {name for name, _ in every_input(schema.inputs)}
        older = getattr(cls, "OLDER_INPUTS", {})
        unknown = [name for name in inputs if name not in known and name not in older]
        if unknown and not _from_this_page(cls):
            raise BadInput(f"this node has no input {_some(unknown)}; remove it, or {UPDATE}")
        if unknown:
            logger.info("SDVG: left out the input %s, which an extension of the page adds", _some(unknown))
        # ComfyUI moves the inputs of the chosen option into its value, and leaves those of other options here.
        unused = [name for name in inputs if name in known and "." in name]
        if unused:
            logger.warning("SDVG: %s has no effect, as another option is chosen", _some(unused))
        # None on an optional widget counts as not given, so that its default is used.
        widgets = {field.id for field in schema.inputs if field.optional and isinstance(field, io.WidgetInput)}
        names = [name for name in inputs if name not in unknown and "." not in name]
        chosen = {name: inputs[name] for name in names if inputs[name] is not None or name not in widgets}
        # As in ComfyUI, a node checks the combos that its `validate_inputs` names itself.
        named = signature(cls.validate_inputs).parameters
        checked_here = [f for f in schema.inputs if not (isinstance(f, io.Combo.Input) and f.id in named)]
        check_values(checked_here, chosen)
        # ComfyUI passes None for an optional input of an option that is not given.
        for field in schema.inputs:
            if isinstance(field, io.DynamicCombo.Input) and isinstance(options := chosen.get(field.id), dict):
                chosen[field.id] = {name: value for name, value in options.items() if value is not None}
        return execute(cls, **chosen)

    return checked


def _from_this_page(node: type[io.ComfyNode]) -> bool:
    """True if the workflow was saved in the browser by this version or an older one.

    An unknown input is then a widget that another browser extension adds to all nodes.
    """
    saved = saved_by(node.hidden and node.hidden.extra_pnginfo)
    return bool(saved) and numbers(saved) <= numbers(__version__)


def _some(names: Sequence[str]) -> str:
    """Return the first few names as printable text; they come from an untrusted prompt."""
    return ", ".join(shown(name).strip("'") for name in names[:MOST_NAMED])


def every_input(inputs: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all inputs with their names, including those of every option of a dynamic combo (`policy.tau`)."""
    for field in inputs:
        yield prefix + field.id, field
        if isinstance(field, io.DynamicCombo.Input):
            for option in field.options:
                yield from every_input(option.inputs, f"{prefix}{field.id}.")
        if isinstance(field, io.Autogrow.Input):
            yield from ((f"{prefix}{field.id}.{name}", field.template.input) for name in field.template.names)


def check_option(chosen: object, what: str, options: Sequence[str], called: str = "") -> dict[str, Any]:
    """Return a dynamic combo's option and its inputs. Raises `BadInput` for an unknown one, of which ComfyUI passes the name.

    Plain combos need no check: ComfyUI's message names widget, value and choices before anything runs. A message from
    `validate_inputs` would be repeated for every input in its signature. `called`: what people see in place of `what`.
    """
    name = chosen.get(what) if isinstance(chosen, dict) else chosen
    if not isinstance(chosen, dict) or name not in options:
        named = called or what
        fault = f"{named} is missing" if name is None else f"there is no {named} {shown(name)}"
        raise BadInput(f"{fault}; choose {', '.join(dict.fromkeys(options))}, or {UPDATE}")
    return chosen


def workflow_id(extra_pnginfo: Any) -> str | None:
    """Return the id of the workflow in `extra_pnginfo`, or None."""
    return _member(_member(extra_pnginfo, "workflow", dict), "id", str) or None


def saved_by(extra_pnginfo: Any) -> str:
    """Return the newest version of this pack that saved a node of the workflow; empty if none is stated."""
    workflow = _member(extra_pnginfo, "workflow", dict)
    subgraphs = _member(_member(workflow, "definitions", dict), "subgraphs", list)
    nodes = [node for graph in (workflow, *subgraphs) for node in _member(graph, "nodes", list)]
    properties = [_member(node, "properties", dict) for node in nodes]
    stated = [str(p["ver"])[:LONGEST_VERSION] for p in properties if p.get("cnr_id") == PACK and "ver" in p]
    return max(stated, key=numbers, default="")


def _member(value: Any, name: str, kind: type) -> Any:
    """Return `value[name]`, or an empty value of that kind: a workflow can be any JSON."""
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, kind) else kind()


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as comparable numbers; a part that is not a number counts as 0."""
    parts = version[:LONGEST_VERSION].split(".")
    return tuple(int(part) if part.isascii() and part.isdecimal() else 0 for part in parts)


WIDGETS = {int: io.Int.Input, float: io.Float.Input, bool: io.Boolean.Input, str: io.String.Input}
KINDS = {
    "MODEL": ModelPatcher,
    "CLIP": CLIP,
    "VAE": VAE,
    "VIDEO": Input.Video,
    "CONDITIONING": list,
    "LATENT": dict,
    "IMAGE": Tensor,
    "STRING": str,
    "BOOLEAN": bool,
    RouterSocket.io_type: RouterValue | protocols.Router,
    ReportSocket.io_type: RunReport,
    ScorerSocket.io_type: protocols.Scorer,
    PromptsSocket.io_type: tuple,
    StartSocket.io_type: StartValue,
}
"""The Python type of the values of each socket type."""
PICTURES = "pictures, count x rows x columns x 1, 3 or 4 channels of finite fractions"
NUMBERS = {"INT": (int, "a whole number"), "FLOAT": (int | float, "a number")}
LONGEST_SHOWN = 60
LARGEST_SHOWN = 10**30


def check_values(inputs: Iterable[Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise `BadInput` unless the schema allows every value.

    Of a dynamic combo, check only the inputs of the chosen option; `check_option()` checks that it exists.
    """
    for field in inputs:
        value = values.get(field.id)
        if value is None and (field.optional or field.id not in values):
            continue
        wanted = _wanted(field, value)
        if wanted:
            raise BadInput(f"{prefix}{field.id} is {shown(value)}, not {wanted}; change it or its wire")
        if isinstance(field, io.DynamicCombo.Input) and isinstance(value, dict):
            for option in field.options:
                if option.key == value.get(field.id):
                    _check_option(option, field.id, value, f"{prefix}{field.id}")
        if isinstance(field, io.Autogrow.Input) and isinstance(value, dict):
            check_values(field.template.get_all(), value, f"{prefix}{field.id}.")


def _check_option(option: Any, name: str, value: Mapping[str, Any], path: str) -> None:
    unknown = value.keys() - {name, *(field.id for field in option.inputs)}
    if unknown:
        raise BadInput(f"{path} has no {shown(min(unknown, key=str))} under {option.key}; change its wire")
    check_values(option.inputs, value, f"{path}.")


def _wanted(field: Any, value: Any) -> str:
    """Return a description of the values that an input accepts, or an empty string if `value` is one."""
    kind = field.get_io_type()
    if kind in NUMBERS:
        numeric, words = NUMBERS[kind]
        valid = isinstance(value, numeric) and not isinstance(value, bool) and field.min <= value <= field.max
        return "" if valid else f"{words} from {field.min} to {field.max}"
    if isinstance(field, io.Combo.Input):
        return "" if value in field.options else f"one of {', '.join(map(str, field.options))}"
    if isinstance(value, KINDS.get(kind, object)) and _holds(kind, value):
        return _wanted_tensor(kind, value)
    article = "an" if kind.startswith((*"AEIO", "SDVG")) else "a"
    return f"{article} {kind}"


def _holds(kind: str, value: Any) -> bool:
    """True unless the value is a prompt schedule or conditioning with an element of a wrong type."""
    if kind == PromptsSocket.io_type:
        return all(isinstance(entry, PromptEntry) for entry in value)
    if kind != "CONDITIONING":
        return True
    pairs = [entry for entry in value if isinstance(entry, list | tuple) and len(entry) == 2]
    return len(pairs) == len(value) and all(
        isinstance(t, Tensor) and isinstance(extras, dict) for t, extras in pairs
    )


def _wanted_tensor(kind: str, value: Any) -> str:
    """Return a description of the tensors that a socket accepts, or an empty string if `value` is one."""
    if kind == "IMAGE":
        return "" if are_pictures(value) else PICTURES
    if kind == "LATENT":
        samples = value.get("samples")
        fits = isinstance(samples, Tensor) and samples.ndim == 5 and samples.shape[1] == LATENT_CHANNELS
        return "" if fits else f"the latents of a Wan 2.1 video, 1 x {LATENT_CHANNELS} x frames x rows x columns"
    return ""


def are_pictures(images: Any) -> bool:
    """True for a non-empty float tensor `f h w c` of finite values with 1, 3 or 4 channels."""
    dense = isinstance(images, Tensor) and images.layout == strided
    if not dense or images.ndim != 4 or not images.numel() or images.shape[3] not in (1, 3, 4):
        return False
    # One image at a time: checking all at once would double the memory of a clip.
    return images.is_floating_point() and all(bool(image.isfinite().all()) for image in images)


def shown(value: Any) -> str:
    """Return a value as short printable text: its shape for a tensor, else its type unless it is text or a number."""
    if isinstance(value, int) and abs(value) >= LARGEST_SHOWN:
        return "a number of many digits"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        value = value.get("samples", value)
    if isinstance(value, Tensor):
        return f"a tensor of {' x '.join(map(str, value.shape))}"
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
