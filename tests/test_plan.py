"""What fits where: bytes against exact counts, seconds against the published ones behind them, the choices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from sdvg_core.bench.models import Random, codec_of, random_models, random_wan, tensor_bytes
from sdvg_core.bench.scales import SCALES
from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import KVCache, Place
from sdvg_core.causal_wan.config import PUBLISHED, WAN_1_3B, WAN_14B
from sdvg_core.causal_wan.forward import denoise_pass, project_text, token_grid
from sdvg_core.causal_wan.fp8_cache import Fp8KVCache
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.cli import main
from sdvg_core.decoders import WanCodec
from sdvg_core.decoders.wan_vae_sizes import WAN_MEAN, WAN_STD
from sdvg_core.plan import PlanRequest, plan, plan_text, sizes, work
from sdvg_core.plan.rates import BLOCK_DRAFT, BLOCK_TARGET, H100, PAPER_DECODE, PAPER_DRAFT, PAPER_TARGET
from sdvg_core.plan.setting import Setting, Sizes, settings, step_parts

GB = 10**9
META, CPU = torch.device("meta"), torch.device("cpu")
FULL = PlanRequest()
TINY = SCALES["tiny"].request
USUAL = (12, 16, 24, 32, 48, 80)


# --- bytes, counted


@pytest.mark.parametrize("name, parameters", [("1.3B", 1_418_996_800), ("14B", 14_288_491_584)])
def test_the_published_sizes_have_so_many_parameters(name, parameters):
    with META:
        tree = WanTree(PUBLISHED[name])
    assert sum(p.numel() for p in tree.parameters()) == parameters
    assert sizes.wan_bytes(PUBLISHED[name], 2) == 2 * parameters
    linear = sum(p.numel() for n, p in tree.named_parameters() if p.ndim == 2)
    assert sizes.wan_bytes(PUBLISHED[name], 2, fp8=True) == 2 * parameters - linear


def test_the_window_of_the_14b_at_832x480_is_7_point_7_gigabytes():
    assert sizes.frame_tokens(832, 480) == 1560
    held = sizes.state_bytes(FULL)
    assert held["target keys and values"] == 7_667_712_000
    assert held["drafter keys and values"] == 1_725_235_200
    assert held["target text keys and values"] == 419_430_400
    assert held["vae state"] == 944_286_720 * 2


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_tiny_models_take_the_bytes_that_are_planned(dtype, fp8):
    request = replace(TINY, dtype=dtype)
    tree = random_wan(request.target, getattr(torch, dtype), Random(CPU, 0), fp8=fp8)
    assert tensor_bytes(tree) == sizes.weight_bytes(request, fp8=fp8)["target"]


@pytest.mark.parametrize("vae_dtype, reward_dtype", [("float32", "float32"), ("float16", "float16")])
def test_every_model_and_state_of_a_tiny_run_takes_the_bytes_that_are_planned(vae_dtype, reward_dtype):
    request = replace(TINY, vae_dtype=vae_dtype, reward_dtype=reward_dtype)
    models = random_models(request, CPU)
    assert models.weights == sizes.weight_bytes(request, fp8=False)
    held = sizes.state_bytes(request)
    cache = KVCache(models.target, 6, sizes.frame_tokens(request.width, request.height), torch.float32, CPU)
    assert held["target keys and values"] == sum(t.nbytes for t in tree_leaves(cache._layers))
    text = project_text(models.drafter, models.condition.embedding, TorchOps(torch.float32))
    assert held["drafter text keys and values"] == sum(t.nbytes for t in tree_leaves(text))
    codec = codec_of(models.vae)
    if vae_dtype == "float32":  # a CPU is slow in half precision, and its state has the same shape
        _, state = codec.decode(torch.zeros(1, 16, 3, request.height // 8, request.width // 8))
        assert held["vae state"] == sum(t.nbytes for t in state if torch.is_tensor(t))


def test_the_text_encoder_has_so_many_parameters():
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=256384,
        d_model=4096,
        d_kv=64,
        d_ff=10240,
        num_layers=24,
        num_heads=64,
        feed_forward_proj="gated-gelu",
    )
    with META:
        encoder = UMT5EncoderModel(config)
    assert sum(p.numel() for p in encoder.parameters()) == sizes.TEXT_ENCODER_PARAMETERS


class Peak(TorchDispatchMode):
    """The most bytes alive at once among the tensors made while it is on."""

    def __init__(self, there_before):
        super().__init__()
        self.before = {t.untyped_storage()._cdata for t in there_before if torch.is_tensor(t)}
        self.alive = {}
        self.bytes = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if torch.is_tensor(t) and t.untyped_storage()._cdata not in self.before:
                storage = t.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: (ref, n) for key, (ref, n) in self.alive.items() if not ref.expired()}
        self.bytes = max(self.bytes, sum(n for _, n in self.alive.values()))
        return out


class FlashOps(TorchOps):
    """Attention as an accelerator's kernel does it: nothing but its result."""

    def attention(self, q, k, v):
        return torch.empty_like(q).flatten(2)


