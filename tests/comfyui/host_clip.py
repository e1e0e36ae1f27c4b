"""The clip that a tiny MODEL makes, by our causal forward and by ComfyUI's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import comfy.model_management
import comfy.sd
import torch
from comfy.model_patcher import ModelPatcher
from host_tiny import CONFIG, SIZE, generator_of, random_weights
from sdvg_pack.nodes.host.model import comfy_wan, compute_dtype
from sdvg_pack.sdvg_core.causal_wan.context import Incremental
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset, get_schedule, predict_clean, renoise
from sdvg_pack.sdvg_core.engine.inputs import BlockCall, InputClip, KeyedNoise, NoiseSource, Restyle
from sdvg_pack.sdvg_core.engine.protocols import BlockGenerator
from sdvg_pack.sdvg_core.engine.types import Block, Condition, History, plan_spans
from torch import Tensor

FRAMES, BLOCKS = 3, 4
SCHEDULE = get_schedule("four-step")
NOISE = KeyedNoise(seed=7, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
SPANS = plan_spans(BLOCKS, FRAMES, 0)
LORA_LAYERS = ("blocks.0.self_attn.q", "blocks.1.ffn.0", "blocks.2.cross_attn.v", "time_embedding.0", "head.head")


def text(rows: int = 512, used: int = 12) -> Tensor:
    embedding = torch.zeros(1, rows, CONFIG.text_dim)
    embedding[:, :used] = torch.randn(1, used, CONFIG.text_dim, generator=generator_of(3))
    return embedding


def onto_device(patcher: ModelPatcher) -> ModelPatcher:
    comfy.model_management.load_models_gpu([patcher])
    return patcher


def over(patcher: ModelPatcher, **options: Any) -> BlockGenerator:
    """The generator that an engine would have over a MODEL, under the incremental policy."""
    wan = comfy_wan(patcher, get_preset("custom"), **options)
    return CausalWanGenerator(wan, name="model", context=Incremental(window=FRAMES * BLOCKS))


def clip(
    generator: BlockGenerator,
    embedding: Tensor | None = None,
    noise: NoiseSource = NOISE,
    restyle: InputClip | None = None,
) -> Tensor:
    """The latents that a generator makes, block after block."""
    condition = Condition(text() if embedding is None else embedding, "a")
    history = History()
    for span in SPANS:
        kept = restyle.at(span) if restyle else Restyle()
        made = generator.generate(BlockCall(history, span, noise, condition, restyle=kept))
        history = history.commit(Block(span, made.latents, condition))
    return history.latents(0, history.frames)


@torch.inference_mode()
def native_clip(
    patcher: ModelPatcher, embedding: Tensor | None = None, tokens: int = SIZE[0] * SIZE[1] // 4
) -> Tensor:
    """The same by ComfyUI's causal forward: its caches, its time embedding, its rotary positions."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model, dtype = patcher.model.diffusion_model, compute_dtype(patcher)
    device = patcher.load_device
    kv = model.init_kv_caches(1, tokens * FRAMES * BLOCKS, device, dtype)
    text_kv = model.init_crossattn_caches(1, device, dtype)
    embedding = (text() if embedding is None else embedding).to(dtype)

    def forward(x: Tensor, timestep: float, first: int) -> Tensor:
        for cache in kv:
            cache["end"] = first * tokens
        times = torch.full((1, FRAMES), timestep, dtype=torch.float32)
        return model.forward_block(x.to(dtype), times, embedding, first, kv, text_kv)

    done: list[Tensor] = []
    for span in SPANS:
        x = NOISE.draw(span, 0)
        for i, step in enumerate(SCHEDULE):
            x = renoise(done[-1], NOISE.draw(span, i), step.sigma) if i else x
            clean = predict_clean(x, forward(x, step.timestep, span.start), step.sigma)
            done[span.index :] = [clean]
        forward(done[-1], 0.0, span.start)
    return torch.cat(done, dim=2)


def lora_weights(
    layers: Sequence[str] = LORA_LAYERS, weights: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    g, weights, lora = generator_of(5), weights or random_weights(), {}
    for layer in layers:
        rows, columns = weights[f"{layer}.weight"].shape
        lora[f"diffusion_model.{layer}.lora_A.weight"] = torch.randn(4, columns, generator=g) * 0.1
        lora[f"diffusion_model.{layer}.lora_B.weight"] = torch.randn(rows, 4, generator=g) * 0.1
    return lora


def with_lora(patcher: ModelPatcher, *of: Any) -> ModelPatcher:
    return comfy.sd.load_lora_for_models(patcher, None, lora_weights(*of), 1.0, 0)[0]
