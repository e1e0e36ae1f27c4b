"""Tiny random models as files in the real formats, and as ComfyUI loads them."""

import json

import comfy.model_management
import comfy.sd
import comfy.utils
import torch
from comfy.ldm.wan.vae import WanVAE
from safetensors.torch import save_file
from sdvg_pack.nodes.host.model import comfy_wan, patcher_dtype
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_pack.sdvg_core.causal_wan.context import RollingContext
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator, predict_clean, renoise
from sdvg_pack.sdvg_core.engine.inputs import BlockCall, KeyedNoise, Restyle
from sdvg_pack.sdvg_core.engine.types import Block, Condition, History, plan_spans
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.schedules import get_schedule

CONFIG = WanConfig(dim=64, ffn_dim=96, num_layers=3, num_heads=2, text_dim=32)
STATED = {"num_heads": CONFIG.num_heads, "text_dim": CONFIG.text_dim}
SIZE = (6, 8)
VAE_DIM = 4


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def random_weights(seed=0, config=CONFIG, shapes=None):
    """Weights under which every input matters: context, prompt, position, timestep. `shapes`: else the model's."""
    g = generator_of(seed)
    weights = {}
    for name, shape in (shapes or wan_shapes(config)).items():
        fan_in = torch.Size(shape[1:]).numel() if len(shape) > 1 else 1
        scale = 0.3 if len(shape) == 1 or "modulation" in name else 1.4 / fan_in**0.5
        weights[name] = torch.randn(shape, generator=g) * scale + (
            1.0 if "norm" in name and name.endswith("weight") else 0.0
        )
    return weights


def load_model(folder, weights=None, *, causal=False, **stated):
    """Save weights and load them as Load Diffusion Model does; `causal`: under ComfyUI's own causal forward."""
    transformer = {**STATED, **stated, **({"causal_ar": True} if causal else {})}
    path = folder / "model.safetensors"
    save_file(weights or random_weights(), path, metadata={"config": json.dumps({"transformer": transformer})})
    return comfy.sd.load_diffusion_model(str(path))


def load_vae(seed=0, dim=VAE_DIM, *, shallow=False):
    """Return a VAE with Wan 2.1's layout, narrow and random; `shallow`: few of its blocks, a fourth of the time."""
    g = generator_of(seed)
    layout = {
        "dim": dim,
        "z_dim": 16,
        "dim_mult": [1, 2, 4, 4],
        "num_res_blocks": 2,
        "attn_scales": [],
        "temperal_downsample": [False, True, True],
    }
    empty = WanVAE(**layout).state_dict()
    weights = {
        name: torch.ones_like(t) if "gamma" in name else torch.randn(t.shape, generator=g) * 0.08
        for name, t in empty.items()
    }
    vae = comfy.sd.VAE(sd=weights)
    for half in (vae.first_stage_model.encoder, vae.first_stage_model.decoder) if shallow else ():
        for name, blocks in half.named_children():
            if isinstance(blocks, torch.nn.Sequential):
                few = [b for b in blocks if not isinstance(getattr(b, "shortcut", None), torch.nn.Identity)]
                setattr(half, name, torch.nn.Sequential(*few))
    return vae


# --- the clip that a tiny MODEL makes, by our causal forward and by ComfyUI's own


FRAMES = 3
BLOCKS = 4
SCHEDULE = get_schedule("four-step")
NOISE = KeyedNoise(seed=7, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
SPANS = plan_spans(BLOCKS, FRAMES, 0)
LORA_LAYERS = ("blocks.0.self_attn.q", "blocks.1.ffn.0", "blocks.2.cross_attn.v", "time_embedding.0", "head.head")


def text(rows=512, used=12):
    embedding = torch.zeros(1, rows, CONFIG.text_dim)
    embedding[:, :used] = torch.randn(1, used, CONFIG.text_dim, generator=generator_of(3))
    return embedding


def onto_device(patcher):
    comfy.model_management.load_models_gpu([patcher])
    return patcher


def over(patcher, **options):
    """The generator that an engine would have over a MODEL, under the incremental policy."""
    wan = comfy_wan(patcher, get_preset("custom"), **options)
    return CausalWanGenerator(wan, name="model", context=RollingContext(window=FRAMES * BLOCKS))


def clip(generator, embedding=None, noise=NOISE, restyle=None):
    """The latents that a generator makes, block after block."""
    condition = Condition(text() if embedding is None else embedding, "a")
    history = History()
    for span in SPANS:
        kept = restyle.at(span) if restyle else Restyle()
        made = generator.generate(BlockCall(history, span, noise, condition, restyle=kept))
        history = history.commit(Block(span, made.latents, condition))
    return history.latents(0, history.frames)


@torch.inference_mode()
def native_clip(patcher, embedding=None, tokens=SIZE[0] * SIZE[1] // 4):
    """The same by ComfyUI's causal forward: its caches, its time embedding, its rotary positions."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model = patcher.model.diffusion_model
    dtype = patcher_dtype(patcher)
    device = patcher.load_device
    kv = model.init_kv_caches(1, tokens * FRAMES * BLOCKS, device, dtype)
    text_kv = model.init_crossattn_caches(1, device, dtype)
    embedding = (text() if embedding is None else embedding).to(dtype)

    def forward(x, timestep, first):
        for cache in kv:
            cache["end"] = first * tokens
        times = torch.full((1, FRAMES), timestep, dtype=torch.float32)
        return model.forward_block(x.to(dtype), times, embedding, first, kv, text_kv)

    done = []
    for span in SPANS:
        x = NOISE.draw(span, 0)
        for i, step in enumerate(SCHEDULE):
            x = renoise(done[-1], NOISE.draw(span, i), step.sigma) if i else x
            clean = predict_clean(x, forward(x, step.timestep, span.start), step.sigma)
            done[span.index :] = [clean]
        forward(done[-1], 0.0, span.start)
    return torch.cat(done, dim=2)


def lora_weights(layers=LORA_LAYERS, weights=None):
    g = generator_of(5)
    weights = weights or random_weights()
    lora = {}
    for layer in layers:
        rows, columns = weights[f"{layer}.weight"].shape
        lora[f"diffusion_model.{layer}.lora_A.weight"] = torch.randn(4, columns, generator=g) * 0.1
        lora[f"diffusion_model.{layer}.lora_B.weight"] = torch.randn(rows, 4, generator=g) * 0.1
    return lora


def with_lora(patcher, *of):
    return comfy.sd.load_lora_for_models(patcher, None, lora_weights(*of), 1.0, 0)[0]
