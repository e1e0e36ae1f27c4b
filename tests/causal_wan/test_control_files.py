"""Control modules as files: alone, in a whole VACE checkpoint, rounded, and those that are refused."""

from __future__ import annotations

import pytest
import torch
from wan_files import TINY, assert_same_tensors, prefixed, random_state, save

from sdvg_core.causal_wan.checkpoint import load_control, open_control
from sdvg_core.causal_wan.config import control_shapes
from sdvg_core.checkpoints.weights import open_weights
from sdvg_core.errors import BadInput
from sdvg_core.models.inspection import inspect_file

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
    assert (found.kind, found.would_load) == ("control module (VACE)", True)
