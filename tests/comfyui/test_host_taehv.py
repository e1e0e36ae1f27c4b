"""A TAEHV on the sampler's `vae`: ComfyUI's, and the one of SDVG Pocket Models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import comfy.sd
import pytest
import torch
from comfy.latent_formats import Wan21
from comfy.taesd.taehv import TAEHV
from host_run import Parts, make_job
from host_tiny import generator_of
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.host.vae import check_vae, codec_of
from sdvg_pack.nodes.pocket import PocketModels
from sdvg_pack.nodes.sockets import RouterValue, StartValue
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.decoders.open import load_vae
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_fast_vae

import nodes

pytestmark = pytest.mark.comfyui

ROUTE = "rardta"


@pytest.fixture(scope="module")
def tae() -> comfy.sd.VAE:
    return load_tae()


def load_tae(dtype: torch.dtype = torch.float32, *, encoder: bool = True) -> comfy.sd.VAE:
    """A TAEHV of the published sizes and random weights, as Load VAE returns it."""
    g = generator_of(7)
    empty = TAEHV(latent_channels=16).state_dict()
    weights = {name: torch.randn(w.shape, generator=g) * 0.7 / w[0].numel() ** 0.5 for name, w in empty.items()}
    weights = {name: w if w.ndim > 1 else 0.1 * w for name, w in weights.items()}
    weights["decoder.22.bias"] += 0.5
    named = {name: w.to(dtype) for name, w in weights.items() if encoder or name.startswith("decoder.")}
    return comfy.sd.VAE(sd=named)


def made(parts: Parts, **changes: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    frames, latent, report, _ = run_job(make_job(parts, script=ROUTE, **changes))
    return frames, latent["samples"], report


def test_a_taehv_alone_decodes_everything_and_the_report_says_so(parts: Parts, tae: comfy.sd.VAE) -> None:
    frames, _, report = made(replace(parts, vae=tae), tae_kind="taew2_1")
    assert frames.shape == (69, 32, 32, 3)
    assert float(frames.min()) >= 0
    assert report.settings["vae"]["tae_kind"] == "taew2_1"
    assert any("fast decoder (TAEHV)" in note for note in report.notes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_scaling_is_what_the_artist_states_whatever_the_dtype(dtype: torch.dtype) -> None:
    """ComfyUI takes a float16 file for HunyuanVideo's, and scales its latents; of float32 it shows a LATENT."""
    vae, latents = load_tae(dtype), torch.randn(1, 16, 2, 4, 4, generator=generator_of(1))
    shown = {kind: codec_of(vae, kind).decode(latents)[0] for kind in ("taew2_1", "lighttaew2_1")}
    assert not torch.equal(shown["taew2_1"], shown["lighttaew2_1"])
    if dtype == torch.float32:
        host = vae.decode(Wan21().process_out(latents)).reshape(1, 5, 32, 32, 3).movedim(-1, 2).clamp(0, 1)
        torch.testing.assert_close(shown["lighttaew2_1"], host, atol=1e-5, rtol=0)
    module = vae.first_stage_model
    plain = TAEHV(latent_channels=16)
    plain.load_state_dict(module.state_dict())
    frames = torch.rand(1, 9, 3, 32, 48, generator=generator_of(2))
    with torch.inference_mode():
        encoded = plain.to(vae.vae_dtype).encode(frames.to(vae.vae_dtype).movedim(2, 1)).float()
        theirs = plain.to(vae.vae_dtype).decode(latents.to(vae.vae_dtype)).float().movedim(2, 1).clamp(0, 1)
    rounding = 2e-3 if vae.vae_dtype == torch.float16 else 1e-5
    assert torch.allclose(shown["taew2_1"], theirs, atol=rounding)
    assert torch.allclose(codec_of(vae, "taew2_1").encode(frames), encoded, atol=rounding)


def test_a_taehv_of_unknown_kind_is_refused_in_one_sentence(parts: Parts, tae: comfy.sd.VAE) -> None:
    with pytest.raises(BadInput, match="set tae_kind to taew2_1 or lighttaew2_1"):
        check_vae(tae, "auto")
    check_vae(parts.vae, "auto")
    check_vae(tae, "lighttaew2_1")


# --- a file without an encoder, of which ComfyUI makes an encoder of what lay in memory


