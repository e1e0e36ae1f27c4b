"""What a file of weights is: what doctor says, and which transformers and control modules are refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from wan_files import NARROW, NARROW_METADATA, TINY, assert_same_tensors, prefixed, random_state, save, save_hollow

from sdvg_core.causal_wan.checkpoint import check_sizes, load_control, load_wan, open_control, open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig, control_shapes, wan_shapes
from sdvg_core.errors import BadInput
from sdvg_core.loading.inspection import inspect_file
from sdvg_core.weights.model_files import FAMILIES, LORA, VARIANTS
from sdvg_core.weights.weight_file import open_weights

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
        (dict.fromkeys("cadb", ONE), "(found: a, b, c);"),
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


def test_a_transformer_is_described_and_would_load(tmp_path):
    path = save(
        tmp_path / "wan.safetensors",
        {**prefixed(random_state(NARROW), "model."), "other": ONE.half()},
        NARROW_METADATA,
    )
    found = inspect_file(path)
    assert (found["kind"], found["reason"]) == ("causal Wan 2.1 transformer", "")
    assert found["size"] == f"{NARROW.size}: 2 blocks, width 24, 2 heads"
    assert found["parameters"] == f"{NARROW.parameters + 1:,}"
    assert found["dtypes"] == f"{len(wan_shapes(NARROW))} float32, 1 float16"
    assert (found["layout"], found["quantisation"], found["preset"]) == ("safetensors", "none", "")
    assert "same names and shapes as plain Wan 2.1" in found["notes"]


@pytest.mark.parametrize(
    ("name", "dtype", "bad"),
    [
        ("head.modulation", torch.bfloat16, float("-inf")),
        ("blocks.0.self_attn.q.weight", torch.float8_e4m3fn, float("nan")),
    ],
)
def test_a_file_with_values_that_are_not_finite_is_not_promised_to_load(tmp_path, name, dtype, bad):
    state = random_state(NARROW)
    state[name] = torch.full_like(state[name], bad).to(dtype)
    path = save(tmp_path / "wan.safetensors", state, NARROW_METADATA)
    quick, thorough = inspect_file(path), inspect_file(path, values=True)
    assert (quick["reason"], quick["values"][:8]) == ("", "not read")
    assert name in thorough["reason"]
    save(path, random_state(NARROW), NARROW_METADATA)
    assert inspect_file(path, values=True)["values"] == "all finite"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file with holes: this one is 2.8 GB long")
def test_a_published_size_is_recognised_and_its_preset_suggested(tmp_path):
    config, preset = WAN_1_3B, "self-forcing-1.3b"
    found = inspect_file(save_hollow(tmp_path / "wan.safetensors", config))
    assert (found["reason"], found["preset"]) == ("", preset)
    assert found["size"] == "1.3B: 30 blocks, width 1536, 12 heads"


@pytest.mark.parametrize("kind", [*FAMILIES, LORA, "unknown"])
def test_every_kind_of_file_is_recognised_and_refused_as_a_transformer_in_a_sentence(tmp_path, kind):
    """What it is, and what to give instead; a variant of Wan also by its name in the whole model."""
    for telltales in FAMILIES.get(kind, [["blocks.0.self_attn.q.lora_A.weight"] if kind == LORA else ["weight"]]):
        parts = dict.fromkeys(telltales, ONE)
        whole = prefixed({**random_state(), **parts}, "model.diffusion_model.")
        for state in (parts, whole) if kind in VARIANTS else (parts,):
            path = save(tmp_path / "given.safetensors", state)
            with pytest.raises(BadInput) as refused:
                open_wan(path)
            remedy = "load its base model" if kind == LORA else "give a causal Wan 2.1 text-to-video model"
            assert str(refused.value).startswith("given.safetensors ")
            assert f"; {remedy}" in str(refused.value)
            assert kind in str(refused.value) or kind == "unknown"
        found = inspect_file(save(tmp_path / "given.safetensors", parts))
        assert (found["kind"], found["would load"], found["preset"], found["notes"]) == (kind, "no", "", "")
        assert "; " in found["reason"]


def test_the_other_parts_of_a_run_would_load_too(files):
    parts = {files.vae: "Wan 2.1 VAE", files.text_encoder: "UMT5 text encoder", files.reward: "ImageReward"}
    for path, kind in parts.items():
        found = inspect_file(path)
        assert (found["kind"], found["reason"]) == (kind, "")


def test_the_state_dicts_of_a_training_checkpoint_are_listed_and_the_one_looked_at_is_named(files):
    found = inspect_file(files.drafter)
    assert (found["dictionary"], found["dictionaries"]) == ("generator_ema", "generator, generator_ema")
    assert "holds two sets of weights" in found["notes"]


CPU = torch.device("cpu")


def module_state(blocks=2, config=TINY):
    g = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=g) for name, shape in control_shapes(config, blocks).items()}


def loaded(path):
    tree = load_control(open_control(open_weights(path), TINY, "target"), device=CPU, dtype=torch.float32)
    return dict(tree.state_dict())


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model."])
@pytest.mark.parametrize("whole", [False, True])
def test_alone_or_in_a_whole_checkpoint_the_same_tensors_are_taken(prefix, whole, tmp_path):
    state = module_state()
    beside = random_state() if whole else {}
    found = loaded(save(tmp_path / "vace.safetensors", prefixed({**state, **beside}, prefix)))
    assert_same_tensors(found, state)


def test_a_rounded_module_is_cast_up_with_its_scale(tmp_path):
    """The old form of scaled fp8. Catches: a scale that is left out, or a bare fp8 weight."""
    state = module_state()
    name = "vace_blocks.1.after_proj"
    rounded = state[f"{name}.weight"].to(torch.float8_e4m3fn)
    scaled = {**state, f"{name}.weight": rounded, f"{name}.scale_weight": torch.tensor(0.5)}
    scaled["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    found = open_control(open_weights(save(tmp_path / "vace.safetensors", scaled)), TINY, "target")
    layer = load_control(found, device=CPU, dtype=torch.float32).vace_blocks[1].after_proj
    x = torch.randn(2, TINY.dim)
    wanted = torch.nn.functional.linear(x, rounded.float() * 0.5, state[f"{name}.bias"])
    assert torch.allclose(layer(x), wanted, atol=1e-5)
    assert found.quantisation.label == "fp8 scaled, old form"


WRONG = {
    "another width": (
        {n: w[:64] if n.startswith("vace_patch") else w for n, w in module_state().items()},
        "is for a width of 64, and the target has 128",
    ),
    "no module": (random_state(), "has no control module"),
    "blocks that do not divide the layers": (module_state(3), "3 control blocks for the 2 of the target"),
    "a lost tensor": (
        {n: w for n, w in module_state().items() if n != "vace_blocks.1.after_proj.weight"},
        "lacks vace_blocks.1.after_proj.weight",
    ),
    "another kind of context": (
        {n: w[:, :64] if n == "vace_patch_embedding.weight" else w for n, w in module_state().items()},
        "has another shape for vace_patch_embedding.weight",
    ),
}


@pytest.mark.parametrize(("state", "why"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_in_a_sentence(state, why, tmp_path):
    with pytest.raises(BadInput, match=why):
        open_control(open_weights(save(tmp_path / "vace.safetensors", state)), TINY, "target")


def test_a_module_of_zeros_is_refused_when_it_is_loaded(tmp_path):
    state = module_state()
    state["vace_patch_embedding.weight"].zero_()
    with pytest.raises(BadInput, match="all zeros"):
        loaded(save(tmp_path / "vace.safetensors", state))


@pytest.mark.parametrize("whole", [False, True])
def test_inspect_says_what_it_is(whole, tmp_path):
    state = {**module_state(), **(random_state() if whole else {})}
    found = inspect_file(save(tmp_path / "vace.safetensors", state))
    assert (found["kind"], found["reason"]) == ("control module (VACE)", "")
