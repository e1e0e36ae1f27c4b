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
    assert "".join(shown.record.author[0] for shown in emitted) == pattern.translate(AUTHORS)
    drafter_alone = run(make(), Route(First(0)), blocks=len(pattern)) if drafter_context == "own" else []
    fresh = make()
    history = History(horizon=3)
    for number, shown in enumerate(emitted):
        author = shown.record.author
        if author == "drafter" and drafter_alone:
            expected = drafter_alone[number].block
        else:
            call = BlockCall(history, shown.block.span, make_noise(), PROMPT)
            expected = getattr(fresh, author).generate(call)
        assert torch.equal(expected.latents, shown.block.latents), f"block {number} differs"
        history = commit(history, shown.block, shown.frames)
    decoded_at_once, _ = fresh.codec.decode(latents_of(emitted))
    assert torch.equal(decoded_at_once, frames_of(emitted))
