import json
from dataclasses import replace

import pytest
import torch
from wan_files import NARROW, prefixed, random_state, save, save_hollow

from sdvg_core.causal_wan.checkpoint import check_sizes, load_wan, open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig
from sdvg_core.errors import BadInput

ONE = torch.ones(1)


def refusal_of(tmp_path, state, metadata=None) -> str:
    with pytest.raises(BadInput) as caught:
        load_wan(save(tmp_path / "given.safetensors", state, metadata))
    assert "; " in str(caught.value)
    return str(caught.value)


def sized(**changes) -> dict[str, torch.Tensor]:
    sizes = {"dim": 128, "ffn_dim": 48, "num_layers": 1, "num_heads": 1, "text_dim": 8, "freq_dim": 16}
    return random_state(WanConfig(**{**sizes, **changes}))


LORAS = ("diffusion_model.blocks.0.self_attn.q.lora_A.weight", "lora_unet_blocks_0_ffn_0.lora_down.weight")
LORAS += ("transformer.blocks.0.attn1.to_q.lora.up.weight", "blocks.0.self_attn.q.lora_B.default.weight")


@pytest.mark.parametrize("name", LORAS)
@pytest.mark.parametrize("base", [{}, random_state()], ids=["alone", "beside its base"])
def test_a_lora_is_refused_alone_and_beside_its_base(tmp_path, name, base):
    """Beside its base it would be passed over as unused, and the base alone loaded without a word."""
    message = refusal_of(tmp_path, {**base, name: ONE})
    assert "apply the LoRA to it" in message
    assert name in message


def without(*parts):
    return {n: t for n, t in random_state().items() if not any(part in n for part in parts)}


@pytest.mark.parametrize(
    "state, words",
    [
        (sized(in_dim=36), "36 input and 16 output channels, not 16"),
        (sized(out_dim=48), "16 input and 48 output channels, not 16"),
        ({"decoder.middle.0.residual.0.gamma": ONE}, "Wan 2.1 VAE"),
        (dict.fromkeys("cadb", ONE), "(found: a, b, c, ...);"),
        (
            without(".ffn.2."),
            "lacks blocks.0.ffn.2.weight, blocks.0.ffn.2.bias, blocks.1.ffn.2.weight and 1 more; use",
        ),
        (without("head.modulation"), "head.modulation"),
        (without("patch_embedding.weight"), "patch_embedding.weight"),
        (without("text_embedding.0.weight"), "text_embedding.0.weight"),
        # Blocks are not counted up to the first gap.
        ({n: t for n, t in sized(num_layers=3).items() if "blocks.1." not in n}, "lacks blocks.1.modulation"),
        # Nor are those in between looked for, at once.
        ({**random_state(), "blocks.99999.modulation": ONE}, "has the unknown blocks.99999.modulation"),
        ({**random_state(), "blocks.1.self_attn.k.weight": torch.zeros(3, 3)}, "self_attn.k.weight ((3, 3), not ("),
        ({**random_state(), "blocks.0.modulation": torch.zeros(3, 3)}, "blocks.0.modulation ((3, 3), not ("),
        (random_state(NARROW), "num_heads"),
        (
            {**random_state(), **prefixed(random_state(), "model.")},
            "several transformers (Wan names under model, Wan names)",
        ),
        ({**random_state(), "_orig_mod.head.head.bias": torch.zeros(64)}, "mean head.head.bias"),
    ],
)
def test_tensors_that_are_no_whole_model_of_ours_are_refused_by_what_they_are(tmp_path, state, words):
    assert words in refusal_of(tmp_path, state)


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model."])
def test_an_unknown_tensor_of_the_model_is_refused(tmp_path, prefix):
    state = prefixed({**random_state(), "blocks.1.self_attn.gate.weight": ONE}, prefix)
    assert "has the unknown blocks.1.self_attn.gate.weight; use" in refusal_of(tmp_path, state)


@pytest.mark.parametrize(("blocks", "whole"), [(29, WAN_1_3B), (39, WAN_14B), (41, WAN_14B)])
def test_a_published_size_with_its_last_block_missing_is_no_smaller_model(blocks, whole):
    with pytest.raises(BadInput, match=f"has {blocks} of the {whole.num_layers} blocks of its width; fetch"):
        check_sizes("given.safetensors", replace(whole, num_layers=blocks), stated=())


def test_a_smaller_model_that_says_so_is_one(tmp_path):
    """A model of another width has no published number of blocks to be compared with."""
    assert open_wan(save(tmp_path / "w.safetensors", sized(num_layers=3))).config.num_layers == 3
    with pytest.raises(BadInput, match="29 of the 30 blocks"):
        open_wan(save_hollow(tmp_path / "cut.safetensors", replace(WAN_1_3B, num_layers=29)))
    stated = {"config": json.dumps({"transformer": {"num_layers": 29}})}
    path = save_hollow(tmp_path / "given.safetensors", replace(WAN_1_3B, num_layers=29), stated)
    assert open_wan(path).config.num_layers == 29


SIZES = (
    {"num_heads": 0},
    {"num_heads": "4"},
    {"num_heads": 7},
    {"num_heads": True},
    {"num_heads": 32},  # two pairs a head: the three axes need one each
    {"num_layers": 0},
    {"dim": 256},
    {"patch_size": 2},
)
SIZES += ({"patch_size": [1, 2]}, {"eps": "small"}, {"eps": -1.0})


@pytest.mark.parametrize("config", ["{", "[]", *(json.dumps({"transformer": size}) for size in (3, *SIZES))])
def test_metadata_that_cannot_be_is_refused(tmp_path, config):
    refusal_of(tmp_path, random_state(), {"config": config})


def test_a_number_of_blocks_that_only_the_metadata_claims_is_refused_before_they_are_looked_for(tmp_path):
    """The names to look for would fill the memory."""
    config = json.dumps({"transformer": {"num_layers": 10_000}})
    assert "lacks most of the " in refusal_of(tmp_path, random_state(), {"config": config})
