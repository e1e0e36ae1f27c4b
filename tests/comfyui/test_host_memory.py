"""What a run's memory is planned to be, and what ComfyUI's modules take of it, at real sizes."""

from dataclasses import replace

import pytest
import torch
from host_run import make_job
from host_sizes import CPU, FULL, GPU, META, ROLES, SECOND, EmptyVae, empty_model, real_request
from host_tiny import VAE_DIM, load_vae
from sdvg_pack.nodes.host.memory import Needs, memory_of, needs_of, plan_request
from sdvg_pack.nodes.host.model import ComfyOps
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.sdvg_core.causal_wan.cache import CacheSlots, KVCache
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.causal_wan.forward import Pass, denoise_pass, project_text, token_grid
from sdvg_pack.sdvg_core.memory import sizes
from sdvg_pack.sdvg_core.memory.plan import plan
from sdvg_pack.sdvg_core.memory.sizes import IN_COMFYUI, PlanRequest, decode_state_bytes
from torch.utils._pytree import tree_leaves

from tests.support.live_bytes import Peak, tensors_of

pytestmark = pytest.mark.comfyui


# --- what is planned


@pytest.fixture(scope="module")
def request_of_the_pair():
    return real_request(empty_model(WAN_1_3B), empty_model(WAN_14B))


def test_real_pair_needs_what_the_core_plans(request_of_the_pair):
    """Byte for byte, in every step; on the node stands the one that needs most."""
    assert request_of_the_pair == PlanRequest(reward_dtype="float32"), "the dtype that `auto` chose for a CPU"
    planned = plan(80, PlanRequest())
    beside_weights = {part: size for part, size in planned.parts["target"].items() if part not in ROLES}
    needs = needs_of(request_of_the_pair, dict.fromkeys(ROLES, GPU), stored="plain")
    assert needs == {GPU: Needs(step="target", parts=beside_weights)}
    assert needs[GPU].total == planned.peak - sum(planned.sizes.weights.values())


def test_a_drafter_in_fp8_is_planned_as_stored():
    """Catches temporary buffers that are counted for the target's form alone."""
    rounded = empty_model(WAN_1_3B, torch.float8_e4m3fn)
    plain = empty_model(WAN_1_3B)
    assert real_request(rounded, plain).drafter_stored == "fp8"
    assert real_request(plain, rounded).drafter_stored == "plain"


def test_each_device_is_planned_for_what_lies_there(request_of_the_pair):
    """Transformers on one, VAE and scorer on the other. Catches what is needed for a while on the wrong one."""
    request = request_of_the_pair
    devices = {"scorer": SECOND, "vae": SECOND, "target": GPU, "drafter": GPU}
    needs = needs_of(request, devices, stored="plain")
    working = sizes.working_bytes(request, stored="plain")
    parts = {"working": working["decode"], "vae state": 2 * sizes.state_bytes(request)["vae state"]}
    assert needs[SECOND] == Needs(step="decode", parts=parts)
    assert needs[GPU].step == "target"
    assert needs[GPU].parts["working"] == working["target"]
    assert "vae state" not in needs[GPU].parts


def test_run_is_planned_from_its_wires(parts):
    """Catches: a VAE's state of another size than the one that is wired in."""
    planned = memory_of(make_job(parts, size=(48, 32)))
    assert list(planned.models) == list(ROLES)
    assert planned.models["target"] is parts.target
    [(device, needs)] = planned.needs.items()
    assert device == CPU
    state = decode_state_bytes("wan", VAE_DIM, 48 * 32, parts.vae.vae_dtype.itemsize)
    states = 2 if needs.step in ("decode", "score") else 1
    assert needs.parts["vae state"] == states * state


# --- what ComfyUI's modules take


@pytest.mark.parametrize(
    ("wired", "fields"),
    [
        ({}, {}),
        ({"prompts": 3}, {"prompts": 3}),
        ({"blocks": 2}, {"blocks": 2}),
        ({"size": (48, 32)}, {"width": 48}),
        ({"kv_dtype": "float8_e4m3fn"}, {"execution": replace(IN_COMFYUI, kv_dtype="float8_e4m3fn")}),
    ],
    ids=str,
)
def test_plan_knows_what_the_run_is_asked_for(wired, fields, parts):
    """Catches: keys and values of a second prompt, or a longer side, that no memory is asked for."""
    usual = plan_request(make_job(parts))
    entries = make_job(parts).prompts * wired.get("prompts", 1)
    changes = {"prompts": entries} if "prompts" in wired else wired
    assert plan_request(make_job(parts, **changes)) == replace(usual, **fields)


@pytest.mark.parametrize("roles", ["drafter", "target", "drafter target", "drafter target scorer"])
def test_only_needed_models_are_asked_for(roles, parts):
    """Catches: a scorer that takes 1.8 GB of the card, though every block is directed."""
    needed = frozenset(roles.split())
    planned = memory_of(make_job(parts).restrict_to(needed))
    assert planned.models.keys() == {*needed, "vae"}


def as_a_kernel(attention, q, k, v, *_, **__):
    """Attention as an accelerator's kernel does it: nothing but its result."""
    return torch.empty_like(q)


def peak_of_a_pass(tree, cache, size):
    ops = ComfyOps(torch.bfloat16, {"optimized_attention_override": as_a_kernel})
    x = torch.empty(1, 16, 3, *size, device=META)
    with torch.inference_mode():
        text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
        rope = ops.rope(tree, 0, token_grid(tree, x.shape[2:]), META)
        inputs = [*tree.parameters(), x, rope, *tree_leaves(text), *tensors_of(cache)]
        with Peak(inputs) as peak:
            denoise_pass(tree, x, 500.0, Pass(text, cache, CacheSlots(0, (0, 1, 2), 3), rope, ops))
    return peak.bytes


@pytest.mark.parametrize("config, size", [(WAN_1_3B, (90, 160)), (WAN_14B, FULL)], ids=["1.3B", "14B"])
def test_comfyuis_caches_and_passes_take_what_is_planned(config, size):
    """Catches: a plan from other tensors than ComfyUI's layers make."""
    tree = empty_model(config).model.diffusion_model
    tokens = size[0] * size[1] // 4
    cache = KVCache(tree, 6, tokens, torch.bfloat16, META)
    assert sizes.kv_bytes(config, 6, tokens, 2) == sum(tensor.nbytes for tensor in tensors_of(cache))
    planned = sizes.pass_bytes(config, 3, tokens, 2)
    assert 0.7 * planned <= peak_of_a_pass(tree, cache, size) <= 1.01 * planned


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_comfyuis_vae_takes_no_more_than_planned(dtype):
    """One latent frame a call takes less for a while than ComfyUI reckons with; the plan is above both."""
    vae = EmptyVae(dtype)
    codec = ComfyCodec(vae)
    latents = torch.empty(1, 16, 3, *FULL, device=META)
    with torch.inference_mode():
        _, state = codec.decode(latents)
        kept = [tensor for tensor in state if torch.is_tensor(tensor)]
        with Peak([*vae.first_stage_model.parameters(), latents, *kept]) as peak:
            _, next_state = codec.decode(latents, state)
    state_bytes = sum(tensor.nbytes for tensor in next_state if torch.is_tensor(tensor))
    assert state_bytes == decode_state_bytes("wan", 96, 832 * 480, dtype.itemsize)
    request = PlanRequest(vae_dtype=str(dtype).removeprefix("torch."))
    planned = sizes.working_bytes(request, stored="plain")["decode"]
    assert peak.bytes - state_bytes <= planned
    assert load_vae().memory_used_decode((1, 16, 1, *FULL), dtype) <= planned
