"""Devices, dtypes, clocks, compiling and layers that are copied to the device when they are called."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sdvg_core.causal_wan import forward
from sdvg_core.devices import compiling, device, streaming
from sdvg_core.devices.device import cpu_quota, device_clock, pick_device, resolved_threads
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.weights.quantized import Fp8Linear
from tests.support.cli_runs import generate, options, report
from tests.support.random_set import write_random_set

FIRST, SECOND, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


@pytest.fixture(autouse=True)
def unstated(monkeypatch):
    for name in device.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "gpu, asked, embedded, found",
    [
        (True, "auto", False, "cuda"),
        (False, "auto", False, "cpu"),
        (True, "auto", True, "cpu"),
        (True, "cpu", False, "cpu"),
        (False, "cuda:1", True, "cuda:1"),
    ],
)
def test_auto_is_cuda_where_there_is_a_gpu_but_for_the_embedded_models(monkeypatch, gpu, asked, embedded, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert pick_device(asked, embedded=embedded) == found


def test_the_embedded_models_get_one_thread_and_others_what_the_container_allows(monkeypatch, tmp_path):
    set_to: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 64)
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    for embedded in (True, False):
        with resolved_threads(embedded=embedded):
            pass
    assert set_to == [1, 8, 3, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with resolved_threads(embedded=True):
        assert set_to == [1, 8, 3, 8]


@pytest.mark.parametrize("text", ["max 100000", "", "a b c", "few 100000", None])
def test_without_a_limit_a_process_may_use_every_cpu(monkeypatch, tmp_path, text):
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 6)
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota() == 6


def test_a_video_made_on_auto_records_the_device_and_resumes_as_one_made_on_it(tmp_path, capsys):
    """Catches a report or an identity that says auto, which another machine would read as another device."""
    base = options(write_random_set(tmp_path / "models"))
    assert generate(base, tmp_path / "out", "--prompt", "a dog", "--blocks", "1") == 0
    assert "device: cpu (" in capsys.readouterr().out
    made = (tmp_path / "out" / "video.mp4").stat().st_mtime_ns
    assert report(tmp_path / "out")["settings"]["device"] == "cpu"
    again = ("--prompt", "a dog", "--blocks", "1", "--resume", "--device", "cpu")
    assert generate(base, tmp_path / "out", *again) == 0
    assert (tmp_path / "out" / "video.mp4").stat().st_mtime_ns == made


@pytest.fixture
def waited_for(monkeypatch) -> list[torch.device]:
    """The devices whose streams were waited for, in order."""
    found = []

    class Stream:
        def __init__(self, device):
            self.synchronize = lambda: found.append(device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return found


def test_it_waits_for_every_device_once_before_it_looks(waited_for):
    """Catches decoding on a device of its own that is booked as scoring, which waits for it."""
    clock = device_clock(FIRST, SECOND, FIRST, CPU)
    assert waited_for == []
    began = time.perf_counter()
    assert began <= clock() <= time.perf_counter()
    assert waited_for == [FIRST, SECOND]


def test_on_a_cpu_there_is_nothing_to_wait_for(waited_for):
    assert device_clock(CPU, CPU) is time.perf_counter
    device_clock(CPU)()
    assert waited_for == []


class Timeline:
    """Stands for a GPU: it works while its stream is not waited for, and every event takes a millisecond more."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0.0
        self.waits = 0

    def event(self, enable_timing: bool = False) -> TimelineEvent:
        assert enable_timing
        return TimelineEvent(self)

    def wait(self) -> None:
        self.waits += 1
        self.done = self.now


class TimelineEvent:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def record(self, stream: object) -> None:
        self.timeline.now += 1.0
        self.at = self.timeline.now

    def query(self) -> bool:
        return self.at <= self.timeline.done

    def synchronize(self) -> None:
        self.timeline.wait()

    def elapsed_time(self, end: TimelineEvent) -> float:
        assert end.query(), "CUDA refuses an event that has not come"
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch) -> Timeline:
    timeline = Timeline()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "Event", timeline.event)
    return timeline


def test_one_gpu_is_timed_by_events_that_nobody_waits_for(gpu):
    """Catches a clock that waits, or one that asks for an event's time before it has come."""
    clock = device_clock(FIRST, CPU, FIRST)
    first, second, third = clock(), clock(), clock()
    whole = 0.0 + (third - first)
    both = whole + (second - first) + 0.25
    assert gpu.waits == 0
    assert (float(whole), float(both)) == (0.002, 0.253)
    assert gpu.waits == 1, "once all of it has come, nothing waits"


def compile_options(**changes) -> LoadOptions:
    preset = ModelOptions(preset="krea-14b")
    return LoadOptions(drafter=preset, target=preset, execution=Execution(**changes))


NO_HEADERS = subprocess.CalledProcessError(1, ["gcc"])  # of Python, needed when a kernel is first used


