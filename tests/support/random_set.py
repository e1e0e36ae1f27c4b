"""A tiny model set with random weights, written to disk in the real formats.

Its videos are noise, but the files are laid out like the published ones and use the same loaders, in more variants
of the formats than the trained set has. Tests use it when the picture does not matter.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.causal_wan.config import control_shapes, wan_shapes
from sdvg_core.decoders.wan_vae import empty_wan_vae, names_of
from sdvg_core.scorers.blip import used_shapes
from sdvg_core.text.umt5 import SPIECE, TABLE_COPY
from sdvg_core.weights.model_files import ModelFiles
from sdvg_core.weights.names import renamer
from sdvg_core.weights.weight_file import count_layers
from tests.support.random_models import DRAFTER, REWARD, TARGET, TEXT_WIDTH, VAE_BASE

WORDS = (
    "a an the small big red green blue yellow white black grey ball box ring star cube moves rolls rises falls "
    "jumps from left right top bottom to over under on in at slowly quickly and then stops turns bounces behind "
    "another night day sky sea field wall video of wide shot camera light dark"
)
# Chosen so that some drafts of the demo reach the default tau and some fall short of it (a test checks this).
HEAD_GAIN = 4.0
HEAD_SHIFT = 1.0


def write_random_set(folder: Path, seed: int = 0, *, vae_blocks: int = 2) -> ModelFiles:
    """Write the five files of a model set into `folder` and return where they are.

    The drafter is a training pickle with an averaged copy; the target is a safetensors file with a prefix. The VAE
    has the original release's names, the text encoder ComfyUI's, with its tokenizer inside. The reward model is a
    pickle with its word list next to it. The same seed writes the same weights. `vae_blocks`: residual blocks of
    each resolution; ComfyUI takes two, and half of a tiny run is the VAE.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = ModelFiles(
        drafter=folder / "tiny_self_forcing.pt",
        target=folder / "tiny_krea.safetensors",
        vae=folder / "tiny_wan_2.1_vae.safetensors",
        text_encoder=folder / "tiny_umt5.safetensors",
        reward=folder / "TinyImageReward.pt",
    )
    assert files.drafter is not None
    assert files.reward is not None
    random = _Random(seed)
    drafter = {f"model.{name}": w for name, w in random.fill(wan_shapes(DRAFTER)).items()}
    stale = {name: torch.zeros_like(w) for name, w in drafter.items()}
    torch.save({"generator": stale, "generator_ema": drafter}, files.drafter)
    target = {f"model.{name}": w for name, w in random.fill(wan_shapes(TARGET)).items()}
    # ComfyUI only takes a text width other than 4096 from this metadata.
    sizes = json.dumps({"transformer": {"text_dim": TEXT_WIDTH}})
    save_file(target, files.target, {"config": sizes})
    vae = _shapes(empty_wan_vae(base_dim=VAE_BASE, num_res_blocks=vae_blocks))
    save_file(random.fill(wan_vae_to_original(vae)), files.vae)
    words = _sentencepiece_model()
    save_file(umt5_to_comfy(random.fill(_text_shapes(len(words))), words), files.text_encoder)
    torch.save(_reward_weights(random), files.reward)
    (folder / "vocab.txt").write_text("\n".join(_word_pieces()) + "\n", encoding="utf-8")
    return files


def wan_vae_to_original(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with diffusers' names (`AutoencoderKLWan.state_dict()`) under the original release's names."""
    stage = count_layers(weights, "decoder.up_blocks.0.resnets") + 1
    stages = count_layers(weights, "decoder.up_blocks")
    rename = renamer({new: old for old, new in names_of(stages * stage - 1, stage).items() if new})
    return {rename(name): tensor for name, tensor in weights.items()}


def write_controls(folder: Path, seed: int = 0) -> None:
    """Write a control module for each of the set's models, of one block."""
    for role, config in (("drafter", DRAFTER), ("target", TARGET)):
        save_file(_Random(seed).fill(control_shapes(config, 1)), folder / f"tiny_vace_{role}.safetensors")


def umt5_to_comfy(weights: Mapping[str, Tensor], spiece: bytes) -> dict[str, Tensor]:
    """Return `UMT5EncoderModel` weights in the form of ComfyUI's text encoder files, with the tokenizer inside."""
    kept = {name: tensor for name, tensor in weights.items() if name != TABLE_COPY}
    return {**kept, SPIECE: torch.frombuffer(bytearray(spiece), dtype=torch.uint8)}


class _Random:
    """Draws weights that keep activations near their size, so that nothing saturates and everything matters.

    Each from a stream of its own, so that the order in which a package lists its weights changes none.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fill(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {name: self._draw(name, shape) for name, shape in shapes.items()}

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stream = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name} {shape}".encode()))
        values = torch.randn(shape, generator=stream)
        gain = "norm" in name.lower() and len(shape) == 1 and name.endswith("weight")
        if gain or name.endswith("gamma"):
            return 1 + 0.05 * values
        if len(shape) < 2 or "modulation" in name or "position" in name or "pos_embed" in name:
            return 0.1 * values
        return values / math.sqrt(math.prod(shape[1:]))


def _text_shapes(words: int) -> dict[str, tuple[int, ...]]:
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=256,
        d_model=TEXT_WIDTH,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    with torch.device("meta"):
        return _shapes(UMT5EncoderModel(config))


def _shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _sentencepiece_model() -> bytes:
    """Train a tokenizer on a few words; the same words give the same bytes."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS, *WORDS.split()]),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def _word_pieces() -> list[str]:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{x}" for x in letters),
        *WORDS.split()[1:],
    ]
    return [*pieces, "[DEC]", "[ENC]"]


def _reward_weights(random: _Random) -> dict[str, Tensor]:
    config = replace(REWARD, vocabulary=len(_word_pieces()))
    weights = random.fill(used_shapes(config))
    weights["mlp.layers.7.weight"] *= HEAD_GAIN
    weights["mlp.layers.7.bias"] += HEAD_SHIFT
    return weights
