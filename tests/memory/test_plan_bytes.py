"""The bytes that a plan counts, held against tensors: of tiny models, and of the published sizes without memory."""

import math
from dataclasses import replace

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import CacheSlots, Fp8KVCache, KVCache
from sdvg_core.causal_wan.config import CONTROL_BLOCKS, PUBLISHED_CONFIGS, WanConfig, wan_shapes
from sdvg_core.causal_wan.context import Model, Wan
from sdvg_core.causal_wan.forward import ControlBranch, Pass, denoise_pass, project_text, token_grid
from sdvg_core.causal_wan.modules import ControlTree, WanTree
from sdvg_core.decoders.open import LIGHT_BASE
from sdvg_core.decoders.taehv import Taehv, TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec, empty_wan_vae
from sdvg_core.engine.inputs import Control
from sdvg_core.errors import BadInput
from sdvg_core.loading.convert import Conversion, open_source
from sdvg_core.memory import sizes
from sdvg_core.memory.sizes import LAYER, PlanRequest
from sdvg_core.scorers.blip import HEAD, scorer_parameters, used_shapes
from sdvg_core.scorers.preprocess import preprocess
from sdvg_core.settings.context import Recompute, Rolling
from sdvg_core.settings.execution import Execution
from sdvg_core.weights.growing_file import bytes_of
from sdvg_core.weights.kitchen import FORMATS
from tests.support.live_bytes import Peak, tensors_of
from tests.support.random_models import SCALES, codec_of, random_models, tensor_bytes

META = torch.device("meta")
CPU = torch.device("cpu")
FULL = PlanRequest()
TINY = SCALES["tiny"]


@pytest.mark.parametrize("name, parameters", [("1.3B", 1_418_996_800), ("14B", 14_288_491_584)])
def test_published_sizes_have_these_parameters(name, parameters):
    with META:
        tree = WanTree(PUBLISHED_CONFIGS[name])
    assert sum(p.numel() for p in tree.parameters()) == PUBLISHED_CONFIGS[name].parameters == parameters
    assert sizes.wan_bytes(PUBLISHED_CONFIGS[name], 2) == 2 * parameters
    linear = sum(p.numel() for n, p in tree.named_parameters() if p.ndim == 2)
    assert sizes.wan_bytes(PUBLISHED_CONFIGS[name], 2, stored="fp8") == 2 * parameters - linear


@pytest.mark.parametrize("form", ["int8", "w4a8"])
def test_converted_weights_take_the_bytes_of_their_file(form, tmp_path):
    """Catches scales that are not counted, and layers that `convert` leaves as they are."""
    pytest.importorskip("comfy_kitchen")
    config = WanConfig(dim=128, ffn_dim=320, num_layers=2, num_heads=1, text_dim=48)
    weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in wan_shapes(config).items()}
    save_file(weights, tmp_path / "wan.safetensors")
    source = open_source(tmp_path / "wan.safetensors")
    groups = Conversion(source=source, form=FORMATS[form], device=CPU).groups
    tensors = {name: info for group in groups for name, info in group.items()}
    stored = sum(bytes_of(info) for name, info in tensors.items() if not name.endswith("comfy_quant"))
    assert sizes.wan_bytes(config, 2, stored=form) == stored
    layer = sum(bytes_of(info) for name, info in tensors.items() if name.startswith(LAYER) and "quant" not in name)
    assert sizes.wan_bytes(config, 2, LAYER, stored=form) == layer


@pytest.mark.parametrize(("form", "gigabytes"), [("int8", 14.6), ("w4a8", 8.4)])
def test_converted_target_takes_half_or_less(form, gigabytes):
    assert sizes.weight_bytes(FULL, stored=form)["target"] / 1e9 == pytest.approx(gigabytes, abs=0.1)
    assert sizes.weight_bytes(FULL, stored=form)["drafter"] == sizes.weight_bytes(FULL, stored="plain")["drafter"]


@pytest.mark.parametrize("form", ["fp8", "int8", "w4a8"])
def test_both_models_take_the_same_from_a_format(form):
    """The published target in the drafter's place. Catches a buffer or scale that one of the two lacks.

    With a small VAE, as else encoding an anchor takes more than a pass.
    """
    twins = replace(FULL, drafter=FULL.target, drafter_stored=form, vae_base=8)
    counted = sizes.Sizes.of(twins, stored=form)
    assert counted.weights["drafter"] == counted.weights["target"]
    assert counted.layers["drafter"] == counted.layers["target"]
    assert counted.working["draft"] == counted.working["target"]


