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
from sdvg_core.devices.device import arithmetic_on, cpu_quota, device_clock, pick_device, resolved_threads
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.weights.quantized import Fp8Linear
from tests.support.cli_runs import generate, options, report

FIRST = torch.device("cuda", 0)
SECOND = torch.device("cuda", 1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_thread_variables(monkeypatch):
    for name in device.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "gpu, asked, embedded, picked",
    [
        (True, "auto", False, "cuda"),
        (False, "auto", False, "cpu"),
        (True, "auto", True, "cpu"),
        (True, "cpu", False, "cpu"),
        (False, "cuda:1", True, "cuda:1"),
    ],
)
def test_auto_is_cuda_but_for_embedded_models(monkeypatch, gpu, asked, embedded, picked):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert pick_device(asked, embedded=embedded) == picked


@pytest.fixture
def thread_counts(monkeypatch, tmp_path) -> list[int]:
    """What torch's threads are set to, of eight, in a container that allows two and a half processors of 64."""
    counts: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 64)
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    return counts


@pytest.mark.parametrize(("embedded", "threads"), [(True, 1), (False, 3)])
def test_threads_follow_models_and_container(thread_counts, embedded, threads):
    """And are put back. Catches: eight threads for a model of a few layers, or for less than three processors."""
    with resolved_threads(embedded=embedded):
        assert thread_counts == [threads]
    assert thread_counts == [threads, 8]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_threads_set_by_the_user_stay(thread_counts, monkeypatch, name):
    """Catches: another number than the one that torch took from either variable."""
    monkeypatch.setenv(name, "5")
    with resolved_threads(embedded=True):
        assert thread_counts == []


@pytest.mark.parametrize(
    ("owner", "setting", "other"),
    [
        (torch, "get_num_threads", 7),
        (torch, "get_float32_matmul_precision", "medium"),
        (torch, "are_deterministic_algorithms_enabled", True),
        (torch.backends.cpu, "get_cpu_capability", "another"),
        (device, "versions_on", {"torch": "another"}),
    ],
)
def test_arithmetic_tells_what_changes_bits(monkeypatch, owner, setting, other):
    """Catches: a video of other threads, instructions or versions that counts as this one, finished."""
    usual = arithmetic_on(CPU)
    monkeypatch.setattr(owner, setting, lambda *_: other)
    assert arithmetic_on(CPU) != usual


@pytest.mark.parametrize("text", ["max 100000", "", "a b c", "few 100000", None])
def test_process_without_limit_uses_every_cpu(monkeypatch, tmp_path, text):
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 6)
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota() == 6


def test_video_made_on_auto_records_the_device(files, tmp_path, capsys):
    """And is resumed as one made on it.

    Catches a report or an identity that says auto, which another machine would read as another device.
    """
    video = ("--prompt", "a dog", "--blocks", "1")
    assert generate(options(files), tmp_path / "out", *video) == 0
    assert "device: cpu (" in capsys.readouterr().out
    assert report(tmp_path / "out")["settings"]["device"] == "cpu"
    written = (tmp_path / "out" / "video.mp4").stat().st_mtime_ns
    assert generate(options(files), tmp_path / "out", *video, "--device", "cpu") == 0
    assert (tmp_path / "out" / "video.mp4").stat().st_mtime_ns == written


@pytest.fixture
def waited_for(monkeypatch) -> list[torch.device]:
    """The devices whose streams were waited for, in order."""
    devices = []

    class Stream:
        def __init__(self, device):
            self.synchronize = lambda: devices.append(device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return devices


def test_clock_waits_for_every_device_once(waited_for):
    """Catches decoding on a device of its own that is booked as scoring, which waits for it."""
    clock = device_clock(FIRST, SECOND, FIRST, CPU)
    assert waited_for == []
    began = time.perf_counter()
    assert began <= clock() <= time.perf_counter()
    assert waited_for == [FIRST, SECOND]


def test_clock_of_a_cpu_waits_for_nothing(waited_for):
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


def test_gpu_is_timed_by_events_without_waiting(gpu):
    """Catches a clock that waits, or one that asks for an event's time before it has come."""
    clock = device_clock(FIRST, CPU, FIRST)
    first, second, third = (clock() for _ in range(3))
    both_steps = 0.0 + (third - first)
    total = both_steps + (second - first) + 0.25
    assert gpu.waits == 0
    assert float(both_steps) == 0.002
    assert float(total) == 0.253
    assert gpu.waits == 1, "once all events have come, nothing waits"


def compile_options(**changes) -> LoadOptions:
    preset = ModelOptions(preset="krea-14b")
    return LoadOptions(drafter=preset, target=preset, execution=Execution(**changes))


NO_HEADERS = subprocess.CalledProcessError(1, ["gcc"])  # of Python, needed when a kernel is first used


@pytest.mark.parametrize(
    "error, cause",
    [(RuntimeError("no C++ compiler found\nand a long trace"), r"no C\+\+ compiler found\)"), (NO_HEADERS, "gcc")],
)
def test_failed_compiling_is_refused_before_loading(files, monkeypatch, error, cause):
    """Catches a run that goes on uncompiled."""

    def failing(work, backend=None):
        raise error

    monkeypatch.setattr(compiling, "compiled", failing)
    with pytest.raises(BadInput, match=rf"compiling failed \(.*{cause}"):
        check_models(files, compile_options(compile="default"))
    loaded = load_models(files, compile_options(), check_models(files, compile_options()))
    assert loaded.execution.compile == "off"


def test_loading_compiles_what_was_chosen(files, monkeypatch):
    """And reports it. Catches: a stage of a transformer, or the decoder, that runs as it is."""
    compiled = []

    def compile_nothing(work, backend="inductor"):
        compiled.append((work.__name__, backend))
        return work

    monkeypatch.setattr(compiling, "compiled", compile_nothing)
    monkeypatch.setattr(forward, "compiled", compile_nothing)
    monkeypatch.setattr("sdvg_core.decoders.wan_vae.compiled", compile_nothing)
    chosen = compile_options(compile="default", vae_layers="diffusers")
    loaded = load_models(files, chosen, check_models(files, chosen))
    assert loaded.execution == chosen.execution
    assert loaded.settings["vae"]["layers"] == "diffusers"
    stages = ["_before", "_between", "_after"]
    assert [name for name, _ in compiled] == ["_trial", "_decode_frame", *stages, *stages]
    assert {backend for _, backend in compiled} == {"inductor"}


def layers(count: int = 5) -> list[nn.Module]:
    """Layers of two sizes, one of them fp8, none like another."""
    torch.manual_seed(0)
    built: list[nn.Module] = []
    for number in range(count):
        bias = nn.Parameter(torch.randn(6))
        fp8 = Fp8Linear(torch.randn(6, 6).to(torch.float8_e4m3fn), torch.rand(6), bias)
        width = 7 + number % 2
        layer = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 6), fp8)
        built.append(layer.requires_grad_(False))
    return built


