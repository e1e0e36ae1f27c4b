"""Each part of a run on a GPU against the same on the CPU, and what is a GPU's alone: streams, events, limits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.causal_wan.attention import choose_attention
from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.devices.device import DTYPES, begin_upload, device_clock
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.engine.inputs import KeyedNoise
from sdvg_core.engine.types import FiniteChecks, Span
from sdvg_core.errors import BadInput
from sdvg_core.scorers.preprocess import cut_squares, to_bytes
from sdvg_core.weights.quantized import multiply_in_fp8
from tests.support.random_models import PROMPT, TINY, Random, codec_of, fast_codec, random_models, random_wan

pytestmark = pytest.mark.gpu
needs_card = pytest.mark.needs_card
CPU = torch.device("cpu")
SPAN = Span(2, 6, 3)


def off(tensor: Tensor, expected: Tensor) -> float:
    """Return how far a tensor is off, as a share of the expected one's size."""
    return float((tensor.cpu().double() - expected.double()).norm() / expected.double().norm())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def frames(count: int, height: int = 480, width: int = 832) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def test_noise_is_uploaded_as_drawn(gpu):
    """Catches a copy that is still under way when the pinned memory is used again."""
    noise = KeyedNoise(seed=7, channels=16, height=60, width=104)
    copies = [begin_upload(noise.draw(SPAN, slot), gpu) for slot in range(32)]
    assert all(torch.equal(copy.cpu(), noise.draw(SPAN, slot)) for slot, copy in enumerate(copies))


def test_scorer_cuts_the_cpus_squares(gpu):
    expected = cut_squares(to_bytes(frames(2)), 224)
    assert torch.equal(cut_squares(to_bytes(frames(2).to(gpu)), 224).cpu(), expected)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("float16", 5e-3)])
def test_scores_equal_the_cpus(gpu, dtype, most):
    shown = frames(4, 64, 96)[None]
    plain = random_models(TINY, CPU).scorer
    state = {name: weight.to(gpu) for name, weight in plain.model.state_dict().items()}
    scorer = random_models(replace(TINY, reward_dtype=dtype), gpu).scorer
    kinds = {name: weight.dtype for name, weight in scorer.model.state_dict().items()}
    scorer.model.load_state_dict({name: weight.to(kinds[name]) for name, weight in state.items()})
    assert (scorer.score(shown.to(gpu), PROMPT) - plain.score(shown, PROMPT)).abs().max() < most


def test_nan_in_a_block_is_found(gpu):
    checks = FiniteChecks()
    bad = drawn(1, 3, 8, 8)
    bad[0, 1, 2, 3] = torch.nan
    checks.add(drawn(1, 16, 3, 8, 8).to(gpu), SPAN, "target latents")
    checks.add(bad.to(gpu), SPAN, "decoded frames")
    with pytest.raises(BadInput, match="block 3 has NaN or infinity in its decoded frames"):
        checks.read(torch.tensor(0.5, device=gpu))


def test_mp4_equals_the_cpus(gpu, tmp_path):
    pytest.importorskip("av")
    from sdvg_core.files.video import Mp4Writer

    written = []
    for name, device in (("cpu", CPU), ("gpu", gpu)):
        with Mp4Writer(tmp_path / name, 16) as video:
            for part in frames(12, 64, 96).split(4):
                shown = part.to(device)
                video.add(shown)
                shown.zero_()  # a copy that has not been made yet would be black
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


@needs_card
def test_events_measure_like_a_waiting_clock(gpu):
    """Catches events of another stream, milliseconds taken for seconds, and a clock that waits."""
    work = torch.randn(4096, 4096, device=gpu)
    events = device_clock(gpu)

    def waits() -> float:
        torch.cuda.synchronize(gpu)
        return time.perf_counter()

    work @ work
    began = events()
    waited = waits()
    for _ in range(40):
        work @ work
    before = time.perf_counter()
    ended = events()
    seconds_of_asking = time.perf_counter() - before
    seconds = waits() - waited
    assert float(ended - began) == pytest.approx(seconds, rel=0.1)
    assert seconds_of_asking < seconds / 2


