"""Layers that are copied to the device when they are called: the same results, whatever stopped an earlier pass."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sdvg_core.checkpoints.quantized import Fp8Linear
from sdvg_core.devices import streaming
from sdvg_core.devices.streaming import LayerStream

CPU = torch.device("cpu")


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
def gpu(monkeypatch) -> Any:
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


def test_on_a_gpu_a_layer_waits_for_its_copy_and_a_copy_for_the_layer_before_the_last(gpu):
    plain, one = layers(), layers()
    LayerStream(one, SimpleNamespace(type="cuda"))
    assert torch.equal(through(one), through(plain))
    arrived = {event for what, stream, event in GPU if what == "record" and stream is not gpu}
    left = {event for what, stream, event in GPU if what == "record" and stream is gpu}
    assert len(arrived) == len(left) == 2
    assert not arrived & left
    waits = [event for what, stream, event in GPU if what == "wait" and stream is gpu]
    assert len(waits) == 5
    assert set(waits) == arrived
    held = [event for what, stream, event in GPU if what == "wait" and stream is not gpu]
    assert held[0] is held[2] is held[4] is not held[1] is held[3]
    assert set(held) == left


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_was_stopped_leaves_nothing_behind(stop, error, gpu):
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