@pytest.mark.heavy
@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B], ids=["1.3B", "14B"])
@torch.inference_mode()
def test_a_pass_of_the_real_sizes_needs_what_is_planned_for_a_while(config):
    with META:
        tree = WanTree(config).to(torch.bfloat16)
    ops, x = FlashOps(torch.bfloat16), torch.empty(1, 16, 3, 60, 104, device=META)
    cache = KVCache(tree, 6, 1560, torch.bfloat16, META)
    text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
    rope = ops.rope(tree, 3, token_grid(tree, x.shape[2:]), META)
    with Peak([*tree.parameters(), x, *rope, *tree_leaves(text), *tree_leaves(cache._layers)]) as peak:
        denoise_pass(tree, x, 500.0, text, cache, Place(3, (3, 4, 5), 6), rope, ops)
    assert peak.bytes == pytest.approx(sizes.pass_bytes(config, 3, 1560, 2), rel=0.01)


@pytest.mark.heavy
@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B], ids=["1.3B", "14B"])
@pytest.mark.parametrize("frames", [6, 27])
@torch.inference_mode()
def test_reading_a_window_back_from_fp8_needs_no_more_than_is_planned(config, frames):
    """Catches: a wide window's keys and values, in the activations' dtype for one layer at a time, not counted."""
    with META:
        tree = WanTree(config).to(torch.bfloat16)
    ops, x = FlashOps(torch.bfloat16), torch.empty(1, 16, 3, 60, 104, device=META)
    cache = Fp8KVCache(tree, frames, 1560, torch.bfloat16, META)
    text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
    slots = (frames - 3, frames - 2, frames - 1)
    rope = ops.rope(tree, frames - 3, token_grid(tree, x.shape[2:]), META)
    with Peak([*tree.parameters(), x, *rope, *tree_leaves(text), *cache._buffers()]) as peak:
        denoise_pass(tree, x, 500.0, text, cache, Place(slots[0], slots, frames), rope, ops)
    planned = sizes.pass_bytes(config, 3, 1560, 2, read=frames)
    assert 0.85 * planned < peak.bytes <= planned
    if frames == 27:
        assert planned > 1.3 * sizes.pass_bytes(config, 3, 1560, 2)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@torch.inference_mode()
def test_the_real_vae_needs_the_memory_and_the_work_that_is_planned(dtype):
    from diffusers import AutoencoderKLWan

    with META:
        vae = AutoencoderKLWan()
        for parameter in vae.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))
    codec = WanCodec(vae, mean=WAN_MEAN, std=WAN_STD, temporal_stride=4, spatial_stride=8)
    z = torch.empty(1, 16, 3, 60, 104, device=META)
    request = replace(FULL, vae_dtype=dtype)
    with FlopCounterMode(display=False) as first:
        _, state = codec.decode(z)
    there = [*vae.parameters(), codec._mean, codec._std, z, *state]
    with FlopCounterMode(display=False) as later, Peak(there) as peak:
        _, after = codec.decode(z, state)
    new = sum(t.nbytes for t in after if torch.is_tensor(t))
    assert new == sizes.state_bytes(request)["vae state"]
    planned = sizes.working_bytes(request, fp8=False)["decode"]
    assert peak.bytes == pytest.approx(new + planned, rel=0.01)
    assert later.get_total_flops() == pytest.approx(work.decode_operations(request), rel=0.01)
    assert first.get_total_flops() == pytest.approx(work.decode_operations(request, first=True), rel=0.01)
    frame = torch.empty(1, 1, 3, 480, 832, device=META)
    with FlopCounterMode(display=False) as encode, Peak([*there, frame]) as peak:
        codec.encode(frame)
    assert encode.get_total_flops() == pytest.approx(work.ENCODE_OPERATIONS * FULL.pixels, rel=0.01)
    assert peak.bytes == pytest.approx(sizes.ENCODE_VALUES * FULL.pixels * request.itemsize("vae_dtype"), rel=0.01)


