"""SDVG Quality Router: which model makes a block, and by what score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import io

from ..sdvg_core.checkpoints.model_files import KNOWN_FILES
from ..sdvg_core.engine.router import GONE, POLICIES, ROUTER_PRESETS, RouterConfig, check_policy
from ..sdvg_core.errors import BadInput
from ..sdvg_core.pipeline.learned import open_learned
from ..sdvg_core.scorers.tokenizer import find_vocabulary, read_vocabulary
from .folders import CATEGORY as REWARD_FOLDER
from .folders import LEARNED as ROUTES
from .folders import reward_files
from .host.scorer import load_host_scorer, scorer_devices
from .known import NOT_WIRED, check_option, known_inputs_only, node_schema
from .sockets import RewardModel, Router, RouterValue, scorer_of
from .values import shown

NONE, BUDGET, LEARNED = "none", "budget", "learned"
FIRST = ("balanced", "fast", "careful", "first")
"""The names under which the policy `first` is offered, each with its own numbers to begin with. The first one is what
a new node has."""


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
                io.Int.Input(
                    "forced_blocks",
                    default=1,
                    min=0,
                    max=4096,
                    advanced=True,
                    tooltip="The target generates the clip's first blocks, whatever the policy. Most of its quality "
                    "comes from the first one. 0: the policy decides on that one too. Where there is target_blocks, "
                    "set that; 'budget' chooses by itself.",
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
                    "handover",
                    default=0,
                    min=0,
                    max=16,
                    advanced=True,
                    tooltip="Of a block that the target generates, the drafter makes this many denoising steps, and the "
                    "target continues from there. Faster, and closer to the draft. The clip's first block stays "
                    "the target's alone. 0: the target makes all steps. Where there is handover_steps, that counts; "
                    "'budget' chooses by itself.",
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
            outputs=[
                Router.Output(
                    display_name="router", tooltip="Who makes each block, and the scorer. For the sampler."
                )
            ],
        )

    @classmethod
    def validate_inputs(cls, device, reward_file=None, policy=None, scorer=NOT_WIRED) -> bool:
        """Let every device pass: a workflow may come from a machine with more. Raise `BadInput` for a missing file or a policy of old.

        ComfyUI leaves the choices named here for us to check, before anything runs. It passes None for what comes
        over a wire, and `policy` whether or not it is named. A sentence that is returned would show once for each name.
        """
        name = policy.get("policy") if isinstance(policy, dict) else policy
        if name in GONE:
            check_policy(name)
        if (
            name in POLICIES
            and "tau" in POLICIES[name].settings
            and scorer is NOT_WIRED
            and reward_file is not None
        ):
            find_reward_file(reward_file)
        return True

    @classmethod
    @known_inputs_only
    def execute(
        cls, reward_file, forced_blocks, bail_out, handover, crop, device, dtype, policy=None, scorer=None
    ) -> io.NodeOutput:
        """Build the router."""
        check_option(policy, "policy", (*POLICIES, *FIRST, BUDGET, LEARNED), cls)
        router = router_value(policy, forced_blocks=forced_blocks, bail_out=bail_out, handover=handover)
        if router.config.needs_scorer:
            found = scorer_of(scorer) or _load(reward_file, crop=crop, device=device, dtype=dtype)
            router = replace(router, scorer=found)
        return io.NodeOutput(router)


def _policy_input() -> Any:
    tau = io.Float.Input(
        "tau",
        default=-0.7,
        min=-3.0,
        max=3.0,
        step=0.05,
        display_mode=io.NumberDisplay.slider,
        tooltip="A draft is accepted if its score reaches tau. Lower is faster, higher is closer to the target. "
        "The paper's range is -0.7 (careful) to -2.5 (accepts everything). With 'relative', its score must reach "
        "that of the last frame before the block, plus tau. Saved workflows and API prompts may go from -3 to 3.",
    )
    aggregation = io.Combo.Input(
        "aggregation",
        options=["min", "mean", "quantile"],
        default="min",
        advanced=True,
        tooltip="How the frame scores of a block become one: the worst frame (as in the paper), the mean, or a "
        "quantile.",
    )
    quantile = io.Float.Input(
        "quantile",
        default=0.1,
        min=0.0,
        max=1.0,
        step=0.05,
        advanced=True,
        tooltip="Counts only if the score of a block is 'quantile'; 'min' and 'mean' ignore it. 0 is the worst frame, 1 "
        "the best.",
    )
    budget = io.Float.Input(
        "budget",
        default=0.5,
        min=0.01,
        max=1.0,
        step=0.01,
        display_mode=io.NumberDisplay.slider,
        tooltip="Share of what the target alone would cost, by the planner's prediction for an RTX A6000. The report "
        "says what it bought.",
    )
    rate = io.Float.Input(
        "rate", default=0.7, min=0.0, max=1.0, step=0.05, tooltip="Chance that a draft is accepted."
    )
    seed = io.Int.Input("seed", default=0, min=0, max=2**31, tooltip="Seed of the coin flips, not of the video.")
    script = io.String.Input(
        "script",
        default="raaaaaaaa",
        tooltip="One letter per block: a and r score the draft, then keep or reject it; d keeps it unscored; t lets the target make it.",
    )
    learned_file = io.Combo.Input(
        "learned_file",
        options=[*folder_paths.get_filename_list(ROUTES), NONE],
        tooltip="What 'study --learn' wrote, in models/sdvg_routes. Prompts that gain more from the target get more "
        "first blocks, on the mean as many as 'target_blocks'. Only for the models it was learned with.",
    )
    own = {widget.id: widget for widget in (tau, aggregation, quantile, rate, seed, script)}
    return io.DynamicCombo.Input(
        "policy",
        tooltip="The policy: which model makes a block. 'reward' is the reward gate (paper). 'fast', 'balanced' and 'careful' let the "
        "target make the first blocks and need no scorer: predicted 0.35, 0.41 and 0.51 of what the target alone would "
        "cost at 832x480, the paper's 0.56. On the embedded miniature they came to 0.5, 0.5 and 0.2 dB below it. "
        "'budget' chooses their numbers for a share of that cost.",
        options=[
            *(io.DynamicCombo.Option(name, _first_inputs(name)) for name in FIRST),
            io.DynamicCombo.Option(BUDGET, [budget]),
            *(
                io.DynamicCombo.Option(name, [own[setting] for setting in policy.settings])
                for name, policy in POLICIES.items()
                if name not in FIRST
            ),
            io.DynamicCombo.Option(LEARNED, [learned_file, *_first_inputs(FIRST[0])]),
        ],
    )


def _first_inputs(name: str) -> list[Any]:
    preset = ROUTER_PRESETS.get(name, ROUTER_PRESETS["fast"])
    return [
        io.Int.Input(
            "target_blocks",
            default=preset.forced_blocks,
            min=1,
            max=4096,
            tooltip="The target generates this many of the clip's first blocks, the drafter all others. Nothing is scored.",
        ),
        io.Int.Input(
            "handover_steps",
            default=preset.handover,
            min=0,
            max=16,
            tooltip="Of each of them but the very first, the drafter makes this many denoising steps.",
        ),
    ]


def router_value(policy: dict[str, Any], scorer: Any = None, **modifiers: Any) -> RouterValue:
    """Return the router from the policy's widgets and the others."""
    own = dict(policy)
    name, budget, file = own["policy"], own.pop("budget", None), own.pop("learned_file", None)
    if name in (*FIRST, LEARNED):
        blocks = max(own.pop("target_blocks"), modifiers["forced_blocks"])
        modifiers |= {"forced_blocks": blocks, "handover": own.pop("handover_steps")}
    if name in (*FIRST, BUDGET, LEARNED):
        own["policy"] = "first"
    if file == NONE:
        raise BadInput(
            f"learned needs a file that study --learn wrote; put one into models/{ROUTES}, or take balanced"
        )
    learned = open_learned(Path(folder_paths.get_full_path_or_raise(ROUTES, file))) if file else None
    return RouterValue(RouterConfig(**own, **modifiers), scorer, budget, name, learned)


def find_reward_file(reward_file: Any) -> str:
    """Return where a reward file is. Raises `BadInput` if it or its vocabulary is missing or damaged."""
    known = {k.role: k for k in KNOWN_FILES}
    sources = f"models/{REWARD_FOLDER}: {known['reward'].source}, and {known['vocabulary'].source}"
    if reward_file == NONE:
        raise BadInput(
            f"this policy needs a reward model; choose the policy anchor-only, or put two files into {sources}"
        )
    if reward_file not in reward_files():
        raise BadInput(
            f"there is no {shown(reward_file)}; choose the policy anchor-only, or put two files into {sources}"
        )
    path = folder_paths.get_full_path_or_raise(REWARD_FOLDER, reward_file)
    read_vocabulary(find_vocabulary(Path(path)))
    return path


def _load(reward_file: str, **options: Any) -> Any:
    return load_host_scorer(find_reward_file(reward_file), **options)
