"""Takes of a block: the noise of each, and the video from there on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from directed_runs import directed
from tiny import CONTEXTS, POLICIES, PROMPT, SIZE, latents_of, make_engine, make_noise, run
from torch import Tensor

from sdvg_core.engine.noise import KeyedNoise, key
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Span


def test_take_1_is_the_noise_there_always_was() -> None:
    noise, span = make_noise(), Span(5, 15, 3)
    assert key(42, 5, 0) == 9157259954139429846
    plain = torch.Generator().manual_seed(key(42, 5, 0))
    assert torch.equal(noise.draw(span, 0), torch.randn(1, 4, 3, *SIZE, generator=plain))
    assert torch.equal(noise.draw(replace(span, take=1), 0), noise.draw(span, 0))
    assert torch.equal(
        latents_of(directed(takes="2:1, 5:1")), latents_of(run(make_engine(), RouterConfig(tau=0.3), blocks=6))
    )


def test_every_take_slot_and_block_has_noise_of_its_own() -> None:
    """Catches: a take that is the noise of another block, slot or seed."""
    drawn = {
        noise.draw(Span(index, 3 * index, 3, take), slot).numpy().tobytes()
        for noise in (make_noise(4), make_noise(42))
        for index in range(4)
        for slot in range(4)
        for take in range(1, 6)
    }
    assert len(drawn) == 2 * 4 * 4 * 5


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_take_changes_the_video_from_its_block_on_and_nothing_before(policy: str, context: Any) -> None:
    options: dict[str, Any] = {"drafter_context": context}
    plain = directed(engine=make_engine(policy), **options)
    taken = directed(engine=make_engine(policy), takes="4:2", **options)
    assert torch.equal(latents_of(taken[:3]), latents_of(plain[:3]))
    for number in (3, 4, 5):
        assert not torch.equal(taken[number].block.latents, plain[number].block.latents)
    assert [one.block.span.take for one in taken] == [1, 1, 1, 2, 1, 1]
    third = directed(engine=make_engine(policy), takes="4:3", **options)
    assert not torch.equal(third[3].block.latents, taken[3].block.latents)


def test_drafter_and_target_share_the_noise_of_a_take() -> None:
    class Noted(KeyedNoise):
        drawn: tuple[tuple[int, int, int], ...] = ()

        def draw(self, span: Span, slot: int) -> Tensor:
            Noted.drawn = (*Noted.drawn, (span.index, slot, span.take))
            return super().draw(span, slot)

    planned = plan_run(
        make_engine(),
        RouterConfig(),
        lambda _: PROMPT,
        blocks=2,
        seed=42,
        width=8,
        height=8,
        directions=".r",
        takes="2:7",
    )
    list(replace(planned, noise=Noted(seed=42, channels=4, height=4, width=4)).blocks())
    assert Noted.drawn == (
        (0, 0, 1),
        (0, 1, 1),
        *((1, slot, 7) for slot in (0, 1)),
        *((1, slot, 7) for slot in (0, 1)),
    )
