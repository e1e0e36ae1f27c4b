"""The pocket node's judge: over ComfyUI's VAE wire into the sampler, and into VAE Decode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import comfy.sd
import pytest
import torch
from comfy.latent_formats import Wan21
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.host.vae import HostJudge
from sdvg_pack.nodes.pocket import PocketModels
from sdvg_pack.nodes.sockets import PromptEntry, RouterValue
from sdvg_pack.sdvg_core.decoders.taehv import load_taehv
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_judge

import nodes

pytestmark = pytest.mark.comfyui

ROUTE = "tard"


@pytest.fixture(scope="module")
def pocket() -> Any:
    """What the node puts out, by name."""
    names = [output.display_name for output in PocketModels.define_schema().outputs]
    assert names[-1] == "judge_vae", "new outputs go last, for saved links"
    return SimpleNamespace(**dict(zip(names, PocketModels.execute(prompt=DEFAULT_PROMPT).args, strict=True)))


def made(pocket: Any, **changes: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    settings: dict[str, Any] = {
        "drafter": pocket.drafter,
        "target": pocket.target,
        "vae": pocket.vae,
        "router": RouterValue(RouterConfig(policy="scripted", script=ROUTE), pocket.scorer),
        "prompts": (PromptEntry(0, pocket.conditioning, pocket.prompt),),
        "width": 64,
        "height": 64,
        "blocks": len(ROUTE),
        "seed": 1,
        **changes,
    }
    frames, latent, report, _ = run_job(Job(**settings))
    return frames, latent["samples"], report


def test_the_sampler_takes_it_and_changes_no_pixel(pocket: Any) -> None:
    """With `tae_kind` at auto: the wire carries the kind."""
    frames, latents, before = made(pocket)
    judged, same, report = made(pocket, judge_vae=pocket.judge_vae)
    assert torch.equal(same, latents)
    assert torch.equal(judged, frames)
    assert before.settings["judge"] is None
    assert report.settings["judge"]["tae_kind"] == "taew2_1"
    scores = [
        [min(block.decision.frame_scores) for block in one.blocks if block.decision.scored]
        for one in (before, report)
    ]
    assert scores[0] != scores[1], "the judge's frames are scored"
    assert abs(scores[0][0] - scores[1][0]) < 1, "and look much alike"


def test_vae_decode_shows_what_the_codec_shows(pocket: Any) -> None:
    latents = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (shown,) = nodes.VAEDecode().decode(pocket.judge_vae, {"samples": Wan21().process_out(latents)})
    expected, _ = load_taehv(pocket_judge()).decode(latents)
    assert shown.shape == (9, 64, 64, 3)
    assert torch.allclose(shown, expected[0].movedim(1, -1), atol=1e-4)
    (tiled,) = nodes.VAEDecodeTiled().decode(pocket.judge_vae, {"samples": Wan21().process_out(latents)}, 512)
    assert torch.equal(tiled, shown)


def test_it_is_a_vae_to_other_nodes_and_refuses_to_encode(pocket: Any) -> None:
    judge = pocket.judge_vae
    assert isinstance(judge, HostJudge)
    assert isinstance(judge, comfy.sd.VAE)
    judge.throw_exception_if_invalid()
    assert (judge.spacial_compression_decode(), judge.temporal_compression_decode()) == (8, 4)
    assert judge.model_size() < 2e6
    with pytest.raises(BadInput, match="a judge only decodes"):
        nodes.VAEEncode().encode(judge, torch.zeros(1, 64, 64, 3))


def test_it_cannot_be_the_only_decoder(pocket: Any) -> None:
    """The target's context is encoded from pixels."""
    with pytest.raises(BadInput, match="wire it into judge_vae, and the VAE"):
        made(pocket, vae=pocket.judge_vae)
