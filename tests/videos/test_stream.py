"""Blocks for a program that shows them itself: the same video, one at a time, ended when asked to."""

import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sdvg_core.causal_wan import generator
from sdvg_core.errors import BadInput
from sdvg_core.files.video import Mp4Writer
from sdvg_core.loading import load as loading
from sdvg_core.pocket.trained_set import pocket_options
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Budget, First, Route
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos import stream
from sdvg_core.videos.asked import Batch
from sdvg_core.videos.maker import make_videos
from sdvg_core.videos.resolve import ResolvedRequest
from sdvg_core.videos.stream import Busy, Streamer
from tests.support.routers import planned_route

PROMPT, OTHER = "a big blue ball drifts right from the left over sand", "a small yellow cross drifts down over sea"
REQUEST = VideoRequest(blocks=3, seed=7, width=32, height=32, route=planned_route("rar"))


OPTIONS = replace(pocket_options(), schedule="1000,625")


@pytest.fixture(scope="module")
def streamer(files) -> Streamer:
    return Streamer(files, OPTIONS)


@pytest.fixture(autouse=True)
def nothing_left_open(streamer) -> Iterator[None]:
    yield
    streamer.stream(REQUEST, PROMPT).close()


def frames_of(blocks: Iterator[stream.StreamBlock]) -> torch.Tensor:
    return torch.cat([block.frames for block in blocks])


@pytest.fixture
def written_frames(files, tmp_path, monkeypatch) -> Callable[..., torch.Tensor]:
    """Makes a video as the command line does, and returns its frames as they went to the mp4, `f h w c`."""

    def write(request: VideoRequest, options: LoadOptions = OPTIONS) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        monkeypatch.setattr(Mp4Writer, "add", lambda self, frames: seen.append(frames[0].movedim(1, -1)))
        monkeypatch.setattr(Mp4Writer, "__exit__", lambda *given: Path(given[0]._path).write_bytes(b""))
        prompts = (one_prompt(PROMPT),)
        make_videos(Batch(files=files, load=options, request=request, prompts=prompts, output=tmp_path))
        return torch.cat(seen)

    return write


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"route": Route(First(0))},
        {"route": Route(First(2))},
        {"route": Budget(0.98)},
    ],
    ids=["scored", "draft-only", "unscored", "budget"],
)
def test_a_stream_is_the_video_that_make_videos_makes_bit_for_bit(streamer, written_frames, changes, tmp_path):
    """And its notes are the report's. Catches an engine with parts the video does not ask for."""
    request = replace(REQUEST, **changes)
    made = streamer.stream(request, PROMPT)
    blocks = list(made)
    assert [(block.number, block.of) for block in blocks] == [(1, 3), (2, 3), (3, 3)]
    assert [tuple(block.frames.shape) for block in blocks] == [(9, 32, 32, 3), (12, 32, 32, 3), (12, 32, 32, 3)]
    assert torch.cat([block.frames for block in blocks]).equal(written_frames(request))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(made.notes) == report["notes"]
    assert any("budget" in note for note in made.notes) == isinstance(request.route, Budget)


@pytest.mark.heavy
def test_a_model_that_is_loaded_but_not_asked_for_changes_no_block(files, written_frames):
    """Catches blocks of the target's size in a video that is all the drafter's."""
    options = replace(OPTIONS, drafter=replace(OPTIONS.drafter, block_frames=1))
    request = replace(REQUEST, route=Route(First(0)))
    found = frames_of(Streamer(files, options).stream(request, PROMPT))
    assert found.equal(written_frames(request, options))
    assert found.shape[0] == 9


