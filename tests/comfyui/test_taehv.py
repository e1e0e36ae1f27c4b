"""Our TAEHV against ComfyUI's own class, whole and in pieces, with its module's own weights."""

from __future__ import annotations

import math
from typing import Any

import comfy.sd
import comfy.utils
import pytest
import torch
from comfy.latent_formats import Wan21
from comfy.taesd.taehv import TAEHV
from host_tiny import generator_of
from safetensors.torch import save_file
from sdvg_pack.sdvg_core.decoders.taehv import TaehvCodec, load_taehv, taehv_from_weights
from torch import Tensor

pytestmark = pytest.mark.comfyui

SIZE = (3, 5)
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def module() -> Any:
    """ComfyUI's module, of the published sizes, with weights under which colours lie in [0, 1]."""
    module = TAEHV(latent_channels=16, latent_format=None).eval().requires_grad_(False)
    g = generator_of(0)
    for name, weight in module.named_parameters():
        gain = 0.25 if name == "decoder.22.weight" else 0.7 if ".conv.4." in name else 1.2
        scale = gain / math.sqrt(weight[0].numel()) if weight.ndim > 1 else 0.2
        weight.copy_(torch.randn(weight.shape, generator=g) * scale + 0.5 * (name == "decoder.22.bias"))
    return module


def codec_of(module: Any, **options: Any) -> TaehvCodec:
    return taehv_from_weights(module.state_dict(), **{"kind": "taew2_1", **options})


def draw(frames: int, seed: int = 1) -> Tensor:
    return torch.randn(1, 16, frames, *SIZE, generator=generator_of(seed))


def in_pieces(codec: TaehvCodec, latents: Tensor, cut: list[int]) -> Tensor:
    state, shown = None, []
    for piece in latents.split(cut, dim=2):
        frames, state = codec.decode(piece, state)
        shown.append(frames)
    return torch.cat(shown, dim=1)


def theirs(module: Any, latents: Tensor, parallel: bool) -> Tensor:
    module.parallel = parallel
    with torch.inference_mode():
        frames: Tensor = module.decode(latents).movedim(1, 2).clamp(0, 1)
    return frames


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("cut", [[7], [3, 3, 1], [1] * 7], ids=str)
def test_pixels_are_those_of_comfyuis_own_class(module: Any, parallel: bool, cut: list[int]) -> None:
    expected = theirs(module, draw(7), parallel)
    made = in_pieces(codec_of(module), draw(7), cut)
    assert made.shape == expected.shape == (1, 25, 3, 24, 40)
    assert expected.std() > 0.1
    assert (made - expected).abs().max() < ROUNDING


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("count", [1, 5, 13])
def test_latents_are_those_of_comfyuis_own_class(module: Any, parallel: bool, count: int) -> None:
    frames = torch.rand(1, count, 3, 24, 40, generator=generator_of(4))
    module.parallel = parallel
    with torch.inference_mode():
        expected = module.encode(frames.movedim(2, 1))
    made = codec_of(module).encode(frames)
    assert made.shape == expected.shape == (1, 16, 1 + count // 4, *SIZE)
    assert (made - expected).abs().max() < ROUNDING


def test_half_precision_is_the_same_picture(module: Any) -> None:
    made, _ = codec_of(module, dtype=torch.float16).decode(draw(3))
    assert (made - theirs(module, draw(3), parallel=True)).abs().max() < 0.02


@pytest.fixture(scope="module")
def light_file(module: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("taehv") / "lighttaew2_1.safetensors"
    save_file(module.state_dict(), path)
    return str(path)


def test_lighttaew2_1_shows_what_vae_decode_shows_for_the_same_latent(light_file: str) -> None:
    """A file in float32 is scaled rightly there: nothing is done to a LATENT, which is not normalised."""
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(light_file))
    codec = load_taehv(light_file)
    with torch.inference_mode():
        shown = vae.decode(Wan21().process_out(draw(4))).reshape(1, 13, 24, 40, 3).movedim(-1, 2)
    assert codec.kind == "lighttaew2_1"
    assert codec.dtype == vae.vae_dtype == torch.float32
    assert shown.min() < 0 < 1 < shown.max()
    assert (codec.decode(draw(4))[0] - shown.clamp(0, 1)).abs().max() < ROUNDING


def test_the_weights_of_a_vae_socket_make_the_same_codec(light_file: str) -> None:
    """A node takes the weights that ComfyUI has loaded, and is told the kind."""
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(light_file))
    codec = taehv_from_weights(vae.first_stage_model.state_dict(), kind="lighttaew2_1")
    assert torch.equal(codec.decode(draw(4))[0], load_taehv(light_file).decode(draw(4))[0])
