"""What the file of a LoRA states, in the ways that trainers state it: names, scale, magnitudes, biases.

`test_peft_merges_the_same_weights` has numbers that PEFT 0.21 computed with `merge_and_unload`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.causal_wan.config import flat_name
from sdvg_core.errors import BadInput
from sdvg_core.weights.lora import Lora, OtherModel, open_lora

Q = "blocks.0.self_attn.q"
K = "blocks.0.self_attn.k"
PATCH = "patch_embedding"
SHAPES = {
    f"{Q}.weight": (3, 2),
    f"{Q}.bias": (3,),
    f"{K}.weight": (3, 2),
    f"{K}.bias": (3,),
    f"{PATCH}.weight": (2, 1, 1, 2, 2),
    f"{PATCH}.bias": (2,),
}
PEFT = "base_model.model."
RANK = 4
ALPHA = 16
"""Of `halves`: the scale is 4 wherever they are stated."""


def counted(shape: tuple[int, ...], step: int) -> Tensor:
    """Numbers from -0.75 to 0.75 that differ by step."""
    return (torch.arange(math.prod(shape)) * step % 7 - 3).reshape(shape) / 4


WEIGHTS = {name: counted(shape, 3 + number) for number, (name, shape) in enumerate(SHAPES.items())}


def halves(prefix: str = "diffusion_model.", layer: str = Q, name: str = "") -> dict[str, Tensor]:
    """The halves of a change. `name`: of its adapter."""
    rows = 3
    columns = 2
    named = f".{name}" if name else ""
    return {
        f"{prefix}{layer}.lora_A{named}.weight": counted((RANK, columns), 2),
        f"{prefix}{layer}.lora_B{named}.weight": counted((rows, RANK), 3),
    }


def saved(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".bin":
        torch.save(dict(tensors), path)
    else:
        save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    return path


def opened(path: Path) -> Lora:
    return open_lora(str(path), SHAPES, flat_name)


def scale_of(path: Path, name: str = f"{Q}.weight") -> float:
    return opened(path).changes[name].scale


# --- PEFT's own results

PAIR = {f"{PEFT}{Q}.lora_A.weight": counted((2, 2), 2), f"{PEFT}{Q}.lora_B.weight": counted((3, 2), 3)}
PATCH_PAIR = {
    f"{PEFT}{PATCH}.lora_A.weight": counted((2, 1, 1, 2, 2), 8),
    f"{PEFT}{PATCH}.lora_B.weight": counted((2, 2, 1, 1, 1), 9),
}
PLAIN = [1.5, 0.75, -1.75, -1.75, -1.5, -2.5]
BY_PEFT = {
    "plain": (PAIR, {}, f"{Q}.weight", PLAIN),
    "rsLoRA": (
        PAIR,
        {"use_rslora": True},
        f"{Q}.weight",
        [2.43198, 1.06066, -2.785534, -2.37132, -2.328427, -3.328427],
    ),
    "DoRA": (
        {**PAIR, f"{PEFT}{Q}.lora_magnitude_vector": counted((3,), 4) + 2},
        {"use_dora": True},
        f"{Q}.weight",
        [1.118034, 0.559017, -1.59099, -1.59099, -0.771744, -1.28624],
    ),
    "DoRA of a convolution": (
        {**PATCH_PAIR, f"{PEFT}{PATCH}.lora_magnitude_vector": counted((1, 2, 1, 1, 1), 10) + 2},
        {"use_dora": True},
        f"{PATCH}.weight",
        [1.056443, 0.211289, -0.633866, 0.0, -0.448461, 0.149487, 0.747435, -1.793844],
    ),
    "bias of a half": (
        {**PAIR, f"{PEFT}{Q}.lora_B.bias": counted((3,), 4)},
        {"lora_bias": True},
        f"{Q}.bias",
        [-3.75, 1.25, -2.5],
    ),
    "patterns": (
        {
            **PAIR,
            f"{PEFT}{K}.lora_A.weight": counted((1, 2), 4),
            f"{PEFT}{K}.lora_B.weight": counted((3, 1), 5),
        },
        {"alpha_pattern": {"self_attn.k": 3}, "rank_pattern": {"k": 1}},
        f"{K}.weight",
        [0.9375, -0.0625, -1.125, -0.125, 0.75, 0.25],
    ),
    "LoHa": (
        {
            f"{PEFT}{Q}.hada_w1_a": counted((3, 2), 2),
            f"{PEFT}{Q}.hada_w1_b": counted((2, 2), 3),
            f"{PEFT}{Q}.hada_w2_a": counted((3, 2), 4),
            f"{PEFT}{Q}.hada_w2_b": counted((2, 2), 5),
        },
        {"alpha": 8, "lora_alpha": None},
        f"{Q}.weight",
        [0.09375, -0.125, 1.3125, 0.125, 0.78125, -0.5],
    ),
}
"""Kind -> tensors, settings beyond `r` 2 and `lora_alpha` 8, a weight, and what PEFT makes of it."""


@pytest.mark.parametrize("kind", BY_PEFT)
def test_peft_merges_the_same_weights(tmp_path, kind):
    """Catches: a scale that is not read, DoRA by the lengths of the old rows, a bias left out."""
    tensors, settings, name, wanted = BY_PEFT[kind]
    path = saved(tmp_path / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, **settings}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    merged = opened(path).applied(name, WEIGHTS[name])
    torch.testing.assert_close(merged.flatten(), torch.tensor(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "ending",
    [
        "lora_magnitude_vector",
        "lora_magnitude_vector.weight",
        "lora_magnitude_vector.default",
        "lora_magnitude_vector.default.weight",
        "dora_layer.weight",
    ],
)
def test_magnitudes_are_known_by_every_name(tmp_path, ending):
    """Catches: DoRA merged as a plain LoRA, a third off."""
    _, _, name, wanted = BY_PEFT["DoRA"]
    tensors = {
        **PAIR,
        f"{PEFT}{Q}.{ending}": counted((3,), 4) + 2,
        f"{PEFT}{Q}.alpha": torch.tensor(8.0),
    }
    merged = opened(saved(tmp_path / "a.safetensors", tensors)).applied(name, WEIGHTS[name])
    torch.testing.assert_close(merged.flatten(), torch.tensor(wanted), rtol=1e-6, atol=1e-6)


# --- the scale

OF_DIFFUSERS = {"transformer.r": RANK, "transformer.lora_alpha": ALPHA, "text_encoder.lora_alpha": 1}
OF_PEFT = {"r": RANK, "lora_alpha": ALPHA}
HEADERS = {
    "diffusers' pipelines": ({"lora_adapter_metadata": json.dumps(OF_DIFFUSERS)}, 4.0),
    "diffusers' models": ({"lora_adapter_metadata": json.dumps(OF_PEFT)}, 4.0),
    "finetrainers": ({"lora_config": json.dumps(OF_PEFT)}, 4.0),
    "SimpleTuner": ({name: str(value) for name, value in OF_DIFFUSERS.items()}, 4.0),
    "LightX2V": ({"alpha": "16"}, 4.0),
    "network_alpha": ({"network_alpha": "16.0"}, 4.0),
    "rsLoRA": ({"lora_adapter_metadata": json.dumps({**OF_PEFT, "use_rslora": True})}, 8.0),
    "rsLoRA as text": ({"lora_alpha": "16", "use_rslora": "True"}, 8.0),
    "kohya's record of its training": ({"ss_network_alpha": "16", "ss_network_dim": "4"}, 1.0),
    "nothing": ({"alpha": "None", "format": "pt"}, 1.0),
}


@pytest.mark.parametrize("trainer", HEADERS)
def test_scale_in_the_header_is_read(tmp_path, trainer):
    """Catches: 4 to 16 times too little, in silence; a record taken for a scale that converters fold in."""
    metadata, scale = HEADERS[trainer]
    assert scale_of(saved(tmp_path / "a.safetensors", halves(), metadata)) == scale


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin", "style.safetensors"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_scale_in_the_config_beside_is_read(tmp_path, name, as_folder):
    path = saved(tmp_path / "lora" / name, halves(PEFT))
    (path.parent / "adapter_config.json").write_text(json.dumps(OF_PEFT))
    assert scale_of(path.parent if as_folder else path) == 4


def test_config_in_a_folder_of_many_is_ignored(tmp_path):
    """Catches: one LoRA's scale for all in ComfyUI's folder of them."""
    path = saved(tmp_path / "style.safetensors", halves())
    saved(tmp_path / "other.safetensors", halves())
    (tmp_path / "adapter_config.json").write_text(json.dumps(OF_PEFT))
    assert scale_of(path) == 1


@pytest.mark.parametrize("flag, scale", [(True, 8.0), (False, 4.0)])
def test_rslora_flag_among_the_tensors_takes_the_root(tmp_path, flag, scale):
    tensors = {**halves("lora_unet_", Q.replace(".", "_")), "use_rslora_flag": torch.tensor(flag)}
    tensors["lora_unet_blocks_0_self_attn_q.alpha"] = torch.tensor(16.0)
    path = saved(tmp_path / "a.safetensors", tensors)
    assert scale_of(path) == scale
    assert opened(path).unused == (), "the flag is read"


@pytest.mark.parametrize("key", ["attn1.to_k", "to_k", "blocks.0.attn1.to_k", r"^blocks\.0\.attn1\.to_k$"])
def test_pattern_changes_the_layers_it_names(tmp_path, key):
    settings = {**OF_PEFT, "alpha_pattern": {"attn1.to_v": 1, key: 2}}
    tensors = {**halves("transformer.", "blocks.0.attn1.to_q"), **halves("transformer.", "blocks.0.attn1.to_k")}
    path = saved(tmp_path / "a.safetensors", tensors, {"lora_adapter_metadata": json.dumps(settings)})
    assert (scale_of(path), scale_of(path, f"{K}.weight")) == (4, 0.5)


@pytest.mark.parametrize("value, scale", [(True, 8), (1, 8), (False, 4), (0, 4)])
def test_rslora_may_be_a_number(tmp_path, value, scale):
    metadata = {"lora_adapter_metadata": json.dumps({**OF_PEFT, "use_rslora": value})}
    assert scale_of(saved(tmp_path / "a.safetensors", halves("transformer."), metadata)) == scale


@pytest.mark.parametrize("key", ["f_attn.k", "lf_attn.k", "blocks.1.self_attn.k", "0.attn.k"])
def test_pattern_for_another_layer_changes_nothing(tmp_path, key):
    """Catches: half of a word taken for a name, so that what is for block 1 is for block 11 too."""
    metadata = {"lora_adapter_metadata": json.dumps({**OF_PEFT, "alpha_pattern": {key: 2}})}
    path = saved(tmp_path / "a.safetensors", halves(layer=K), metadata)
    assert scale_of(path, f"{K}.weight") == 4


ALPHA_TENSOR = {f"diffusion_model.{Q}.alpha": torch.tensor(16.0)}


@pytest.mark.parametrize(
    "tensors, metadata, config",
    [
        (ALPHA_TENSOR, {"alpha": "4"}, None),
        (ALPHA_TENSOR, {"lora_adapter_metadata": json.dumps({**OF_PEFT, "use_rslora": True})}, None),
        (ALPHA_TENSOR, {}, {"r": RANK, "lora_alpha": 8}),
        ({}, {"lora_adapter_metadata": json.dumps(OF_PEFT), "lora_alpha": "8"}, None),
        ({}, {"alpha": "16"}, {"r": RANK, "lora_alpha": 8}),
    ],
)
def test_two_scales_that_differ_are_refused(tmp_path, tensors, metadata, config):
    """Catches: one of two statements that wins in silence."""
    path = saved(tmp_path / "a.safetensors", {**halves(), **tensors}, metadata)
    if config:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="two scales"):
        opened(path)


def test_scales_that_agree_are_one(tmp_path):
    """In four places, to rounding."""
    metadata = {"alpha": "16.01", "lora_adapter_metadata": json.dumps(OF_PEFT)}
    path = saved(tmp_path / "a.safetensors", {**halves(), **ALPHA_TENSOR}, metadata)
    (tmp_path / "adapter_config.json").write_text(json.dumps(OF_PEFT))
    assert scale_of(path) == 4


def test_stated_rank_must_be_the_tensors(tmp_path):
    metadata = {"lora_adapter_metadata": json.dumps({"r": 8, "lora_alpha": 16})}
    with pytest.raises(BadInput, match=r"has rank 4 .* states 8"):
        opened(saved(tmp_path / "a.safetensors", halves(), metadata))


def test_dora_without_magnitudes_is_refused(tmp_path):
    metadata = {"lora_adapter_metadata": json.dumps({**OF_PEFT, "use_dora": True})}
    with pytest.raises(BadInput, match="states DoRA"):
        opened(saved(tmp_path / "a.safetensors", halves(), metadata))


@pytest.mark.parametrize(
    "metadata, words",
    [
        ({"alpha": "much"}, "no finite number"),
        ({"lora_alpha": "nan"}, "no finite number"),
        ({"lora_alpha": "9" * 5000}, "no finite number"),
        ({"lora_adapter_metadata": '{"lora_alpha": [16]}'}, "no finite number"),
        ({"lora_adapter_metadata": '{"lora_alpha": true}'}, "no finite number"),
        ({"lora_adapter_metadata": "{"}, "no JSON object"),
        ({"lora_adapter_metadata": "[" * 100_000}, "no JSON object"),
        ({"lora_adapter_metadata": "[1]"}, "no JSON object"),
        ({"lora_adapter_metadata": "x" * 2_000_000}, "no JSON object"),
        ({"alpha_pattern": "[1]"}, "no JSON object"),
        ({"lora_adapter_metadata": '{"alpha_pattern": [1]}'}, "no numbers by layer"),
        ({"lora_adapter_metadata": '{"alpha_pattern": {"(a+)+b": 1}}'}, "no layer's name"),
        ({"lora_adapter_metadata": '{"rank_pattern": {"k": "x"}}'}, "no finite number"),
    ],
)
def test_unreadable_scale_is_refused(tmp_path, metadata, words):
    """Catches: a stranger's pattern run as a regular expression, a scale that is skipped."""
    path = saved(tmp_path / "a.safetensors", halves(), metadata)
    with pytest.raises(BadInput, match=words) as refusal:
        opened(path)
    assert len(str(refusal.value)) <= 400


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff"])
def test_unreadable_config_is_refused(tmp_path, text):
    path = saved(tmp_path / "a.safetensors", halves())
    (tmp_path / "adapter_config.json").write_bytes(text)
    with pytest.raises(BadInput, match=r"adapter_config\.json"):
        opened(path)


