"""Begin a transformer whose token is one latent pixel with the weights of one whose token is 2 x 2 of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree

PATCH = (1, 1, 1)


def finer_config(config: WanConfig, layers: int) -> WanConfig:
    """Return the same sizes, but for the patch and the number of layers."""
    return replace(config, patch_size=PATCH, num_layers=layers)


@torch.no_grad()
def finer_weights(tree: WanTree, shift: int = 2) -> dict[str, Tensor]:
    """Return weights for tokens of one latent pixel that do on smooth latents what a tree of 2 x 2 does.

    A patch of four equal pixels makes the same token; a token shows the mean of what its four pixels showed.
    `shift`: by how many pairs of channels the rotations of rows and columns move towards the slower ones, as
    distances double. A pair turns 0.645 times as fast as the one before (42 channels an axis), so 0.5 lies between
    one pair and two.
    """
    weights = {name: w.clone() for name, w in tree.state_dict().items()}
    weights["patch_embedding.weight"] = weights["patch_embedding.weight"].sum(dim=(2, 3, 4), keepdim=True)
    for name in ("head.head.weight", "head.head.bias"):
        # Within a token, the channel varies fastest.
        weights[name] = weights[name].unflatten(0, (-1, tree.out_dim)).mean(dim=0)
    order = _slower(tree.num_heads, tree.dim // tree.num_heads, shift)
    for name in weights:
        if "self_attn" in name and name.split(".")[-2] in ("q", "k", "norm_q", "norm_k"):
            weights[name] = weights[name][order]
    return weights


def _slower(heads: int, width: int, shift: int) -> Tensor:
    """Return which old channel each of the queries' and keys' channels takes over."""
    side = width // 6
    time = width // 2 - 2 * side
    pairs = torch.arange(width // 2)
    for first in (time, time + side):
        pairs[first : first + side] = pairs[first : first + side].roll(shift)
    channels = (2 * pairs[:, None] + torch.arange(2)).flatten()
    return (width * torch.arange(heads)[:, None] + channels).flatten()
