"""A clip of scripted authors, made again block by block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.types import Block, History
from sdvg_core.settings.route import First, Route
from tests.support.tiny import (
    PROMPT,
    as_anchors,
    frames_of,
    latents_of,
    make_noise,
    run,
    scripted,
)

AUTHORS = str.maketrans("rtad", "ttdd")


def commit(history: History, block: Block, frames: Tensor) -> History:
    """Extend a history by hand, so that replay does not lean on the loop's own way of committing."""
    newest = frames.shape[1] - 1
    anchors = as_anchors(*(frames[:, newest - 4 * back, None] for back in (2, 1, 0)))
    return history.commit(block, anchors)


def check_pattern(pattern: str, make: Callable[[], Engine], drafter_context: str) -> None:
    """Make every block again from the emitted history before it, with models that remember nothing of the run."""
    emitted = run(make(), scripted(pattern), blocks=len(pattern), drafter_context=drafter_context)
    assert "".join(e.record.author[0] for e in emitted) == pattern.translate(AUTHORS)
    fresh, own, history = make(), [], History(horizon=3)
    if drafter_context == "own":
        own = run(make(), Route(First(0)), blocks=len(pattern))
    for number, one in enumerate(emitted):
        if one.record.author == "drafter" and own:
            again = own[number].block
        else:
            author = getattr(fresh, one.record.author)
            again = author.generate(BlockCall(history, one.block.span, make_noise(), PROMPT))
        assert torch.equal(again.latents, one.block.latents), f"block {number} is another"
        history = commit(history, one.block, one.frames)
    at_once, _ = fresh.codec.decode(latents_of(emitted))
    assert torch.equal(at_once, frames_of(emitted))