# --- names


@pytest.mark.parametrize("name", ["", "default", "default_0", "style", "lightx2v_t1", "bias"])
def test_adapter_of_any_name_is_read(tmp_path, name):
    """Catches: PEFT's own `state_dict`, which holds no LoRA for who knows only `default`."""
    tensors = halves(PEFT, name=name)
    tensors[f"{PEFT}{Q}.lora_magnitude_vector{'.' if name else ''}{name}.weight"] = torch.ones(3)
    lora = opened(saved(tmp_path / "a.safetensors", tensors))
    assert (set(lora.changes), lora.unused) == ({f"{Q}.weight"}, ())
    assert set(lora.changes[f"{Q}.weight"].parts) == {"lora_a", "lora_b", "magnitude"}


def test_several_adapters_in_a_file_are_listed(tmp_path):
    tensors = {**halves(PEFT, Q, "style"), **halves(PEFT, K, "lightx2v")}
    with pytest.raises(BadInput, match=r"2 LoRAs \(lightx2v, style\)"):
        opened(saved(tmp_path / "a.safetensors", tensors))


ODD_ENDINGS = (
    "lora_A.bias",
    "lora_A.weight_scale",
    "lora_B.default.weight_scale",
    "scalar",
    "diff_x",
    "modules_to_save.default.weight",
)


