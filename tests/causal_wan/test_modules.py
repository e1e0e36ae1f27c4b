import pytest
import torch
from torch.nn import functional as F
from wan_files import NARROW, TINY

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig, wan_shapes
from sdvg_core.causal_wan.modules import RMSNorm, WanTree
from sdvg_core.errors import BadInput


@pytest.mark.parametrize("config", [TINY, NARROW, WAN_1_3B, WAN_14B], ids=["tiny", "narrow", "1.3B", "14B"])
def test_the_tree_has_exactly_the_tensors_of_a_checkpoint(config):
    with torch.device("meta"):
        tree = WanTree(config)
    assert {name: tuple(t.shape) for name, t in tree.state_dict().items()} == wan_shapes(config)


def test_the_tree_states_its_sizes_under_the_names_that_the_forward_reads():
    tree = WanTree(NARROW)
    stated = {"dim": 24, "num_heads": 2, "head_dim": 12, "num_layers": 2, "freq_dim": 16, "text_dim": 8}
    stated |= {
        "text_len": 512,
        "patch_size": (1, 2, 2),
        "in_dim": 16,
        "out_dim": 16,
        "eps": 1e-6,
        "ffn_dim": 32,
    }
    assert {name: getattr(tree, name) for name in stated} == stated


def test_the_patch_embedding_takes_any_dtype_and_answers_in_its_own():
    embed = WanTree(NARROW).to(torch.bfloat16).patch_embedding
    x = torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert embed(x).dtype == torch.bfloat16
    assert torch.equal(embed(x), embed(x.bfloat16()))


def test_the_rms_norm_has_float32_statistics_and_is_rounded_before_it_is_weighed():
    g = torch.Generator().manual_seed(0)
    norm = RMSNorm(64, 1e-6)
    torch.nn.init.normal_(norm.weight, generator=g)
    norm = norm.to(torch.bfloat16)
    x = torch.randn(5, 64, generator=g).bfloat16()
    assert torch.equal(norm(x), F.rms_norm(x.float(), (64,), eps=1e-6).bfloat16() * norm.weight)


def test_the_layer_norms_work_in_bfloat16():
    block = WanTree(NARROW).to(torch.bfloat16).blocks[0]
    x = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    for norm in (block.norm1, block.norm2, block.norm3):
        wanted = F.layer_norm(x, (24,), norm.weight, norm.bias, 1e-6)
        assert torch.equal(norm(x), wanted)
        assert norm(x).dtype == torch.bfloat16
    assert (block.norm1.weight, block.norm2.weight) == (None, None)


def test_gelu_is_the_tanh_one():
    tree = WanTree(NARROW)
    assert [tree.text_embedding[1].approximate, tree.blocks[0].ffn[1].approximate] == ["tanh", "tanh"]


@pytest.mark.parametrize(
    "change",
    [
        {"num_heads": 5},
        {"num_heads": 8},  # three channels a head: rotation needs pairs
        {"num_heads": 6},  # two pairs a head: the three axes need one each
        {"num_layers": 0},
        {"dim": -24},
        {"patch_size": (1, 2)},
        {"patch_size": (1, 0, 2)},
        {"eps": 0.0},
    ],
)
def test_sizes_that_cannot_be_are_refused(change):
    sizes = {"dim": 24, "ffn_dim": 32, "num_layers": 2, "num_heads": 2}
    with pytest.raises(BadInput):
        WanConfig(**{**sizes, **change})
