"""SDVG Quality Router: choose the policy that decides which model makes a block, and its scorer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import comfy.model_management as mm
import folder_paths
from comfy_api.latest import io

from ..sdvg_core.errors import BadInput, see
from ..sdvg_core.scorers.image_reward import find_vocabulary, read_vocabulary
from ..sdvg_core.settings.execution import AUTO, RewardDtype
from ..sdvg_core.settings.route import (
    ROUTE_PRESETS,
    At,
    Budget,
    First,
    Gate,
    Quantile,
    Refine,
    Route,
    Stride,
)
from ..sdvg_core.weights.model_files import KNOWN_FILES
from .host.sockets import RouterSocket, RouterValue, ScorerSocket, load_host_scorer, needs_scorer, scorer_of
from .page.route_inputs import AT_POLICIES, HYBRID, OLDER_INPUTS, POLICY_INPUTS, REWARD, route_of
from .schema import NOT_WIRED, check_option, known_inputs_only, node_schema, shown, widget

logger = logging.getLogger(__name__)

NONE = "none"
REWARD_FOLDER = "image_reward"
OTHER_PACKS = ("ImageReward",)
SUFFIXES = {".pt", ".pth", ".safetensors"}
DOWNLOADS = os.path.expanduser("~/.cache/ImageReward")  # noqa: PTH111 - Path's raises for a user without a home
"""The download folder of the image-reward package."""
SLIDER = io.NumberDisplay.slider


class QualityRouter(io.ComfyNode):
    """Turns the settings into a router; loads the reward model if the policy uses scores."""

    OLDER_INPUTS: ClassVar[Mapping[str, int]] = OLDER_INPUTS

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs; the widgets of a policy appear only when it is chosen."""
        return node_schema(
            node_id="SDVGQualityRouter",
            search_aliases=["ImageReward", "gate", "tau"],
            inputs=[
                io.Combo.Input("reward_file", options=[*reward_files(), NONE]),
                _policy_input(),
                io.Combo.Input("device", options=mm.get_gpu_device_options(), default="default", advanced=True),
                io.Combo.Input("dtype", options=[AUTO, "float32", "float16"], default=AUTO, advanced=True),
                ScorerSocket.Input("scorer", optional=True),
            ],
            outputs=[RouterSocket.Output(display_name="router")],
        )

    @classmethod
    def validate_inputs(
        cls,
        device: object,
        reward_file: object = None,
        policy: object = None,
        scorer: object = NOT_WIRED,
    ) -> bool:
        """Raise `BadInput` for a missing reward file. Accept any device: a workflow may come from a machine with more.

        ComfyUI does not check the combos named in this signature. It passes None for values that come over a wire,
        and `policy` even if it is not named. A message that is returned would show once for each name, so we raise.
        """
        name = policy.get("policy") if isinstance(policy, dict) else policy
        if name in (REWARD, HYBRID) and scorer is NOT_WIRED and reward_file is not None:
            find_reward_file(reward_file)
        return True

    @classmethod
    @known_inputs_only
    def execute(
        cls,
        reward_file: str,
        device: str,
        dtype: RewardDtype,
        policy: dict[str, Any] | None = None,
        scorer: object = None,
        forced_blocks: int | None = None,
        bail_out: int | None = None,
        handover: int | None = None,
    ) -> io.NodeOutput:
        """Build the router, and load its scorer if the policy needs one and none is wired in.

        `forced_blocks`, `bail_out`, `handover`: of older workflows; those that the policy reads are its inputs now.
        """
        policy = check_option(policy, "policy", tuple(POLICY_INPUTS), called="route")
        older = {"forced_blocks": forced_blocks, "bail_out": bail_out, "handover": handover}
        older = {name: value for name, value in older.items() if value is not None}
        read = POLICY_INPUTS[policy["policy"]]
        values = {**{name: value for name, value in older.items() if name in read}, **policy}
        route = route_of(values)
        unread = [name for name, value in older.items() if name not in read and value != cls.OLDER_INPUTS[name]]
        partial = _of_partial_blocks(values)
        unread += ["cascade"] if policy.get("cascade") and policy.get("aggregation") != "min" else []
        placing = {"device": device, "dtype": dtype}
        if needs_scorer(route) and scorer is None:
            loaded = load_host_scorer(find_reward_file(reward_file), device=device, dtype=dtype)
            return io.NodeOutput(RouterValue(route, loaded, tuple(unread), partial))
        usual = {field.id: field.default for field in cls.define_schema().inputs if field.id in placing}
        unread += [name for name, value in placing.items() if value != usual[name]]
        wired = scorer_of(scorer) if needs_scorer(route) else None
        return io.NodeOutput(RouterValue(route, wired, tuple(unread), partial))