@pytest.mark.parametrize("ending", [*ODD_ENDINGS, "weight", "bias"])
def test_unknown_part_of_a_layer_is_refused(tmp_path, ending):
    """Catches: a part of a change left out, said to be of a layer that the model has not."""
    tensors = {**halves(), f"diffusion_model.{Q}.{ending}": torch.ones(3)}
    with pytest.raises(BadInput, match="not read here"):
        opened(saved(tmp_path / "a.safetensors", tensors))


def test_state_dict_of_a_peft_model_is_read(tmp_path):
    """Catches: the base's own weights, which change nothing, taken for a part of the change."""
    base = {f"{PEFT}{Q}.base_layer.weight": torch.ones(3, 2), f"{PEFT}{Q}.base_layer.bias": torch.ones(3)}
    base |= {f"{PEFT}{K}.weight": torch.ones(3, 2), f"{PEFT}{K}.bias": torch.ones(3)}
    lora = opened(saved(tmp_path / "a.safetensors", {**halves(PEFT, name="style"), **base}))
    assert (set(lora.changes), set(lora.unused)) == ({f"{Q}.weight"}, set(base))


def test_unknown_parts_of_other_layers_are_unused(tmp_path):
    odd = [f"diffusion_model.blocks.0.cross_attn.k_img.{ending}" for ending in ODD_ENDINGS]
    odd += ["diffusion_model.blocks.0.diff_m", "step"]
    lora = opened(saved(tmp_path / "a.safetensors", {**halves(), **{name: torch.ones(3) for name in odd}}))
    assert set(lora.unused) == set(odd)