SMALL_VAE = replace(FULL, vae_base=8)
"""With the published VAE, encoding an anchor takes more than a pass."""
CONFIG = FULL.target.config
LARGEST = CONFIG.dim * CONFIG.ffn_dim
INPUTS = 3 * 1560 * CONFIG.ffn_dim


@pytest.mark.parametrize(("form", "extra"), [("fp8", 2 * LARGEST), ("int8", INPUTS), ("w4a8", INPUTS + LARGEST)])
def test_stored_weights_are_unpacked_one_by_one(form, extra):
    """Catches: room for a weight that is cast up, or for whole inputs in int8, forgotten or counted for others."""
    plain = sizes.working_bytes(SMALL_VAE, stored="plain")
    counted = sizes.working_bytes(SMALL_VAE, stored=form)
    assert counted["target"] - plain["target"] == extra
    assert counted["draft"] == plain["draft"]


@pytest.mark.parametrize(
    ("context", "kv_dtype", "window"),
    [
        (Recompute(), "auto", {}),
        (Rolling(window=12), "auto", {}),
        (Rolling(window=12, relative=True), "auto", {"turned": 12}),
        (Rolling(window=12), "float8_e4m3fn", {"read": 12}),
    ],
    ids=["recompute", "rolling", "relative", "fp8"],
)
def test_window_is_counted_where_it_is_copied(context, kv_dtype, window):
    """Catches: room for keys that are rotated later, or read back from fp8, forgotten or counted for others."""
    target = replace(FULL.target, preset=replace(FULL.target.preset, context=context))
    request = replace(SMALL_VAE, target=target, execution=Execution(kv_dtype=kv_dtype))
    counted = sizes.working_bytes(request, stored="plain")["target"]
    assert counted == sizes.pass_bytes(CONFIG, 3, 1560, 2, **window)


def test_draft_has_a_decoder_state_of_its_own():
    """While it is decoded and scored, beside the committed one."""
    counted = sizes.Sizes.of(FULL, stored="plain")
    phases = sizes.phase_parts(FULL, counted)
    state = counted.states["vae state"]
    states = {phase: parts["vae state"] for phase, parts in phases.items()}
    assert states == {"draft": state, "decode": 2 * state, "score": 2 * state, "target": state}


@pytest.mark.parametrize("vae_dtype, reward_dtype", [("float32", "float32"), ("float16", "float16")])
def test_tiny_models_take_the_planned_bytes(vae_dtype, reward_dtype):
    request = replace(TINY, vae_dtype=vae_dtype, reward_dtype=reward_dtype)
    for stored, fp8 in [("plain", None), ("fp8", "stored")]:
        models = random_models(request, CPU, fp8=fp8)
        weights = {name: tensor_bytes(module) for name, module in models.parts}
        assert weights == sizes.weight_bytes(request, stored=stored)


@pytest.mark.parametrize("word", [True, False, "fp8"])
def test_random_models_refuse_an_unknown_fp8(word):
    """Catches: models in plain numbers that a test takes for fp8."""
    with pytest.raises(BadInput, match="fp8"):
        random_models(TINY, CPU, fp8=word)