def output_of(model: list[nn.Module]) -> Tensor:
    x = torch.ones(2, 6)
    with torch.inference_mode():
        for layer in model:
            x = layer(x)
    return x


@pytest.mark.parametrize("streamed", [[0, 1, 2, 3, 4], [1, 4], [2]], ids=str)
def test_streamed_layers_give_the_same_bits(streamed):
    """And keep their weights. Catches: a layer that computes with the weights of another."""
    plain = layers()
    model = layers()
    stream = LayerStream([model[number] for number in streamed], CPU)
    for _ in range(2):
        assert torch.equal(output_of(model), output_of(plain))
    weights = nn.ModuleList(model).state_dict()
    for name, tensor in nn.ModuleList(plain).state_dict().items():
        assert torch.equal(weights[name].float(), tensor.float())
    streamed_weights = nn.ModuleList(plain[number] for number in streamed).state_dict()
    assert stream.bytes >= sum(tensor.nbytes for tensor in streamed_weights.values())


class Queue:
    """A stand-in for a stream or an event, which writes down what is asked of it."""

    def __init__(self, *_: object) -> None:
        pass

    def wait_event(self, event: Queue) -> None:
        CALLS.append(("wait", self, event))

    def record(self, stream: Queue) -> None:
        CALLS.append(("record", stream, self))


CALLS: list[tuple[str, Any, Any]] = []


@pytest.fixture
def queues(monkeypatch) -> Any:
    """The stream that computes; what is asked of a GPU is done at once on a CPU."""
    compute = Queue()
    empty = torch.empty

    @contextmanager
    def on(stream: Queue):
        CALLS.append(("on", stream, None))
        yield

    stand_ins = {"Stream": Queue, "Event": Queue, "stream": on, "current_stream": lambda device: compute}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(streaming.torch, "empty", lambda *a, pin_memory=False, device=None, **k: empty(*a, **k))
    CALLS.clear()
    return compute


def events(call: str, *, on_compute: bool, compute: Queue) -> list[Queue]:
    """Return the events that the stream of layers, or that of copies, was to `record` or to `wait` for."""
    return [event for name, stream, event in CALLS if name == call and (stream is compute) == on_compute]


def test_streamed_layers_and_copies_wait_for_each_other(queues):
    """On a GPU with room for two layers: a layer waits for its copy, a copy for the layer before the last.

    Catches: a layer that computes with half of its weights, or a copy over weights that are still in use.
    """
    model = layers()
    LayerStream(model, SimpleNamespace(type="cuda"))
    assert torch.equal(output_of(model), output_of(layers()))
    copied = events("record", on_compute=False, compute=queues)
    computed = events("record", on_compute=True, compute=queues)
    waits_of_layers = events("wait", on_compute=True, compute=queues)
    waits_of_copies = events("wait", on_compute=False, compute=queues)
    assert len(set(copied)) == len(set(computed)) == 2
    assert not set(copied) & set(computed)
    assert len(waits_of_layers) == 5
    assert set(waits_of_layers) == set(copied)
    assert set(waits_of_copies) == set(computed)
    even, odd = waits_of_copies[:2]
    assert even is not odd
    assert waits_of_copies == [even, odd, even, odd, even]


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_stopped_pass_leaves_nothing_behind(stop, error, queues):
    """Catches: a layer that takes what was copied for the pass before, or weights left on the device."""
    plain = layers()
    model = layers()
    stream = LayerStream(model, SimpleNamespace(type="cuda"))

    def fail(*_: object) -> None:
        raise error

    hook = model[stop][1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        output_of(model)
    hook.remove()
    for room in stream._rooms:
        room.zero_()
    if error is RuntimeError:  # torch calls no hook after a second Ctrl-C, which ends the process
        for layer, plain_layer in zip(model, plain, strict=True):
            assert torch.equal(layer[0].weight, plain_layer[0].weight)
    assert torch.equal(output_of(model), output_of(plain))
