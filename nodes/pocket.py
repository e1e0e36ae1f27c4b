"""SDVG Pocket Models: the embedded set as ordinary outputs, so a workflow runs on any machine without a download."""

from __future__ import annotations

import comfy.sd
import comfy.utils
from comfy_api.latest import io

from ..sdvg_core.causal_wan.presets import get_preset
from ..sdvg_core.pipeline.loading import encode_prompts
from ..sdvg_core.pocket.grammar import parse
from ..sdvg_core.pocket.trained_set import DEFAULT_PROMPT, pocket_judge, pocket_options, trained_set
from .host.files import load_checkpoint
from .host.judge import load_host_judge
from .host.scorer import load_host_scorer
from .known import known_inputs_only, node_schema
from .sockets import RewardModel


class PocketModels(io.ComfyNode):
    """Loads the embedded set and encodes a prompt with its own text encoder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPocketModels",
            display_name="SDVG Pocket Models",
            description="A tiny drafter, target, VAE, judge and scorer, trained on a small world of moving shapes (64 x 64 pixels).",
            inputs=[
                io.String.Input(
                    "prompt",
                    default=DEFAULT_PROMPT,
                    multiline=True,
                    tooltip=(
                        f'A prompt of the small world, such as "{DEFAULT_PROMPT}"; others are refused, with the grammar. '
                        "Also wire the output to the sampler's prompt."
                    ),
                )
            ],
            outputs=[
                io.Model.Output(display_name="drafter", tooltip="The tiny drafter, for the sampler."),
                io.Model.Output(display_name="target", tooltip="The tiny target, for the sampler."),
                io.Conditioning.Output(display_name="conditioning", tooltip="The encoded prompt, for 'positive'."),
                io.Vae.Output(display_name="vae", tooltip="The tiny VAE, for the sampler."),
                RewardModel.Output(display_name="scorer", tooltip="The tiny scorer, for the Quality Router."),
                io.String.Output(display_name="prompt", tooltip="The prompt as text, for the sampler."),
                io.Vae.Output(
                    display_name="judge_vae", tooltip="A fast decoder for scores and preview, for 'judge_vae'."
                ),
            ],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, prompt) -> io.NodeOutput:
        """Load the set with the ordinary loaders, and encode the prompt. Raises `BadInput` for other prompts."""
        text, files = parse(prompt).text, trained_set()
        drafter = load_checkpoint(str(files.drafter), "default", get_preset("self-forcing-1.3b"))
        target = load_checkpoint(str(files.target), "default", get_preset("krea-14b"))
        vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(files.vae)))
        scorer = load_host_scorer(files.reward, crop="center", device="default", dtype="float32")
        (embedding,) = encode_prompts(files, (text,), pocket_options()).values()
        judge = load_host_judge(pocket_judge())
        return io.NodeOutput(drafter, target, [[embedding, {}]], vae, scorer, text, judge)