@pytest.mark.parametrize(
    "error, words",
    [
        (
            RuntimeError("no C++ compiler found\nand a long trace"),
            r"no C\+\+ compiler found\); install a C\+\+ compiler",
        ),
        (NO_HEADERS, r"Command '\['gcc'\]' returned non-zero exit status 1"),
    ],
)
def test_where_compiling_fails_it_is_said_before_any_weight_is_read(files, monkeypatch, error, words):
    """Catches a run that goes on uncompiled."""

    def failing(work, backend=None):
        raise error

    monkeypatch.setattr(compiling, "compiled", failing)
    with pytest.raises(BadInput, match=r"compiling failed \(" + words):
        check_models(files, compile_options(compile="default"))
    loaded = load_models(files, compile_options(), check_models(files, compile_options()))
    assert loaded.execution.compile == "off"


def test_a_loaded_run_uses_and_reports_what_was_chosen(files, monkeypatch):
    asked = []

    def note(work, backend="inductor"):
        asked.append((work.__name__, backend))
        return work

    monkeypatch.setattr(compiling, "compiled", note)
    monkeypatch.setattr(forward, "compiled", note)
    monkeypatch.setattr("sdvg_core.decoders.wan_vae.compiled", note)
    chosen = compile_options(compile="default", vae_layers="diffusers")
    loaded = load_models(files, chosen, check_models(files, chosen))
    assert loaded.execution == chosen.execution
    assert loaded.settings["vae"]["layers"] == "diffusers"
    layer = ["_before", "_between", "_after"]
    assert [name for name, _ in asked] == ["_trial", "_decode_frame", *layer, *layer]
    assert {backend for _, backend in asked} == {"inductor"}


def layers(count: int = 5) -> list[nn.Module]:
    """Layers of two sizes, one of them fp8, none like another."""
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for number in range(count):
        bias = nn.Parameter(torch.randn(6))
        rounded = Fp8Linear(torch.randn(6, 6).to(torch.float8_e4m3fn), torch.rand(6), bias)
        middle = nn.Linear(6, 7 + number % 2)
        found.append(nn.Sequential(middle, nn.Linear(middle.out_features, 6), rounded).requires_grad_(False))
    return found


def through(one: list[nn.Module]) -> Tensor:
    x = torch.ones(2, 6)
    with torch.inference_mode():
        for layer in one:
            x = layer(x)
    return x


@pytest.mark.parametrize("streamed", [[0, 1, 2, 3, 4], [1, 4], [2]], ids=str)
def test_streamed_layers_give_the_same_bits_and_their_weights_stay_what_they_are(streamed):
    plain, one = layers(), layers()
    stream = LayerStream([one[number] for number in streamed], CPU)
    for _ in range(2):
        assert torch.equal(through(one), through(plain))
    for ours, theirs in zip(one, plain, strict=True):
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name].float(), tensor.float())
    assert stream.bytes >= sum(t.nbytes for n in streamed for t in plain[n].state_dict().values())


class Queue:
    """A stand-in for a stream or an event, which writes down what is asked of it."""

    def __init__(self, *_: object) -> None:
        pass

    def wait_event(self, event: Queue) -> None:
        GPU.append(("wait", self, event))

    def record(self, stream: Queue) -> None:
        GPU.append(("record", stream, self))


GPU: list[tuple[str, Any, Any]] = []


@pytest.fixture
def queues(monkeypatch) -> Any:
    """What a GPU's branch asks for, done at once on a CPU."""
    compute, empty = Queue(), torch.empty

    @contextmanager
    def on(stream: Queue):
        GPU.append(("on", stream, None))
        yield

    stand_ins = {"Stream": Queue, "Event": Queue, "stream": on, "current_stream": lambda device: compute}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(streaming.torch, "empty", lambda *a, pin_memory=False, device=None, **k: empty(*a, **k))
    GPU.clear()
    return compute


def test_on_a_gpu_a_layer_waits_for_its_copy_and_a_copy_for_the_layer_before_the_last(queues):
    plain, one = layers(), layers()
    LayerStream(one, SimpleNamespace(type="cuda"))
    assert torch.equal(through(one), through(plain))
    arrived = {event for what, stream, event in GPU if what == "record" and stream is not queues}
    left = {event for what, stream, event in GPU if what == "record" and stream is queues}
    assert len(arrived) == len(left) == 2
    assert not arrived & left
    waits = [event for what, stream, event in GPU if what == "wait" and stream is queues]
    assert len(waits) == 5
    assert set(waits) == arrived
    held = [event for what, stream, event in GPU if what == "wait" and stream is not queues]
    assert held[0] is held[2] is held[4] is not held[1] is held[3]
    assert set(held) == left


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_was_stopped_leaves_nothing_behind(stop, error, queues):
    """Catches: a layer that takes what was copied for the pass before, or weights left on the device."""
    plain, one = layers(), layers()
    stream = LayerStream(one, SimpleNamespace(type="cuda"))

    def fail(*_: object) -> None:
        raise error

    hook = one[stop][1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        through(one)
    hook.remove()
    for room in stream._rooms:
        room.zero_()
    if error is RuntimeError:  # torch calls no hook after a second Ctrl-C, which ends the process
        for ours, theirs in zip(one, plain, strict=True):
            assert torch.equal(ours[0].weight, theirs[0].weight)
    assert torch.equal(through(one), through(plain))
