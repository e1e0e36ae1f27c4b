"""A fast decoder on the sampler's sockets: as judge, and as the only decoder."""

from __future__ import annotations

import io
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
from PIL import Image
from sdvg_pack.nodes.host.live import small
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.host.vae import check_decoders, codec_of
from sdvg_pack.nodes.pocket import PocketModels
from sdvg_pack.nodes.sockets import RouterValue
from sdvg_pack.sdvg_core.decoders.taehv import load_taehv
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_judge
from torchvision.transforms.functional import pil_to_tensor

import nodes

pytestmark = pytest.mark.comfyui

ROUTE = "rardta"


@pytest.fixture(scope="module")
def tae() -> comfy.sd.VAE:
    return load_tae()


def load_tae(dtype: torch.dtype = torch.float32) -> comfy.sd.VAE:
    """A TAEHV of the published sizes and random weights, as Load VAE returns it."""
    g = generator_of(7)
    empty = TAEHV(latent_channels=16).state_dict()
    weights = {name: torch.randn(w.shape, generator=g) * 0.7 / w[0].numel() ** 0.5 for name, w in empty.items()}
    weights = {name: w if w.ndim > 1 else 0.1 * w for name, w in weights.items()}
    weights["decoder.22.bias"] += 0.5
    return comfy.sd.VAE(sd={name: w.to(dtype) for name, w in weights.items()})


def made(parts: Parts, **changes: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    frames, latent, report, _ = run_job(make_job(parts, script=ROUTE, **changes))
    return frames, latent["samples"], report


@pytest.fixture(scope="module")
def plain(parts: Parts) -> tuple[torch.Tensor, torch.Tensor, Any]:
    return made(parts)


def test_a_judge_changes_no_pixel_of_a_route(parts: Parts, tae: comfy.sd.VAE, plain: Any) -> None:
    frames, latents, before = plain
    judged, same, report = made(parts, judge_vae=tae, tae_kind="taew2_1")
    assert torch.equal(same, latents)
    assert torch.equal(judged, frames)
    assert report.settings["judge"]["tae_kind"] == "taew2_1"
    assert before.settings["judge"] is None
    scores = [
        [block.decision.frame_scores for block in r.blocks if block.decision.scored] for r in (before, report)
    ]
    assert scores[0] != scores[1], "the judge's frames are scored"
    assert any("judge" in note for note in report.notes)


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


def test_what_does_not_fit_is_refused_in_one_sentence(parts: Parts, tae: comfy.sd.VAE) -> None:
    with pytest.raises(BadInput, match="set tae_kind to taew2_1 or lighttaew2_1"):
        check_decoders(parts.vae, tae, "auto")
    with pytest.raises(BadInput, match="are one decoder"):
        check_decoders(parts.vae, parts.vae, "auto")
    with pytest.raises(BadInput, match="swap the two"):
        check_decoders(tae, parts.vae, "taew2_1")
    check_decoders(parts.vae, tae, "lighttaew2_1")


def test_another_judge_scores_again_and_the_models_blocks_are_taken_up(parts: Parts, tae: comfy.sd.VAE) -> None:
    """With a policy that looks at scores. Catches: scores of one decoder taken for another's."""
    asked = {"router": RouterValue(RouterConfig(tau=-100.0), parts.scorer), "reuse_bytes": 1 << 30}
    _, _, first = made(parts, **asked)
    _, _, again = made(parts, **asked)
    assert all(block.reused for block in again.blocks)
    _, _, judged = made(parts, **asked, judge_vae=tae, tae_kind="taew2_1")
    scored = [block for block in judged.blocks if block.decision.scored]
    assert scored
    assert not any(block.reused for block in scored), "its scores are new"
    assert all(block.draft and block.draft.denoising_passes == 0 for block in scored), "its drafts are not"
    assert first.blocks[1].decision.frame_scores != judged.blocks[1].decision.frame_scores


def test_the_strip_shows_what_the_judge_saw(parts: Parts, tae: comfy.sd.VAE, plain: Any) -> None:
    _, _, _, live = run_job(make_job(parts, script=ROUTE, judge_vae=tae, tae_kind="taew2_1", node_id="7"))
    frames, latents, _ = plain
    seen, _ = codec_of(tae, "taew2_1").decode(Wan21().process_in(latents)[:, :, :3])
    shown = pil_to_tensor(Image.open(io.BytesIO(live.sprites[1]))).float() / 255
    by_judge, by_vae = (torch.cat(tuple(small(of)), dim=2) for of in (seen[0], frames[:9].movedim(-1, 1)))
    assert float((shown - by_judge).abs().mean()) < 0.1 * float((shown - by_vae).abs().mean())


# --- the pocket node's judge


@pytest.fixture(scope="module")
def pocket() -> Any:
    """What the node puts out, by name."""
    names = [output.display_name for output in PocketModels.define_schema().outputs]
    assert names[-1] == "judge_vae", "new outputs go last, for saved links"
    return SimpleNamespace(**dict(zip(names, PocketModels.execute(prompt=DEFAULT_PROMPT).args, strict=True)))


def test_vae_decode_shows_what_the_codec_shows(pocket: Any) -> None:
    """And the wire carries the kind, with `tae_kind` at auto."""
    latents = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (shown,) = nodes.VAEDecode().decode(pocket.judge_vae, {"samples": Wan21().process_out(latents)})
    expected, _ = load_taehv(pocket_judge()).decode(latents)
    assert shown.shape == (9, 64, 64, 3)
    assert torch.allclose(shown, expected[0].movedim(1, -1), atol=1e-4)
    assert torch.allclose(codec_of(pocket.judge_vae, "auto").decode(latents)[0], expected, atol=1e-4)
    (tiled,) = nodes.VAEDecodeTiled().decode(pocket.judge_vae, {"samples": Wan21().process_out(latents)}, 512)
    assert torch.equal(tiled, shown)