def small_tree(gpu: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    return random_wan(replace(TINY.target.config, num_layers=4), dtype, Random(gpu, 0))


def passes(tree: Any, gpu: torch.device) -> Tensor:
    with torch.inference_mode():
        x = drawn(64, tree.dim).to(gpu)
        for _ in range(3):
            for block in tree.blocks:
                x = block(lambda layer, h: h + layer.ffn(layer.norm3(h)), x)
        return x


def test_streamed_layers_make_the_same_bits(gpu):
    tree = small_tree(gpu)
    whole = passes(tree, gpu)
    stream = LayerStream(list(tree.blocks)[1:], gpu)
    assert stream.bytes > 0
    assert torch.equal(passes(tree, gpu), whole)
    assert torch.equal(passes(tree, gpu), whole)


@needs_card
@pytest.mark.parametrize("name", ["cudnn", "sdpa"])
def test_attention_is_plain_arithmetic(gpu, name):
    q, k, v = (
        drawn(1, length, 4, 128, seed=seed).to(gpu, torch.bfloat16)
        for seed, length in ((0, 300), (1, 700), (2, 700))
    )
    try:
        kernel = choose_attention(name, device=gpu, dtype=torch.bfloat16, head_dim=128)
    except BadInput as refusal:
        pytest.skip(str(refusal))
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide).transpose(1, 2)
    assert off(kernel(q, k, v), wanted.cpu()) < 5e-3


def network(codec: Any) -> Any:
    return codec.net if isinstance(codec, TaehvCodec) else codec._vae


@pytest.fixture(scope="module", params=["tae", "lightvae", "wan"])
def codecs(request, gpu) -> list[Any]:
    """A decoder on the GPU and on the CPU, of the same weights."""
    pair: list[Any] = []
    for device in (gpu, CPU):
        if request.param == "wan":
            pair.append(codec_of(random_models(TINY, device).vae))
        else:
            pair.append(fast_codec(request.param, TINY, device, "diffusers", None))
    weights = network(pair[1]).state_dict()
    network(pair[0]).load_state_dict({name: weight.to(gpu) for name, weight in weights.items()})
    return pair


def test_decoders_make_the_cpus_pixels(gpu, codecs):
    on_gpu, on_cpu = codecs
    gpu_state: Any = None
    cpu_state: Any = None
    for part in drawn(1, 16, 5, 8, 12).split([3, 2], dim=2):
        pixels, gpu_state = on_gpu.decode(part.to(gpu), gpu_state)
        expected, cpu_state = on_cpu.decode(part, cpu_state)
        assert off(pixels, expected) < 1e-4


@needs_card
def test_compiled_stages_are_eager_to_rounding(gpu):
    from sdvg_core.devices.compiling import INDUCTOR, compiled

    layer = small_tree(gpu).blocks[0]
    x = drawn(96, layer.norm3.weight.shape[0]).to(gpu)

    def feed_forward(h: Tensor) -> Tensor:
        return h + layer.ffn(layer.norm3(h))

    with torch.inference_mode():
        assert off(compiled(feed_forward, INDUCTOR)(x), feed_forward(x).cpu()) < 1e-5


def test_fp8_weights_compute_like_the_cpus(gpu):
    tree = random_wan(TINY.target.config, torch.float32, Random(CPU, 0), fp8=True)
    x = drawn(8, TINY.target.config.dim)
    wanted = tree.blocks[0].self_attn.q(x)
    assert off(tree.to(gpu).blocks[0].self_attn.q(x.to(gpu)), wanted) < 1e-5
    assert DTYPES["float32"] == wanted.dtype


@needs_card
def test_products_in_fp8_are_those_of_rounded_rows(gpu):
    pytest.importorskip("torchao")
    tree = random_wan(TINY.target.config, torch.bfloat16, Random(CPU, 0))
    x = drawn(64, TINY.target.config.dim).bfloat16()
    wanted = tree.blocks[0].self_attn.q(x)
    fast = multiply_in_fp8(tree, gpu).blocks[0].self_attn.q(x.to(gpu))
    assert 0.01 < off(fast, wanted) < 0.06
