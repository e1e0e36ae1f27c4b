"""A run that is broken off at any call leaves ComfyUI's models as they were, and many runs leave nothing behind.

Faults are raised deep inside: in a layer of a model, of the VAE or of the scorer, and in what ComfyUI shows of the
progress. ComfyUI's interrupt is a `BaseException`, which must pass through.
"""

import gc
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import comfy.utils
import pytest
import torch
from comfy.patcher_extension import CallbacksMP
from host_run import changed, held, load_parts, make_job, same_video, state_of, video_of
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.sockets import PromptEntry, RouterValue
from sdvg_pack.nodes.page.live import RUNS
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.scorers import preprocess
from sdvg_pack.sdvg_core.settings.route import First, Gate, Route, TargetOnly
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.support.thinned import in_turn

pytestmark = pytest.mark.comfyui


a_job = partial(make_job, script="raarar")


class Interrupt(BaseException):
    """As ComfyUI's interrupt is."""


# What is raised inside, at which call, and how what comes out of the run begins.
FAULTS = {
    "exception": (RuntimeError, "first", "RuntimeError: planted"),
    "out of memory": (torch.OutOfMemoryError, "middle", "BadInput: out of memory on cpu"),
    "interrupt": (Interrupt, "last", "Interrupt: planted"),
}
PLACES = ("drafter", "target", "decode", "encode", "score", "progress")


class Trap:
    """Counts its calls, and raises at one of them; at 0 never."""

    def __init__(self, at=0, error=RuntimeError):
        self.calls = 0
        self._at = at
        self._error = error

    def __call__(self, *_, **__):
        self.calls += 1
        if self.calls == self._at:
            raise self._error("planted")


@contextmanager
def set_in(place, parts, trap):
    """Have every call at a place go through a trap. No module of the models is touched for it."""
    if place == "progress":
        # Not the hook that ComfyUI calls from there: how often it does depends on the time.
        show = comfy.utils.ProgressBar.update_absolute
        with patch.object(comfy.utils.ProgressBar, "update_absolute", lambda *a, **k: (trap(), show(*a, **k))):
            yield
        return
    vae = parts.vae.first_stage_model
    inside = {
        "drafter": parts.drafter.model.diffusion_model.blocks[1].ffn,
        "target": parts.target.model.diffusion_model.blocks[1].ffn,
        "decode": vae.decoder.middle[0],
        "encode": vae.encoder.middle[0],
        "score": parts.scorer.model.head,
    }[place]
    handle = register_module_forward_pre_hook(lambda module, _: trap() if module is inside else None)
    try:
        yield
    finally:
        handle.remove()


def forget_beginnings():
    """Drop what can be kept of the runs on the screen: a node's next run pushes it out (test_kept.py)."""
    for run in RUNS.now():
        run.beginnings.clear()


def break_off(parts, place, at, error):
    """Run with one fault; return what came out in words, so that nothing of the run is held on to."""
    with set_in(place, parts, Trap(at, error)):
        try:
            video_of(a_job(parts))
        except (RuntimeError, Interrupt, BadInput) as raised:
            return f"{type(raised).__name__}: {raised}"
    return "nothing"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Models that other packs have been at: a hook, a callback, options and weights that must outlive us."""
    parts = load_parts(tmp_path_factory.mktemp("models"))
    tree = parts.drafter.model.diffusion_model
    tree.blocks[0].register_forward_hook(lambda module, given, made: None)
    parts.drafter.add_callback(CallbacksMP.ON_CLEANUP, lambda patcher: None)
    parts.drafter.model_options["transformer_options"]["theirs"] = {"patches": [1]}
    weight = tree.blocks[0].ffn[0].weight
    parts.target.add_patches({"diffusion_model.blocks.0.ffn.0.weight": (torch.full_like(weight, 0.01),)}, 0.5)
    return parts


@pytest.fixture(scope="module")
def unbroken(newest_runs, parts):
    """The video of a fresh run. After it ComfyUI has loaded and patched what it will."""
    return video_of(a_job(parts))


@pytest.fixture(scope="module")
def calls(parts, unbroken):
    """How often an unbroken run comes by each place."""
    traps = {place: Trap() for place in PLACES}
    with ExitStack() as stack:
        for place, trap in traps.items():
            stack.enter_context(set_in(place, parts, trap))
        video_of(a_job(parts))
    counts = {place: trap.calls for place, trap in traps.items()}
    assert min(counts.values()) >= 4, "a trap where nothing goes by would prove nothing"
    return counts


@in_turn("place, fault", PLACES, list(FAULTS))
def test_fault_leaves_models_and_next_run_unharmed(place, fault, parts, unbroken, calls):
    """Catches: a patch, hook or cache that outlives the run, a patcher that is not told that it is over."""
    error, call, message = FAULTS[fault]
    number = {"first": 1, "middle": 1 + calls[place] // 2, "last": calls[place]}[call]
    forget_beginnings()
    state = state_of(parts)
    before = held()
    assert break_off(parts, place, number, error).startswith(message)
    assert changed(state, state_of(parts)) == []
    assert held() == before
    assert same_video(video_of(a_job(parts)), unbroken)


def test_out_of_memory_refusal_keeps_no_other_error(parts, unbroken):
    """ComfyUI keeps the error for a while. Catches one that is raised while the first is still being handled."""
    with set_in("decode", parts, Trap(5, torch.OutOfMemoryError)), pytest.raises(BadInput) as raised:
        video_of(a_job(parts))
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


def test_failed_run_frees_tensors_before_cache_is_emptied(parts, unbroken, monkeypatch):
    """Catches emptying the device's cache while the error, or the engine with its keys and values, is there."""
    forget_beginnings()
    job = a_job(parts)
    before = held().tensor_bytes
    bytes_held = []
    monkeypatch.setattr(memory.mm, "soft_empty_cache", lambda: bytes_held.append(held(collect=False).tensor_bytes))
    with set_in("decode", parts, Trap(10, torch.OutOfMemoryError)), pytest.raises(BadInput):
        video_of(job)
    assert bytes_held[-1] - before < 10_000  # ours is the last: ComfyUI may empty it when it loads, too


