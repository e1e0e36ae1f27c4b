"""Small files of every model a run reads, sound or spoiled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import sentencepiece
import torch

from sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_core.decoders.taehv import Taehv
from sdvg_core.scorers.blip import ImageRewardConfig, used_shapes
from tests.support.random_set import wan_vae_to_original

from .files import Entry, Files, changed_file, changed_json, entries_of, safetensors, to_json

WAN = WanConfig(dim=24, ffn_dim=8, num_layers=2, num_heads=2, text_dim=4, freq_dim=4)
REWARD = ImageRewardConfig(
    **{"image_size": 8, "patch_size": 8, "vision_width": 8, "vision_layers": 1, "vision_mlp": 8},
    **{"positions": 40, "text_width": 8, "text_layers": 1, "text_mlp": 8, "vision_heads": 1, "text_heads": 1},
    head=((0, 4), (2, 1)),
)
REWARD_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "ball", "##s")
QUANTISED = {"_quantization_metadata": json.dumps({"layers": {"blocks.0.ffn.0": {"format": "float8_e4m3fn"}}})}
HEADS = {"config": json.dumps({"transformer": {"num_heads": 2, "eps": 1e-6, "patch_size": [1, 2, 2]}})}


@cache
def transformers() -> tuple[tuple[list[Entry], dict[str, str]], ...]:
    plain = entries_of(wan_shapes(WAN), "BF16")
    fp8 = [(name, "F8_E4M3" if name.endswith("ffn.0.weight") else dtype, shape) for name, dtype, shape in plain]
    marks = [(f"blocks.{n}.ffn.0.{kind}", *rest) for n in (0, 1) for kind, rest in FP8_MARKS.items()]
    prefixed = [(f"model.{name}", dtype, shape) for name, dtype, shape in plain]
    return ((plain, HEADS), (prefixed, HEADS), (fp8, HEADS), ([*fp8, *marks], {**HEADS, **QUANTISED}))


FP8_MARKS: dict[str, tuple[str, tuple[int, ...]]] = {"weight_scale": ("F32", ()), "comfy_quant": ("U8", (26,))}


def transformer(random: Random) -> Files:
    entries, metadata = random.choice(transformers())
    return {"model.safetensors": changed_file(random, entries, metadata)}


@cache
def vaes() -> tuple[list[Entry], ...]:
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        vae = AutoencoderKLWan(base_dim=2, z_dim=16, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[True])
    shapes = {name: tuple(tensor.shape) for name, tensor in vae.state_dict().items()}
    return entries_of(shapes), entries_of(wan_vae_to_original(shapes))


def vae(random: Random) -> Files:
    return {"vae.safetensors": changed_file(random, random.choice(vaes()))}


@cache
def taehvs() -> tuple[list[Entry], ...]:
    """Return the tensors of a tiny TAEHV: whole, the decoder alone, with rows to spare, and for other latents."""
    net = Taehv(16, decoder=(4, 3, 2, 2), encoder=(2, 2, 3, 4))
    whole = entries_of({name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}, "F16")
    spare = [(n, d, (8, 4, 1, 1)) if n == "decoder.7.conv.weight" else (n, d, s) for n, d, s in whole]
    other = [(n, d, (4, 48, 3, 3)) if n == "decoder.1.weight" else (n, d, s) for n, d, s in whole]
    return whole, [entry for entry in whole if entry[0].startswith("decoder.")], spare, other


def taehv(random: Random) -> Files:
    name = random.choice(("taew2_1", "lighttaew2_1", "taew2_1", "taehv", "taew2_1_lighttaew2_1"))
    entries = random.choice(taehvs())
    if random.random() < 0.2:
        return {f"{name}.safetensors": safetensors(entries)}
    return {f"{name}.safetensors": changed_file(random, entries)}


@cache
def piece_model() -> bytes:
    import io

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a red ball rolls over the sand and then it stops"] * 3),
        **{"model_writer": model, "vocab_size": 40, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1},
        **{"unk_id": 2, "bos_id": -1, "num_threads": 1, "minloglevel": 2},
        normalization_rule_name="identity",
    )
    return model.getvalue()


@cache
def text_encoder_entries() -> tuple[list[Entry], ...]:
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (64, 8), "encoder.final_layer_norm.weight": (8,)}
    for block in ("encoder.block.0.", "encoder.block.1."):
        shapes |= {f"{block}layer.0.SelfAttention.{part}.weight": (8, 8) for part in "qkvo"}
        shapes[f"{block}layer.0.SelfAttention.relative_attention_bias.weight"] = (32, 2)
        shapes |= {f"{block}layer.{n}.layer_norm.weight": (8,) for n in (0, 1)}
        shapes |= {f"{block}layer.1.DenseReluDense.wi_{n}.weight": (8, 8) for n in (0, 1)}
        shapes[f"{block}layer.1.DenseReluDense.wo.weight"] = (8, 8)
    scaled = [*entries_of(shapes, "F8_E4M3"), ("encoder.block.0.layer.0.SelfAttention.q.scale_weight", "F32", ())]
    return entries_of(shapes), scaled, [("token_embedding.weight", "F32", (64, 8)), *entries_of(shapes)[1:]]


def text_encoder(random: Random) -> Files:
    entries = random.choice(text_encoder_entries())
    return {"encoder.safetensors": changed_file(random, entries), "spiece.model": piece_model()}


@cache
def reward_entries() -> list[Entry]:
    return entries_of(used_shapes(replace(REWARD, vocabulary=len(REWARD_WORDS) + 2)))


def reward(random: Random) -> Files:
    heads = {"config": json.dumps({"image_reward": {"vision_heads": 1, "text_heads": 1}})}
    return {
        "reward.safetensors": changed_file(random, reward_entries(), heads),
        "vocab.txt": "\n".join(REWARD_WORDS).encode() + b"\n",
    }


def latents(random: Random) -> Files:
    entries: Sequence[Entry] = [("latents", random.choice(("F32", "BF16", "F16")), (1, 4, 3, 2, 2))]
    metadata = {"sdvg": json.dumps({"seed": 1, "block_frames": 3, "fps": 16.0})}
    if random.random() < 0.1:
        return {"latents.safetensors": safetensors(entries, metadata)}
    return {"latents.safetensors": changed_file(random, entries, metadata)}


def shards(random: Random) -> Files:
    parts = {"m-1.safetensors": [("a", "F32", (1,))], "m-2.safetensors": [("b", "F32", (2,)), ("c", "F32", (3,))]}
    content: Any = {"metadata": {}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    deed = random.randrange(4)
    if deed == 0:
        content["weight_map"]["b"] = random.choice(ELSEWHERE)
    elif deed < 3:
        content = changed_json(random, content)
    files = {"m.safetensors.index.json": to_json(content)}
    for name, entries in parts.items():
        files[name] = changed_file(random, entries) if deed == 3 else safetensors(entries)
    return files


ELSEWHERE = (
    *("../outside.safetensors", "/etc/passwd", "/etc/hosts.safetensors", "sub/m-1.safetensors", "..", ".", ""),
    *("..\\outside.safetensors", "C:m-1.safetensors", "m-1.safetensors:stream.sft", "\0.safetensors", "~/a.sft"),
    *("m.safetensors.index.json", "n" * 300 + ".safetensors", "\x1b[2J.safetensors", "\ud800.sft", "a\nb.sft"),
    *("CON.safetensors", " m-1.safetensors", "m-1.safetensors ", "M-1.SAFETENSORS", "m-1.safetensors/.", "//a.sft"),
)


def anything(random: Random) -> Files:
    make = random.choice((transformer, vae, taehv, text_encoder, reward, latents, _plain))
    name, data = next(iter(make(random).items()))
    return {name: data}


def _plain(random: Random) -> Files:
    entries: list[Entry] = [("a", "F32", (2, 3)), ("b.weight", "U8", (4,)), ("c", "BF16", ())]
    return {"plain.safetensors": changed_file(random, entries, {"format": "pt", "note": "{}"})}
