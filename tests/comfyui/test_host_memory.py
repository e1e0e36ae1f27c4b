"""The memory of a run: what the plan says at real sizes, what is asked of ComfyUI, and what a run tells of it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import comfy.model_management
import comfy.ops
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from comfy.ldm.wan.vae import AttentionBlock, WanVAE
from comfy.model_patcher import ModelPatcher, ModelPatcherDynamic
from host_run import make_job, video_of
from host_tiny import VAE_DIM, load_vae
from sdvg_pack.nodes import run
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.memory import (
    Memory,
    Needs,
    check_room,
    describe_plan,
    load_together,
    memory_of,
    needs_of,
    plan_request,
    usable_on,
    weights_of,
)
from sdvg_pack.nodes.host.model import ComfyOps
from sdvg_pack.nodes.host.sockets import HostScorer, PromptEntry, RouterValue
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.nodes.page.progress import notify
from sdvg_pack.sdvg_core.causal_wan.cache import CacheSlots, KVCache
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.causal_wan.forward import Pass, denoise_pass, project_text, token_grid
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory import sizes
from sdvg_pack.sdvg_core.memory.plan import PART_NAMES, plan
from sdvg_pack.sdvg_core.memory.sizes import PlanRequest, decode_state_bytes
from sdvg_pack.sdvg_core.scorers import blip
from sdvg_pack.sdvg_core.scorers.blip import ImageRewardConfig
from sdvg_pack.sdvg_core.settings.execution import Execution
from sdvg_pack.sdvg_core.settings.request import VideoRequest
from sdvg_pack.sdvg_core.settings.route import Route
from server import PromptServer
from torch.utils._pytree import tree_leaves

from tests.support.live_bytes import Peak

pytestmark = pytest.mark.comfyui

META, CPU, GPU, SECOND = torch.device("meta"), torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
GB, SOLD_UNIT = 10**9, 2**30
CONTEXT, GAPS = 8 * GB // 10, GB
"""Measured on a GPU: what CUDA takes beside the allocator, and what the allocator needs beside the tensors."""
FULL = (60, 104)  # latents of 480 x 832
CONFIG = ImageRewardConfig()
SCORER = HostScorer(file="", model=None, tokenizer=None, config=CONFIG, dtype=torch.float32, patcher=None)
ROLES = ("target", "drafter", "vae", "scorer")
FP8 = "float8_e4m3fn"


class Empty(torch.nn.Module):
    """What a loaded MODEL holds, of the real size and without numbers in it."""

    def __init__(self, config, weights=torch.bfloat16):
        super().__init__()
        names = ("dim", "ffn_dim", "num_heads", "num_layers", "in_dim", "out_dim", "text_dim")
        given = {name: getattr(config, name) for name in names}
        operations = comfy.ops.manual_cast
        self.diffusion_model = WanModel(
            model_type="t2v", device=META, dtype=weights, operations=operations, **given
        )
        self.weights, self.manual_cast_dtype = weights, torch.bfloat16

    def get_dtype(self):
        return self.weights


def empty_model(config, weights=torch.bfloat16):
    return ModelPatcher(Empty(config, weights), load_device=GPU, offload_device=CPU)


class EmptyVae:
    """The real Wan VAE without numbers in it."""

    device = META

    def __init__(self, dtype, dim=96):
        layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
        self.vae_dtype = dtype
        with META:
            self.first_stage_model = WanVAE(dim=dim, z_dim=16, **layout).to(dtype)
        for module in self.first_stage_model.modules():
            if isinstance(module, AttentionBlock):
                module.optimized_attention = lambda q, k, v: v

    def process_output(self, video):
        return video


@pytest.fixture(scope="module")
def real_pair():
    return empty_model(WAN_1_3B), empty_model(WAN_14B)


def real_request(pair, dtype=torch.float16, **changes):
    drafter, target = pair
    router, prompts = RouterValue(Route(), SCORER), (PromptEntry(0, None, ""),)
    given = {"vae": EmptyVae(dtype), "router": router, "prompts": prompts, **changes}
    request = VideoRequest(width=832, height=480, blocks=9)
    return plan_request(Job(drafter=drafter, target=target, request=request, **given))


# --- the same numbers


def test_real_pair_needs_what_the_core_plans(real_pair):
    """Byte for byte, in every step; on the node stands the one that needs most."""
    request = real_request(real_pair)
    assert request == PlanRequest(reward_dtype="float32"), "the dtype that `auto` chose for a CPU"
    planned = plan(80, PlanRequest())
    beside = {part: size for part, size in planned.parts["target"].items() if part not in ROLES}
    needs = needs_of(request, dict.fromkeys(ROLES, GPU), stored="plain")
    assert needs == {GPU: Needs(step="target", parts=beside)}
    assert needs[GPU].total == planned.peak - sum(planned.sizes.weights.values())


def test_each_device_is_planned_for_what_lies_there(real_pair):
    """Transformers on one, VAE and scorer on the other. Catches what is needed for a while on the wrong one."""
    request = real_request(real_pair)
    devices = {"scorer": SECOND, "vae": SECOND, "target": GPU, "drafter": GPU}
    needs = needs_of(request, devices, stored="plain")
    working = sizes.working_bytes(request, stored="plain")
    parts = {"working": working["decode"], "vae state": 2 * sizes.state_bytes(request)["vae state"]}
    assert needs[SECOND] == Needs(step="decode", parts=parts)
    assert (needs[GPU].step, needs[GPU].parts["working"]) == ("target", working["target"])
    assert "vae state" not in needs[GPU].parts


def test_run_is_planned_from_its_wires(parts):
    planned = memory_of(make_job(parts, size=(48, 32)))
    assert list(planned.models) == list(ROLES)
    assert planned.models["target"] is parts.target
    [(device, needs)] = planned.needs.items()
    assert device == CPU
    state = decode_state_bytes("wan", VAE_DIM, 48 * 32, parts.vae.vae_dtype.itemsize)
    assert needs.parts["vae state"] == (2 if needs.step in ("decode", "score") else 1) * state


# --- ComfyUI loads a run's models by them


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
            left = total - CONTEXT - sum(one.loaded_size() for one in models)
            return (left, left) if torch_free_too else left

        monkeypatch.setattr(management, "get_total_memory", lambda *_: total)
        monkeypatch.setattr(management, "get_free_memory", free)

    return put


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
    """Also if another model lay there. Catches: the target last, or a request without what else is needed.

    The last card went out of memory on a GPU: nothing was left for CUDA's context and the allocator's gaps.
    """
    modules = {
        "target": Empty(WAN_14B, torch.float8_e4m3fn),
        "drafter": Empty(WAN_1_3B),
        "vae": EmptyVae(torch.float16).first_stage_model,
        **({"scorer": blip._empty_model(CONFIG)} if router == "paper" else {}),
    }
    patchers = {role: ModelPatcher(module, META, META) for role, module in modules.items()}
    asked = real_request([patchers["drafter"], patchers["target"]], execution=Execution(kv_dtype=kv_dtype))
    request = replace(asked, stored="fp8")
    [needs] = needs_of(request, dict.fromkeys(patchers, META), stored="fp8").values()
    before = ModelPatcher(torch.nn.Linear(50_000, 50_000, dtype=torch.bfloat16, device=META), META, META)
    put_in(card, [*patchers.values(), before])
    comfy.model_management.load_models_gpu([before])
    assert before.loaded_size() > 5 * GB
    usable = usable_on(META)
    models = {role: one.model_size() for role, one in patchers.items()}
    said = " ".join(describe_plan(models, needs, usable, META))
    stays = {role: float(re.search(rf"{PART_NAMES[role]}, (\d+\.\d) GB stay", said)[1]) * GB for role in patchers}
    for _ in range(2):  # the second run of a node finds them there
        load_together(list(patchers.values()), {META: needs.total})
        there = {role: one.loaded_size() for role, one in patchers.items()}
        assert there == pytest.approx(stays, abs=0.05 * usable)
        assert there.items() >= {name: size for name, size in models.items() if name != "target"}.items()
        copied = sum(models.values()) - sum(there.values())
        assert copied <= sum(plan((card - CONTEXT - GAPS) / GB, request).copied.values())
        buffers = sum(module.model_offload_buffer_memory for module in modules.values())
        assert sum(there.values()) + buffers + needs.total + GAPS <= card - CONTEXT


@pytest.mark.parametrize(
    "card, kv_dtype, router, fits",
    [
        (12 * GB, "auto", "balanced", False),
        (8 * SOLD_UNIT, "auto", "balanced", False),
        (12 * SOLD_UNIT, FP8, "balanced", True),
        (12 * SOLD_UNIT, FP8, "paper", True),
        (9 * SOLD_UNIT, FP8, "balanced", True),
        (9 * SOLD_UNIT, FP8, "paper", False),  # only for the scorer, which ComfyUI loads whole
        (16 * SOLD_UNIT, "auto", "paper", True),
    ],
)
def test_run_that_cannot_fit_is_refused(card, kv_dtype, router, fits, real_pair, put_in):
    """The first card ran out of memory on a GPU after half a minute of loading, though its plan knew."""
    put_in(card, [])
    asked = real_request(real_pair, execution=Execution(kv_dtype=kv_dtype))
    request = replace(asked, stored="fp8")
    scorer = {"scorer": ModelPatcher(blip._empty_model(CONFIG), GPU, CPU)} if router == "paper" else {}
    models = {"target": empty_model(WAN_14B, torch.float8_e4m3fn), "drafter": real_pair[0], **scorer}
    run = Memory(request=request, models=models, needs=needs_of(request, dict.fromkeys(ROLES, GPU), stored="fp8"))
    says_no = any("it does not fit" in line for line in run.plan)
    assert says_no != fits
    if fits:
        check_room(run)
        return
    with pytest.raises(BadInput, match=r"^too little memory on cuda:0: the run needs .*; .*a TAEHV in vae saves"):
        check_room(run)


# --- one request, and what a run says of its memory


class Patcher:
    def __init__(self, device, dynamic=False):
        self.load_device, self.told, self.is_dynamic = device, [], lambda: dynamic

    def pre_run(self):
        self.told.append("pre_run")

    def cleanup(self):
        self.told.append("cleanup")


def test_each_device_is_asked_once_for_its_models(monkeypatch):
    """Catches a request for each model (they would push one another out), and memory asked of the wrong device."""
    asked = []
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda p, **k: asked.append((p, k)))
    reward, vae, target, drafter = (Patcher(d) for d in (CPU, GPU, GPU, GPU))
    load_together([reward, vae, target, drafter], {GPU: 9})
    needed = 9 + SPARE  # 1 GB for the allocator's gaps, of which ComfyUI leaves 0.4 already
    assert asked == [
        ([reward], {"memory_required": 0, "minimum_memory_required": 0}),
        ([vae, target, drafter], {"memory_required": needed, "minimum_memory_required": needed}),
    ]


@pytest.mark.parametrize("call", ["pre_run", "cleanup"])
def test_failing_callback_keeps_no_other_from_running(call, monkeypatch):
    """Other packs hang callbacks on a MODEL. Catches a plain loop over the patchers: it ends at the first error."""
    patchers = [Patcher(CPU), Patcher(CPU), Patcher(CPU)]

    def fail():
        raise RuntimeError("theirs")

    monkeypatch.setattr(patchers[1], call, fail)
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda *_, **__: None)
    held = Memory(request=PlanRequest(), models=dict(zip("abc", patchers, strict=True)), needs={})
    with pytest.raises(RuntimeError, match="theirs"), memory.resident(held):
        pass
    assert patchers[0].told == ["pre_run", "cleanup"]
    assert patchers[2].told == (["pre_run", "cleanup"] if call == "cleanup" else [])


SPARE = GB - 4 * GB // 10
NEEDS = Needs(step="target", parts={"target keys and values": 4 * GB, "vae state": 2 * GB, "working": 4 * GB})
MODELS = {"target": 28 * GB, "drafter": 3 * GB}
PARTS = (
    "Peak while generating with the target: "
    "target keys and values 4.0 GB, temporary buffers 4.0 GB, VAE state 2.0 GB"
)


STAYS, RUNS = (
    "cuda:0: drafter weights, 3.0 GB stay there",
    "cuda:0: it runs, but slower, as not all weights fit",
)
PLANS = {
    41: [STAYS, "cuda:0: target weights, 28.0 GB stay there", "cuda:0: everything fits"],
    24: [STAYS, "cuda:0: target weights, 11.0 GB stay there, 17.0 GB are copied over in every pass", RUNS],
}


@pytest.mark.parametrize("usable", PLANS)
def test_plan_says_what_stays_and_is_copied(usable):
    plan = describe_plan(MODELS, NEEDS, usable * GB, GPU)
    assert plan == [f"cuda:0: besides weights, the run needs 10.0 GB of {usable}.0 GB. {PARTS}", *PLANS[usable]]


def model(size, loaded, device):
    sizes = {"model_size": lambda: size, "loaded_size": lambda: loaded}
    return SimpleNamespace(load_device=device, is_dynamic=lambda: False, **sizes)


def test_note_states_loaded_weights_and_peak_memory(monkeypatch):
    target, drafter, scorer = model(28 * GB, 11 * GB, GPU), model(3 * GB, 3 * GB, GPU), model(2 * GB, 0, CPU)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 25 * GB)
    held = {"request": PlanRequest(), "needs": {GPU: NEEDS}}
    models = {"target": target, "drafter": drafter, "scorer": scorer}
    assert Memory(models=models, **held).measured() == (
        "Memory: target 11.0 GB on the device and 17.0 GB copied over in every pass, drafter 3.0 GB on the device, "
        "planned peak 24.0 GB, measured peak 25.0 GB, +4.2 %.",
    )
    assert Memory(models={"scorer": scorer, "target": target}, **held).measured() == ()


def test_note_under_dynamic_vram_compares_allocator_memory_only(monkeypatch):
    """Weights of dynamic VRAM are no tensors of the allocator. Catches: *planned 28.3, measured 10.9, -61.5 %*."""
    target, drafter, vae = model(28 * GB, 7 * GB, GPU), model(3 * GB, 3 * GB + 2**25, GPU), model(GB, GB, GPU)
    weights = torch.nn.Linear(2 * GB, 7, bias=False, device="meta", dtype=torch.bfloat16)
    weights.weight_comfy_model_dtype = torch.float8_e4m3fn
    target.model, drafter.model = weights, torch.nn.Identity()
    target.is_dynamic = drafter.is_dynamic = lambda: True
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 11 * GB)
    models = {"target": target, "drafter": drafter, "vae": vae}
    held = Memory(models=models, request=PlanRequest(), needs={GPU: NEEDS})
    assert held.measured() == (
        "Memory: target 7.0 GB of 14.0 GB on the device, drafter 3.0 GB on the device, vae 1.0 GB on the device, "
        "without the weights of target, drafter: planned peak 11.0 GB, measured peak 11.0 GB, +0.0 %.",
        "Dynamic VRAM did not keep all weights on the card. On 24 GB, ComfyUI started with --disable-dynamic-vram "
        "was 1.6 times as fast (random weights, one H100).",
    )
    target.loaded_size = lambda: 14 * GB
    assert [line[:7] for line in held.measured()] == ["Memory:"]


def test_run_too_large_is_refused_before_loading(parts, monkeypatch):
    loaded = []
    models = {name: model(size, 0, GPU) for name, size in MODELS.items()}
    short = Memory(request=PlanRequest(), models=models, needs={GPU: NEEDS})
    monkeypatch.setattr(run, "memory_of", lambda job: short)
    monkeypatch.setattr(memory.mm, "loaded_models", lambda: [None])  # a MODEL was dropped whose weights are in use
    monkeypatch.setattr(memory.mm, "get_total_memory", lambda _: 10 * GB)
    monkeypatch.setattr(memory.mm, "get_free_memory", lambda _: 9 * GB + memory.mm.extra_reserved_memory())
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(memory, "load_together", lambda *given: loaded.append(given))
    with pytest.raises(BadInput) as refused:
        video_of(make_job(parts))
    assert loaded == []
    assert str(refused.value) == (
        "too little memory on cuda:0: the run needs 10.0 GB besides up to 31.0 GB of weights, and 8.4 GB of "
        f"10.0 GB can be used ({PARTS}); kv_dtype float8_e4m3fn saves 3.8 GB (blocks change by 3 %) or "
        "a TAEHV in vae saves 2.1 GB (rougher pixels) or lower width and height"
    )


def test_node_shows_loading_while_weights_come(parts, monkeypatch):
    """Under dynamic VRAM the first block took 7 s for 1.4: its weights were loaded meanwhile."""
    shown = []
    ear = SimpleNamespace(client_id="me", send_progress_text=lambda text, *_: shown.append(text))
    ear.send_sync = lambda *_: None
    monkeypatch.setattr(PromptServer, "instance", ear, raising=False)
    monkeypatch.setattr(Memory, "incomplete", True, raising=False)
    job = make_job(parts, script="ra")
    video_of(job)
    assert [text.startswith("loading: ") for text in shown[:3]] == [False, True, False]
    assert shown[1].endswith(shown[0])  # the notes stay
    monkeypatch.setattr(Memory, "incomplete", False)
    shown.clear()
    video_of(job)
    assert not any(text.startswith("loading") for text in shown)


def test_outdated_note_is_replaced(monkeypatch):
    """Catches: an empty text, which the page drops, so that an earlier run's note stays on the node."""
    shown = []
    ear = SimpleNamespace(client_id="me", send_progress_text=lambda text, *_: shown.append(text))
    monkeypatch.setattr(PromptServer, "instance", ear, raising=False)
    for text in ("", "a note", "", ""):
        notify("7", text)
    assert shown == ["a note", "Nothing to note."]


