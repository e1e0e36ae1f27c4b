import pytest
import torch
from torch.nn import functional as F
from wan_files import NARROW, TINY

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, wan_shapes
from sdvg_core.causal_wan.modules import RMSNorm, WanTree


@pytest.mark.parametrize("config", [TINY, NARROW, WAN_1_3B, WAN_14B], ids=["tiny", "narrow", "1.3B", "14B"])
def test_the_tree_has_exactly_the_tensors_of_a_checkpoint(config):
    with torch.device("meta"):
        tree = WanTree(config)
    assert {name: tuple(t.shape) for name, t in tree.state_dict().items()} == wan_shapes(config)


def test_the_layers_work_in_bfloat16_with_float32_statistics():
    """The root mean square is rounded before it is weighed; the patch embedding takes any dtype."""
    g = torch.Generator().manual_seed(0)
    norm = RMSNorm(64, 1e-6)
    torch.nn.init.normal_(norm.weight, generator=g)
    norm, x = norm.to(torch.bfloat16), torch.randn(5, 64, generator=g).bfloat16()
    assert torch.equal(norm(x), F.rms_norm(x.float(), (64,), eps=1e-6).bfloat16() * norm.weight)
    tree, x = WanTree(NARROW).to(torch.bfloat16), torch.randn(1, 3, 24, generator=g).bfloat16()
    for norm in (tree.blocks[0].norm1, tree.blocks[0].norm2, tree.blocks[0].norm3):
        assert torch.equal(norm(x), F.layer_norm(x, (24,), norm.weight, norm.bias, 1e-6))
    frames = torch.randn(1, 16, 2, 4, 4, generator=g)
    embedded = tree.patch_embedding(frames)
    assert embedded.dtype == torch.bfloat16
    assert torch.equal(embedded, tree.patch_embedding(frames.bfloat16()))
