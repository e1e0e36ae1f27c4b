"""SDVG Quality Router: which model makes a block, and by what score."""

from __future__ import annotations

from typing import Any, get_args

import folder_paths
from comfy_api.latest import io

from ..sdvg_core.checkpoints.model_files import KNOWN_FILES
from ..sdvg_core.engine.router import Policy, RouterConfig
from ..sdvg_core.errors import BadInput
from .folders import CATEGORY as REWARD_FOLDER
from .folders import reward_files
from .host.scorer import load_host_scorer, scorer_devices
from .known import check_option, known_inputs_only, node_schema
from .sockets import RewardModel, Router, RouterValue

NONE = "none"


class QualityRouter(io.ComfyNode):
    """Turns the settings into a router; loads the reward model if the policy uses scores."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs; a policy's own widgets appear only with it."""
        return node_schema(
            node_id="SDVGQualityRouter",
            display_name="SDVG Quality Router",
            description="Decides which drafts are accepted: ImageReward scores every frame, and the worst frame "
            "decides.",
            search_aliases=["ImageReward", "gate", "tau"],
            inputs=[
                io.Combo.Input(
                    "reward_file",
                    options=[*reward_files(), NONE],
                    tooltip="ImageReward.pt or a safetensors copy, in models/image_reward, with vocab.txt next to "
                    "it. 'none' if a scorer is wired in, or if the policy uses no scores.",
                ),
                _policy_input(),
                io.Boolean.Input(
                    "force_first",
                    default=True,
                    tooltip="The target generates the first block, whatever the policy. Most of the target's "
                    "quality comes from it.",
                ),
                io.Int.Input(
                    "bail_out",
                    default=0,
                    min=0,
                    max=64,
                    advanced=True,
                    tooltip="After this many rejections in a row, the target generates the rest without drafts. 0: "
                    "never.",
                ),
                io.Int.Input(
                    "repair_step",
                    default=0,
                    min=0,
                    max=16,
                    advanced=True,
                    tooltip="On rejection, the target continues after this many of the draft's denoising steps "
                    "instead of starting from noise. Faster, and closer to the draft. 0: from noise.",
                ),
                io.Combo.Input(
                    "crop",
                    options=["center", "squash", "tiles"],
                    default="center",
                    advanced=True,
                    tooltip="What the scorer sees of a frame. 'center' is ImageReward's own crop; the others need "
                    "another tau.",
                ),
                io.Combo.Input(
                    "device",
                    options=scorer_devices(),
                    default="default",
                    advanced=True,
                    tooltip="Where the scorer runs; it takes about 1.8 GB in float32. A device this machine lacks "
                    "counts as default.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=["float32", "float16"],
                    default="float32",
                    advanced=True,
                    tooltip="float16 halves the scorer's memory; scores move by about 0.005.",
                ),
                RewardModel.Input("scorer", optional=True, tooltip="A scorer to use instead of reward_file."),
            ],
            outputs=[Router.Output(display_name="router")],
        )

    @classmethod
    def validate_inputs(cls, device, policy=None) -> bool:
        """Let every device pass: a workflow may come from a machine with more of them.

        ComfyUI leaves the inputs named here for us to check. It passes `policy` whether or not it is named.
        """
        return True

    @classmethod
    @known_inputs_only
    def execute(
        cls, reward_file, force_first, bail_out, repair_step, crop, device, dtype, policy=None, scorer=None
    ) -> io.NodeOutput:
        """Build the router."""
        check_option(policy, "policy", get_args(Policy), cls)
        config = router_config(policy, force_first=force_first, bail_out=bail_out, repair_step=repair_step)
        if not config.needs_scorer:
            return io.NodeOutput(RouterValue(config, None))
        return io.NodeOutput(
            RouterValue(config, scorer or _load(reward_file, crop=crop, device=device, dtype=dtype))
        )


def _policy_input() -> Any:
    tau = io.Float.Input(
        "tau",
        default=-0.7,
        min=-3.0,
        max=3.0,
        step=0.05,
        display_mode=io.NumberDisplay.slider,
        tooltip="A draft is accepted if its score reaches tau. Lower is faster, higher is closer to the target. "
        "The paper's range is -0.7 (careful) to -2.5 (accepts everything).",
    )
    aggregation = io.Combo.Input(
        "aggregation",
        options=["min", "mean", "quantile"],
        default="min",
        tooltip="How the frame scores of a block become one: the worst frame (as in the paper), the mean, or a "
        "quantile.",
    )
    quantile = io.Float.Input(
        "quantile", default=0.1, min=0.0, max=1.0, step=0.05, tooltip="For 'quantile': 0 is the worst frame."
    )
    rate = io.Float.Input(
        "rate", default=0.7, min=0.0, max=1.0, step=0.05, tooltip="Chance that a draft is accepted."
    )
    seed = io.Int.Input("seed", default=0, min=0, max=2**31, tooltip="Seed of the coin flips, not of the video.")
    share = io.Float.Input(
        "draft_share",
        default=0.72,
        min=0.0,
        max=1.0,
        step=0.01,
        tooltip="Share of all blocks that should be drafts; the threshold adapts to the scores of this run.",
    )
    script = io.String.Input(
        "script",
        default="raaaaaaaa",
        tooltip="One letter per block: a and r score the draft, then keep or reject it; d keeps it unscored; t lets the target make it.",
    )
    return io.DynamicCombo.Input(
        "policy",
        tooltip="Which model makes a block. 'reward' is the paper's policy; the others are there for comparison.",
        options=[
            io.DynamicCombo.Option("reward", [tau, aggregation, quantile]),
            io.DynamicCombo.Option("percentile", [share]),
            io.DynamicCombo.Option("anchor-only", []),
            io.DynamicCombo.Option("random", [rate, seed]),
            io.DynamicCombo.Option("always-draft", []),
            io.DynamicCombo.Option("always-target", []),
            io.DynamicCombo.Option("scripted", [script]),
        ],
    )


def router_config(policy: dict[str, Any], **modifiers: Any) -> RouterConfig:
    """Return the router's settings from the policy's widgets."""
    return RouterConfig(**policy, **modifiers)


def _load(reward_file: str, **options: Any) -> Any:
    if reward_file == NONE:
        known = {k.role: k for k in KNOWN_FILES}
        raise BadInput(
            "this policy needs a reward model, but none is chosen; choose the policy anchor-only, which needs none, or "
            f"put two files into models/image_reward: {known['reward'].source}, and {known['vocabulary'].source}"
        )
    return load_host_scorer(folder_paths.get_full_path_or_raise(REWARD_FOLDER, reward_file), **options)
