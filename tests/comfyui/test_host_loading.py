"""What is asked of ComfyUI for a run's models, what it then keeps on a card, and what is refused instead."""

import re
from dataclasses import replace
from types import SimpleNamespace

import comfy.model_management
import comfy.ops
import pytest
import torch
from comfy.model_patcher import ModelPatcher, ModelPatcherDynamic
from host_run import make_job, video_of
from host_sizes import (
    CONTEXT,
    CPU,
    FP8,
    GAPS,
    GB,
    GPU,
    META,
    ROLES,
    SOLD_UNIT,
    Empty,
    EmptyVae,
    empty_model,
    empty_scorer,
    real_request,
)
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.memory import (
    Memory,
    check_room,
    describe_plan,
    load_together,
    needs_of,
    usable_on,
    weights_of,
)
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory.plan import PART_NAMES, plan
from sdvg_pack.sdvg_core.memory.sizes import PlanRequest
from sdvg_pack.sdvg_core.settings.execution import Execution

pytestmark = pytest.mark.comfyui


@pytest.fixture
def put_in(monkeypatch):
    """Let `meta` be a card of so many bytes, of which CUDA and the weights of some MODELs take some."""
    management = comfy.model_management
    monkeypatch.setattr(management, "current_loaded_models", [])
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NORMAL_VRAM)
    monkeypatch.setattr(management, "MIN_WEIGHT_MEMORY_RATIO", 0.0)
    monkeypatch.setattr(management, "NUM_STREAMS", 2)
    monkeypatch.setattr(comfy.ops.disable_weight_init, "_zero_init_parameter", lambda *_: None)

    def put(total, models):
        def free(on=None, torch_free_too=False):
            left = total - CONTEXT - sum(patcher.loaded_size() for patcher in models)
            return (left, left) if torch_free_too else left

        monkeypatch.setattr(management, "get_total_memory", lambda *_: total)
        monkeypatch.setattr(management, "get_free_memory", free)

    return put


def fp8_request(drafter, target, **changes):
    """Return what is planned of a run whose target is stored in 8 bits."""
    return replace(real_request(drafter, target, **changes), stored="fp8")


@pytest.mark.parametrize(
    "card, kv_dtype, router",
    [
        (12 * SOLD_UNIT, FP8, "balanced"),
        (16 * SOLD_UNIT, "auto", "balanced"),
        (24 * SOLD_UNIT, "auto", "paper"),
        (24 * GB, "auto", "balanced"),
    ],
)
def test_card_holds_what_the_node_says(card, kv_dtype, router, put_in):
    """And no more is copied than planned, also if another model lay there.

    Catches: the target last, or a request without what else is needed. The last card went out of memory on a GPU:
    nothing was left for CUDA's context and the allocator's gaps.
    """
    modules = {
        "target": Empty(WAN_14B, torch.float8_e4m3fn),
        "drafter": Empty(WAN_1_3B),
        "vae": EmptyVae(torch.float16).first_stage_model,
        **({"scorer": empty_scorer()} if router == "paper" else {}),
    }
    patchers = {role: ModelPatcher(module, META, META) for role, module in modules.items()}
    request = fp8_request(patchers["drafter"], patchers["target"], execution=Execution(kv_dtype=kv_dtype))
    [needs] = needs_of(request, dict.fromkeys(patchers, META), stored="fp8").values()
    earlier = ModelPatcher(torch.nn.Linear(50_000, 50_000, dtype=torch.bfloat16, device=META), META, META)
    put_in(card, [*patchers.values(), earlier])
    comfy.model_management.load_models_gpu([earlier])
    assert earlier.loaded_size() > 5 * GB
    usable = usable_on(META)
    sizes = {role: patcher.model_size() for role, patcher in patchers.items()}
    notes = " ".join(describe_plan(sizes, needs, usable, META))
    stays = {role: float(re.search(rf"{PART_NAMES[role]}, (\d+\.\d) GB stay", notes)[1]) * GB for role in patchers}
    for _ in range(2):  # the second run of a node finds them there
        load_together(list(patchers.values()), {META: needs.total})
        loaded = {role: patcher.loaded_size() for role, patcher in patchers.items()}
        assert loaded == pytest.approx(stays, abs=0.05 * usable)
        assert loaded.items() >= {role: size for role, size in sizes.items() if role != "target"}.items()
        copied = sum(sizes.values()) - sum(loaded.values())
        assert copied <= sum(plan((card - CONTEXT - GAPS) / GB, request).copied.values())
        buffers = sum(module.model_offload_buffer_memory for module in modules.values())
        assert sum(loaded.values()) + buffers + needs.total + GAPS <= card - CONTEXT


