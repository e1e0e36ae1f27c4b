"""Count how often the host waits for a GPU in each block of a run, on a machine without one.

Tiny models run on a pretended device: numbers are computed on the CPU, and what makes the host wait is counted:
reading a value, copying to or from memory that is not pinned, an event or a stream that is waited for. All threads
count. The parts are those of the command line: models, scorer, store of results, mp4.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from lab.benchmarks.variants import OURS, Case, parse_route, set_up
from sdvg_core.devices import device as devices
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.reuse import PartKeys, Reuse, Store
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.files.video import Mp4Writer
from tests.support import random_models as models
from tests.support.random_models import TINY

GPU = torch.device("lazy", 0)
BLOCKS = 5
READS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique")


class Counts:
    """What was counted: waits of the main thread and of all others, by what waited."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()
        self.last_wait = 0  # of the main thread, by a clock of operations
        self.now = 0

    def wait(self, reason: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.elsewhere[reason] += 1
            return
        self.waits[reason] += 1
        self.last_wait = self.now


COUNTS = Counts()


class OnGpu(Tensor):
    """A tensor of the pretended device; `numbers`: its contents, on the CPU."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnGpu:
        strides = numbers.stride(), numbers.storage_offset()
        wrapper: OnGpu = Tensor._make_wrapper_subclass(
            cls, numbers.shape, *strides, dtype=numbers.dtype, device=GPU
        )
        return wrapper

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {})


class Pretended(TorchDispatchMode):
    """The device itself: what is made on it becomes `OnGpu`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Constructor(TorchFunctionMode):
    """Makes `torch.tensor` as CUDA does, on the CPU and then copied, and pins memory by a mark."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.is_in_pinned_memory = True
            return pinned
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].cpu().tolist()
        if func is not torch.tensor or kwargs.get("device") != GPU:
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": "cpu"}).to(GPU)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on the CPU, and count it."""
    name = func.overloadpacket.__name__
    ours = tree_any(lambda leaf: isinstance(leaf, OnGpu), (args, kwargs))
    stated = [leaf.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    to_gpu = stated == [GPU.type] if stated else ours
    COUNTS.now += 1
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    if name in ("_to_copy", "to", "copy_"):
        source = named["src" if name == "copy_" else "self"]
        target_is_gpu = isinstance(named["self"], OnGpu) if name == "copy_" else to_gpu
        _count_copy(source, target_is_gpu, bool(named.get("non_blocking")))
    elif ours and any(name.startswith(read) for read in READS):
        COUNTS.wait(name.strip("_"))
    result = func(*_inner(args), **_inner(kwargs))
    if name.endswith("_") and not name.startswith("_"):
        return args[0]
    return tree_map(lambda leaf: OnGpu(leaf) if isinstance(leaf, Tensor) else leaf, result) if to_gpu else result


def _inner(values: Any) -> Any:
    """Return the arguments of an operation as the CPU takes them."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, OnGpu):
            return leaf.numbers
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    return tree_map(of, values)


def _count_copy(source: Tensor, to_gpu: bool, non_blocking: bool) -> None:
    if isinstance(source, OnGpu) and not to_gpu:
        COUNTS.wait("copy to the host")
        return
    pinned = non_blocking and getattr(source, "is_in_pinned_memory", False)
    if to_gpu and not isinstance(source, OnGpu) and source.dim() and not pinned:
        COUNTS.wait("copy from memory that is not pinned")


class Event:
    """Stands for torch.cuda.Event. It has come once the main thread waited after it was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._recorded = 0

    def record(self, stream: Any = None) -> None:
        self._recorded = COUNTS.now

    def query(self) -> bool:
        return COUNTS.last_wait > self._recorded

    def synchronize(self) -> None:
        COUNTS.wait("event")

    def elapsed_time(self, end: Event) -> float:
        return float(end._recorded - self._recorded)


class Stream:
    """Stands for a stream of torch.cuda."""

    def __init__(self, device: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        COUNTS.wait("stream")


class Random(models.Random):
    """Draws on the CPU; the device has no generator."""

    def __init__(self, device: torch.device, seed: int) -> None:
        super().__init__(torch.device("cpu"), seed)
        self.device = device

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return OnGpu(torch.randn(shape, generator=self._generator))


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Make the device `GPU` one whose work is queued."""
    with (
        patch.object(devices, "ASYNCHRONOUS", ("cuda", GPU.type)),
        patch.object(torch.cuda, "Event", Event),
        patch.object(torch.cuda, "current_stream", Stream),
        patch.object(models, "Random", Random),
        torch.inference_mode(),
        Pretended(),  # type: ignore[no-untyped-call]
        Constructor(),
    ):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What the host waited for: in the main thread by block, in other threads for the whole video.

    `records`: of the blocks.
    """

    blocks: list[Counter[str]]
    elsewhere: Counter[str]
    records: list[BlockRecord]


def count_waits(route: str, length: int = BLOCKS) -> Waits:
    """Make a tiny video as the command line does, over a `route` of the benchmark's, and count.

    `length`: in blocks.
    """
    blocks = []
    records = []
    with pretended_gpu(), tempfile.TemporaryDirectory() as folder:
        run = _plan(route, length)
        COUNTS.waits.clear()
        with Mp4Writer(Path(folder) / "video.mp4", 16) as video:
            for shown in run.play():
                video.add(shown.frames)
                assert shown.record
                records.append(shown.record)
                blocks.append(Counter(COUNTS.waits))
                COUNTS.waits.clear()
    return Waits(blocks=blocks, elsewhere=Counter(COUNTS.elsewhere), records=records)


def _plan(route: str, length: int) -> Run:
    case = Case(route=parse_route(route, length), variant=OURS)
    setup = set_up([OURS], models.random_models(TINY, GPU), TINY)[OURS.name]
    store = Store()
    store.begin_run()
    clock = devices.device_clock(GPU)
    return plan_run(
        case.engine(setup, clock),
        case.route.rule,
        lambda _: setup.models.condition,
        blocks=length,
        seed=1,
        width=TINY.width,
        height=TINY.height,
        clock=clock,
        reuse=Reuse(store=store, part_keys=PartKeys(drafter="d", target="t", codec="c", scorer="s")),
    )
