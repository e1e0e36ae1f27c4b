"""SDVG Quality Router: choose the policy that decides which model makes a block, and its scorer."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import folder_paths
from comfy_api.latest import io

from ..sdvg_core.checkpoints.model_files import KNOWN_FILES
from ..sdvg_core.errors import BadInput, see
from ..sdvg_core.scorers.image_reward import find_vocabulary, read_vocabulary
from ..sdvg_core.settings.execution import AUTO
from ..sdvg_core.settings.request import VideoRequest
from ..sdvg_core.settings.route import CASCADE_MARGIN, POLICIES, REWARD, ROUTER_PRESETS, RouterConfig
from .known import NOT_WIRED, check_option, known_inputs_only, node_schema, shown, widget
from .sockets import STANDING, RewardModel, Router, RouterValue, load_host_scorer, scorer_of

logger = logging.getLogger(__name__)

NONE = "none"
BUDGET = "budget"
HYBRID = "hybrid"
REWARD_FOLDER = "image_reward"
OTHER_PACKS = ("ImageReward",)
SUFFIXES = {".pt", ".pth", ".safetensors"}
DOWNLOADS = os.path.expanduser("~/.cache/ImageReward")  # noqa: PTH111 - Path's raises for a user without a home
"""The download folder of the image-reward package."""
FIRST = ("balanced", "fast", "careful", "first")
"""Names under which the node offers the policy `first`, each with its own defaults; a new node has the first name."""


class QualityRouter(io.ComfyNode):
    """Turns the settings into a router; loads the reward model if the policy uses scores."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs; the widgets of a policy appear only when it is chosen."""
        return node_schema(
            node_id="SDVGQualityRouter",
            search_aliases=["ImageReward", "gate", "tau"],
            inputs=[
                io.Combo.Input("reward_file", options=[*reward_files(), NONE]),
                _policy_input(),
                *(widget(RouterConfig, name) for name in STANDING),
                io.Combo.Input("device", options=mm.get_gpu_device_options(), default="default", advanced=True),
                io.Combo.Input("dtype", options=[AUTO, "float32", "float16"], default=AUTO, advanced=True),
                RewardModel.Input("scorer", optional=True),
            ],
            outputs=[Router.Output(display_name="router")],
        )

    @classmethod
    def validate_inputs(cls, device, reward_file=None, policy=None, scorer=NOT_WIRED) -> bool:
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
        cls, reward_file, forced_blocks, bail_out, handover, device, dtype, policy=None, scorer=None
    ) -> io.NodeOutput:
        """Build the router, and load its scorer if the policy needs one and none is wired in."""
        check_option(policy, "policy", (*POLICIES, *FIRST, BUDGET, HYBRID), called="route")
        router = router_value(policy, forced_blocks=forced_blocks, bail_out=bail_out, handover=handover)
        options = {"device": device, "dtype": dtype}
        if router.config.needs_scorer and scorer is None:
            return io.NodeOutput(replace(router, scorer=load_host_scorer(find_reward_file(reward_file), **options)))
        if router.config.needs_scorer:
            router = replace(router, scorer=scorer_of(scorer))
        usual = {field.id: field.default for field in cls.define_schema().inputs if field.id in options}
        changed = [name for name, value in options.items() if value != usual[name]]
        return io.NodeOutput(replace(router, unread=(*router.unread, *changed)))


def _policy_input() -> Any:
    tau = widget(RouterConfig, "tau", display_mode=io.NumberDisplay.slider)
    cascade = io.Boolean.Input("cascade", default=False, advanced=True, optional=True)
    special = {"tau": tau, "cascade": cascade}
    budget = widget(VideoRequest, BUDGET, default=0.5, step=0.01, display_mode=io.NumberDisplay.slider)
    return io.DynamicCombo.Input(
        "policy",
        options=[
            *(io.DynamicCombo.Option(name, _first_inputs(name)) for name in FIRST),
            io.DynamicCombo.Option(BUDGET, [budget]),
            io.DynamicCombo.Option(HYBRID, [tau]),
            *(
                io.DynamicCombo.Option(
                    name,
                    [
                        special.get(field) or widget(RouterConfig, field)
                        for field in fields
                        if field not in STANDING
                    ],
                )
                for name, fields in POLICIES.items()
                if name not in FIRST
            ),
        ],
    )


def _first_inputs(name: str) -> list[Any]:
    preset = ROUTER_PRESETS.get(name, ROUTER_PRESETS["fast"])
    return [
        io.Int.Input("target_blocks", default=preset.forced_blocks, min=0, max=4096),
        io.Int.Input("handover_steps", default=preset.handover, min=0, max=16),
    ]


def router_value(policy: dict[str, Any], **modifiers: Any) -> RouterValue:
    """Return the router that the widgets describe. `policy`: the widgets of the policy; `modifiers`: those of all."""
    settings = dict(policy) | modifiers
    name = settings["policy"]
    budget = settings.pop("budget", None)
    if settings.pop("cascade", False):
        settings["cascade"] = CASCADE_MARGIN
    if name == HYBRID:
        preset = ROUTER_PRESETS[HYBRID]
        settings["handover"] = settings["handover"] or preset.handover
        settings |= {"policy": REWARD, "cascade": preset.cascade}
    if name in FIRST:
        settings["forced_blocks"] = settings.pop("target_blocks")
        settings["handover"] = settings.pop("handover_steps")
    unread = []
    if name in (*FIRST, BUDGET):
        settings["policy"] = "first"
        unread = [standing for standing in STANDING if modifiers[standing] != getattr(RouterConfig(), standing)]
    return RouterValue(RouterConfig(**settings), None, budget, name, tuple(unread))


def find_reward_file(reward_file: Any) -> str:
    """Return the path of a reward file. Raises `BadInput` if it or its vocabulary is missing or damaged."""
    known = {k.role: k for k in KNOWN_FILES}
    sources = f"models/{REWARD_FOLDER}: {known['reward'].source}, and {known['vocabulary'].source}"
    cure = f"choose the route balanced, or put two files into {sources}" + see("Models are not found")
    if reward_file == NONE:
        raise BadInput(f"this route needs a scorer; {cure}")
    if reward_file not in reward_files():
        raise BadInput(f"there is no {shown(reward_file)}; {cure}")
    path = folder_paths.get_full_path_or_raise(REWARD_FOLDER, reward_file)
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
    return folder_paths.get_filename_list(REWARD_FOLDER)
