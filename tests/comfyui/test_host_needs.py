"""What a run needs of memory: the core's numbers, held against ComfyUI's modules at real sizes without memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import comfy.model_management
import comfy.ops
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from comfy.ldm.wan.vae import AttentionBlock, WanVAE
from comfy.model_patcher import ModelPatcher
from host_run import load_parts, make_job
from host_tiny import VAE_DIM, load_vae
from live_bytes import Peak
from sdvg_pack.nodes.host.files import CARD_GB
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.memory import (
    Needs,
    describe_plan,
    load_together,
    memory_of,
    needs_of,
    plan_request,
    usable_on,
)
from sdvg_pack.nodes.host.model import ComfyOps
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.nodes.sockets import HostScorer, PromptEntry, RouterValue
from sdvg_pack.sdvg_core.causal_wan.cache import KVCache, Place
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig
from sdvg_pack.sdvg_core.causal_wan.forward import Pass, denoise_pass, project_text, token_grid
from sdvg_pack.sdvg_core.devices.execution import Execution
from sdvg_pack.sdvg_core.engine.router import ROUTER_PRESETS, RouterConfig
from sdvg_pack.sdvg_core.pipeline.request import VideoRequest
from sdvg_pack.sdvg_core.plan import sizes
from sdvg_pack.sdvg_core.plan.choose import plan
from sdvg_pack.sdvg_core.plan.request import PlanRequest
from sdvg_pack.sdvg_core.plan.sizes import decode_state_bytes
from sdvg_pack.sdvg_core.plan.text import NAMES
from sdvg_pack.sdvg_core.scorers import blip
from sdvg_pack.sdvg_core.scorers.blip import ImageRewardConfig
from torch import Tensor
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.comfyui

META, CPU, GPU, SECOND = torch.device("meta"), torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
GB = 10**9
FULL = (60, 104)  # latents of 480 x 832
CONFIG = ImageRewardConfig()
SCORER = HostScorer(
    file="", model=None, tokenizer=None, config=CONFIG, dtype=torch.float32, crop="center", patcher=None
)
ROLES = ("target", "drafter", "vae", "scorer")
FP8 = "float8_e4m3fn"


class Empty(torch.nn.Module):
    """What a loaded MODEL holds, of the real size and without numbers in it."""

    def __init__(self, config: WanConfig, weights: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        names = ("dim", "ffn_dim", "num_heads", "num_layers", "in_dim", "out_dim", "text_dim")
        given = {name: getattr(config, name) for name in names}
        operations = comfy.ops.manual_cast
        self.diffusion_model = WanModel(
            model_type="t2v", device=META, dtype=weights, operations=operations, **given
        )
        self.weights, self.manual_cast_dtype = weights, torch.bfloat16

    def get_dtype(self) -> torch.dtype:
        return self.weights


def empty_model(config: WanConfig, weights: torch.dtype = torch.bfloat16) -> ModelPatcher:
    return ModelPatcher(Empty(config, weights), load_device=GPU, offload_device=CPU)


class EmptyVae:
    """The real Wan VAE without numbers in it."""

    device = META

    def __init__(self, dtype: torch.dtype, dim: int = 96) -> None:
        layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
        self.vae_dtype = dtype
        with META:
            self.first_stage_model = WanVAE(dim=dim, z_dim=16, **layout).to(dtype)
        for module in self.first_stage_model.modules():
            if isinstance(module, AttentionBlock):
                module.optimized_attention = lambda q, k, v: v

    def process_output(self, video: Tensor) -> Tensor:
        return video


@pytest.fixture(scope="module")
def real_pair() -> tuple[ModelPatcher, ModelPatcher]:
    return empty_model(WAN_1_3B), empty_model(WAN_14B)


def real_request(pair: Any, dtype: torch.dtype = torch.float16, **changes: Any) -> PlanRequest:
    drafter, target = pair
    router, prompts = RouterValue(RouterConfig(), SCORER), (PromptEntry(0, None, ""),)
    given = {"vae": EmptyVae(dtype), "router": router, "prompts": prompts, **changes}
    request = VideoRequest(width=832, height=480, blocks=9)
    return plan_request(Job(drafter=drafter, target=target, request=request, **given))


# --- the same numbers


def test_the_real_pair_is_the_one_that_the_core_plans_by_itself(real_pair: Any) -> None:
    assert real_request(real_pair) == PlanRequest()


def test_the_real_pair_needs_beside_weights_what_the_core_plans(real_pair: Any) -> None:
    """Byte for byte, in every step; on the node stands the one that needs most."""
    planned = plan(80, PlanRequest())
    beside = {
        step: {part: size for part, size in parts.items() if part not in ROLES}
        for step, parts in planned.parts.items()
    }
    needs = needs_of(real_request(real_pair), dict.fromkeys(ROLES, GPU), fp8=False)
    assert needs == {GPU: Needs(step="target", parts=beside["target"])}
    assert needs[GPU].total == planned.peak - sum(planned.sizes.weights.values())


def test_each_device_is_planned_for_what_lies_there(real_pair: Any) -> None:
    """Transformers on one, VAE and scorer on the other. Catches what is needed for a while on the wrong one."""
    request = real_request(real_pair)
    devices = {"scorer": SECOND, "vae": SECOND, "target": GPU, "drafter": GPU}
    needs = needs_of(request, devices, fp8=False)
    held, working = sizes.state_bytes(request), sizes.working_bytes(request, fp8=False)
    assert needs[SECOND] == Needs(
        step="decode", parts={"working": working["decode"], "vae state": 2 * held["vae state"]}
    )
    assert needs[GPU].step == "target"
    assert needs[GPU].parts["working"] == working["target"]
    assert "vae state" not in needs[GPU].parts


def test_a_run_is_planned_from_what_is_wired_in(tmp_path: Any) -> None:
    parts = load_parts(tmp_path)
    job = make_job(parts, size=(48, 32))
    memory = memory_of(job)
    assert list(memory.models) == list(ROLES)
    assert memory.models["target"] is parts.target
    [(device, needs)] = memory.needs.items()
    assert device == CPU
    assert needs.parts["vae state"] == (2 if needs.step in ("decode", "score") else 1) * decode_state_bytes(
        "wan", VAE_DIM, 48 * 32, parts.vae.vae_dtype.itemsize
    )


# --- ComfyUI loads a run's models by them


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, list[ModelPatcher]], None]:
    """Let `meta` be a card of so many GB, of which the weights of some MODELs alone take anything."""
    management = comfy.model_management
    monkeypatch.setattr(management, "current_loaded_models", [])
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NORMAL_VRAM)
    monkeypatch.setattr(management, "MIN_WEIGHT_MEMORY_RATIO", 0.0)
    monkeypatch.setattr(management, "NUM_STREAMS", 2)
    monkeypatch.setattr(comfy.ops.disable_weight_init, "_zero_init_parameter", lambda *_: None)

    def put(gigabytes: int, models: list[ModelPatcher]) -> None:
        total = gigabytes * CARD_GB

        def free(on: Any = None, torch_free_too: bool = False) -> Any:
            left = total - sum(one.loaded_size() for one in models)
            return (left, left) if torch_free_too else left

        monkeypatch.setattr(management, "get_total_memory", lambda *_: total)
        monkeypatch.setattr(management, "get_free_memory", free)

    return put


@pytest.mark.parametrize(
    "gigabytes, kv_dtype, router", [(12, FP8, "paper"), (16, "auto", "balanced"), (24, "auto", "paper")]
)
def test_a_card_holds_what_the_node_says_and_no_more_is_copied_than_planned(
    gigabytes: int, kv_dtype: Any, router: str, put_in: Callable[[int, list[ModelPatcher]], None]
) -> None:
    """Also if another model lay there. Catches: the target last, or a request without what else is needed."""
    modules = {
        "target": Empty(WAN_14B, torch.float8_e4m3fn),
        "drafter": Empty(WAN_1_3B),
        "vae": EmptyVae(torch.float16).first_stage_model,
        **({"scorer": blip._empty_model(CONFIG)} if router == "paper" else {}),
    }
    patchers = {role: ModelPatcher(module, META, META) for role, module in modules.items()}
    asked = real_request([patchers["drafter"], patchers["target"]], execution=Execution(kv_dtype=kv_dtype))
    request = replace(asked, fp8=True, router=ROUTER_PRESETS[router])
    [needs] = needs_of(request, dict.fromkeys(patchers, META), fp8=True).values()
    before = ModelPatcher(torch.nn.Linear(50_000, 50_000, dtype=torch.bfloat16, device=META), META, META)
    put_in(gigabytes, [*patchers.values(), before])
    comfy.model_management.load_models_gpu([before])
    assert before.loaded_size() > 5 * GB
    usable = usable_on(META)
    models = {role: one.model_size() for role, one in patchers.items()}
    said = " ".join(describe_plan(models, needs, usable, META))
    stays = {role: float(re.search(rf"{NAMES[role]}, (\d+\.\d) GB stay", said)[1]) * GB for role in patchers}
    for _ in range(2):  # the second run of a node finds them there
        load_together(list(patchers.values()), {META: needs.total})
        there = {role: one.loaded_size() for role, one in patchers.items()}
        assert there == pytest.approx(stays, abs=0.05 * usable)
        assert there.items() >= {name: size for name, size in models.items() if name != "target"}.items()
        copied = sum(models.values()) - sum(there.values())
        assert copied <= sum(plan(gigabytes, request).copied.values())
        buffers = sum(module.model_offload_buffer_memory for module in modules.values())
        assert sum(there.values()) + buffers + needs.total <= gigabytes * CARD_GB


# --- and they are what ComfyUI's modules take


def as_a_kernel(attention: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    """Attention as an accelerator's kernel does it: nothing but its result."""
    return torch.empty_like(q)