def test_models_are_ranked_again_before_every_block(parts, monkeypatch):
    """Catches: only at load, after which a second run on 24 GB copied the drafter in each of its passes."""
    known = []
    monkeypatch.setattr(Memory, "prioritise", lambda self: known.append(len(known)))
    blocks = video_of(make_job(parts, script="ra"))[2].blocks
    assert len(known) == len(blocks)


# --- dynamic VRAM


PAGE = 32 * 2**20


class Pages:
    """Dynamic VRAM's memory on a card, as its library gives it out: the last in `order` has the first claim."""

    def __init__(self, card):
        self.card, self.order, self.used = card, [], False

    def take(self, size, device):
        """Stand in for the library's address space of one model."""
        bar = SimpleNamespace(offset=0, free_memory=lambda size: 0)

        def alloc(size):
            bar.offset += size
            return bar, bar.offset - size, size

        def prioritize():
            self.order = [*(one for one in self.order if one is not bar), bar]

        def loaded_size():
            first = sum(one.size() for one in self.order[self.order.index(bar) + 1 :])
            return max(0, min(bar.size(), self.card - first)) if self.used else 0

        bar.size = lambda: -(-bar.offset // PAGE) * PAGE
        bar.alloc, bar.prioritize, bar.loaded_size = alloc, prioritize, loaded_size
        return bar


@pytest.mark.parametrize("control", [False, True], ids=["", "with a control"])
def test_dynamic_vram_keeps_what_most_blocks_use(control, put_in, monkeypatch):
    """On a GPU of 24 GB the target drove the drafter out, and all notes spoke of the 28.6 GB of its file.

    Catches: the size of what is stored, a promise of what stays or is copied, and the target with the first claim,
    also once the card has been short.
    """
    modules = {
        "target": Empty(WAN_14B, torch.float8_e4m3fn),
        **({"target control": Empty(WAN_1_3B)} if control else {}),
        "drafter": Empty(WAN_1_3B),
        "vae": EmptyVae(torch.float16).first_stage_model,
    }
    for module in modules.values():
        comfy.model_management.archive_model_dtypes(module)
    modules["target"].to(torch.bfloat16)  # as the file has it: dynamic VRAM casts on the way to the card
    pages = Pages(300 * PAGE)
    monkeypatch.setattr("comfy_aimdo.model_vbar.ModelVBAR", pages.take)
    monkeypatch.setattr("comfy_aimdo.host_buffer.HostBuffer", lambda *_: SimpleNamespace(size=0))
    patchers = {role: ModelPatcherDynamic(module, META, META) for role, module in modules.items()}
    put_in(24 * GB, list(patchers.values()))
    request = replace(real_request([patchers["drafter"], patchers["target"]]), stored="fp8")
    run = Memory(
        request=request, models=patchers, needs=needs_of(request, dict.fromkeys(patchers, META), stored="fp8")
    )
    sizes_there = {role: weights_of(patcher) for role, patcher in patchers.items()}
    assert sizes_there["target"] == pytest.approx(14.29 * GB, rel=2e-3)
    assert sizes_there["drafter"] == patchers["drafter"].model_size()
    assert "meta: target weights, 14.3 GB come as they are used, and stay if they fit" in run.plan
    assert not any("are copied over" in line or "stay there" in line for line in run.plan)
    for _ in range(2):
        load_together(list(patchers.values()), {META: 11 * GB})
        assert run.incomplete != pages.used
        pages.used = True
        there = {role: patcher.loaded_size() for role, patcher in patchers.items()}
        assert all(there[role] >= size for role, size in sizes_there.items() if role != "target")
        assert sum(there.values()) == pytest.approx(pages.card, rel=2e-3)
        assert not run.incomplete
        pages.order.reverse()  # a short card takes ranks away, and the drafter lost its place by it
        assert patchers["drafter"].loaded_size() < 1e6
        run.prioritise()
        assert {role: patcher.loaded_size() for role, patcher in patchers.items()} == there


# --- and they are what ComfyUI's modules take


def as_a_kernel(attention, q, k, v, *_, **__):
    """Attention as an accelerator's kernel does it: nothing but its result."""
    return torch.empty_like(q)


def pass_peak(tree, cache, size):
    ops = ComfyOps(torch.bfloat16, {"optimized_attention_override": as_a_kernel})
    x = torch.empty(1, 16, 3, *size, device=META)
    with torch.inference_mode():
        text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
        rope = ops.rope(tree, 0, token_grid(tree, x.shape[2:]), META)
        there = [*tree.parameters(), x, rope, *tree_leaves(text), *tree_leaves(cache._layers)]
        with Peak(there) as peak:
            denoise_pass(tree, x, 500.0, Pass(text, cache, CacheSlots(0, (0, 1, 2), 3), rope, ops))
    return peak.bytes


@pytest.mark.parametrize("config, size", [(WAN_1_3B, (90, 160)), (WAN_14B, FULL)], ids=["1.3B", "14B"])
def test_comfyuis_caches_and_passes_take_what_is_planned(config, size):
    tree, tokens = empty_model(config).model.diffusion_model, size[0] * size[1] // 4
    cache = KVCache(tree, 6, tokens, torch.bfloat16, META)
    assert sizes.kv_bytes(config, 6, tokens, 2) == sum(t.nbytes for t in tree_leaves(cache._layers))
    planned = sizes.pass_bytes(config, 3, tokens, 2)
    assert 0.7 * planned <= pass_peak(tree, cache, size) <= 1.01 * planned


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_comfyuis_vae_takes_no_more_than_planned(dtype):
    """One latent frame a call takes less for a while than ComfyUI reckons with; the plan is above both."""
    vae = EmptyVae(dtype)
    codec, z = ComfyCodec(vae), torch.empty(1, 16, 3, *FULL, device=META)
    pixels = 832 * 480
    with torch.inference_mode():
        _, state = codec.decode(z)
        held = [t for t in state if torch.is_tensor(t)]
        with Peak([*vae.first_stage_model.parameters(), z, *held]) as peak:
            _, after = codec.decode(z, state)
    new = sum(t.nbytes for t in after if torch.is_tensor(t))
    assert new == decode_state_bytes("wan", 96, pixels, dtype.itemsize)
    planned = sizes.working_bytes(PlanRequest(vae_dtype=str(dtype).removeprefix("torch.")), stored="plain")[
        "decode"
    ]
    assert peak.bytes - new <= planned
    assert load_vae().memory_used_decode((1, 16, 1, *FULL), dtype) <= planned
