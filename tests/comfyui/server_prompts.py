"""Prompts of the pocket workflow, changed as a test wants them, and a server that has the files they may name."""

from __future__ import annotations

import copy
import json
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hostile
import torch
from comfy_extras.frame_interpolation_models.ifnet import IFNet
from PIL import Image
from running_server import KEPT, REPORT, ROOT, Server, running_server, write_models
from safetensors.torch import save_file
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_pack.sdvg_core.files.video import write_mp4

POCKET, ROUTER, SAMPLER = "1", "2", "3"
EXTRA, GONE = "extra", object()
# Real text width, tiny otherwise: its conditioning must be 4096 wide.
WIDE = WanConfig(dim=128, ffn_dim=64, num_layers=1, num_heads=1)


@contextmanager
def tiny_server(folder: Path) -> Iterator[Server]:
    """Start a server with the tiny set in its model folders, two models of the real text width, a picture, a clip.

    It has a node whose output fits every socket (hostile.py).
    """
    hostile.furnish(folder)
    write_models(folder / "models")
    for name in ("wide_a", "wide_b"):
        weights = {key: torch.zeros(shape) for key, shape in wan_shapes(WIDE).items()}
        save_file(weights, folder / "models" / "diffusion_models" / f"{name}.safetensors")
    (folder / "input").mkdir()
    Image.linear_gradient("L").convert("RGB").save(folder / "input" / "example.png")
    write_mp4(folder / "input" / "clip.mp4", torch.rand(21, 3, 64, 64), fps=16)
    with wave.open(str(folder / "input" / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 8000))
    # Of ComfyUI's own kinds: a RIFE, and an upscaler by four in each direction.
    rife = IFNet(head_ch=4, channels=[16] * 5).state_dict()
    scaler = {
        "body.0": (4, 3, 3, 3),
        "body.1": (4,),
        "body.2": (4, 4, 3, 3),
        "body.3": (4,),
        "body.4": (48, 4, 3, 3),
    }
    weights = {f"{name}.weight": torch.zeros(shape) for name, shape in scaler.items()}
    weights |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in scaler.items() if len(shape) > 1}
    for place, made in (("frame_interpolation", rife), ("upscale_models", weights)):
        (folder / "models" / place).mkdir()
        save_file(
            {name: torch.zeros(one.shape) for name, one in made.items()},
            folder / "models" / place / "tiny.safetensors",
        )
    with running_server(folder) as running:
        yield running


def pocket(blocks: int = 3, **changes: Any) -> dict[str, Any]:
    """Return the pocket workflow in API form, its latents saved in the place of its video."""
    prompt = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    prompt = {key: prompt[key] for key in (POCKET, ROUTER, SAMPLER, REPORT)}
    assert prompt[SAMPLER]["class_type"] == "SDVGSpeculativeSampler"
    prompt[SAMPLER]["inputs"]["blocks"] = blocks
    prompt[KEPT] = node("SaveLatent", samples=[SAMPLER, 1], filename_prefix="sdvg/latents")
    return change(prompt, **changes)


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def change(prompt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a prompt with inputs set, as node__input=value, or taken out, and perhaps a node added."""
    prompt = copy.deepcopy(prompt)
    for name, value in changes.items():
        if name == EXTRA:
            prompt[EXTRA] = value
        else:
            role, _, key = name.partition("__")
            inputs = prompt[{"router": ROUTER, "sampler": SAMPLER}[role]]["inputs"]
            inputs[key.replace("__", ".")] = value
            if value is GONE:
                del inputs[key]
    return prompt
