"""Runs Daydream Scope's causal VACE on a CPU, over miniatures of its model and module. See `standins.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from diffusers.modular_pipelines import PipelineState
from standins import answer, drawing, eager_attention, load, use_checkout, without_cuda
from torch import Tensor

PIPELINES = "scope.core.pipelines"
PACKAGES = ("scope", "scope.core", PIPELINES, f"{PIPELINES}.longlive", f"{PIPELINES}.wan2_1")


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the latents of every case, `b c t h w`, by its own blocks: denoise, then clean the cache."""
    without_cuda()
    blocks = f"{PIPELINES}.wan2_1.blocks"
    attention = f"{PIPELINES}.wan2_1.modules.attention"
    inner = (f"{PIPELINES}.wan2_1.modules", f"{PIPELINES}.wan2_1.vace", blocks)
    absent = (attention, f"{PIPELINES}.utils", f"{PIPELINES}.wan2_1.components.text_encoder")
    use_checkout(checkout / "src", packages=(*PACKAGES, *inner), absent=absent)
    sys.modules[attention].attention = sys.modules[attention].flash_attention = eager_attention
    from scope.core.pipelines.longlive.modules import causal_model, model
    from scope.core.pipelines.wan2_1.vace.models import causal_vace_model

    tokens = None if request["as_it_is"] else 3 * request["frame_tokens"]
    causal_model.flex_attention = partial(unmasked, tokens)
    if not request["as_it_is"]:
        causal_vace_model.sinusoidal_embedding_1d = model.sinusoidal_embedding_1d
    return {name: latents(request, **case) for name, case in request["cases"].items()}


def unmasked(tokens: int | None, *, query: Tensor, key: Tensor, value: Tensor, block_mask: None) -> Tensor:
    """Attend as its flex attention does without a mask: to the zeros that it pads with too, but for `tokens`."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return eager_attention(q, k[:, :tokens], v[:, :tokens]).transpose(1, 2)


def latents(request: Mapping[str, Any], *, strength: float) -> Tensor:
    """Return a video's latents, window 12, sink 3, under a control of some strength."""
    from scope.core.pipelines.longlive.modules.causal_model import CausalWanModel
    from scope.core.pipelines.wan2_1.blocks.clean_kv_cache import CleanKVCacheBlock
    from scope.core.pipelines.wan2_1.blocks.denoise import DenoiseBlock
    from scope.core.pipelines.wan2_1.blocks.setup_caches import SetupCachesBlock
    from scope.core.pipelines.wan2_1.components.generator import WanDiffusionWrapper
    from scope.core.pipelines.wan2_1.vace.models.causal_vace_model import CausalVaceWanModel

    sizes = request["sizes"]
    CausalWanModel.from_pretrained = classmethod(lambda cls, _, **options: cls(**sizes, **options))
    generator = WanDiffusionWrapper(CausalWanModel, timestep_shift=5.0, local_attn_size=12, sink_size=3)
    load(generator.model, request["weights"])
    generator.model = CausalVaceWanModel(generator.model).eval().requires_grad_(False)
    missing, unknown = generator.model.load_state_dict(request["control_weights"], strict=False)
    assert not [*unknown, *(name for name in missing if name.startswith("vace_"))]

    noise = request["noise"].transpose(1, 2)  # slots t c h w
    scale = 8
    rows, columns = noise.shape[-2:]
    config = SimpleNamespace(
        vae_spatial_downsample_factor=scale,
        patch_embedding_spatial_downsample_factor=2,
        num_frame_per_block=3,
        local_attn_size=12,
        max_rope_freq_table_seq_len=1024,
    )
    parts = SimpleNamespace(generator=generator, scheduler=generator.get_scheduler(), config=config)
    state = PipelineState()
    blocks = []
    state.values |= {
        "height": rows * scale,
        "width": columns * scale,
        "current_denoising_step_list": torch.tensor(request["timesteps"]),
        "conditioning_embeds": request["prompts"]["first"],
        "generator": torch.Generator(),
        "vace_context_scale": strength,
    }
    with drawing("randn", noise, len(request["timesteps"])):
        for first in range(0, noise.shape[1], 3):
            span = slice(first, first + 3)
            state.values |= {
                "current_start_frame": first,
                "latents": noise[:1, span],
                "vace_context": request["control"][:, :, span],
            }
            if not first:
                SetupCachesBlock()(parts, state)
                for block in generator.model.blocks:
                    block.self_attn.local_attn_size = 12
            DenoiseBlock()(parts, state)
            CleanKVCacheBlock()(parts, state)
            blocks.append(state.get("latents"))
    return torch.cat(blocks, dim=1).transpose(1, 2)


if __name__ == "__main__":
    answer(run)
