"""A live run: what is asked for counts from the next block on, and its recording is the same film."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.causal_wan import generator
from sdvg_core.errors import BadInput
from sdvg_core.files.video import write_mp4
from sdvg_core.loading.headers import check_models
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import ClipFile, VideoRequest
from sdvg_core.settings.route import Budget, First, Route
from sdvg_core.text.prompts import PromptSchedule, read_prompt
from sdvg_core.videos.film import resolve_film
from sdvg_core.videos.live import ENDS_OTHERWISE, Recording, Steering, live_film
from sdvg_core.videos.stream import LiveStream, StreamBlock, Streamer

BALL = "a big blue ball drifts right from the left over sand"
CROSS = "a small yellow cross drifts down over sea"
RING = "a green ring rises from the bottom over night"
TEXTS = (BALL, CROSS, RING)
MOST = 6
REQUEST = VideoRequest(blocks=MOST, seed=7, width=32, height=32)
OPTIONS = replace(pocket_options(), schedule="1000,625")
ROLLING = {"policy": "incremental", "window": 9, "sink": 1}
CONTEXTS: dict[str, dict[str, Any]] = {
    "recomputed": {},
    "first frame kept": {"keep_first_frame": True},
    "rolling": ROLLING,
    "relative": {**ROLLING, "relative": True, "flush": True},
    "memrope": {**ROLLING, "sink": 3, "context_memory": "memrope"},
    "framewise": {**ROLLING, "block_frames": 1},
}


def options_of(context: str) -> LoadOptions:
    return replace(OPTIONS, drafter=ModelOptions(preset="self-forcing-1.3b", **CONTEXTS[context]))


@pytest.fixture(scope="module", params=list(CONTEXTS))
def any_streamer(files, request) -> Streamer:
    return Streamer(files, options_of(request.param))


@pytest.fixture(scope="module")
def streamer(files) -> Streamer:
    return Streamer(files, OPTIONS)


@pytest.fixture
def live(streamer) -> Iterator[LiveStream]:
    with streamer.live(REQUEST, BALL) as stream:
        yield stream


class Film:
    """What a viewer of a live run is left with: a block that comes again replaces all from there on."""

    def __init__(self) -> None:
        self.blocks: list[StreamBlock] = []

    def show(self, block: StreamBlock) -> None:
        del self.blocks[block.number - 1 :]
        assert block.number == len(self.blocks) + 1
        self.blocks.append(block)

    def kept(self, recording: Recording) -> Tensor:
        """The frames of what was kept: a run may have ended after it was set back, before a block came again."""
        return torch.cat([block.frames for block in self.blocks[: recording.request.blocks]])


def made_again(streamer: Streamer, recording: Recording) -> Tensor:
    return torch.cat([block.frames for block in streamer.stream(recording.request, recording.prompt)])


def ask_at_random(stream: LiveStream, chance: random.Random) -> None:
    """Ask for one thing; what cannot be at this moment, such as a block that is not made, is refused."""
    acts = {
        "steer": lambda: stream.steer(chance.choice(TEXTS)),
        "cut": lambda: stream.steer(chance.choice((*TEXTS, None)), cut=True),
        "fresh": lambda: stream.steer(chance.choice((*TEXTS, None)), fresh=True),
        "again": lambda: stream.again(chance.randint(1, MOST)),
        "hold": stream.hold,
        "resume": stream.resume,
        "end": stream.end,
    }
    (act,) = chance.choices(list(acts), weights=(6, 2, 2, 3, 1, 2, 0.3))
    try:
        acts[act]()
    except BadInput:
        return
    if act == "hold":
        threading.Timer(0.01, stream.resume if chance.random() < 0.8 else stream.end).start()


def random_session(streamer: Streamer, seed: int) -> None:
    chance = random.Random(seed)
    film = Film()
    with streamer.live(replace(REQUEST, seed=seed), chance.choice(TEXTS)) as stream:
        for asked, block in enumerate(stream):
            assert isinstance(block, StreamBlock)
            film.show(block)
            if asked > 3 * MOST:
                stream.end()
            for _ in range(chance.randint(0, 2)):
                ask_at_random(stream, chance)
    if recording := stream.recording:
        assert film.kept(recording).equal(made_again(streamer, recording))


@pytest.mark.parametrize("sessions", [2, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_recording_has_the_bits_of_the_run(any_streamer, sessions):
    """For every kind of context. Catches a prompt written down for the block that was already in the making."""
    for seed in range(sessions):
        random_session(any_streamer, seed)


def test_two_threads_may_ask(streamer):
    """What another thread asks for in the middle of a block is in the recording for the next one."""
    film = Film()
    ended = threading.Event()

    def ask(stream: LiveStream) -> None:
        chance = random.Random(3)
        while not ended.wait(0.003):
            if film.blocks:
                ask_at_random(stream, chance)

    with streamer.live(replace(REQUEST, blocks=12), BALL) as stream:
        asking = threading.Thread(target=ask, args=(stream,))
        asking.start()
        for number, block in enumerate(stream):
            film.show(block)
            if number > 40:
                stream.end()
        ended.set()
        asking.join()
    recording = stream.recording
    assert recording is not None
    assert film.kept(recording).equal(made_again(streamer, recording))


# --- what counts from where


def prompts_of(recording: Recording | None) -> PromptSchedule:
    assert recording is not None
    return recording.prompt


def test_prompt_counts_from_the_next_block(live):
    next(live)
    assert live.steer(CROSS) == 2
    assert live.steer(RING) == 2  # the block is not begun, so the last word counts
    next(live)
    assert live.end() == 3
    assert prompts_of(live.recording).entries == ((0, BALL), (1, RING))


def test_prompt_before_the_first_block_replaces_it(live):
    assert live.steer(CROSS, fresh=True, cut=False) == 1
    next(live)
    assert prompts_of(live.recording) == read_prompt(CROSS)


def test_run_that_ends_at_once_has_a_block(live):
    """Also where it was set back to its first block. Catches a run of nothing, which no file can hold."""
    next(live)
    next(live)
    live.again(1)
    live.end()
    assert [block.number for block in live] == [1]
    assert (live.recording.request.blocks, live.recording.request.takes) == (1, "1:2")


def test_end_may_be_asked_for_twice(live):
    """By two pages, or as the last block is made. Catches: a refusal of what has come true already."""
    next(live)
    assert (live.end(), live.end()) == (2, 2)
    assert list(live) == []


def test_end_after_the_last_block_is_taken(streamer):
    with streamer.live(replace(REQUEST, blocks=1), BALL) as stream:
        assert len(list(stream)) == 1
        assert stream.end() == 2


def test_same_text_again_is_no_change(live):
    next(live)
    live.steer(CROSS)
    live.steer(BALL)
    next(live)
    live.steer(BALL)
    next(live)
    assert prompts_of(live.recording).entries == ((0, BALL),)


def test_prompt_that_no_block_had_is_not_recorded(live):
    next(live)
    live.steer(CROSS, fresh=True)
    live.end()
    assert list(live) == []
    assert prompts_of(live.recording) == read_prompt(BALL)


def test_later_text_keeps_the_shot_that_begins(live):
    """Catches a word that takes back *fresh* or *cut*, pressed a moment before."""
    next(live)
    live.steer(fresh=True)
    live.steer(CROSS)
    next(live)
    live.steer(cut=True)
    live.steer(RING)
    next(live)
    prompt = prompts_of(live.recording)
    assert [shot.start for shot in prompt.shots] == [0, 1]
    assert prompt.cuts == (2,)
    assert prompt.entries == ((0, BALL), (1, CROSS), (2, RING))


def test_lines_of_the_prompt_come_until_steered(streamer):
    lines = read_prompt(f"{BALL}\n2: {CROSS}\n4 cut: {RING}\n5 fresh #abc: {BALL}")
    with streamer.live(REQUEST, lines) as stream:
        next(stream)
        next(stream)
        stream.steer(RING)
        list(stream)
    assert prompts_of(stream.recording) == read_prompt(f"{BALL}\n2: {CROSS}\n3: {RING}")
    with streamer.live(REQUEST, lines) as stream:
        list(stream)
    assert prompts_of(stream.recording) == lines


def test_again_raises_the_take_and_drops_the_rest(live):
    for _ in range(3):
        next(live)
    live.steer(CROSS)
    next(live)
    assert live.again(2) == 2
    assert next(live).number == 2
    assert live.again(2) == 2
    assert next(live).number == 2
    assert live.recording.request.takes == "2:3"
    assert prompts_of(live.recording) == read_prompt(BALL)
    first, second = live.dropped
    assert (first.request.blocks, first.request.takes) == (4, "")
    assert first.prompt == read_prompt(f"{BALL}\n4: {CROSS}")
    assert (second.request.blocks, second.request.takes) == (2, "2:2")


def test_again_calls_no_model_for_earlier_blocks(live, monkeypatch):
    made: list[int] = []
    generate = generator.CausalWanGenerator.generate

    def counted(model: Any, call: Any) -> Any:
        made.append(call.span.index)
        return generate(model, call)

    monkeypatch.setattr(generator.CausalWanGenerator, "generate", counted)
    for _ in range(4):
        next(live)
    live.again(3)
    assert next(live).number == 3
    assert made == [0, 1, 2, 3, 2]


def test_word_on_the_way_back_counts_from_there():
    """Blocks that are shown again from the store are decided already, and are not waited with."""
    steering = Steering(REQUEST, read_prompt(BALL), given=0)
    shot = steering.shot()
    assert shot is not None
    for block in range(4):
        assert steering.decide(block, shot, lambda: False)
        assert steering.count(block + 1, shot)
    steering.again(3)
    assert not steering.decide(4, shot, lambda: False)
    back = steering.shot()
    assert back is not None
    steering.hold()
    assert steering.decide(0, back, lambda: True)
    assert steering.decide(1, back, lambda: True)
    assert steering.steer(CROSS) == 3


def test_fresh_shot_counts_the_clips_blocks():
    """Catches a shot that is looked up by its new block, so that the one before it is played for ever."""
    steering = Steering(REQUEST, read_prompt(f"{BALL}\n5 fresh #k3f: {RING}"), given=2)
    shot = steering.shot()
    assert shot is not None
    assert [steering.decide(block, shot, bool) for block in range(3)] == [True, True, False]
    fresh = steering.shot()
    assert fresh is not None
    assert (fresh.shot.key, fresh.first) == ("#k3f", 2)


def test_held_run_waits_and_can_be_closed(live):
    next(live)
    assert live.hold() == 2
    made: list[StreamBlock] = []
    waiting = threading.Thread(target=lambda: made.extend(live))
    waiting.start()
    assert live.steer(CROSS) == 2
    live.resume()
    waiting.join(60)
    assert [block.number for block in made] == [2, 3, 4, 5, 6]
    assert prompts_of(live.recording).entries[1] == (1, CROSS)


def test_held_run_ends_when_it_is_closed(live):
    next(live)
    live.hold()
    waiting = threading.Thread(target=lambda: list(live))
    waiting.start()
    live.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert live.recording.request.blocks == 1


# --- what is refused


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda live: live.steer(" "), "the prompt is empty"),
        (lambda live: live.steer("a" * 20_001), "20001 characters"),
        (lambda live: live.steer(), "nothing is asked for"),
        (lambda live: live.steer(BALL, cut=True, fresh=True), "needs no cut"),
        (lambda live: live.again(3), "choose one of blocks 1 to 2"),
        (lambda live: live.again(0), "choose one of blocks 1 to 2"),
        (lambda live: live.again("1"), "no block '1' to make again; choose one of blocks 1 to 2"),
        (lambda live: (live.end(), live.steer(BALL)), "has come to its end"),
        (lambda live: (live.end(), live.again(1)), "has come to its end"),
        (lambda live: (live.end(), live.hold()), "has come to its end"),
    ],
)
def test_what_cannot_be_is_refused(live, ask, words):
    next(live)
    next(live)
    with pytest.raises(BadInput, match=words):
        ask(live)


def test_again_waits_for_the_first_block(live):
    """Catches: *choose one of blocks 1 to 0*."""
    with pytest.raises(BadInput, match="no block is made yet"):
        live.again(1)


@pytest.mark.parametrize(
    "changes, prompt, words",
    [
        ({"route": Budget(0.5)}, BALL, "a budget is for two models"),
        ({"directions": "t....."}, BALL, "directions are for two models"),
        ({"clips": (ClipFile("#a", "a.mp4"),)}, f"{BALL}\n3 clip #a:\n3 fresh #k: {RING}", "shows no clips"),
        ({}, f"{BALL}\n3 fresh #k from #0: {RING}", "leave 'from' out"),
        ({"shots": "1:#0,3:#k"}, BALL, "come from its prompt"),
    ],
)
def test_live_run_of_two_models_is_refused(streamer, changes, prompt, words):
    with pytest.raises(BadInput, match=words):
        streamer.live(replace(REQUEST, **changes), read_prompt(prompt))


def test_live_run_without_a_drafter_is_refused(files):
    alone = check_models(replace(files, drafter=None), OPTIONS)
    with pytest.raises(BadInput, match="made by the drafter, and there is none"):
        live_film(REQUEST, read_prompt(BALL), alone)


def test_fresh_shot_beside_a_clip_is_refused(streamer, clip):
    """Of a restyled one from the start or later on; of one that is continued within it."""
    lines = read_prompt(f"{BALL}\n2 fresh #k: {RING}")
    restyled = replace(REQUEST, blocks=4, restyle=clip, strength="strong")
    with pytest.raises(BadInput, match="use cut"):
        streamer.live(restyled, lines)
    with pytest.raises(BadInput, match="begin it at block 7 or later"):
        streamer.live(replace(REQUEST, continue_from=clip), lines)
    with streamer.live(restyled, BALL) as stream, pytest.raises(BadInput, match="use cut"):
        stream.steer(fresh=True)


def test_target_of_another_block_length_is_refused(files, streamer):
    """Catches a recording whose prompts would move, as the target's blocks are shorter."""
    with streamer.live(replace(REQUEST, blocks=2), BALL) as stream:
        list(stream)
    recording = stream.recording
    assert recording is not None
    framewise = replace(
        OPTIONS,
        drafter=replace(OPTIONS.drafter, block_frames=1),
        target=replace(OPTIONS.target, block_frames=1),
    )
    finished = replace(recording.request, route=Route(First(1)))
    with pytest.raises(BadInput, match="blocks of 3 latent frames, and the target makes 1"):
        resolve_film(finished, check_models(files, framewise))


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_mp4(path, torch.rand(57, 3, 32, 32, generator=torch.Generator().manual_seed(0)), 16.0)
    return path


