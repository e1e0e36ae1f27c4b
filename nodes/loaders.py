"""SDVG Drafter Loader and SDVG Target Loader: load a published causal Wan 2.1 checkpoint as an ordinary MODEL.

It is ComfyUI's own model with our notes attached, not a type of ours, so that LoRA nodes and patches work on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import folder_paths
from comfy.model_patcher import ModelPatcher
from comfy_api.latest import io

from ..sdvg_core.causal_wan.checkpoint import WanHeader, open_wan
from ..sdvg_core.causal_wan.presets import guess_preset, preset_by_name
from ..sdvg_core.errors import BadInput
from ..sdvg_core.settings.context import (
    CONTEXTS,
    PRESETS,
    Preset,
    Recompute,
    Rolling,
    Weights,
    changed_preset,
    foreign_changes,
    get_preset,
)
from ..sdvg_core.settings.execution import AUTO, CompileMode, Execution
from ..sdvg_core.settings.load import ModelOptions
from ..sdvg_core.settings.schedules import SCHEDULES
from ..sdvg_core.weights.pickles import Choice
from .host.files import WEIGHT_DTYPES, load_checkpoint, load_control_file, with_flush
from .host.model import CONTROL, attach_origin, check_control, origin_of
from .page.progress import notify
from .page.signature import UNREADABLE
from .schema import check_option, known_inputs_only, node_schema, widget

SAME_SCHEDULE = "as the other blocks"
NO_FILE = "none"
FLUSH = "flush"
MOST_FRAMES = 256
"""The upper limit of widgets that count latent frames."""


def _schema(role: str) -> io.Schema:
    files = folder_paths.get_filename_list("diffusion_models")
    return node_schema(
        node_id=f"SDVG{role.title()}Loader",
        hidden=[io.Hidden.unique_id],
        search_aliases=["Self-Forcing", "Krea", "causal Wan"],
        inputs=[
            io.Combo.Input("file", options=[*files, NO_FILE]),
            io.Combo.Input("weight_dtype", options=[AUTO, *WEIGHT_DTYPES], default=AUTO, advanced=True),
            io.DynamicCombo.Input(
                "preset",
                options=[io.DynamicCombo.Option(name, []) for name in (AUTO, *PRESETS) if name != "custom"]
                + [io.DynamicCombo.Option("custom", _custom_inputs())],
            ),
            io.Combo.Input("weights", options=list(get_args(Weights)), default=AUTO, optional=True, advanced=True),
            io.Model.Input("control", optional=True),
            io.Combo.Input(
                "control_file",
                options=[NO_FILE, *(name for name in files if "vace" in name.lower())],
                default=NO_FILE,
                optional=True,
                advanced=True,
            ),
            io.Combo.Input("new_prompt", options=[FLUSH, "keep"], default=FLUSH, optional=True, advanced=True),
            widget(Execution, "compile", optional=True, advanced=True),
            io.Model.Input("model", optional=True),
        ],
        outputs=[io.Model.Output(display_name=role)],
    )


def _custom_inputs() -> list[Any]:
    return [
        widget(Preset, "block_frames", max=MOST_FRAMES),
        widget(ModelOptions, "policy"),
        widget(Recompute, "context_frames", max=MOST_FRAMES, optional=True),
        *(widget(Rolling, name, max=MOST_FRAMES, optional=True) for name in ("window", "sink")),
        widget(Rolling, "recache", optional=True),
        io.Combo.Input("first_schedule", options=[SAME_SCHEDULE, *SCHEDULES], default=SAME_SCHEDULE, optional=True),
        widget(Rolling, "relative", default=True, optional=True),
        widget(Rolling, "flush", optional=True),
        widget(Recompute, "keep_first_frame", optional=True),
        widget(Rolling, "context_memory", optional=True),
    ]


def preset_of_widgets(widgets: dict[str, Any]) -> Preset | None:
    """Return the preset that the widgets describe, or None for `auto`, which is resolved when the model is used."""
    name = widgets["preset"]
    if name == AUTO:
        return None
    changes = {key: value for key, value in widgets.items() if key != "preset" and value != SAME_SCHEDULE}
    policy = changes.pop("policy", None)
    for other in _of_other_context(policy, changes):
        del changes[other]
    return changed_preset(get_preset(name), changes, policy)


def _of_other_context(policy: str | None, changes: Mapping[str, Any]) -> list[str]:
    return foreign_changes(CONTEXTS[policy], changes) if policy else []


def unread_note(widgets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note on changed widgets that the chosen kind of context does not read."""
    usual = {field.id: field.default for field in _custom_inputs()}
    others = _of_other_context(widgets.get("policy"), widgets)
    names = [name for name in others if widgets[name] != usual[name]]
    return (f"Without effect with {widgets['policy']}: {', '.join(names)}.",) if names else ()


