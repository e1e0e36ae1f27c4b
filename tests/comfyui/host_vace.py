"""A tiny VACE checkpoint in ComfyUI, conditionings that carry a control, and jobs with one."""

import json
from dataclasses import replace

import comfy.sd
import torch
from comfy_extras.nodes_wan import WanVaceToVideo
from host_run import make_job
from host_tiny import (
    CONFIG,
    STATED,
    generator_of,
    random_weights,
)
from safetensors.torch import save_file
from sdvg_pack.nodes.host.sockets import PromptEntry
from sdvg_pack.sdvg_core.causal_wan.config import control_shapes

HINTS = 2
SIZES = replace(CONFIG, num_layers=4)
"""With hints after every second layer, as at 1.3B; and of ten layers after every fifth, as at 14B."""


def control_weights(config=SIZES, blocks=HINTS):
    return random_weights(9, shapes=control_shapes(config, blocks))


def load_vace(folder, seed, config=SIZES, blocks=HINTS, stored=dict):
    """A whole VACE checkpoint, as ComfyUI loads it; `seed`: of the transformer, which a control does not use."""
    path = folder / f"vace{seed}.safetensors"
    weights = stored({**random_weights(seed, config), **control_weights(config=config, blocks=blocks)})
    save_file(weights, path, metadata={"config": json.dumps({"transformer": STATED})})
    return comfy.sd.load_diffusion_model(str(path))


BLOCKS = 6
FRAMES = 69
CLIP = torch.rand(FRAMES, 32, 32, 3, generator=generator_of(4))


def positive(parts, clip=CLIP, *, before=None, **inputs):
    """A conditioning after WanVaceToVideo; `before`: one that it is chained to."""
    plain = [[torch.randn(1, 512, 32, generator=generator_of(0)), {}]] if before is None else before
    options = {"width": 32, "height": 32, "length": FRAMES, "batch_size": 1, "strength": 1.0, **inputs}
    return WanVaceToVideo.execute(plain, plain, parts.vae, control_video=clip, **options).args[0]


def job_of(parts, conditioning, *, script="raarar", **changes):
    return make_job(parts, script=script, **{"prompts": (PromptEntry(0, conditioning, "a ball"),), **changes})