def memory_of_a_run(kv_dtype, router):
    models = {"target": empty_model(WAN_14B, torch.float8_e4m3fn), "drafter": empty_model(WAN_1_3B)}
    request = fp8_request(models["drafter"], models["target"], execution=Execution(kv_dtype=kv_dtype))
    if router == "paper":
        models["scorer"] = ModelPatcher(empty_scorer(), GPU, CPU)
    needs = needs_of(request, dict.fromkeys(ROLES, GPU), stored="fp8")
    return Memory(request=request, models=models, needs=needs)


@pytest.mark.parametrize(
    "card, kv_dtype, router",
    [
        (12 * GB, "auto", "balanced"),
        (8 * SOLD_UNIT, "auto", "balanced"),
        (9 * SOLD_UNIT, FP8, "paper"),  # only for the scorer, which ComfyUI loads whole
    ],
)
def test_run_that_cannot_fit_is_refused(card, kv_dtype, router, put_in):
    """The first card ran out of memory on a GPU after half a minute of loading, though its plan knew.

    The whole sentence: test_memory_notes.py.
    """
    put_in(card, [])
    run = memory_of_a_run(kv_dtype, router)
    assert any("it does not fit" in line for line in run.plan)
    with pytest.raises(BadInput, match="too little memory on cuda:0"):
        check_room(run)


@pytest.mark.parametrize(
    "card, kv_dtype, router",
    [
        (12 * SOLD_UNIT, FP8, "balanced"),
        (12 * SOLD_UNIT, FP8, "paper"),
        (9 * SOLD_UNIT, FP8, "balanced"),
        (16 * SOLD_UNIT, "auto", "paper"),
    ],
)
def test_run_that_fits_by_copying_is_taken(card, kv_dtype, router, put_in):
    """Catches: a card that is called too small because not all weights stay."""
    put_in(card, [])
    run = memory_of_a_run(kv_dtype, router)
    assert not any("it does not fit" in line for line in run.plan)
    check_room(run)


# --- one request of each device, and its callbacks


class Patcher:
    """A MODEL on a device; `calls`: what ComfyUI has a patcher do around a run."""

    def __init__(self, device):
        self.load_device = device
        self.calls = []

    def is_dynamic(self):
        return False

    def pre_run(self):
        self.calls.append("pre_run")

    def cleanup(self):
        self.calls.append("cleanup")


def test_each_device_is_asked_once_for_its_models(monkeypatch):
    """Catches a request for each model (they would push one another out), and memory asked of the wrong device."""
    requests = []
    monkeypatch.setattr(
        comfy.model_management, "load_models_gpu", lambda patchers, **memory: requests.append((patchers, memory))
    )
    reward = Patcher(CPU)
    on_gpu = [Patcher(GPU) for _ in range(3)]
    load_together([reward, *on_gpu], {GPU: 9})
    needed = 9 + GB - 4 * GB // 10  # 1 GB for the allocator's gaps, of which ComfyUI leaves 0.4 already
    assert requests == [
        ([reward], {"memory_required": 0, "minimum_memory_required": 0}),
        (on_gpu, {"memory_required": needed, "minimum_memory_required": needed}),
    ]


@pytest.mark.parametrize("call", ["pre_run", "cleanup"])
def test_failing_callback_keeps_no_other_from_running(call, monkeypatch):
    """Other packs hang callbacks on a MODEL. Catches a plain loop over the patchers: it ends at the first error."""
    patchers = [Patcher(CPU), Patcher(CPU), Patcher(CPU)]

    def fail():
        raise RuntimeError("theirs")

    monkeypatch.setattr(patchers[1], call, fail)
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda *_, **__: None)
    run = Memory(request=PlanRequest(), models=dict(zip("abc", patchers, strict=True)), needs={})
    with pytest.raises(RuntimeError, match="theirs"), memory.resident(run):
        pass
    assert patchers[0].calls == ["pre_run", "cleanup"]
    assert patchers[2].calls == (["pre_run", "cleanup"] if call == "cleanup" else [])