# --- seconds, from published ones


def video_operations(role: str, steps: int) -> float:
    config, preset = FULL.models[role]
    later, first = (work.block_operations(config, preset, steps, 1560, first=first) for first in (False, True))
    return 8 * later + first


def test_the_rates_rest_on_the_work_that_is_counted_here():
    assert video_operations("target", 5) == pytest.approx(PAPER_TARGET * 1e12, rel=1e-3)
    assert video_operations("drafter", 5) == pytest.approx(PAPER_DRAFT * 1e12, rel=1e-3)
    decode = 8 * work.decode_operations(FULL) + work.decode_operations(FULL, first=True)
    assert decode == pytest.approx(PAPER_DECODE * 1e12, rel=1e-3)
    for role, operations in (("target", BLOCK_TARGET), ("drafter", BLOCK_DRAFT)):
        config, preset = FULL.models[role]
        assert work.block_operations(config, preset, 4, 1560) == pytest.approx(operations * 1e12, rel=1e-3)


@pytest.mark.parametrize("role, seconds", [("target", 97.0), ("drafter", 25.7)])
def test_the_rates_of_the_a6000_give_back_the_papers_seconds(role, seconds):
    request = replace(FULL, steps=5)
    step = work.step_seconds(request, fp8=False)
    encodes = 7 * work.ENCODE_OPERATIONS * FULL.pixels / FULL.rates.vae  # which the rates do not know of
    spent = 8 * (step[role] + step["decode"]) + step[f"first {role}"] + step["first decode"]
    assert spent - 8 / 7 * encodes == pytest.approx(seconds, rel=2e-3)


def test_the_rates_of_the_h100_give_back_the_published_frames_per_second():
    step = work.step_seconds(replace(FULL, rates=H100), fp8=False)
    anchor = work.ENCODE_OPERATIONS * FULL.pixels / H100.vae
    assert 12 / (step["target"] + step["decode"] - anchor) == pytest.approx(4.5, rel=2e-3)
    assert 12 / (step["drafter"] + step["decode"] - anchor) == pytest.approx(16, rel=2e-3)


def test_seconds_of_a_block_add_up_and_copying_is_shown():
    found = plan(24)
    step = work.step_seconds(found.request, fp8=True)
    seconds = found.seconds
    assert seconds.accepted == pytest.approx(step["drafter"] + step["decode"] + step["score"])
    extra = step["target"] + step["decode"] + seconds.copying
    assert seconds.rejected == pytest.approx(seconds.accepted + extra)
    away = sum(found.sizes.weights[name] for name in found.setting.away)
    streamed = 5 * found.streamed_share * found.sizes.weights["target"]
    assert seconds.copying == pytest.approx((away + streamed) / (found.request.pcie * GB))
    assert f"{seconds.copying:.1f} s of it copying at 20 GB/s" in plan_text(found)
    halved = plan(24, replace(FULL, pcie=10.0)).seconds.copying
    assert halved == pytest.approx(2 * seconds.copying)


# --- the choice


def test_the_plans_of_the_usual_sizes():
    found = {vram: plan(vram) for vram in USUAL}
    assert all(p.fits for p in found.values())
    assert [p.setting.fp8 for p in found.values()] == [True, True, True, True, False, False]
    assert [p.setting.stays for p in found.values()] == [False, False, False, True, True, True]
    assert found[48].peak < 48 * GB  # everything resident in bfloat16, as was promised


@pytest.mark.parametrize("vram", [11.5, 12, 14, 20, 23.9, 24, 30, 31, 44, 48, 139])
def test_no_plan_uses_more_than_there_is(vram):
    found = plan(vram)
    assert found.fits
    assert found.peak <= vram * GB
    target = found.parts["target"]
    assert target["target keys and values"] == 7_667_712_000
    assert target["target"] <= found.sizes.weights["target"]