# --- many runs in one process, no two alike: nothing grows


SETTLED = 3  # runs, after which nothing may grow
MODELS_LAST = 5  # runs, after which others are loaded
MEGABYTE = 2**20
SIZES = ((32, 32), (48, 32), (32, 64), (64, 48))
ROUTERS = (
    Route(Gate(0.0)),
    Route(First(1)),
    Route(First(0)),
    Route(TargetOnly()),
    Route(handover=2),
)


def make_nth_job(number, parts):
    """Return a job of another size, prompt, seed, router, beginning and context than those around it."""
    job = make_job(
        parts,
        script="raa",
        size=SIZES[number % len(SIZES)],
        prompt=number,
        seed=number,
        router=RouterValue(ROUTERS[number % len(ROUTERS)], parts.scorer),
        drafter_context=("committed", "own")[number % 2],
    )
    if number % 3 == 1:
        later = PromptEntry(1, [[torch.full((1, 512, 32), 0.1), {}]], f"something else {number}")
        return replace(job, prompts=(*job.prompts, later))
    if number % 3 == 2:
        return replace(job, start_image=torch.full((1, 40, 40, 3), 0.5))
    return job


@pytest.mark.usefixtures("newest_runs")
@pytest.mark.parametrize("runs", [7, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_many_runs_leave_nothing_in_the_process(runs, tmp_path):
    """Catches: a cache filled by size or prompt, a thread, a file or a model that a run leaves behind."""
    parts = load_parts(tmp_path)
    resident = []
    settled = None
    for number in range(runs):
        if number % MODELS_LAST == MODELS_LAST - 1:
            del parts
            parts = load_parts(tmp_path, seed=number)
        video_of(make_nth_job(number, parts))
        for run in RUNS.now():
            run.beginnings.clear()  # of the newest runs (test_kept.py)
        preprocess._taps_on.cache_clear()  # of four resizes at most, which are of the newest sizes
        if number == SETTLED:
            settled = held()
        if settled is not None:
            now = held()
            # New models are loaded only as they are asked for.
            assert now.loaded_models <= settled.loaded_models
            assert replace(now, loaded_models=settled.loaded_models) == settled, number
            resident.append(resident_bytes())
    assert resident[-1] - resident[0] < 32 * MEGABYTE


@pytest.mark.usefixtures("newest_runs")
def test_run_frees_tensors_without_garbage_collection(tmp_path):
    """Catches objects that hold each other, and with them gigabytes of keys and values on a GPU."""
    parts = load_parts(tmp_path)
    video_of(make_nth_job(1, parts))
    before = held()
    job = make_nth_job(1, parts)
    gc.disable()
    try:
        video = video_of(job)
        del video, job
        assert held(collect=False).tensor_bytes == before.tensor_bytes
    finally:
        gc.enable()


def resident_bytes():
    """Return the memory that the process takes; 0 where that cannot be seen."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    [line] = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
