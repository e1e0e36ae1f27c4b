"""Runs, on a CPU and over a miniature, RAVEN's sampling loop and causal model. See `standins.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from standins import answer, drawing, load, use_checkout, without_cuda

TRIAL = "projects/wan_t2v/trials/dmd/wan2_1_1_3B/causal_wan_t2v_dmd/val_only/raven_sample100.yaml"
REPEAT = "projects.wan_t2v.modeling.pnp_repeat"
"""Its Triton kernel, which does what `torch.repeat_interleave` does."""


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the latents of every case, `b c t h w`. A case has options to override in its trial file, by name."""
    without_cuda()
    use_checkout(checkout, packages=(), absent=("common.media", "utils.flex_attn", REPEAT))
    sys.modules[REPEAT].pnp_repeat = torch.repeat_interleave
    os.chdir(checkout)  # a trial names the files it inherits from by their paths in the checkout
    return {"latents": {name: latents(request, case) for name, case in request["cases"].items()}}


def latents(request: Mapping[str, Any], options: Mapping[str, Any]) -> torch.Tensor:
    from common.config import CfgNode
    from common.seed import RandomState
    from projects.wan_t2v.meta_models.causal_wan_t2v_dmd import CausalWanT2VDMD
    from projects.wan_t2v.modeling.causal_model import CausalWanModel

    noise = request["noise"]  # slots c t h w
    frames, height, width = noise.shape[2:]
    pixels = {"num_frames": 4 * frames - 3, "height": 8 * height, "width": 8 * width}
    settings = {f"validation.{name}": size for name, size in pixels.items()}
    settings |= {f"models.backbone.args.{name}": size for name, size in request["sizes"].items()}
    config = CfgNode.from_file(TRIAL)
    config.merge_from_list([part for pair in (settings | options).items() for part in pair])

    model = load(CausalWanModel(**config.models.backbone.args), request["weights"])
    model.param_dtype = torch.float32
    sampling = CausalWanT2VDMD(config)
    vae = SimpleNamespace(stride=config.data.args.vae_stride, z_dim=config.data.args.z_dim)
    spec = sampling._validation_spec(config, vae, model)
    prompt = request["prompts"]["first"][0]
    inputs, negative = sampling._build_validation_inputs(
        prompts=["first"],
        positives=[prompt],
        negatives=[prompt],
        initial_noises=[noise[0]],
        spec=spec,
        device=torch.device("cpu"),
    )
    # It draws after the last step too, to no effect.
    draws = len(sampling.sampling_timesteps.timesteps) + 1
    with drawing("randn", noise, draws, spec.chunk_size, frames_at=2):
        clips = sampling._rollout_validation_latents(
            backbone=model, sampling_seed=0, pos_inputs=inputs, neg_inputs=negative, rngs=[RandomState(0)]
        )
    return torch.stack(clips)


if __name__ == "__main__":
    answer(run)
