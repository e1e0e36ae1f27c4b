"""Let a model make whole clips on its own, and find the moment of the world that frames show.

A model that runs a little ahead or behind is not wrong from there on: what is right after a context is what the
world would show next after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.oracle import weighted_error
from sdvg_core.pocket.renderer import render_with_mask
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, BLOCKS, SCHEDULE, Prompted

REACH = 12
"""How many frames a context may be ahead or behind."""

FIRST = 4 * (BLOCK - 1) + 1
"""Pixel frames of the first block."""

RECOGNISED = 0.06
"""The mean squared error, things and ground weighing the same, above which a context is not recognised (12 dB).

Of two things, one may be lost or discoloured in it: the prompt says what it should be, and so it can come back.
"""


def encode_stills(vae: WanCodec | TaehvCodec, stills: Tensor) -> Tensor:
    """Return the latents `b n c h w` of pixel frames `b n c h w`, each encoded as an image."""
    latents = vae.encode(stills.flatten(0, 1)[:, None])
    stacked: Tensor = latents[:, :, 0].unflatten(0, stills.shape[:2])
    return stacked


def roll_out(
    tree: Any,
    vae: WanCodec | TaehvCodec,
    embedding: Tensor,
    real: Tensor,
    *,
    count: int = BLOCKS,
    begun: Sequence[Tensor] = (),
    ask: Callable[[Any, Tensor, Tensor], Prompted] = Prompted,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the contexts of the blocks a model made on its own, all blocks, and the pixel frames of these.

    `begun`: the first of the `count` blocks, `b c 3 h w`, made by somebody else.
    """
    contexts = []
    blocks = list(begun)
    shown = []
    state = None
    for block in begun:
        frames, state = vae.decode(block, state)
        shown.append(frames)
    for number in range(len(begun), count):
        prompted = ask(tree, embedding, real)
        if number:
            context = blocks[-1].clone()
            if number > 1:
                still = shown[-1][:, 3::4][:, :1]
                context[:, :, 0] = encode_stills(vae, still)[:, 0]
            contexts.append(context)
            prompted.see(context)
        noises = [torch.randn(len(real), 16, BLOCK, 8, 8, device=real.device) for _ in SCHEDULE]
        blocks.append(prompted.sample(noises))
        frames, state = vae.decode(blocks[-1], state)
        shown.append(frames)
    return contexts, blocks, torch.cat(shown, dim=1)


def moment(scene: Scene, seen: Tensor, due: int) -> int | None:
    """Return by how many frames the frames `f c h w`, due at `due` and after, are ahead; None if unrecognisable."""
    count = len(seen)
    first = max(due - REACH, 0)
    truth, mask = render_with_mask(scene, torch.arange(first, due + count + REACH))
    truths, masks = (of.unfold(0, count, 1).movedim(-1, 1).flatten(0, 1) for of in (truth, mask))
    starts = len(truth) - count + 1
    errors = weighted_error(seen.repeat(starts, 1, 1, 1), truths, masks).view(starts, count).mean(dim=1).tolist()
    error, _, ahead = min((error, abs(first + n - due), first + n - due) for n, error in enumerate(errors))
    return ahead if error < RECOGNISED else None