# --- shapes

MISFITS = {
    "a difference": {f"diffusion_model.{PATCH}.diff": torch.ones(2, 36, 1, 2, 2)},
    "halves": {
        f"diffusion_model.{PATCH}.lora_A.weight": torch.ones(RANK, 36, 1, 2, 2),
        f"diffusion_model.{PATCH}.lora_B.weight": torch.ones(2, RANK, 1, 1, 1),
    },
    "a bias": {f"diffusion_model.{PATCH}.diff_b": torch.ones(5)},
    "magnitudes": {
        **halves(layer=K),
        f"diffusion_model.{K}.lora_magnitude_vector": torch.ones(5),
    },
}


@pytest.mark.parametrize("kind", MISFITS)
def test_change_of_another_shape_is_unused(tmp_path, kind):
    """Catches: a LoRA of image-to-video refused whole for its patch embedding of 36 channels."""
    lora = opened(saved(tmp_path / "a.safetensors", {**halves(), **MISFITS[kind]}))
    assert (set(lora.changes), set(lora.unused)) == ({f"{Q}.weight"}, set(MISFITS[kind]))


def test_lora_of_another_size_is_refused(tmp_path):
    """A LoRA for another size may fit by a bias of the head. Catches: it is taken for the sake of that."""
    tensors = {**MISFITS["halves"], **MISFITS["a bias"], f"diffusion_model.{Q}.diff_b": torch.ones(3)}
    with pytest.raises(OtherModel, match="does not fit"):
        opened(saved(tmp_path / "a.safetensors", tensors))


# --- LoRAs that change nothing

OF_ZEROS = {f"diffusion_model.{Q}.lora_B.weight": torch.zeros(3, RANK)}


@pytest.mark.parametrize(
    "more, strength, inert",
    [
        (OF_ZEROS, 1, True),
        ({f"diffusion_model.{Q}.alpha": torch.zeros(())}, 1, True),
        ({}, 0, True),
        ({}, 1, False),
        ({f"diffusion_model.{K}.diff": torch.zeros(3, 2)}, 1, False),
        ({f"diffusion_model.{Q}.lora_magnitude_vector": torch.ones(3), **ALPHA_TENSOR}, 1, False),
        ({**OF_ZEROS, f"diffusion_model.{Q}.lora_magnitude_vector": torch.ones(3)}, 1, False),
    ],
)
def test_lora_that_changes_nothing_is_inert(tmp_path, more, strength, inert):
    path = saved(tmp_path / "a.safetensors", {**halves(), **more})
    lora = open_lora(f"{path}:{strength}", SHAPES, flat_name)
    assert lora.checked(WEIGHTS.__getitem__, torch.float32).inert == inert
