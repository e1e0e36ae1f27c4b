"""What is asked of ComfyUI for a run: memory, word to its models, and to be stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import comfy.model_management
import comfy.utils
import pytest
import torch
from aiohttp import web
from protocol import BinaryEventTypes
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.memory import Memory, Needs
from sdvg_pack.nodes.host.progress import NodeProgress
from sdvg_pack.nodes.routes import register_routes
from sdvg_pack.sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_pack.sdvg_core.engine.router import Decision, Reason
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.plan.request import PlanRequest
from server import PromptServer

pytestmark = pytest.mark.comfyui

PREVIEW = BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA
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
    memory.load_together([reward, vae, target, drafter], {GPU: 9})
    assert asked == [
        ([reward], {"memory_required": 0, "minimum_memory_required": 0}),
        ([vae, target, drafter], {"memory_required": 9, "minimum_memory_required": 9}),
    ]


@pytest.mark.parametrize("call", ["pre_run", "cleanup"])
def test_a_patcher_whose_callbacks_fail_does_not_keep_the_others_from_being_told(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other packs hang callbacks on a MODEL. Catches a plain loop over the patchers: it ends at the first error."""
    patchers = [Patcher(CPU), Patcher(CPU), Patcher(CPU)]

    def fail() -> None:
        raise RuntimeError("theirs")

    monkeypatch.setattr(patchers[1], call, fail)
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda *_, **__: None)
    run = Memory(request=PlanRequest(), models=dict(zip("abc", patchers, strict=True)), needs={})
    with pytest.raises(RuntimeError, match="theirs"), memory.resident(run):
        pass
    assert patchers[0].told == ["pre_run", "cleanup"]
    assert patchers[2].told == (["pre_run", "cleanup"] if call == "cleanup" else [])


# --- the plan in words


GB = 10**9
NEEDS = Needs(step="target", parts={"target keys and values": 4 * GB, "vae state": 2 * GB, "working": 4 * GB})
MODELS = {"target": 28 * GB, "drafter": 3 * GB}
PARTS = (
    "Peak while generating with the target: "
    "target keys and values 4.0 GB, temporary buffers 4.0 GB, VAE state 2.0 GB"
)


def plan_in(usable: int) -> list[str]:
    return memory.describe_plan(MODELS, NEEDS, usable * GB, GPU)


STAYS, RUNS = "cuda:0: drafter weights, 3.0 GB stay there", "cuda:0: it runs, but slower because of the copying"
PLANS = {
    41: [STAYS, "cuda:0: target weights, 28.0 GB stay there", "cuda:0: everything fits"],
    24: [STAYS, "cuda:0: target weights, 11.0 GB stay there, 17.0 GB are copied over in every pass", RUNS],
}


@pytest.mark.parametrize("usable", PLANS)
def test_a_plan_says_what_stays_and_what_is_copied_over_the_hottest_model_last(usable: int) -> None:
    assert plan_in(usable) == [f"cuda:0: 10.0 GB of {usable}.0 GB needed besides weights. {PARTS}", *PLANS[usable]]


def model(size: int, loaded: int, device: torch.device) -> Any:
    return SimpleNamespace(load_device=device, model_size=lambda: size, loaded_size=lambda: loaded)


def test_after_a_run_the_note_says_what_of_each_model_lay_there_and_the_peak_beside_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, drafter, scorer = model(28 * GB, 11 * GB, GPU), model(3 * GB, 3 * GB, GPU), model(2 * GB, 0, CPU)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 25 * GB)
    held = {"request": PlanRequest(), "needs": {GPU: NEEDS}}
    models = {"target": target, "drafter": drafter, "scorer": scorer}
    assert memory.Memory(models=models, **held).found() == (
        "Memory: target 11.0 GB on the device and 17.0 GB copied over in every pass, drafter 3.0 GB on the device, "
        "planned peak 24.0 GB, measured peak 25.0 GB, +4.2 %.",
    )
    assert memory.Memory(models={"scorer": scorer, "target": target}, **held).found() == ()


def test_out_of_memory_names_the_numbers_of_the_plan_and_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.mm, "get_total_memory", lambda _: 24 * GB)
    monkeypatch.setattr(memory.mm, "get_free_memory", lambda _: 22 * GB + memory.mm.extra_reserved_memory())
    models = {name: model(size, 0, GPU) for name, size in MODELS.items()}
    message = str(memory.refusal_of(Memory(request=PlanRequest(), models=models, needs={GPU: NEEDS})))
    for part in (
        "10.0 GB",
        "31.0 GB of weights",
        "24.0 GB",
        "22.0 GB",
        PARTS,
        "kv_dtype float8_e4m3fn saves 3.8 GB (blocks change by 3 %) or a TAEHV in vae saves 2.1 GB",
        "lower width and height",
    ):
        assert part in message


# --- what a run says


@pytest.mark.parametrize("kind", ["denoise", "context", "target"])
def test_a_run_stops_before_a_pass_of_any_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own check: ComfyUI's progress bar, which would stop a denoising step as well, is not connected here."""
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", None)
    progress = NodeProgress(None, blocks=1, steps=4)
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        progress.before_pass(kind)
    progress.before_pass(kind)


def test_the_preview_has_the_size_of_the_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a largest side, to which ComfyUI would also blow up a small video, and a second picture."""
    sent, bar = [], []
    ear = SimpleNamespace(client_id="me", send_progress_text=lambda *_: None)
    ear.send_sync = lambda event, data, client_id: sent.append((event, data))
    monkeypatch.setattr(PromptServer, "instance", ear, raising=False)
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, **more: bar.append(preview))
    kept = Decision(accepted=True, reason=Reason.REACHED, score=-0.5, threshold=-0.7, frame_scores=(-0.5, 0.5))
    made = {"draft": None, "target": None, "decodes": 1, "seconds": Seconds(draft=0.5)}
    record = BlockRecord(span=Span(1, 3, 3), pixel_frames=12, prompt="a", decision=kept, **made)
    NodeProgress("3", blocks=1, steps=4).block(record, torch.zeros(1, 9, 3, 48, 832))
    [((kind, picture, largest_side), place)] = [data for name, data in sent if name == PREVIEW]
    assert (kind, picture.size, largest_side) == ("JPEG", (832, 48), None)
    assert (place["display_node_id"], bar) == ("3.film", [None])


def test_a_second_copy_of_the_pack_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page asks the first copy, and the nodes are the last one's: squares and Stop fail."""
    monkeypatch.setattr(PromptServer, "instance", SimpleNamespace(routes=web.RouteTableDef()), raising=False)
    register_routes()
    assert caplog.text == ""
    register_routes()
    assert "SDVG is installed twice" in caplog.text
