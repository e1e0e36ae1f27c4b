"""SDVG Quality Router: choose the policy that decides which model makes a block, and its scorer."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import comfy.model_management as mm
import folder_paths
from comfy_api.latest import io

from ..sdvg_core.errors import BadInput, see
from ..sdvg_core.scorers.image_reward import find_vocabulary, read_vocabulary
from ..sdvg_core.settings.execution import AUTO, RewardDtype
from ..sdvg_core.settings.route import (
    CASCADE_MARGIN,
    ROUTE_PRESETS,
    Aggregation,
    Budget,
    First,
    Gate,
    Mean,
    Quantile,
    Route,
    Stride,
    TargetOnly,
    WorstFrame,
)
from ..sdvg_core.weights.model_files import KNOWN_FILES
from .known import NOT_WIRED, check_option, known_inputs_only, node_schema, shown, widget
from .sockets import RouterSocket, RouterValue, ScorerSocket, load_host_scorer, needs_scorer, scorer_of

logger = logging.getLogger(__name__)

NONE = "none"
REWARD = "reward"
HYBRID = "hybrid"
REWARD_FOLDER = "image_reward"
OTHER_PACKS = ("ImageReward",)
SUFFIXES = {".pt", ".pth", ".safetensors"}
DOWNLOADS = os.path.expanduser("~/.cache/ImageReward")  # noqa: PTH111 - Path's raises for a user without a home
"""The download folder of the image-reward package."""
FIRST = ("balanced", "fast", "careful", "first")
"""Names under which the node offers the policy `first`, each with its own defaults; a new node has the first name."""


class QualityRouter(io.ComfyNode):
    """Turns the settings into a router; loads the reward model if the policy uses scores.

    `OLDER_INPUTS`: those that stood under every policy in older workflows, with their defaults.
    """

    OLDER_INPUTS: ClassVar[Mapping[str, int]] = {"forced_blocks": 1, "bail_out": 0, "handover": 0}

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
        options = {option.key: [field.id for field in option.inputs] for option in _policy_input().options}
        policy = check_option(policy, "policy", tuple(options), called="route")
        older = {"forced_blocks": forced_blocks, "bail_out": bail_out, "handover": handover}
        older = {name: value for name, value in older.items() if value is not None}
        read = options[policy["policy"]]
        route = route_of({**{name: value for name, value in older.items() if name in read}, **policy})
        unread = [name for name, value in older.items() if name not in read and value != cls.OLDER_INPUTS[name]]
        unread += ["cascade"] if policy.get("cascade") and policy.get("aggregation") != "min" else []
        placing = {"device": device, "dtype": dtype}
        if needs_scorer(route) and scorer is None:
            loaded = load_host_scorer(find_reward_file(reward_file), device=device, dtype=dtype)
            return io.NodeOutput(RouterValue(route, loaded, tuple(unread)))
        usual = {field.id: field.default for field in cls.define_schema().inputs if field.id in placing}
        unread += [name for name, value in placing.items() if value != usual[name]]
        return io.NodeOutput(RouterValue(route, scorer_of(scorer) if needs_scorer(route) else None, tuple(unread)))


def _policy_input() -> Any:
    tau = widget(Gate, "tau", display_mode=io.NumberDisplay.slider)
    # Optional, as older prompts lack them; the page puts optional inputs last, where older workflows have their values.
    forced = widget(Gate, "forced_blocks", optional=True)
    bail_out = widget(Gate, "bail_out", optional=True)
    handover = widget(Route, "handover", optional=True)
    inputs: dict[str, list[Any]] = {name: _first_inputs(name) for name in FIRST}
    inputs["budget"] = [
        widget(Budget, "share", called="budget", default=0.5, step=0.01, display_mode=io.NumberDisplay.slider)
    ]
    inputs[HYBRID] = [tau, forced, bail_out]
    inputs[REWARD] = [
        tau,
        io.Combo.Input("aggregation", options=["min", "mean", "quantile"], default="min", advanced=True),
        widget(Quantile, "q", called="quantile"),
        io.Boolean.Input("cascade", default=False, advanced=True, optional=True),
        forced,
        bail_out,
        handover,
    ]
    inputs["stride"] = [widget(Stride, "n", called="stride"), forced, handover]
    inputs["always-target"] = [handover]
    options = [io.DynamicCombo.Option(name, of_policy) for name, of_policy in inputs.items()]
    return io.DynamicCombo.Input("policy", options=options)


def _first_inputs(name: str) -> list[Any]:
    preset = ROUTE_PRESETS.get(name, ROUTE_PRESETS["fast"])
    assert isinstance(preset.policy, First)
    return [
        io.Int.Input("target_blocks", default=preset.policy.n, min=0, max=4096),
        io.Int.Input("handover_steps", default=preset.handover, min=0, max=16),
    ]


def route_of_prompt(inputs: Mapping[str, Any]) -> Route | Budget:
    """Return the route of the node in an API prompt. `inputs`: of the node."""
    values = {name: inputs[name] for name in QualityRouter.OLDER_INPUTS if name in inputs}
    values |= {name.removeprefix("policy."): inputs[name] for name in inputs if name.startswith("policy")}
    options = {option.key: option.inputs for option in _policy_input().options}
    read = {field.id for field in options[values["policy"]]}
    return route_of({name: value for name, value in values.items() if name in {"policy", *read}})


def route_of(values: Mapping[str, Any]) -> Route | Budget:
    """Return the route that the widgets of a policy describe."""
    name = values["policy"]
    around = {name: values[name] for name in ("forced_blocks", "bail_out") if name in values}
    handover = values.get("handover", 0)
    if name in FIRST:
        return Route(First(values["target_blocks"]), handover=values["handover_steps"])
    if name == "budget":
        return Budget(values["budget"])
    if name == HYBRID:
        return replace(ROUTE_PRESETS[HYBRID], policy=Gate(values["tau"], WorstFrame(CASCADE_MARGIN), **around))
    if name == REWARD:
        return Route(Gate(values["tau"], _aggregation(values), **around), handover=handover)
    if name == "stride":
        return Route(Stride(values["stride"], **around), handover=handover)
    return Route(TargetOnly(), handover=handover)


def _aggregation(values: Mapping[str, Any]) -> Aggregation:
    how = values.get("aggregation", "min")
    if how == "mean":
        return Mean()
    if how == "quantile":
        return Quantile(**{"q": values["quantile"]} if "quantile" in values else {})
    return WorstFrame(CASCADE_MARGIN if values.get("cascade") else None)


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
