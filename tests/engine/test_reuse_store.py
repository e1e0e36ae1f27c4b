"""The store of earlier results, the keys it goes by, and decoded blocks that are kept beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_runs import ROUTERS, Asked, made, parts_of, route, same

from sdvg_core.engine.inputs import BlockCall, KeyedNoise
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


def test_a_store_that_is_full_forgets_the_oldest_run_first() -> None:
    one, two, three = (Asked(seed=seed, route=Route(TargetOnly())) for seed in (1, 2, 3))
    measure = Store()
    made(one, measure)
    store = Store(limit=2 * measure.bytes)
    made(one, store)
    made(two, store)
    assert (store.forgotten, store.refused, store.bytes) == (0, 0, store.limit)
    assert made(one, store).calls == [], "now the first run is the newest"
    third = made(three, store)
    assert (store.forgotten, store.refused) == (9, 0)
    same(third, made(three))
    assert made(one, store).calls == []
    assert made(three, store).calls == []
    assert len(made(two, store).calls) == 9


def test_a_store_too_small_for_a_run_keeps_its_beginning_and_changes_no_video() -> None:
    asked = Asked(route=Route(TargetOnly()))
    measure = Store()
    whole = made(asked, measure)
    store = Store(limit=measure.bytes / 2)
    made(replace(asked, seed=7, blocks=2), store)
    first = made(asked, store)
    assert (store.forgotten, store.refused) == (2, 5)
    same(first, whole)
    again = made(asked, store)
    assert (again.reused, again.asked_of("target")) == (4, [4, 5, 6, 7, 8])
    same(again, whole)
    assert store.bytes <= store.limit


def test_what_the_store_gives_out_is_never_changed() -> None:
    """It keeps a run's own tensors, so neither that run nor a later one may write into them."""
    asked, store = Asked(blocks=5, route=ROUTERS["repair"]), Store()
    made(asked, store)
    before = {key: [tensor.clone() for tensor in result] for key, result in store.newest.items()}
    for changed in (asked.with_policy(tau=-9), replace(asked, context="own"), replace(asked, takes="3:2"), asked):
        made(changed, store)
    assert before
    assert set(before) == set(store.newest)
    for key, result in store.newest.items():
        assert all(torch.equal(tensor, was) for tensor, was in zip(result, before[key], strict=True))


def test_blocks_that_are_not_finite_are_neither_kept_nor_taken() -> None:
    asked, store = Asked(blocks=3), Store()
    whole = made(asked, store)
    for spoilt in (float("nan"), float("inf"), -float("inf")):
        broken = Store()
        for key, result in store.newest.items():
            bad = tuple(tensor.clone() for tensor in result)
            if bad[-1].ndim > 1:
                bad[-1].view(-1)[0] = spoilt
            broken.put(key, bad)
        again = made(asked, broken)
        assert again.reused == 0
        assert torch.equal(again.latents, whole.latents)


# --- keys