def _of_partial_blocks(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the changed widgets of a policy that count for blocks of which the target makes a part."""
    usual = {"handover_steps": _preset_of(values["policy"]).handover}
    names = ("handover", "handover_steps", "target_steps")
    return tuple(name for name in names if values.get(name, 0) not in (0, usual.get(name)))


def _preset_of(policy: str) -> Route:
    """Return the preset with whose numbers a policy of stated blocks starts."""
    return ROUTE_PRESETS.get(policy, ROUTE_PRESETS["balanced" if policy in AT_POLICIES else "fast"])


def _policy_input() -> Any:
    options = [
        io.DynamicCombo.Option(policy, [_widget_of(policy, name) for name in names])
        for policy, names in POLICY_INPUTS.items()
    ]
    return io.DynamicCombo.Input("policy", options=options)


def _widget_of(policy: str, name: str) -> Any:
    preset = _preset_of(policy)
    if name == "target_blocks":
        default = preset.policy.n if isinstance(preset.policy, First) else 0
        return io.Int.Input(name, default=default, min=0, max=4096)
    if name == "target_at":
        blocks = preset.policy.blocks if isinstance(preset.policy, At) else ()
        return io.String.Input(name, default=", ".join(map(str, blocks)))
    if name == "handover_steps":
        return io.Int.Input(name, default=preset.handover, min=0, max=16)
    if name == "aggregation":
        return io.Combo.Input(name, options=["min", "mean", "quantile"], default="min", advanced=True)
    if name == "cascade":
        return io.Boolean.Input(name, default=False, advanced=True, optional=True)
    return _WIDGETS[name]()


_WIDGETS: Mapping[str, Callable[[], Any]] = {
    "budget": lambda: widget(Budget, "share", called="budget", default=0.5, step=0.01, display_mode=SLIDER),
    "tau": lambda: widget(Gate, "tau", display_mode=SLIDER),
    "quantile": lambda: widget(Quantile, "q", called="quantile"),
    "stride": lambda: widget(Stride, "n", called="stride"),
    "strength": lambda: widget(Refine, "strength"),
    # Optional, as older prompts lack them; the page puts optional inputs last, where older workflows have their values.
    "forced_blocks": lambda: widget(Gate, "forced_blocks", optional=True),
    "bail_out": lambda: widget(Gate, "bail_out", optional=True),
    "handover": lambda: widget(Route, "handover", optional=True),
    "target_steps": lambda: widget(Route, "target_steps", optional=True),
}


def find_reward_file(reward_file: object) -> str:
    """Return the path of a reward file. Raises `BadInput` if it or its vocabulary is missing or damaged."""
    known = {k.role: k for k in KNOWN_FILES}
    sources = f"models/{REWARD_FOLDER}: {known['reward'].source}, and {known['vocabulary'].source}"
    cure = f"choose the route balanced, or put two files into {sources}" + see("Models are not found")
    if reward_file == NONE:
        raise BadInput(f"this route needs a scorer; {cure}")
    if reward_file not in reward_files():
        raise BadInput(f"there is no {shown(reward_file)}; {cure}")
    path: str = folder_paths.get_full_path_or_raise(REWARD_FOLDER, reward_file)
    read_vocabulary(find_vocabulary(Path(path)))
    return path


def register_reward_folder() -> None:
    """Register the folders of reward models with ComfyUI, after those from `extra_model_paths.yaml`.

    Log a warning if `models/image_reward` cannot be made: ComfyUI would drop a pack whose loading fails.
    """
    models = Path(folder_paths.models_dir)
    paths = [*(str(models / name) for name in (REWARD_FOLDER, *OTHER_PACKS)), DOWNLOADS]
    known = folder_paths.folder_names_and_paths.get(REWARD_FOLDER, ([], set()))[0]
    every = [*known, *(path for path in paths if path not in known)]
    folder_paths.folder_names_and_paths[REWARD_FOLDER] = (every, SUFFIXES)
    try:
        (models / REWARD_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("SDVG: the folder for reward models cannot be made: %s", error)


def reward_files() -> list[str]:
    """Return the names of the reward files that exist."""
    names: list[str] = folder_paths.get_filename_list(REWARD_FOLDER)
    return names
