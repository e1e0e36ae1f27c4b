"""A ComfyUI CONDITIONING as the embedding that a condition holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...sdvg_core.engine.types import Condition
from ...sdvg_core.errors import BadInput
from ...sdvg_core.text.prompts import Conditions, check_prompt
from ..sockets import PromptEntry

WIRE = "wire the text encoder (CLIP Text Encode, Wan) straight to this input"

# What a conditioning may carry beside the text that would change the video in ComfyUI, but not here.
UNUSABLE = {
    "concat_latent_image": "an image to begin with (give the sampler's start image instead)",
    "reference_latents": "reference images",
    "clip_vision_output": "a CLIP vision image",
    "control": "a ControlNet",
    "area": "an area",
    "mask": "a mask",
    "hooks": "hooks (scheduled LoRAs)",
    "vace_frames": "VACE frames",
    "camera_conditions": "a camera path",
    "audio_embed": "audio",
    "context_latents": "reference videos",
    "time_dim_concat": "frames to append",
}


def read_conditions(prompts: Sequence[PromptEntry], text_channels: int, *, scored: bool) -> Conditions:
    """Return what each block is to show. `scored`: whether a scorer reads the texts, which may be empty if not."""
    entries = []
    for entry in prompts:
        if scored and not entry.text.strip():
            raise BadInput("expected the prompt as text for the scorer, but it is empty; wire the string in")
        if entry.text.strip():
            check_prompt(entry.text)
        embedding = read_embedding(entry.conditioning, text_channels)
        entries.append((entry.index, Condition(embedding, entry.text, entry.text)))
    return Conditions(tuple(entries))


def read_embedding(conditioning: Sequence[Any], text_channels: int) -> Tensor:
    """Return a CONDITIONING's embedding `(1, tokens, text_channels)`, float32 on the CPU, as ComfyUI made it.

    ComfyUI's Wan text encoder gives 512 rows, zero after the prompt's end (more for a prompt of more tokens), and
    its Wan models attend to all the rows they are given, so none is added and none cut off here.
    Raises `BadInput` unless it is one prompt of the right width and nothing else.
    """
    if len(conditioning) != 1:
        raise BadInput(
            f"expected the conditioning of one prompt, but got {len(conditioning)} entries (from Conditioning Combine, "
            f"or a prompt with timestep ranges); {WIRE}, and use the prompt schedule for several prompts"
        )
    embedding, extras = conditioning[0]
    for name, what in UNUSABLE.items():
        if extras.get(name) is not None:
            raise BadInput(f"expected a conditioning of text alone, but it carries {what}; {WIRE}")
    if extras.get("start_percent", 0.0) > 0.0 or extras.get("end_percent", 1.0) < 1.0:
        raise BadInput(f"expected a conditioning for every denoising step, but it is for some of them; {WIRE}")
    if embedding.ndim != 3 or embedding.shape[0] != 1:
        raise BadInput(
            f"expected the embedding of one prompt, 1 x tokens x channels, but got {_shape(embedding)}; {WIRE}"
        )
    if embedding.shape[2] != text_channels:
        raise BadInput(
            f"expected text embeddings of {text_channels} channels, but got {embedding.shape[2]}, from another "
            "model's text encoder; load umt5-xxl with type wan in Load CLIP"
        )
    return embedding.to("cpu", torch.float32)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
