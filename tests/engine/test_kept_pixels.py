"""Decoded blocks that are kept: a changed block costs its own decode and those after it, and no bit changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reuse_runs import Asked, PixelStore, Store, made, parts_of, same

SIX = Asked(blocks=6, directions="tddddd")


def changed(place: int) -> Asked:
    return replace(SIX, directions=SIX.directions[: place - 1] + "t" + SIX.directions[place:])


@pytest.mark.parametrize("place", [2, 4, 6])
def test_a_changed_block_decodes_itself_and_the_later_ones(place: int) -> None:
    """Catches: decoding from the start; a state of another block; frames of the blocks that were replaced."""
    store, pixels, parts = Store(1e9), PixelStore(), parts_of(SIX)
    made(SIX, store, pixels=pixels)
    again = made(changed(place), store, parts, pixels)
    same(again, made(changed(place)))
    assert parts.codec.decodes == 6 - place + 1
    assert [record.decodes for record in again.records] == [0] * (place - 1) + [1] * (6 - place + 1)


def test_the_same_request_decodes_nothing() -> None:
    store, pixels, parts = Store(1e9), PixelStore(), parts_of(SIX)
    first = made(SIX, store, pixels=pixels)
    same(made(SIX, store, parts, pixels), first)
    assert parts.codec.decodes == 0


def test_without_room_for_states_decoding_starts_over_and_without_any_so_it_does() -> None:
    frames, state = torch.rand(1, 12, 3, 8, 8), (torch.rand(5000), None)
    pixels = PixelStore(20_000)
    for number in range(4):
        pixels.put(str(number), frames, state)
    keys = [str(number) for number in range(4)]
    assert pixels.first_to_decode(keys, to_go_on=False) == 0, "two blocks of 9,216 bytes fit, the oldest two went"
    assert pixels.first_to_decode(keys[2:], to_go_on=False) == 2
    assert pixels.first_to_decode(keys[2:], to_go_on=True) == 0, "and no state beside them"
    pixels.shrink(0)
    assert pixels.first_to_decode(keys[2:], to_go_on=False) == 0


@pytest.mark.parametrize("values", [torch.rand(1, 4, 3, 8, 8), torch.rand(1, 4, 3, 8, 8).half().float()])
def test_frames_come_back_bit_for_bit(values: torch.Tensor) -> None:
    """Catches: 16 bits for frames that need 32."""
    pixels = PixelStore(1e6)
    pixels.put("a", values, None)
    assert torch.equal(pixels.frames("a"), values)
    assert pixels.frames("a").dtype == values.dtype
