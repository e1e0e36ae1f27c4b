import sys

import pytest
import torch
from wan_files import NARROW, NARROW_METADATA, prefixed, random_state, save, save_hollow

from sdvg_core.causal_wan.checkpoint import open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, wan_shapes
from sdvg_core.checkpoints.model_files import FAMILIES, LORA, VARIANTS
from sdvg_core.errors import BadInput
from sdvg_core.models.inspection import inspect_file

ONE = torch.ones(1)


def test_a_transformer_is_described_and_would_load(tmp_path):
    path = save(
        tmp_path / "wan.safetensors",
        {**prefixed(random_state(NARROW), "model."), "other": ONE.half()},
        NARROW_METADATA,
    )
    found = inspect_file(path)
    assert (found.kind, found.would_load, found.reason) == ("causal Wan 2.1 transformer", True, "")
    assert found.config == NARROW
    assert found.size == f"{NARROW.size}: 2 blocks, width 24, 2 heads"
    assert found.parameters == NARROW.parameters + 1
    assert found.dtypes == {"float32": len(wan_shapes(NARROW)), "float16": 1}
    assert (found.layout, found.quantisation, found.preset) == ("safetensors", "none", None)
    assert "same names and shapes as plain Wan 2.1" in found.notes[0]


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
    assert (quick.would_load, "not read" in quick.values) == (True, True)
    assert (thorough.would_load, name in thorough.reason) == (False, True)
    assert "values       not read" in str(quick)
    save(path, random_state(NARROW), NARROW_METADATA)
    assert inspect_file(path, values=True).values == "all finite"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file with holes: this one is 2.8 GB long")
def test_a_published_size_is_recognised_and_its_preset_suggested(tmp_path):
    config, preset = WAN_1_3B, "self-forcing-1.3b"
    found = inspect_file(save_hollow(tmp_path / "wan.safetensors", config))
    assert (found.would_load, found.config, found.preset) == (True, config, preset)
    assert found.size == "1.3B: 30 blocks, width 1536, 12 heads"


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
        assert (found.kind, found.would_load, found.preset, found.notes) == (kind, False, None, ())
        assert "; " in found.reason


def test_the_other_parts_of_a_run_would_load_too(files):
    parts = {files.vae: "Wan 2.1 VAE", files.text_encoder: "UMT5 text encoder", files.reward: "ImageReward"}
    for path, kind in parts.items():
        found = inspect_file(path)
        assert (found.kind, found.would_load, found.reason) == (kind, True, "")


def test_the_state_dicts_of_a_training_checkpoint_are_listed_and_the_one_looked_at_is_named(files):
    found = inspect_file(files.drafter)
    assert (found.dictionary, found.dictionaries) == ("generator_ema", ("generator", "generator_ema"))
    assert "layout       PyTorch pickle, generator_ema\ndictionaries generator, generator_ema\n" in str(found)
    assert "holds two sets of weights" in found.notes[-1]
