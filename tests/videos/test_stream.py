"""Blocks for a program that shows them itself: the same video, one at a time, ended when asked to."""

import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

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

PROMPT = "a big blue ball drifts right from the left over sand"
OTHER = "a small yellow cross drifts down over sea"
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
        add = Mp4Writer.add

        def add_seen(writer: Mp4Writer, frames: torch.Tensor) -> None:
            seen.append(frames[0].movedim(1, -1))
            add(writer, frames)

        monkeypatch.setattr(Mp4Writer, "add", add_seen)
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
def test_stream_equals_the_video_in_a_file(streamer, written_frames, changes, tmp_path):
    """And its notes are the report's. Catches an engine with parts the video does not ask for."""
    request = replace(REQUEST, **changes)
    video = streamer.stream(request, PROMPT)
    blocks = list(video)
    assert [(block.number, block.of) for block in blocks] == [(1, 3), (2, 3), (3, 3)]
    assert [tuple(block.frames.shape) for block in blocks] == [(9, 32, 32, 3), (12, 32, 32, 3), (12, 32, 32, 3)]
    assert torch.cat([block.frames for block in blocks]).equal(written_frames(request))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(video.notes) == report["notes"]
    assert any("budget" in note for note in video.notes) == isinstance(request.route, Budget)


@pytest.mark.heavy
def test_unused_model_changes_no_block(files, written_frames):
    """Catches blocks of the target's size in a video that is all the drafter's."""
    options = replace(OPTIONS, drafter=replace(OPTIONS.drafter, block_frames=1))
    request = replace(REQUEST, route=Route(First(0)))
    frames = frames_of(Streamer(files, options).stream(request, PROMPT))
    assert frames.equal(written_frames(request, options))
    assert frames.shape[0] == 9


def test_streams_share_models_and_no_state(streamer, monkeypatch):
    """Catches state that one video leaves to the next."""
    for name in ("load_wan", "load_vae", "load_image_reward", "load_umt5"):
        monkeypatch.setattr(loading, name, None)
    once = frames_of(streamer.stream(REQUEST, PROMPT))
    assert not frames_of(streamer.stream(REQUEST, OTHER)).equal(once)
    assert not frames_of(streamer.stream(replace(REQUEST, seed=8), PROMPT)).equal(once)
    assert frames_of(streamer.stream(replace(REQUEST, width=48), PROMPT)).shape[2] == 48
    assert frames_of(streamer.stream(REQUEST, PROMPT)).equal(once)


def test_second_stream_waits_for_the_first(streamer):
    first = streamer.stream(REQUEST, PROMPT)
    with pytest.raises(Busy, match="another stream is open"):
        streamer.stream(REQUEST, PROMPT)
    next(first)
    with pytest.raises(Busy):
        streamer.stream(REQUEST, PROMPT)
    assert len(list(first)) == 2
    with streamer.stream(REQUEST, PROMPT) as second:
        assert next(second).number == 1


def test_stream_that_nobody_holds_blocks_no_other(streamer):
    dropped = streamer.stream(REQUEST, PROMPT)
    next(dropped)
    del dropped
    gc.collect()
    assert next(streamer.stream(REQUEST, PROMPT)).number == 1


class Watched:
    """Counts denoising passes; the one numbered `at` waits for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.passes = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._at = at
        self._denoise_pass = generator.denoise_pass
        monkeypatch.setattr(generator, "denoise_pass", self)

    def __call__(self, *given: object) -> torch.Tensor:
        self.passes += 1
        if self.passes == self._at:
            self.reached.set()
            assert self.go_on.wait(600)
        return self._denoise_pass(*given)


def test_closing_ends_a_block_before_its_next_pass(streamer, monkeypatch):
    """Catches a close that waits for the block, and one that returns while the models still work."""
    begun = streamer.stream(REQUEST, PROMPT)
    watched = Watched(monkeypatch, at=1)
    with ThreadPoolExecutor(2) as pool:
        block = pool.submit(next, begun, None)
        assert watched.reached.wait(600)
        with pytest.raises(Busy):
            streamer.stream(REQUEST, PROMPT)
        closed = pool.submit(begun.close)
        assert begun._asked_to_end.wait(600)  # nothing else tells that the other thread is in close()
        assert not closed.done(), "the pass under way is not done"
        watched.go_on.set()
        assert block.result(600) is None
        closed.result(600)
    assert watched.passes == 1
    assert len(list(streamer.stream(REQUEST, PROMPT))) == 3


def test_signal_handler_may_close_its_own_block(streamer, monkeypatch):
    """It runs in the thread that makes the block. Catches: an error of Python's, as the block is not done."""
    begun = streamer.stream(REQUEST, PROMPT)
    denoise_pass = generator.denoise_pass

    def interrupted(*given: object) -> torch.Tensor:
        begun.close()
        return denoise_pass(*given)

    monkeypatch.setattr(generator, "denoise_pass", interrupted)
    assert list(begun) == []
    assert begun.ended


def test_stream_leaves_torchs_state_unchanged(streamer):
    state = torch.get_rng_state()
    for _ in streamer.stream(REQUEST, PROMPT):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert torch.get_rng_state().equal(state)


def test_impossible_stream_is_refused_at_once(streamer):
    """Catches: a refusal that leaves the streamer busy."""
    with pytest.raises(BadInput, match="16"):
        streamer.stream(replace(REQUEST, width=33), PROMPT)
    for prompt in (" ", None):
        with pytest.raises(BadInput, match="the prompt is empty"):
            streamer.stream(REQUEST, prompt)
    assert next(streamer.stream(REQUEST, PROMPT)).number == 1


def test_streamer_without_a_scorer_makes_unscored_routes(files):
    streamer = Streamer(replace(files, reward=None), OPTIONS)
    with pytest.raises(BadInput, match="needs a reward model"):
        streamer.stream(replace(REQUEST, route=Route()), PROMPT)
    assert next(streamer.stream(replace(REQUEST, route=Route(First(1))), PROMPT)).number == 1


def test_closing_a_stream_frees_its_engine(streamer, monkeypatch):
    """Catches keys and values that wait for the next video."""
    engines = []
    prepare_run = ResolvedRequest.prepare_run

    def noted(resolved, engine, *arguments):
        engines.append(weakref.ref(engine.drafter))
        return prepare_run(resolved, engine, *arguments)

    monkeypatch.setattr(ResolvedRequest, "prepare_run", noted)
    begun = streamer.stream(REQUEST, PROMPT)
    block = next(begun)
    assert engines[0]() is not None
    begun.close()
    assert engines[0]() is None
    assert block.frames.shape[0] == 9