def test_videos_follow_one_another_on_models_that_are_loaded_once(streamer, monkeypatch):
    """Catches state that one video leaves to the next."""
    for name in ("load_wan", "load_vae", "load_image_reward", "load_umt5"):
        monkeypatch.setattr(loading, name, None)
    once = frames_of(streamer.stream(REQUEST, PROMPT))
    assert not frames_of(streamer.stream(REQUEST, OTHER)).equal(once)
    assert not frames_of(streamer.stream(replace(REQUEST, seed=8), PROMPT)).equal(once)
    assert frames_of(streamer.stream(replace(REQUEST, width=48), PROMPT)).shape[2] == 48
    assert frames_of(streamer.stream(REQUEST, PROMPT)).equal(once)


def test_a_second_stream_is_refused_until_the_first_has_ended(streamer):
    first = streamer.stream(REQUEST, PROMPT)
    with pytest.raises(Busy, match="another stream is open; read it to its end, close it"):
        streamer.stream(REQUEST, PROMPT)
    next(first)
    with pytest.raises(Busy):
        streamer.stream(REQUEST, PROMPT)
    assert len(list(first)) == 2
    with streamer.stream(REQUEST, PROMPT) as second:
        next(second)
    third = streamer.stream(REQUEST, PROMPT)
    next(third)
    del third
    gc.collect()
    assert next(streamer.stream(REQUEST, PROMPT)).number == 1, "a stream that nobody holds is not waited for"


class Watched:
    """Counts denoising passes; the one numbered `at` waits until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.passes, self._at, self._whole = 0, at, generator.denoise_pass
        self.reached, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(generator, "denoise_pass", self)

    def __call__(self, *given: object) -> torch.Tensor:
        self.passes += 1
        if self.passes == self._at:
            self.reached.set()
            assert self.go_on.wait(600)
        return self._whole(*given)


def test_closing_from_another_thread_ends_the_block_before_its_next_pass(streamer, monkeypatch):
    """Catches a close that waits for the block, and one that returns while the models still work."""
    begun = streamer.stream(REQUEST, PROMPT)
    watched = Watched(monkeypatch, at=1)
    with ThreadPoolExecutor(2) as pool:
        block = pool.submit(next, begun, None)
        assert watched.reached.wait(600)
        with pytest.raises(Busy):
            streamer.stream(REQUEST, PROMPT)
        closed = pool.submit(begun.close)
        assert begun._asked_to_end.wait(600)
        assert not closed.done(), "the pass under way is not done"
        watched.go_on.set()
        assert block.result(600) is None
        closed.result(600)
    assert watched.passes == 1
    assert len(list(streamer.stream(REQUEST, PROMPT))) == 3


def test_a_stream_leaves_the_hosts_torch_as_it_was(streamer):
    state = torch.get_rng_state()
    for _ in streamer.stream(REQUEST, PROMPT):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert torch.get_rng_state().equal(state)


def test_a_video_the_models_cannot_make_is_refused_at_once_and_blocks_nobody(files, streamer):
    with pytest.raises(BadInput, match="16"):
        streamer.stream(replace(REQUEST, width=33), PROMPT)
    for prompt in (" ", None):
        with pytest.raises(BadInput, match="the prompt is empty"):
            streamer.stream(REQUEST, prompt)
    without = Streamer(replace(files, reward=None), OPTIONS)
    with pytest.raises(BadInput, match="needs a reward model"):
        without.stream(replace(REQUEST, route=Route()), PROMPT)
    assert next(without.stream(replace(REQUEST, route=Route(First(1))), PROMPT)).number == 1


def test_what_a_video_needed_is_freed_with_it(streamer, monkeypatch):
    """Catches keys and values that wait for the next video."""
    engines = []
    whole = ResolvedRequest.prepare_run

    def noted(resolved, engine, *given):
        engines.append(weakref.ref(engine.drafter))
        return whole(resolved, engine, *given)

    monkeypatch.setattr(ResolvedRequest, "prepare_run", noted)
    begun = streamer.stream(REQUEST, PROMPT)
    block = next(begun)
    assert engines[0]() is not None
    begun.close()
    assert engines[0]() is None
    assert block.frames.shape[0] == 9
