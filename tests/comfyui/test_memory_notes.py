"""What a node and a report say of a run's memory: the plan, what was measured, what does not fit, and loading."""

from types import SimpleNamespace

import pytest
import torch
from host_run import make_job, video_of
from host_sizes import CPU, GB, GPU
from sdvg_pack.nodes import run
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.memory import Memory, Needs, describe_plan
from sdvg_pack.nodes.page.progress import notify
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory.sizes import PlanRequest
from server import PromptServer

pytestmark = pytest.mark.comfyui

NEEDS = Needs(step="target", parts={"target keys and values": 4 * GB, "vae state": 2 * GB, "working": 4 * GB})
WEIGHTS = {"target": 28 * GB, "drafter": 3 * GB}
PEAK = (
    "Peak while generating with the target: "
    "target keys and values 4.0 GB, temporary buffers 4.0 GB, VAE state 2.0 GB"
)
DRAFTER_STAYS = "cuda:0: drafter weights, 3.0 GB stay there"
PLANS = {
    41: [DRAFTER_STAYS, "cuda:0: target weights, 28.0 GB stay there", "cuda:0: everything fits"],
    24: [
        DRAFTER_STAYS,
        "cuda:0: target weights, 11.0 GB stay there, 17.0 GB are copied over in every pass",
        "cuda:0: it runs, but slower, as not all weights fit",
    ],
}


@pytest.mark.parametrize("usable", PLANS)
def test_plan_says_what_stays_and_is_copied(usable):
    """Catches: the drafter copied over, which most blocks use."""
    plan = describe_plan(WEIGHTS, NEEDS, usable * GB, GPU)
    assert plan == [f"cuda:0: besides weights, the run needs 10.0 GB of {usable}.0 GB. {PEAK}", *PLANS[usable]]


def model(size, loaded, device=GPU, *, dynamic=False):
    """Return what a MODEL tells of its sizes."""
    return SimpleNamespace(
        load_device=device,
        model_size=lambda: size,
        loaded_size=lambda: loaded,
        is_dynamic=lambda: dynamic,
    )


def measured(needs, **models):
    return Memory(models=models, request=PlanRequest(), needs=needs).measured()


def test_note_states_loaded_weights_and_peak_memory(monkeypatch):
    """Catches: weights of the scorer on the CPU, counted as the card's."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 36 * GB)
    target = model(28 * GB, 11 * GB)
    scorer = model(2 * GB, 0, CPU)
    notes = measured({GPU: NEEDS}, target=target, drafter=model(3 * GB, 3 * GB), scorer=scorer)
    assert notes == (
        "Memory: target 11.0 GB on the device and 17.0 GB copied over in every pass, drafter 3.0 GB on the device, "
        "planned peak 24.0 GB, measured peak 36.0 GB, +50.0 %.",
    )
    assert measured({GPU: NEEDS}, scorer=scorer, target=target) == ()


def target_in_fp8(loaded):
    """Return a target that dynamic VRAM casts to fp8 on the way to the card: 14 GB of 28 there."""
    target = model(28 * GB, loaded, dynamic=True)
    target.model = torch.nn.Linear(2 * GB, 7, bias=False, device="meta", dtype=torch.bfloat16)
    target.model.weight_comfy_model_dtype = torch.float8_e4m3fn
    return target


@pytest.mark.parametrize("loaded", [7 * GB, 14 * GB])
def test_note_under_dynamic_vram_compares_allocator_memory_only(loaded, monkeypatch):
    """Weights of dynamic VRAM are no tensors of the allocator. Catches: *planned 28.3, measured 10.9, -61.5 %*."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 11 * GB)
    drafter = model(3 * GB, 3 * GB + 2**25, dynamic=True)
    drafter.model = torch.nn.Identity()
    note, *advice = measured({GPU: NEEDS}, target=target_in_fp8(loaded), drafter=drafter, vae=model(GB, GB))
    on_device = "7.0 GB of 14.0 GB" if loaded < 14 * GB else "14.0 GB"
    assert note == (
        f"Memory: target {on_device} on the device, drafter 3.0 GB on the device, vae 1.0 GB on the device, "
        "without the weights of target, drafter: planned peak 11.0 GB, measured peak 11.0 GB, +0.0 %."
    )
    assert ["--disable-dynamic-vram" in line for line in advice] == [True] * (loaded < 14 * GB)


def test_run_too_large_is_refused_before_loading(parts, monkeypatch):
    """Catches: half a minute of loading before the refusal; a remedy without what it saves."""
    loads = []
    models = {role: model(size, 0) for role, size in WEIGHTS.items()}
    short = Memory(request=PlanRequest(), models=models, needs={GPU: NEEDS})
    monkeypatch.setattr(run, "memory_of", lambda job: short)
    monkeypatch.setattr(memory.mm, "loaded_models", lambda: [None])  # a MODEL was dropped whose weights are in use
    monkeypatch.setattr(memory.mm, "get_total_memory", lambda _: 10 * GB)
    monkeypatch.setattr(memory.mm, "get_free_memory", lambda _: 9 * GB + memory.mm.extra_reserved_memory())
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(memory, "load_together", lambda *request: loads.append(request))
    with pytest.raises(BadInput) as refusal:
        video_of(make_job(parts))
    assert loads == []
    assert str(refusal.value) == (
        "too little memory on cuda:0: the run needs 10.0 GB besides up to 31.0 GB of weights, and 8.4 GB of "
        f"10.0 GB can be used ({PEAK}); kv_dtype float8_e4m3fn saves 3.8 GB (blocks change by 3 %) or "
        "a TAEHV in vae saves 2.1 GB (rougher pixels) or lower width and height"
    )


# --- on the node


@pytest.fixture
def shown(monkeypatch):
    """The texts that a page is sent for a node."""
    texts = []
    page = SimpleNamespace(
        client_id="me",
        send_progress_text=lambda text, *_: texts.append(text),
        send_sync=lambda *_: None,
    )
    monkeypatch.setattr(PromptServer, "instance", page, raising=False)
    return texts


@pytest.mark.parametrize("incomplete", [True, False])
def test_node_shows_loading_while_weights_come(incomplete, parts, shown, monkeypatch):
    """Under dynamic VRAM the first block took 7 s for 1.4: its weights were loaded meanwhile."""
    monkeypatch.setattr(Memory, "incomplete", incomplete, raising=False)
    video_of(make_job(parts, script="ra"))
    assert [text.startswith("loading: ") for text in shown[:3]] == [False, incomplete, False]
    if incomplete:
        assert shown[1].endswith(shown[0]), "the notes stay"


def test_outdated_note_is_replaced(shown):
    """Catches: an empty text, which the page drops, so that an earlier run's note stays on the node."""
    for text in ("", "a note", "", ""):
        notify("7", text)
    assert shown == ["a note", "Nothing to note."]
