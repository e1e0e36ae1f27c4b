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

CPU = torch.device("cpu")
ONE = torch.ones(1)


def refusal_of(tmp_path, state, metadata=None) -> str:
    with pytest.raises(BadInput) as refusal:
        load_wan(save(tmp_path / "given.safetensors", state, metadata))
    assert "; " in str(refusal.value)
    return str(refusal.value)


def sized(**changes) -> dict[str, torch.Tensor]:
    sizes = {"dim": 128, "ffn_dim": 48, "num_layers": 1, "num_heads": 1, "text_dim": 8, "freq_dim": 16}
    return random_state(WanConfig(**{**sizes, **changes}))


LORAS = (
    "diffusion_model.blocks.0.self_attn.q.lora_A.weight",
    "lora_unet_blocks_0_ffn_0.lora_down.weight",
    "transformer.blocks.0.attn1.to_q.lora.up.weight",
    "blocks.0.self_attn.q.lora_B.default.weight",
)


@pytest.mark.parametrize("name", LORAS)
@pytest.mark.parametrize("base", [{}, random_state()], ids=["alone", "beside its base"])
def test_lora_is_refused_as_a_transformer(tmp_path, name, base):
    """Catches: a LoRA beside its base passed over as unused, and the base alone loaded without a word."""
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
def test_incomplete_or_foreign_model_is_refused_by_name(tmp_path, state, words):
    assert words in refusal_of(tmp_path, state)


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model."])
def test_unknown_tensor_of_the_model_is_refused(tmp_path, prefix):
    state = prefixed({**random_state(), "blocks.1.self_attn.gate.weight": ONE}, prefix)
    assert "has the unknown blocks.1.self_attn.gate.weight; use" in refusal_of(tmp_path, state)


@pytest.mark.parametrize(("blocks", "whole"), [(29, WAN_1_3B), (39, WAN_14B), (41, WAN_14B)])
def test_model_without_its_last_block_is_refused(blocks, whole):
    with pytest.raises(BadInput, match=f"has {blocks} of the {whole.num_layers} blocks of its width; fetch"):
        check_sizes("given.safetensors", replace(whole, num_layers=blocks), stated=())


def test_model_of_unpublished_width_may_be_small(tmp_path):
    """There is no published number of blocks to compare it with."""
    assert open_wan(save(tmp_path / "w.safetensors", sized(num_layers=3))).config.num_layers == 3


def test_opening_checks_the_number_of_blocks(tmp_path):
    with pytest.raises(BadInput, match="29 of the 30 blocks"):
        open_wan(save_hollow(tmp_path / "cut.safetensors", replace(WAN_1_3B, num_layers=29)))


def test_smaller_model_that_states_its_blocks_opens(tmp_path):
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
    {"patch_size": [1, 2]},
    {"eps": "small"},
    {"eps": -1.0},
)


@pytest.mark.parametrize("config", ["{", "[]", *(json.dumps({"transformer": size}) for size in (3, *SIZES))])
def test_impossible_metadata_is_refused(tmp_path, config):
    refusal_of(tmp_path, random_state(), {"config": config})


def test_claimed_blocks_are_refused_before_the_search(tmp_path):
    """Catches: a list of the blocks' names that fills the memory."""
    config = json.dumps({"transformer": {"num_layers": 10_000}})
    assert "lacks most of the " in refusal_of(tmp_path, random_state(), {"config": config})


def test_doctor_describes_a_transformer(tmp_path):
    state = {**prefixed(random_state(NARROW), "model."), "other": ONE.half()}
    facts = inspect_file(save(tmp_path / "wan.safetensors", state, NARROW_METADATA))
    assert (facts["kind"], facts["reason"]) == ("causal Wan 2.1 transformer", "")
    assert facts["size"] == f"{NARROW.size}: 2 blocks, width 24, 2 heads"
    assert facts["parameters"] == f"{NARROW.parameters + 1:,}"
    assert facts["dtypes"] == f"{len(wan_shapes(NARROW))} float32, 1 float16"
    assert (facts["layout"], facts["quantisation"], facts["preset"]) == ("safetensors", "none", "")
    assert "same names and shapes as plain Wan 2.1" in facts["notes"]


@pytest.mark.parametrize(
    ("name", "dtype", "bad"),
    [
        ("head.modulation", torch.bfloat16, float("-inf")),
        ("blocks.0.self_attn.q.weight", torch.float8_e4m3fn, float("nan")),
    ],
)
def test_doctor_finds_values_that_are_not_finite(tmp_path, name, dtype, bad):
    """Catches: such a file said to be finite all the same, or to load."""
    state = random_state(NARROW)
    state[name] = torch.full_like(state[name], bad).to(dtype)
    path = save(tmp_path / "wan.safetensors", state, NARROW_METADATA)
    quick = inspect_file(path)
    assert quick["reason"] == ""
    assert quick["values"].startswith("not read")
    read = inspect_file(path, values=True)
    assert name in read["reason"]
    assert (read["would load"], read["values"]) == ("no", "")