def test_tiny_states_take_the_planned_bytes():
    request = replace(TINY, vae_dtype="float32", reward_dtype="float32")
    models = random_models(request, CPU)
    planned = sizes.state_bytes(request)
    text = project_text(models.drafter, models.condition.embedding, TorchOps(torch.float32))
    assert planned["drafter text keys and values"] == nbytes(tree_leaves(text))
    _, state = codec_of(models.vae).decode(torch.zeros(1, 16, 3, request.height // 8, request.width // 8))
    assert planned["vae state"] == nbytes(state)


def nbytes(values):
    """Return the bytes of those values that are tensors."""
    return sum(value.nbytes for value in values if torch.is_tensor(value))


@pytest.mark.parametrize("reward", [FULL.reward, TINY.reward], ids=["published", "tiny"])
def test_scorer_parameters_are_those_of_its_modules(reward):
    counts = {name: math.prod(shape) for name, shape in used_shapes(reward).items()}
    head = sum(count for name, count in counts.items() if name.startswith(HEAD))
    assert scorer_parameters(reward) == (sum(counts.values()) - head, head)


class FlashOps(TorchOps):
    """Attention as an accelerator's kernel does it: nothing but its result."""

    def attention(self, q, k, v):
        return torch.empty_like(q).flatten(2)


@pytest.mark.heavy
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", [KVCache, Fp8KVCache])
@pytest.mark.parametrize("size", PUBLISHED_CONFIGS)
@torch.inference_mode()
def test_real_pass_peaks_as_planned(size, kind, turned):
    """Catches: a window that is rotated or read back from fp8 all at once, or a wide one not counted.

    The plan is for ComfyUI 0.33 too, whose feed-forward layer holds one width more than ours.
    """
    config = PUBLISHED_CONFIGS[size]
    frames = {"1.3B": 21, "14B": 27}[size] if turned or (kind is Fp8KVCache and size == "14B") else 6
    with META:
        tree = WanTree(replace(config, num_layers=4)).to(torch.bfloat16)
        x = torch.empty(1, 16, 3, 60, 104)
    ops = FlashOps(torch.bfloat16)
    cache = kind(tree, frames, 1560, torch.bfloat16, META)
    text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
    model = Model(
        wan=Wan(tree=tree, ops=ops, preset=FULL.target.preset, device=META),
        text_of=lambda _: text,
        rope=lambda first, grid: ops.rope(tree, first, grid, META),
        before_pass=lambda _: None,
    )
    positions = [tuple((slot + 6) % frames for slot in range(frames))] if turned else []
    slots = (0, 1, 2) if turned else (frames - 3, frames - 2, frames - 1)
    place = model.pass_at(CacheSlots(frames - 3, slots, frames, *positions), cache, None, x)
    with Peak([*tree.parameters(), x, *tree_leaves(place.rope), *tree_leaves(text), *tensors_of(cache)]) as peak:
        denoise_pass(tree, x, 500.0, place)
    read = frames if kind is Fp8KVCache else 0
    planned = sizes.pass_bytes(config, 3, 1560, 2, read=read, turned=frames if turned else 0)
    assert 0.94 * planned <= peak.bytes <= planned
    if read == 27:
        assert planned > 1.3 * sizes.pass_bytes(config, 3, 1560, 2)


@pytest.mark.heavy
@pytest.mark.parametrize("size", PUBLISHED_CONFIGS)
@torch.inference_mode()
def test_real_pass_with_control_peaks_as_planned(size):
    """Catches: the model's own tokens, or the control's, not counted."""
    config = PUBLISHED_CONFIGS[size]
    with META:
        tree = WanTree(config).to(torch.bfloat16)
        module = ControlTree(config, CONTROL_BLOCKS[size]).to(torch.bfloat16)
        x = torch.empty(1, 16, 3, 60, 104)
        control = Control(torch.empty(1, 96, 3, 60, 104))
    ops = FlashOps(torch.bfloat16)
    cache = KVCache(tree, 6, 1560, torch.bfloat16, META)
    text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops, module.vace_blocks)
    rope = ops.rope(tree, 3, token_grid(tree, x.shape[2:]), META)
    weights = [*tree.parameters(), *module.parameters(), x, control.context, *rope]
    with Peak([*weights, *tree_leaves(text), *tensors_of(cache)]) as peak:
        branch = ControlBranch(module, config.num_layers, text[config.num_layers :], [control], ops)
        denoise_pass(tree, x, 500.0, Pass(text, cache, CacheSlots(3, (3, 4, 5), 6), rope, ops, control=branch))
    without_control = sizes.pass_bytes(config, 3, 1560, 2)
    planned = without_control + int(3 * 1560 * sizes.CONTROL_WIDTHS * config.dim) * 2
    assert without_control < peak.bytes
    assert 0.94 * planned <= peak.bytes <= planned


@pytest.mark.parametrize("role, size", [("drafter", "1.3B"), ("target", "14B")])
def test_control_weights_are_planned(role, size):
    """Of the published modules. Catches: a module that a plan forgets."""
    plain = PlanRequest()
    request = replace(plain, **{role: replace(plain.models[role], control_blocks=CONTROL_BLOCKS[size])})
    module_bytes = {"1.3B": 0.735e9, "14B": 3.049e9}[size] * 2
    assert sizes.weight_bytes(request, stored="plain")[f"{role} control"] == pytest.approx(module_bytes, rel=1e-3)
    text = f"{role} text keys and values"
    growth = sizes.state_bytes(request)[text] / sizes.state_bytes(plain)[text]
    assert growth == pytest.approx(1 + CONTROL_BLOCKS[size] / plain.models[role].config.num_layers)


def real_codec(dtype: str, layers: str) -> WanCodec:
    vae = AutoencoderKLWan()
    for parameter in vae.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return WanCodec(vae, temporal_stride=4, spatial_stride=8, layers=layers)


@pytest.mark.heavy
@torch.inference_mode()
def test_real_vae_peaks_as_planned():
    """On a CPU's tensors without memory: unlike `meta`, its convolutions return channels last, as real ones do.

    All in one test, for it may need a process of its own (`conftest.py`).
    """
    for dtype, layers in zip(["float16", "float32"], sizes.DECODE, strict=True):
        request = replace(FULL, vae_dtype=dtype, execution=Execution(vae_layers=layers))
        with FakeTensorMode():
            codec = real_codec(dtype, layers)
            z = torch.empty(1, 16, 3, 60, 104)
            frame = torch.empty(1, 1, 3, 480, 832)
            _, state = codec.decode(z)
            held = [*tensors_of(codec), z, frame, *state]
            with Peak(held) as decoding:
                _, new_state = codec.decode(z, state)
            with Peak(held) as encoding:
                codec.encode(frame)
        assert nbytes(new_state) == sizes.state_bytes(request)["vae state"]
        to_decode = sizes.working_bytes(request, stored="plain")["decode"]
        assert decoding.bytes == pytest.approx(nbytes(new_state) + to_decode, rel=0.01)
        to_encode = sizes.ENCODE_VALUES[layers] * FULL.pixels * request.itemsize("vae_dtype")
        assert encoding.bytes == pytest.approx(to_encode, rel=0.01)


@torch.inference_mode()
def test_real_scoring_peaks_as_planned():
    """Of a draft. Catches: a resize that gathers or rounds more at once than is planned."""
    frames = torch.empty(12, 3, 480, 832, device=META)
    anchors = torch.empty(3, 3, 480, 832, device=META)
    previous = frames.nbytes + anchors.nbytes
    with Peak() as peak:
        peak.count(frames)
        preprocess(frames, FULL.reward.image_size)
    planned = sizes.working_bytes(FULL, stored="plain")["score"]
    assert peak.bytes + previous == pytest.approx(planned, rel=0.01)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@torch.inference_mode()
def test_real_taehv_peaks_as_planned(dtype):
    with META:
        net = Taehv(16, (256, 128, 64, 64), (64, 64, 64, 64)).to(getattr(torch, dtype)).requires_grad_(False)
        z = torch.empty(1, 16, 3, 60, 104)
    codec = TaehvCodec(net, kind="taew2_1", channels_last=True)
    request = replace(FULL, vae="tae", vae_dtype=dtype)
    assert sizes.weight_bytes(request, stored="plain")["vae"] == nbytes(net.parameters())
    _, state = codec.decode(z)
    with Peak([*tensors_of(codec), z, *state]) as peak:
        _, new_state = codec.decode(z, state)
    assert nbytes(new_state) == sizes.state_bytes(request)["vae state"]
    planned = sizes.working_bytes(request, stored="plain")["decode"]
    least = 0.96 if torch.__version__.startswith("2.6.") else 0.99  # the oldest takes 4 % less than newer ones
    assert least * planned < peak.bytes - nbytes(new_state) < 1.01 * planned


def test_light_vae_takes_a_quarter_of_the_bytes():
    """The same network at a quarter of the width: so of its state; its weights as its module counts them."""
    full = replace(FULL, vae_dtype="float32")
    light = replace(full, vae="lightvae")
    parameters = sum(parameter.numel() for parameter in empty_wan_vae(base_dim=LIGHT_BASE).parameters())
    assert sizes.weight_bytes(light, stored="plain")["vae"] == 4 * parameters
    state_ratio = sizes.state_bytes(light)["vae state"] / sizes.state_bytes(full)["vae state"]
    assert state_ratio == pytest.approx(1 / 4, rel=0.01)