CLIP = torch.full((9, 32, 32, 3), 0.5)
SHORT = {"samples": torch.zeros(1, 16, 2, 4, 4)}
WAYS: dict[str, dict[str, Any]] = {
    "the start image": {"start_image": CLIP[:1]},
    "the clip to continue": {"start": StartValue(CLIP, "extend", "", "16 a second")},
    "the clip to restyle": {"start": StartValue(CLIP, "restyle", "medium", "16 a second")},
    "a clip shorter than a block": {"continue_from": SHORT},
}


@pytest.fixture(scope="module")
def half() -> comfy.sd.VAE:
    return load_tae(encoder=False)


def two_blocks(parts: Parts, vae: comfy.sd.VAE, *, incremental: bool = True, **more: Any) -> torch.Tensor:
    """Make a video of two blocks and return its frames. `incremental`: no context encodes pixels."""
    if incremental:
        rolling = get_preset("longlive-1.0")
        drafter, target = (attach_origin(one.clone(), preset=rolling) for one in (parts.drafter, parts.target))
        parts = replace(parts, drafter=drafter, target=target)
    router = RouterValue(RouterConfig(policy="first", forced_blocks=1), parts.scorer)
    frames, *_ = made(replace(parts, vae=vae), router=router, blocks=2, tae_kind="taew2_1", **more)
    return frames


def test_without_an_encoder_a_taehv_decodes_a_video_that_needs_none(parts: Parts, half: comfy.sd.VAE) -> None:
    assert two_blocks(parts, half).shape == (21, 32, 32, 3)
    with pytest.raises(BadInput, match="has no encoder"):
        codec_of(half, "taew2_1").encode(CLIP.movedim(-1, 1)[None])


@pytest.mark.parametrize("need", [*WAYS, "the target's context"])
def test_without_an_encoder_a_taehv_is_refused_where_one_is_needed(
    parts: Parts, half: comfy.sd.VAE, need: str
) -> None:
    with pytest.raises(BadInput, match=f"the VAE has no encoder, which {need} needs; give the Wan 2.1 VAE"):
        two_blocks(parts, half, incremental=need in WAYS, **WAYS.get(need, {}))


@pytest.mark.parametrize("need", WAYS)
def test_with_its_encoder_a_taehv_reads_every_start(parts: Parts, tae: comfy.sd.VAE, need: str) -> None:
    assert bool(two_blocks(parts, tae, **WAYS[need]).isfinite().all())


# --- the one of the pocket node


@pytest.fixture(scope="module")
def pocket() -> Any:
    """What the node puts out, by name."""
    names = [output.display_name for output in PocketModels.define_schema().outputs]
    assert names[-1] == "fast_vae"
    return SimpleNamespace(**dict(zip(names, PocketModels.execute(prompt=DEFAULT_PROMPT).args, strict=True)))


def test_vae_decode_shows_what_the_codec_shows(pocket: Any) -> None:
    """And the wire carries the kind, with `tae_kind` at auto."""
    latents = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (shown,) = nodes.VAEDecode().decode(pocket.fast_vae, {"samples": Wan21().process_out(latents)})
    expected, _ = load_vae(pocket_fast_vae()).decode(latents)
    assert shown.shape == (9, 64, 64, 3)
    assert torch.allclose(shown, expected[0].movedim(1, -1), atol=1e-4)
    assert torch.allclose(codec_of(pocket.fast_vae, "auto").decode(latents)[0], expected, atol=1e-4)
    (tiled,) = nodes.VAEDecodeTiled().decode(pocket.fast_vae, {"samples": Wan21().process_out(latents)}, 512)
    assert torch.equal(tiled, shown)


def test_a_kind_of_taehv_for_a_wan_vae_is_refused(parts: Parts) -> None:
    with pytest.raises(BadInput, match="vae is a Wan VAE, so tae_kind has no effect; set it to auto"):
        made(parts, tae_kind="taew2_1")


def test_a_kind_other_than_the_one_that_a_taehv_carries_is_refused(pocket: Any) -> None:
    """Catches: the wire's own kind, taken without a word."""
    check_vae(pocket.fast_vae, "taew2_1")
    with pytest.raises(BadInput, match="vae is a taew2_1, so tae_kind lighttaew2_1 has no effect; set it to auto"):
        check_vae(pocket.fast_vae, "lighttaew2_1")