def pass_peak(tree: WanModel, cache: KVCache, size: tuple[int, int]) -> int:
    ops = ComfyOps(torch.bfloat16, {"optimized_attention_override": as_a_kernel})
    x = torch.empty(1, 16, 3, *size, device=META)
    with torch.inference_mode():
        text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
        rope = ops.rope(tree, 0, token_grid(tree, x.shape[2:]), META)
        there = [*tree.parameters(), x, rope, *tree_leaves(text), *tree_leaves(cache._layers)]
        with Peak(there) as peak:
            denoise_pass(tree, x, 500.0, Pass(text, cache, Place(0, (0, 1, 2), 3), rope, ops))
    return peak.bytes


@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B], ids=["1.3B", "14B"])
@pytest.mark.parametrize("size", [FULL, (90, 160)])
def test_caches_and_passes_of_comfyuis_models_take_what_is_planned(
    config: WanConfig, size: tuple[int, int]
) -> None:
    tree, tokens = empty_model(config).model.diffusion_model, size[0] * size[1] // 4
    cache = KVCache(tree, 6, tokens, torch.bfloat16, META)
    assert sizes.kv_bytes(config, 6, tokens, 2) == sum(t.nbytes for t in tree_leaves(cache._layers))
    planned = sizes.pass_bytes(config, 3, tokens, 2)
    assert 0.7 * planned <= pass_peak(tree, cache, size) <= 1.01 * planned


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_comfyuis_vae_takes_no_more(dtype: torch.dtype) -> None:
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
    planned = sizes.working_bytes(PlanRequest(vae_dtype=str(dtype).removeprefix("torch.")), fp8=False)["decode"]
    assert peak.bytes - new <= planned
    assert load_vae().memory_used_decode((1, 16, 1, *FULL), dtype) <= planned