# --- dynamic VRAM


PAGE = 32 * 2**20


class Pages:
    """Dynamic VRAM's memory on a card, as its library gives it out: the last in `order` has the first claim."""

    def __init__(self, card):
        self.card = card
        self.order = []
        self.used = False

    def take(self, size, device):
        """Stand in for the library's address space of one model."""
        bar = SimpleNamespace(offset=0, free_memory=lambda size: 0)

        def alloc(size):
            bar.offset += size
            return bar, bar.offset - size, size

        def prioritize():
            self.order = [*(other for other in self.order if other is not bar), bar]

        def loaded_size():
            first = sum(other.size() for other in self.order[self.order.index(bar) + 1 :])
            return max(0, min(bar.size(), self.card - first)) if self.used else 0

        bar.size = lambda: -(-bar.offset // PAGE) * PAGE
        bar.alloc = alloc
        bar.prioritize = prioritize
        bar.loaded_size = loaded_size
        return bar


@pytest.fixture
def pages(monkeypatch):
    """A card of 10 GB under dynamic VRAM."""
    pages = Pages(300 * PAGE)
    monkeypatch.setattr("comfy_aimdo.model_vbar.ModelVBAR", pages.take)
    monkeypatch.setattr("comfy_aimdo.host_buffer.HostBuffer", lambda *_: SimpleNamespace(size=0))
    return pages


def dynamic_run(put_in, *, control=False):
    """Return the memory of a run whose target's file is in bfloat16: dynamic VRAM casts on the way to the card."""
    modules = {
        "target": Empty(WAN_14B, torch.float8_e4m3fn),
        **({"target control": Empty(WAN_1_3B)} if control else {}),
        "drafter": Empty(WAN_1_3B),
        "vae": EmptyVae(torch.float16).first_stage_model,
    }
    for module in modules.values():
        comfy.model_management.archive_model_dtypes(module)
    modules["target"].to(torch.bfloat16)
    patchers = {role: ModelPatcherDynamic(module, META, META) for role, module in modules.items()}
    put_in(24 * GB, list(patchers.values()))
    request = fp8_request(patchers["drafter"], patchers["target"])
    needs = needs_of(request, dict.fromkeys(patchers, META), stored="fp8")
    return Memory(request=request, models=patchers, needs=needs)


def test_plan_under_dynamic_vram_promises_no_place(pages, put_in):
    """Catches: the 28.6 GB of the target's file, of which half reach the card; what *stays* or *is copied over*."""
    run = dynamic_run(put_in)
    assert weights_of(run.models["target"]) == pytest.approx(14.29 * GB, rel=2e-3)
    assert weights_of(run.models["drafter"]) == run.models["drafter"].model_size()
    assert "meta: target weights, 14.3 GB come as they are used, and stay if they fit" in run.plan
    assert not any("are copied over" in line or "stay there" in line for line in run.plan)


@pytest.mark.parametrize("control", [False, True], ids=["", "with a control"])
def test_dynamic_vram_keeps_what_most_blocks_use(control, pages, put_in):
    """On a GPU of 24 GB the target drove the drafter out. Catches: the target with the first claim, also once the
    card has been short.
    """
    run = dynamic_run(put_in, control=control)
    patchers = run.models
    for _ in range(2):
        load_together(list(patchers.values()), {META: 11 * GB})
        assert run.incomplete != pages.used
        pages.used = True
        loaded = loaded_sizes(patchers)
        assert all(loaded[role] >= weights_of(patchers[role]) for role in patchers if role != "target")
        assert sum(loaded.values()) == pytest.approx(pages.card, rel=2e-3)
        assert not run.incomplete
        pages.order.reverse()  # a short card takes ranks away, and the drafter lost its place by it
        assert patchers["drafter"].loaded_size() < 1e6
        run.prioritise()
        assert loaded_sizes(patchers) == loaded


def loaded_sizes(patchers):
    return {role: patcher.loaded_size() for role, patcher in patchers.items()}


def test_models_are_ranked_again_before_every_block(parts, monkeypatch):
    """Catches: only at load, after which a second run on 24 GB copied the drafter in each of its passes."""
    rankings = []
    monkeypatch.setattr(Memory, "prioritise", lambda run: rankings.append(run))
    blocks = video_of(make_job(parts, script="ra"))[2].blocks
    assert len(rankings) == len(blocks)
