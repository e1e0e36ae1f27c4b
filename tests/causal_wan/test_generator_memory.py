"""What a generator keeps is freed with it, at once."""

from __future__ import annotations

import gc
import weakref

import pytest
from tiny import POLICIES, PROMPT, EchoCodec, make_generator, make_noise

from sdvg_core.engine.history import History
from sdvg_core.engine.protocols import BlockCall
from sdvg_core.engine.types import plan_spans


@pytest.mark.parametrize("policy", POLICIES)
def test_a_generator_is_freed_when_nobody_holds_it_without_the_garbage_collector(policy: str) -> None:
    """Catches a generator and its model that hold each other: keys and values would stay on the GPU for a while."""
    generator = make_generator(1, EchoCodec(), policy)
    generator.generate(BlockCall(History(horizon=3), plan_spans(1, 3)[0], make_noise(), PROMPT))
    alive = weakref.ref(generator)
    gc.disable()
    try:
        del generator
        assert alive() is None
    finally:
        gc.enable()
