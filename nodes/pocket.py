"""SDVG Pocket Models: the embedded models as ordinary outputs, so a workflow runs on any machine without a download."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import comfy.utils
from comfy.model_patcher import ModelPatcher
from comfy.sd import VAE
from comfy_api.latest import io
from torch import Tensor

from ..sdvg_core.loading.load import load_encoder
from ..sdvg_core.pocket import DEFAULT_PROMPT, EXAMPLE_PROMPTS
from ..sdvg_core.pocket.grammar import understand
from ..sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from ..sdvg_core.settings.context import get_preset
from ..sdvg_core.text.prompts import read_prompt, taken_as_text
from .host.conditioning import with_lines, with_text
from .host.files import load_checkpoint
from .host.sockets import HostScorer, PromptEncoder, ScorerSocket, load_host_scorer
from .host.vae import FastVAE
from .page.progress import notify
from .schema import known_inputs_only, node_schema

# It does not quote the prompt, as notes go into files that people pass on.
NEAREST_NOTE = "The prompt is not of the small world; the nearest one that is was shown and scored."


class PocketModels(io.ComfyNode):
    """Loads the embedded models and encodes a prompt with their text encoder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPocketModels",
            hidden=[io.Hidden.unique_id],
            has_intermediate_output=True,  # sends `ui` also when ComfyUI takes the node's result from its cache
            inputs=[
                io.String.Input(
                    "prompt",
                    default=DEFAULT_PROMPT,
                    multiline=True,
                    dynamic_prompts=True,
                    extra_dict={"sdvg_examples": EXAMPLE_PROMPTS},  # nodes/web/widgets.js offers them
                ),
                io.Boolean.Input("strict", default=False, optional=True, advanced=True),
            ],
            outputs=[
                io.Model.Output(display_name="drafter"),
                io.Model.Output(display_name="target"),
                io.Conditioning.Output(display_name="conditioning"),
                io.Vae.Output(display_name="vae"),
                ScorerSocket.Output(display_name="scorer"),
                io.String.Output(display_name="prompt"),
                io.Vae.Output(display_name="fast_vae"),
            ],
        )

    @classmethod
    def validate_inputs(cls, prompt: str | None = None, strict: bool | None = False) -> bool:
        """Raise `BadInput` for a prompt that cannot be used, before anything is loaded."""
        if prompt is not None:
            for text in read_prompt(prompt).texts:
                understand(text, strict=bool(strict))
        return True

    @classmethod
    @known_inputs_only
    def execute(cls, prompt: str, strict: bool = False) -> io.NodeOutput:
        """Load the models with the ordinary loaders, and encode the prompt, or the nearest one of the small world."""
        lines = read_prompt(prompt)
        shown = {text: understand(text, strict=strict) for text in lines.texts}
        nearest = [(start + 1, shown[text][1]) for start, text in lines.entries if shown[text][1]]
        placed = [f"Block {block}: {note}" if block > 1 else note for block, note in nearest]
        note = "\n".join((*taken_as_text(lines.texts), *placed))
        notify(cls.hidden and cls.hidden.unique_id, note)
        drafter, target, vae, scorer, fast_vae = _models()

        def encoded(text: str) -> list[list[Any]]:
            scene, nearest = understand(text, strict=strict)
            notes = (*taken_as_text([text]), *([NEAREST_NOTE] if nearest else []))
            embedding = _text_encoder()(scene.text)
            return with_text([[embedding, {}]], scene.text, " ".join(notes), encoder=encoder)

        encoder = PromptEncoder(encoded, understand=lambda text: understand(text, strict=strict)[0].text)

        return io.NodeOutput(
            drafter,
            target,
            with_lines(lines, encoded),
            vae,
            scorer,
            shown[lines.texts[0]][0].text,
            fast_vae,
            ui={"sdvg_shown": [note]} if note else None,
        )


@cache
def _text_encoder() -> Callable[[str], Tensor]:
    """Load the text encoder (1 MB) once, as words of a live session come one by one."""
    return load_encoder(trained_set(), pocket_options())


@cache
def _models() -> tuple[ModelPatcher, ModelPatcher, VAE, HostScorer, FastVAE]:
    """Load the models (30 MB) once: with the same objects, a prompt change keeps the blocks before it."""
    files = trained_set()
    assert files.reward is not None  # the set is whole
    return (
        load_checkpoint(str(files.drafter), "default", get_preset("self-forcing-1.3b")),
        load_checkpoint(str(files.target), "default", get_preset("krea-14b")),
        VAE(sd=comfy.utils.load_torch_file(str(files.vae))),
        load_host_scorer(files.reward, device="default", dtype="float32"),
        FastVAE(pocket_fast_vae()),
    )
