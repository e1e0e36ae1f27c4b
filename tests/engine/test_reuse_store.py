"""The store of earlier results, the keys it goes by, and decoded blocks that are kept beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import ROUTERS, TinyRequest, assert_same_run, authors, fresh_run, play

from sdvg_core.engine.inputs import BlockCall, Control, KeyedNoise, Restyle
from sdvg_core.engine.reuse import UNKNOWN, PixelStore, Store, block_key, pixels_key, scores_key, tensor_key
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.engine.types import Block, Condition, History, Span
from sdvg_core.settings.route import Route, TargetOnly
from tests.support.tiny import (
    CONFIG,
    SIZE,
    EchoCodec,
    condition,
    generator_of,
    latents_of,
    make_engine,
    make_generator,
    make_noise,
    run,
)

# --- the store


def test_full_store_drops_the_oldest_run() -> None:
    """The one used longest ago. Catches: the one made first, although it was used since."""
    first, second, third = (TinyRequest(seed=seed, route=Route(TargetOnly())) for seed in (1, 2, 3))
    store = Store(limit=2 * bytes_of(first))
    play(first, store)
    play(second, store)
    assert store.forgotten == store.refused == 0
    play(first, store)
    assert_same_run(play(third, store), fresh_run(third))
    assert store.forgotten == 9
    assert play(first, store).calls == []
    assert play(third, store).calls == []
    assert len(play(second, store).calls) == 9


def bytes_of(request: TinyRequest) -> int:
    """Return what a run takes in a store."""
    store = Store()
    play(request, store)
    return store.bytes


def test_small_store_keeps_the_beginning_of_a_run() -> None:
    """And it drops an earlier run. Catches: a video that is changed, or a run that drops its own blocks."""
    request = TinyRequest(route=Route(TargetOnly()))
    fresh = fresh_run(request)
    store = Store(limit=bytes_of(request) / 2)
    play(replace(request, seed=7, blocks=2), store)
    assert_same_run(play(request, store), fresh)
    assert store.forgotten == 2
    assert store.refused == 5
    second = play(request, store)
    assert_same_run(second, fresh)
    assert second.blocks_of("target") == [4, 5, 6, 7, 8]
    assert store.bytes <= store.limit


def test_stored_tensors_are_never_changed() -> None:
    """A store keeps tensors of the run itself, so neither that run nor a later one may write into them."""
    request = TinyRequest(blocks=5, route=ROUTERS["repair"])
    store = Store()
    play(request, store)
    copies = {key: [tensor.clone() for tensor in result] for key, result in store.newest.items()}
    for changed in (
        request.with_gate(tau=-9),
        replace(request, context="own"),
        replace(request, takes="3:2"),
        request,
    ):
        play(changed, store)
    assert copies
    assert set(copies) == set(store.newest)
    for key, result in store.newest.items():
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(result, copies[key], strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_blocks_are_never_reused(bad: float) -> None:
    request = TinyRequest(blocks=3)
    store = Store()
    fresh = play(request, store)
    broken = Store()
    for key, result in store.newest.items():
        copies = tuple(tensor.clone() for tensor in result)
        if copies[-1].ndim > 1:
            copies[-1].view(-1)[0] = bad
        broken.put(key, copies)
    video = play(request, broken)
    assert video.reused == 0
    assert torch.equal(video.latents, fresh.latents)


# --- keys


def block_at(start: int, seed: int, prompt: int = 5) -> Block:
    latents = torch.randn(1, CONFIG.in_dim, 3, *SIZE, generator=generator_of(seed))
    return Block(Span(start // 3, start, 3), latents, condition(prompt))


SECOND = Span(1, 3, 3)


def key_of(
    *,
    codec: str = "c",
    noise: KeyedNoise | None = None,
    model: str = "d",
    blocks: tuple[Block, ...] | None = None,
    span: Span = SECOND,
    prompt: int = 5,
    given: tuple[int, ...] = (),
    **more: Any,
) -> str:
    history = History(blocks=(block_at(0, 1),) if blocks is None else blocks)
    estimates = [block_at(3, seed).latents for seed in given]
    noise = noise or make_noise()
    return block_key(model, codec, noise, BlockCall(history, span, noise, condition(prompt), estimates, **more))


def test_block_key_has_everything_a_block_follows_from() -> None:
    """Catches: a key without the take, the model, the codec, an earlier block, its condition or a control."""
    keys = [
        key_of(),
        key_of(model="t"),
        key_of(codec="other"),
        key_of(noise=make_noise(43)),
        key_of(noise=replace(make_noise(), channels=5)),
        key_of(noise=replace(make_noise(), height=6)),
        key_of(noise=replace(make_noise(), width=6)),
        key_of(blocks=()),
        key_of(blocks=(block_at(0, 2),)),
        key_of(blocks=(block_at(0, 1, prompt=6),)),
        key_of(blocks=(block_at(0, 1), block_at(3, 2))),
        key_of(span=Span(2, 3, 3)),
        key_of(span=Span(1, 4, 3)),
        key_of(span=Span(1, 3, 4)),
        key_of(span=Span(1, 3, 3, take=2)),
        key_of(prompt=6),
        key_of(given=(7,)),
        key_of(given=(8,)),
        key_of(given=(7, 8)),
        key_of(given=(8, 7)),
        key_of(left_out=1),
        key_of(restyle=Restyle(1, latents=block_at(3, 7).latents)),
        key_of(restyle=Restyle(2, latents=block_at(3, 7).latents)),
        key_of(controls=(Control(torch.zeros(1, 96, 3, *SIZE)),)),
        key_of(controls=(Control(torch.zeros(1, 96, 3, *SIZE), 0.5),)),
    ]
    assert len(set(keys)) == len(keys)


def test_block_key_has_a_prompt_given_anew() -> None:
    """A model may then pass its window again. Catches: keys that tell prompts apart by their embeddings alone."""

    def target_only(*prompts: Condition) -> list[EmittedBlock]:
        target = make_generator(2, EchoCodec(), "incremental", sink=0, recache=True)
        engine = replace(make_engine("incremental"), target=target)
        return run(engine, Route(TargetOnly()), blocks=3, condition_of=prompts.__getitem__)

    def key_of_last(video: list[EmittedBlock]) -> str:
        last = video[2].block
        call = BlockCall(video[1].history, last.span, make_noise(), last.condition)
        return block_key("t", "c", make_noise(), call)

    prompt = condition()
    same_prompt = target_only(prompt, prompt, prompt)
    given_anew = target_only(prompt, prompt, condition())
    assert torch.equal(latents_of(given_anew[:2]), latents_of(same_prompt[:2]))
    assert not torch.equal(given_anew[2].block.latents, same_prompt[2].block.latents)
    assert key_of_last(given_anew) != key_of_last(same_prompt)


def test_block_key_goes_by_content() -> None:
    """Catches: a key of the object, or of words, from which no block follows."""
    assert key_of() == key_of()
    other_words = Block(Span(0, 0, 3), block_at(0, 1).latents, Condition(condition(5).embedding, "x"))
    assert key_of(blocks=(other_words,)) == key_of()


def test_scores_key_has_everything_scores_follow_from() -> None:
    """Catches: scores kept without the codec, the text, the frames, or what the draft was decoded after."""
    first = block_at(0, 1)
    draft = block_at(3, 2)
    pixels = pixels_key("c", (first, draft))
    keys = [
        scores_key("s", pixels, "a red ball", (0, 1, 2)),
        scores_key("s", pixels, "a red ball", (0, 2)),
        scores_key("s", pixels, "a red ball", (0, 1)),
        scores_key("s", pixels, "a blue cube", (0, 1, 2)),
        scores_key("other", pixels, "a red ball", (0, 1, 2)),
        *(
            scores_key("s", other, "a red ball", (0, 1, 2))
            for other in (
                pixels_key("other", (first, draft)),
                pixels_key("c", (first, block_at(3, 3))),
                pixels_key("c", (block_at(0, 3), draft)),
                pixels_key("c", (draft,)),
            )
        ),
    ]
    assert len(set(keys)) == len(keys)


def test_tensor_key_goes_by_content() -> None:
    """Catches: latents taken for others that lay at their address, or not recognised as a copy from a file."""
    keys = set()
    for seed in range(50):
        latents = block_at(0, seed).latents
        keys.add(tensor_key(latents))
        assert tensor_key(latents.clone()) == tensor_key(latents)
        del latents
    assert len(keys) == 50


# --- decoded blocks: a changed one costs its own decode and those after it, and no bit changes

SIX = TinyRequest(blocks=6, directions="tddddd")


def changed(place: int) -> TinyRequest:
    """Return the request with another maker of a block, counted from 1."""
    return replace(SIX, directions=SIX.directions[: place - 1] + "t" + SIX.directions[place:])


@pytest.mark.parametrize("place", [2, 4, 6])
def test_changed_block_decodes_from_itself_on(place: int) -> None:
    """Catches: a start from the beginning; a state or frames of a replaced block; frames rounded to 16 bits."""
    store = Store()
    pixels = PixelStore()
    play(SIX, store, pixels=pixels)
    video = play(changed(place), store, pixels=pixels)
    assert_same_run(video, fresh_run(changed(place)))
    decoded = 6 - place + 1
    assert video.parts.codec.decodes == decoded
    assert [record.decodes for record in video.records] == [0] * (place - 1) + [1] * decoded


def test_an_unchanged_run_decodes_nothing() -> None:
    store = Store()
    pixels = PixelStore()
    play(SIX, store, pixels=pixels)
    video = play(SIX, store, pixels=pixels)
    assert_same_run(video, fresh_run(SIX))
    assert video.parts.codec.decodes == 0


def test_rejected_draft_with_known_scores_is_not_decoded() -> None:
    """Nor are the drafts a drafter of its own context goes on from, if it is asked for nothing new."""
    request = TinyRequest(context="own")
    store = Store()
    first = play(request, store)
    assert "t" in authors(first)[1:]
    assert sum(record.decodes for record in first.records) > 9
    second = play(request, store)
    assert_same_run(second, first)
    assert second.parts.codec.decodes == 9


# --- the store of decoded blocks: 20,000 bytes, of which the frames of a block take 9,216

FRAMES = torch.rand(1, 12, 3, 8, 8)
NO_STATE = ()


def test_full_pixel_store_drops_frames_used_longest_ago() -> None:
    """Catches: the frames that came first, although their block was decoded again since."""
    pixels = PixelStore(20_000)
    for key in "abac":
        pixels.put(key, FRAMES, NO_STATE)
    assert [pixels.count_to_decode([key], to_go_on=False) for key in "abc"] == [0, 1, 0]


def test_full_pixel_store_drops_states_used_longest_ago() -> None:
    pixels = PixelStore(20_000)
    for key in "abac":
        pixels.put(key, torch.rand(1, 1, 1, 1, 1), FRAMES)
    assert [pixels.state(key) is not UNKNOWN for key in "abc"] == [True, False, True]


def test_decoding_starts_over_without_room_for_states() -> None:
    """Catches: a block that is decoded from no state in the middle of a clip."""
    pixels = PixelStore(20_000)
    large_state = torch.rand(5000)
    for key in "abcd":
        pixels.put(key, FRAMES, large_state)
    assert pixels.count_to_decode("abcd", to_go_on=False) == 2, "the oldest two went"
    assert pixels.count_to_decode("cd", to_go_on=False) == 0
    assert pixels.count_to_decode("cd", to_go_on=True) == 2, "no state fits"


def test_shrunk_pixel_store_holds_nothing() -> None:
    pixels = PixelStore(20_000)
    pixels.put("a", FRAMES, NO_STATE)
    pixels.shrink(0)
    assert pixels.count_to_decode("a", to_go_on=False) == 1