def test_doctor_finds_all_values_finite(tmp_path):
    path = save(tmp_path / "wan.safetensors", random_state(NARROW), NARROW_METADATA)
    assert inspect_file(path, values=True)["values"] == "all finite"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file with holes: this one is 2.8 GB long")
def test_doctor_suggests_the_preset_of_published_sizes(tmp_path):
    facts = inspect_file(save_hollow(tmp_path / "wan.safetensors", WAN_1_3B))
    assert (facts["reason"], facts["preset"]) == ("", "self-forcing-1.3b")
    assert facts["size"] == "1.3B: 30 blocks, width 1536, 12 heads"


TELLTALES = {**FAMILIES, LORA: [["blocks.0.self_attn.q.lora_A.weight"]], "unknown": [["weight"]]}
"""Kind of file -> for each way to recognise it, names of tensors."""
KINDS = [(kind, names) for kind, ways in TELLTALES.items() for names in ways]


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_other_kinds_are_refused_as_transformers(tmp_path, kind, names):
    """A variant of Wan also in the whole model. Catches: no word of what it is, or of what to give instead."""
    parts = dict.fromkeys(names, ONE)
    states = [parts]
    if kind in VARIANTS:
        states.append(prefixed({**random_state(), **parts}, "model.diffusion_model."))
    for state in states:
        with pytest.raises(BadInput) as refusal:
            open_wan(save(tmp_path / "given.safetensors", state))
        message = str(refusal.value)
        assert message.startswith("given.safetensors ")
        assert ("; load its base model" if kind == LORA else "; give a causal Wan 2.1") in message
        assert kind in message or kind == "unknown"


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_doctor_recognises_other_kinds(tmp_path, kind, names):
    facts = inspect_file(save(tmp_path / "given.safetensors", dict.fromkeys(names, ONE)))
    assert (facts["kind"], facts["would load"], facts["preset"], facts["notes"]) == (kind, "no", "", "")
    assert facts["values"] == "", "as they were not read to the end"
    assert "; " in facts["reason"]


def test_doctor_recognises_the_other_models(files):
    parts = {files.vae: "Wan 2.1 VAE", files.text_encoder: "UMT5 text encoder", files.reward: "ImageReward"}
    for path, kind in parts.items():
        facts = inspect_file(path)
        assert (facts["kind"], facts["reason"]) == (kind, "")


def test_doctor_lists_the_state_dicts_of_checkpoints(files):
    """Catches: no word of which of them is the one described."""
    facts = inspect_file(files.drafter)
    assert (facts["dictionary"], facts["dictionaries"]) == ("generator_ema", "generator, generator_ema")
    assert "holds two sets of weights" in facts["notes"]


# --- control modules


def module_state(blocks=2, config=TINY):
    g = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=g) for name, shape in control_shapes(config, blocks).items()}


def loaded_state(path):
    tree = load_control(open_control(open_weights(path), TINY, "target"), device=CPU, dtype=torch.float32)
    return dict(tree.state_dict())


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model."])
@pytest.mark.parametrize("whole", [False, True])
def test_control_module_loads_alone_or_beside_its_model(prefix, whole, tmp_path):
    state = module_state()
    beside = random_state() if whole else {}
    path = save(tmp_path / "vace.safetensors", prefixed({**state, **beside}, prefix))
    assert_same_tensors(loaded_state(path), state)


def test_fp8_control_module_keeps_its_scale(tmp_path):
    """The old form of scaled fp8. Catches: a scale that is left out, or a bare fp8 weight."""
    state = module_state()
    name = "vace_blocks.1.after_proj"
    rounded = state[f"{name}.weight"].to(torch.float8_e4m3fn)
    scaled = {**state, f"{name}.weight": rounded, f"{name}.scale_weight": torch.tensor(0.5)}
    scaled["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    checkpoint = open_control(open_weights(save(tmp_path / "vace.safetensors", scaled)), TINY, "target")
    layer = load_control(checkpoint, device=CPU, dtype=torch.float32).vace_blocks[1].after_proj
    x = torch.randn(2, TINY.dim)
    wanted = torch.nn.functional.linear(x, rounded.float() * 0.5, state[f"{name}.bias"])
    assert torch.allclose(layer(x), wanted, atol=1e-5)
    assert checkpoint.quantisation.label == "fp8 scaled, old form"


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
def test_control_module_that_misfits_is_refused(state, why, tmp_path):
    with pytest.raises(BadInput, match=why):
        open_control(open_weights(save(tmp_path / "vace.safetensors", state)), TINY, "target")


def test_control_module_of_zeros_is_refused(tmp_path):
    state = module_state()
    state["vace_patch_embedding.weight"].zero_()
    with pytest.raises(BadInput, match="all zeros"):
        loaded_state(save(tmp_path / "vace.safetensors", state))


@pytest.mark.parametrize("whole", [False, True])
def test_doctor_recognises_a_control_module(whole, tmp_path):
    state = {**module_state(), **(random_state() if whole else {})}
    facts = inspect_file(save(tmp_path / "vace.safetensors", state))
    assert (facts["kind"], facts["reason"]) == ("control module (VACE)", "")
