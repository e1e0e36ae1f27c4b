"""What is asked of ComfyUI for a run: memory, word to its models, and to be stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.model_management
import pytest
import torch
from host_clip import over
from host_tiny import CONFIG, SIZE, load_model, load_vae
from sdvg_pack.nodes.host import residency
from sdvg_pack.nodes.host.progress import NodeProgress
from sdvg_pack.sdvg_core.engine.history import History
from sdvg_pack.sdvg_core.engine.noise import KeyedNoise
from sdvg_pack.sdvg_core.engine.types import Condition, plan_spans

pytestmark = pytest.mark.comfyui

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Patcher:
    def __init__(self, device: torch.device) -> None:
        self.load_device, self.told = device, []

    def pre_run(self) -> None:
        self.told.append("pre_run")

    def cleanup(self) -> None:
        self.told.append("cleanup")


def test_each_device_is_asked_once_for_its_models_in_order_and_for_its_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a request for each model (they would push one another out), and memory asked of the wrong device."""
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda p, **k: asked.append((p, k)))
    reward, vae, target, drafter = (Patcher(d) for d in (CPU, GPU, GPU, GPU))
    residency.load_together([reward, vae, target, drafter], {GPU: 9})
    assert asked == [
        ([reward], {"memory_required": 0, "minimum_memory_required": 0}),
        ([vae, target, drafter], {"memory_required": 9, "minimum_memory_required": 9}),
    ]


def test_models_loaded_together_are_all_loaded(tmp_path: Path) -> None:
    drafter, target, vae = load_model(tmp_path), load_model(tmp_path), load_vae()
    patchers = [vae.patcher, target, drafter]
    residency.load_together(patchers, {CPU: 1000})
    loaded = comfy.model_management.loaded_models()
    assert all(any(p is known for known in loaded) for p in patchers)


def test_patchers_are_told_that_a_run_is_over_however_it_ends() -> None:
    patchers = [Patcher(CPU), Patcher(CPU)]
    with pytest.raises(KeyboardInterrupt), residency.in_use(patchers):
        raise KeyboardInterrupt
    assert [p.told for p in patchers] == [["pre_run", "cleanup"]] * 2


@pytest.mark.parametrize("call", ["pre_run", "cleanup"])
def test_a_patcher_whose_callbacks_fail_does_not_keep_the_others_from_being_told(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other packs hang callbacks on a MODEL. Catches a plain loop over the patchers: it ends at the first error."""
    patchers = [Patcher(CPU), Patcher(CPU), Patcher(CPU)]

    def fail() -> None:
        raise RuntimeError("theirs")

    monkeypatch.setattr(patchers[1], call, fail)
    with pytest.raises(RuntimeError, match="theirs"), residency.in_use(patchers):
        pass
    assert patchers[0].told == ["pre_run", "cleanup"]
    assert patchers[2].told == (["pre_run", "cleanup"] if call == "cleanup" else [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [(torch.OutOfMemoryError("CUDA"), True), (RuntimeError("shape"), False), (KeyboardInterrupt(), False)],
)
def test_out_of_memory_is_told_from_other_errors(error: BaseException, *, expected: bool) -> None:
    assert residency.is_out_of_memory(error) is expected


def test_stop_is_heard_before_a_pass_and_leaves_a_usable_generator(tmp_path: Path) -> None:
    """Catches a run that leaves stopping to ComfyUI's progress bar, which only denoising steps move."""
    passes: list[str] = []

    def press_stop_at_the_third(kind: str) -> None:
        passes.append(kind)
        comfy.model_management.interrupt_current_processing(len(passes) == 3)

    def make(then: Callable[[str], None]) -> Any:
        progress = NodeProgress(None, blocks=1, steps=4)

        def before_pass(kind: str) -> None:
            progress.before_pass(kind)
            then(kind)

        return over(patcher, before_pass=before_pass)

    patcher = load_model(tmp_path)
    residency.load_together([patcher], {})
    noise = KeyedNoise(seed=1, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
    block = (History(), plan_spans(1, 3, 0)[0], noise, Condition(torch.zeros(1, 512, CONFIG.text_dim), "a", "a"))
    generator = make(press_stop_at_the_third)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        generator.generate(*block)
    assert passes == ["denoise"] * 3
    again = generator.generate(*block).latents
    assert torch.equal(again, make(lambda _: None).generate(*block).latents)
