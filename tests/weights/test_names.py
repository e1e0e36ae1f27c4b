"""The renamer of weights, and the tables of networks that no checkpoint at hand shows whole."""

import pytest

from sdvg_core.causal_wan.config import flat_name
from sdvg_core.weights.names import renamer


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("norm.weight", "last.weight"),
        ("blocks.0.norm.weight", "blocks.0.norm.weight"),  # `^.` is the beginning
        ("blocks.0.norm1.weight", "blocks.0.norm1.weight"),  # a key is whole parts
        ("blocks.0.out.weight", "blocks.0.b.weight"),
        ("blocks.0.out.0.weight", "blocks.0.a.weight"),  # the longer key counts
        ("out.out.weight", "b.b.weight"),
        ("module.module.blocks.module.x", "blocks.x"),
        ("blocks.rope.x", ""),
    ],
)
def test_table_renames_whole_parts(name, renamed):
    """Catches: keys that match inside a part, a shorter key before a longer one, a second part left alone."""
    rename = renamer({"^.norm": "last", "out": "b", "out.0": "a", "module": "", "rope": None})
    assert rename(name) == renamed


def test_renamer_takes_only_names_under_prefix():
    """Catches a tensor beside the network that comes in under its whole name."""
    rename = renamer({"^.norm": "last"}, prefix="model.")
    assert [rename(name) for name in ("model.norm.w", "norm.w", "model2.norm.w")] == ["last.w", "", ""]


@pytest.mark.parametrize("wrapper", ["_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module"])
def test_flat_lora_names_lose_whole_wrappers(wrapper):
    """Catches dropping half of a wrapper, as another one is its end, in an order that changes between runs."""
    name = f"lora_unet_{wrapper}_{wrapper}_blocks_0_{wrapper}_attn1_to_out_0"
    assert flat_name(name) == "blocks.0.self.attn.o"
