"""SDVG Pocket Models: the embedded set as ordinary outputs, so that a workflow runs on any machine without a download."""

from __future__ import annotations

from pathlib import Path

import comfy.sd
import comfy.utils
import folder_paths
from comfy_api.latest import io

from ..sdvg_core.causal_wan.presets import get_preset
from ..sdvg_core.loading import LoadOptions, encode_prompts
from ..sdvg_core.model_files import ModelFiles
from ..sdvg_core.pocket.random_set import write_random_set
from .host.files import load_model
from .host.presets import attach_preset
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
            description="A tiny drafter, target, VAE and scorer. Their weights are random for now: they show the route.",
            inputs=[
                io.String.Input(
                    "prompt",
                    default="a small red ball moves from left to right over a blue field",
                    multiline=True,
                    tooltip="Encoded by the set's own text encoder. Wire it to the sampler's prompt as well.",
                )
            ],
            outputs=[
                io.Model.Output(display_name="drafter"),
                io.Model.Output(display_name="target"),
                io.Conditioning.Output(display_name="conditioning"),
                io.Vae.Output(display_name="vae"),
                RewardModel.Output(display_name="scorer"),
                io.String.Output(display_name="prompt"),
            ],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, prompt) -> io.NodeOutput:
        """Write the set into ComfyUI's temporary folder and load it with the ordinary loaders."""
        files = write_random_set(Path(folder_paths.get_temp_directory()) / "sdvg_pocket")
        drafter = attach_preset(load_model(str(files.drafter), "default"), get_preset("self-forcing-1.3b"))
        target = attach_preset(load_model(str(files.target), "default"), get_preset("krea-14b"))
        vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(files.vae)))
        scorer = load_host_scorer(files.reward, crop="center", device="default", dtype="float32")
        return io.NodeOutput(drafter, target, _encode(files, prompt), vae, scorer, prompt)


def _encode(files: ModelFiles, prompt: str) -> list:
    (embedding,) = encode_prompts(files, (prompt,), LoadOptions(text_dtype="float32")).values()
    return [[embedding, {}]]