def preset_for(model: ModelPatcher, preset: Preset | None, *, flush: bool) -> ModelPatcher:
    """Return a copy of a MODEL that another loader made, with a preset, or the one that it has for None.

    `flush`: as in `load_checkpoint`.
    """
    return attach_origin(model.clone(), preset=with_flush(preset or origin_of(model).preset, flush=flush))


def attach_control(
    model: ModelPatcher, role: str, control: ModelPatcher | None = None, control_file: str = NO_FILE
) -> None:
    """Attach a control module, a MODEL or a file, to a MODEL. Raises `BadInput` for two, or one that does not fit."""
    if control is not None and control_file != NO_FILE:
        raise BadInput("control and control_file both give a control module; leave one of them out")
    if control_file != NO_FILE:
        module = folder_paths.get_full_path_or_raise("diffusion_models", control_file)
        control = load_control_file(module, model, role)
    if control is not None:
        check_control(model, control, role)
        model.set_attachments(CONTROL, control)


class DrafterLoader(io.ComfyNode):
    """Loads the small model."""

    role = "drafter"

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return _schema(cls.role)

    @classmethod
    @known_inputs_only
    def execute(
        cls,
        file: str,
        weight_dtype: str,
        preset: dict[str, Any] | None = None,
        weights: Weights = AUTO,
        new_prompt: str = FLUSH,
        compile: CompileMode = "off",
        model: ModelPatcher | None = None,
        **control: Any,
    ) -> io.NodeOutput:
        """Load the model and attach preset, compile mode and control module.

        `model`: one of another loader, in place of the file. `control`: inputs of `attach_control`. Raises `BadInput`
        for an unknown preset, a control module that does not fit, two of them, or two models.
        """
        preset = check_option(preset, "preset", (AUTO, *PRESETS))
        flush = new_prompt == FLUSH and preset["preset"] != "custom"  # which has its own switch
        if model is None:
            if file == NO_FILE:
                raise BadInput("there is no model; choose a file, or wire a model")
            path = folder_paths.get_full_path_or_raise("diffusion_models", file)
            model = load_checkpoint(path, weight_dtype, preset_of_widgets(preset), weights, cls.role, flush=flush)
        elif (file, weight_dtype, weights) != (NO_FILE, AUTO, AUTO):
            raise BadInput("model is loaded already; set file to none, and weight_dtype and weights to auto")
        else:
            model = preset_for(model, preset_of_widgets(preset), flush=flush)
        attach_origin(model, compile=compile, notes=(*origin_of(model).notes, *unread_note(preset)))
        attach_control(model, cls.role, **control)
        notify(cls.hidden and cls.hidden.unique_id, "\n".join(origin_of(model).notes))
        return io.NodeOutput(model)


class TargetLoader(DrafterLoader):
    """Loads the large model."""

    role = "target"


TARGET_LOADER = "SDVGTargetLoader"


def stated_target(prompt: Any, node_id: str | None) -> WanHeader | None:
    """Return the header of a sampler's target, as its loader in an API prompt states it; no weights are read.

    None if another node makes it, or its loader would refuse it.
    """
    try:
        loader = prompt[prompt[node_id]["inputs"]["target"][0]]
        inputs = loader["inputs"]
        if loader["class_type"] != TARGET_LOADER or inputs.get("model"):
            return None
        path = Path(folder_paths.get_full_path_or_raise("diffusion_models", inputs["file"]))
        widgets = {
            name.removeprefix("preset."): value for name, value in inputs.items() if name.startswith("preset")
        }
        preset = preset_of_widgets(widgets) or preset_by_name(path)
        choice = Choice(inputs.get("weights", AUTO), preset.weights if preset else AUTO)
        config = open_wan(path, choice).config
        return WanHeader(name="target", config=config, preset=preset or guess_preset(config))
    except (*UNREADABLE, OSError):
        return None