@pytest.mark.parametrize("start", ["restyle", "continue_from"])
def test_clip_that_outlasts_the_run_is_made_again(streamer, clip, start):
    """By the Wan VAE, whose latents do not depend on what comes later; of a TAEHV a note says that they do."""
    film = Film()
    strength = {"strength": "strong"} if start == "restyle" else {}
    request = replace(REQUEST, blocks=4, **{start: clip}, **strength)
    with streamer.live(request, BALL) as stream:
        for block in stream:
            film.show(block)
            if block.number == 2:
                stream.steer(CROSS)
            if block.number == 3:
                stream.end()
    recording = stream.recording
    assert recording is not None
    assert recording.request.blocks == 3
    assert film.kept(recording).equal(made_again(streamer, recording))
    assert ENDS_OTHERWISE not in stream.notes


def test_strength_of_no_block_is_not_recorded(streamer, clip):
    """Catches a recording that states strengths for blocks after its end, which no request may."""
    request = replace(REQUEST, blocks=4, restyle=clip, strength="strong,2:0.6,3:0.3")
    with streamer.live(request, BALL) as stream:
        next(stream)
        next(stream)
        stream.end()
    assert (stream.recording.request.blocks, stream.recording.request.strength) == (2, "strong,2:0.6")


def test_fast_decoder_is_said_to_end_a_clip_otherwise(clip):
    headers = check_models(replace(trained_set(), vae=pocket_fast_vae()), pocket_options())
    request = VideoRequest(blocks=4, width=64, height=64)
    assert live_film(replace(request, restyle=clip), read_prompt(BALL), headers).notes == (ENDS_OTHERWISE,)
    assert live_film(request, read_prompt(BALL), headers).notes == ()