def test_more_memory_never_makes_a_slower_plan():
    """Catches: a choice by layout instead of by time, and a streamed target that does not use the room it has."""
    seconds = [
        plan(vram).seconds.video for vram in (11.4, 12, 13, 15, 18, 21, 22.5, 24, 26, 28, 30, 33, 40, 45, 90)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.1 * seconds[-1]


def test_nothing_leaves_or_is_copied_where_everything_fits():
    found = plan(80)
    assert found.setting == Setting()
    assert found.seconds.copying == 0
    assert found.streamed_share == 0


def test_what_leaves_is_gone_while_the_target_works_and_there_again_after():
    of = Sizes.of(FULL, fp8=False)
    for setting in settings():
        parts = step_parts(FULL, of, setting)
        for name in ("drafter", "scorer", "vae state"):
            assert (name in parts["target"]) == (name not in setting.away)
            assert all(name in parts[step] for step in ("draft", "decode", "score"))
        assert "target" in parts["target"]
        assert ("target" in parts["draft"]) != setting.target_away


def test_a_draft_is_decoded_and_judged_beside_the_state_it_may_not_replace():
    parts, state = plan(80).parts, sizes.state_bytes(FULL)["vae state"]
    assert {step: held["vae state"] // state for step, held in parts.items()} == {
        "draft": 1, "decode": 2, "score": 2, "target": 1,
    }  # fmt: skip


def test_a_window_that_is_kept_between_blocks_lies_there_in_every_step():
    request = replace(FULL, drafter_preset=get_preset("longlive"))
    parts = step_parts(request, Sizes.of(request, fp8=False), Setting())
    kept = 2 * 30 * 12 * 1560 * 1536 * 2
    assert all(step["drafter keys and values"] == kept for step in parts.values())
    assert "target keys and values" not in parts["draft"]


def test_what_does_not_fit_says_what_is_missing_and_what_would_fit():
    found = plan(8)
    assert not found.fits
    assert found.seconds is None
    assert found.missing == found.peak - 8 * GB > 0
    assert found.would_fit is not None
    width, height = found.would_fit
    assert plan(8, replace(FULL, width=width, height=height)).fits
    text = plan_text(found)
    assert "Does not fit" in text
    assert f"It would fit at {width}x{height}" in text
    assert "No size of that shape would fit" in plan_text(plan(1))


def test_a_larger_video_needs_more():
    assert plan(80, replace(FULL, width=1280, height=720)).peak > 1.3 * plan(80).peak


# --- the command


def test_the_command_prints_a_line_for_every_size_where_there_is_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == [str(vram) for vram in USUAL]
    assert "everything stays" in lines[5]
    assert "arXiv 2604.17397" in lines[7]


def test_a_machines_gpu_is_planned_for_if_nothing_else_is_asked(capsys, monkeypatch):
    class Properties:
        total_memory = 24 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 PCIe")
    assert main(["plan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["vram_gb"], found["rates"]) == (24, "h100")
    assert found["target_weights"] == "float8_e4m3fn"


def test_the_json_holds_bytes_seconds_and_their_sources(capsys):
    assert main(["plan", "--vram", "16", "8", "--json", "--width", "640", "--height", "352"]) == 0
    fits, small = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert set(fits["bytes"]) == {"draft", "decode", "score", "target"}
    assert set(fits["seconds"]) == {"accepted", "rejected", "forced", "copying", "video"}
    assert max(sum(step.values()) for step in fits["bytes"].values()) == fits["peak_bytes"]
    assert (fits["width"], fits["fits"], small["vram_gb"]) == (640, True, 8)
    assert "97.0 s" in fits["rates_source"]


def test_keys_and_values_in_fp8_make_room(capsys):
    asked = ["plan", "--vram", "80", "--json"]
    assert main(asked) == 0
    assert main([*asked, "--kv-dtype", "float8_e4m3fn"]) == 0
    whole, fp8 = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    names = ("target keys and values", "target text keys and values")
    assert [whole["bytes"]["target"][name] for name in names] == [7_667_712_000, 419_430_400]
    assert [fp8["bytes"]["target"][name] for name in names] == [3_893_760_000, 419_430_400]
    assert whole["peak_bytes"] - fp8["peak_bytes"] == 7_667_712_000 - 3_893_760_000


@pytest.mark.parametrize(
    "more, part",
    [
        (["--vram", "0"], "GB above 0"),
        (["--vram", "nan"], "GB above 0"),
        (["--width", "830"], "use 832"),
        (["--height", "-16"], "height"),
        (["--blocks", "0"], "blocks of at least 1"),
        (["--steps", "0"], "steps of at least 1"),
        (["--rejected", "1.5"], "rejected from 0 to 1"),
        (["--pcie", "0"], "pcie above 0"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main(["plan", "--vram", "24", *more] if more[0] != "--vram" else ["plan", *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]