def block_at(start: int, seed: int, prompt: int = 5) -> Block:
    latents = torch.randn(1, CONFIG.in_dim, 3, *SIZE, generator=generator_of(seed))
    return Block(Span(start // 3, start, 3), latents, condition(prompt))


SECOND = Span(1, 3, 3)
FRAMES = (0, 1, 2)


def key_of(
    *,
    codec: str = "c",
    noise: KeyedNoise | None = None,
    model: str = "d",
    blocks: tuple[Block, ...] | None = None,
    span: Span = SECOND,
    prompt: int = 5,
    given: tuple[int, ...] = (),
) -> str:
    history = History(blocks=(block_at(0, 1),) if blocks is None else blocks)
    estimates = [block_at(3, seed).latents for seed in given]
    noise = noise or make_noise()
    return block_key(model, codec, noise, BlockCall(history, span, noise, condition(prompt), estimates))


def test_everything_a_block_follows_from_is_in_its_key() -> None:
    """Catches: a key without the take, the model, the codec, an earlier block or an earlier condition."""
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
    ]
    assert len(set(keys)) == len(keys)


def test_a_prompt_that_is_given_anew_is_in_the_key_for_a_model_may_pass_its_window_again() -> None:
    """Catches: keys that tell prompts apart by their embeddings alone, and a block of another video used again."""

    def target_only(*prompts: Condition) -> list[EmittedBlock]:
        target = make_generator(2, EchoCodec(), "incremental", sink=0, recache=True)
        engine = replace(make_engine("incremental"), target=target)
        return run(engine, Route(TargetOnly()), blocks=3, condition_of=prompts.__getitem__)

    once, again = condition(), condition()
    videos = [target_only(once, once, once), target_only(once, once, again)]
    assert torch.equal(latents_of(videos[0][:2]), latents_of(videos[1][:2]))
    assert not torch.equal(videos[0][2].block.latents, videos[1][2].block.latents)
    noise = make_noise()
    calls = [BlockCall(video[1].history, video[2].block.span, noise, video[2].block.condition) for video in videos]
    assert block_key("t", "c", noise, calls[0]) != block_key("t", "c", noise, calls[1])


def test_a_key_goes_by_content_and_not_by_object_or_by_what_no_block_follows_from() -> None:
    assert key_of() == key_of()
    words = Block(Span(0, 0, 3), block_at(0, 1).latents, Condition(condition(5).embedding, "x"))
    assert key_of(blocks=(words,)) == key_of()


def test_everything_scores_follow_from_is_in_their_key() -> None:
    """Catches: scores kept without the codec, the text, the frames, or what the draft was decoded after."""
    first = block_at(0, 1)
    draft = block_at(3, 2)
    keys = [
        scores_key("s", pixels_key("c", (first, draft)), "a red ball", FRAMES),
        scores_key("other", pixels_key("c", (first, draft)), "a red ball", FRAMES),
        scores_key("s", pixels_key("other", (first, draft)), "a red ball", FRAMES),
        scores_key("s", pixels_key("c", (first, block_at(3, 3))), "a red ball", FRAMES),
        scores_key("s", pixels_key("c", (draft,)), "a red ball", FRAMES),
        scores_key("s", pixels_key("c", (block_at(0, 3), draft)), "a red ball", FRAMES),
        scores_key("s", pixels_key("c", (first, draft)), "a blue cube", FRAMES),
        scores_key("s", pixels_key("c", (first, draft)), "a red ball", (0, 2)),
        scores_key("s", pixels_key("c", (first, draft)), "a red ball", (0, 1)),
    ]
    assert len(set(keys)) == len(keys)


def test_latents_are_known_by_their_content_and_not_by_their_place_in_memory() -> None:
    """Catches: a block taken for another one that lay at its address, or not recognised as the same in a file."""
    keys = set()
    for seed in range(50):
        block = block_at(0, seed)
        keys.add(tensor_key(block.latents))
        assert tensor_key(block.latents.clone()) == tensor_key(block.latents)
        del block
    assert len(keys) == 50


# --- decoded blocks: a changed one costs its own decode and those after it, and no bit changes

SIX = Asked(blocks=6, directions="tddddd")


def changed(place: int) -> Asked:
    return replace(SIX, directions=(SIX.directions[: place - 1] + "t" + SIX.directions[place:])[:6])


@pytest.mark.parametrize("place", [2, 4, 6, 7])
def test_a_changed_block_decodes_itself_and_the_later_ones_and_none_that_is_there(place: int) -> None:
    """Catches: a start from the beginning; a state or frames of a replaced block; frames rounded to 16 bits."""
    store, pixels, parts = Store(1e9), PixelStore(), parts_of(SIX)
    made(SIX, store, pixels=pixels)
    again = made(changed(place), store, parts, pixels)
    same(again, made(changed(place)))
    assert parts.codec.decodes == 6 - place + 1
    assert [record.decodes for record in again.records] == [0] * (place - 1) + [1] * (6 - place + 1)


def test_a_draft_whose_scores_are_known_is_not_decoded_to_be_rejected() -> None:
    """Nor are the drafts a drafter of its own context goes on from, if it is asked for nothing new."""
    asked = Asked(context="own")
    store, parts = Store(), parts_of(asked)
    first, again = made(asked, store), made(asked, store, parts)
    same(again, first)
    assert "r" in route(again)[1:]
    assert parts.codec.decodes == 9
    assert sum(record.decodes for record in first.records) > 9


def test_pixels_and_states_that_are_put_in_again_are_the_newest() -> None:
    """As a block is that was decoded again from a state before it. Kind: a store with a limit drops what was used
    longest ago (others: the blocks' store above; kept blocks and pictures in comfyui/)."""
    large, small = torch.rand(1, 12, 3, 8, 8), torch.rand(1, 1, 1, 1, 1)
    frames, states = PixelStore(20_000), PixelStore(20_000)
    for key in "abac":
        frames.put(key, large, ())
        states.put(key, small, large)
    assert [frames.count_to_decode([key], to_go_on=False) for key in "abc"] == [0, 1, 0]
    assert [states.state(key) is not UNKNOWN for key in "abc"] == [True, False, True]


def test_without_room_for_states_decoding_starts_over_and_without_any_so_it_does() -> None:
    frames, state = torch.rand(1, 12, 3, 8, 8), (torch.rand(5000), None)
    pixels = PixelStore(20_000)
    for number in range(4):
        pixels.put(str(number), frames, state)
    keys = [str(number) for number in range(4)]
    assert pixels.count_to_decode(keys, to_go_on=False) == 2, "two blocks of 9,216 bytes fit, the oldest two went"
    assert pixels.count_to_decode(keys[2:], to_go_on=False) == 0
    assert pixels.count_to_decode(keys[2:], to_go_on=True) == 2, "and no state fits with them"
    pixels.shrink(0)
    assert pixels.count_to_decode(keys[2:], to_go_on=False) == 2
