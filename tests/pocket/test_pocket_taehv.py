"""The embedded TAEHV: close to the VAE's own picture; and in the demo."""

import pytest
import torch
from torch import Tensor

from research.world import held_out_prompts, render
from sdvg_core.cli import main
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket import trained_set as shipped
from sdvg_core.pocket.grammar import parse

pytestmark = pytest.mark.heavy

CLOSE, FIRST, THINGS = 28.0, 22.0, 21.0
"""Decibels to the VAE's own picture: of whole clips, of their first frames, and where there are things."""

PROMPTS = held_out_prompts(4, seed=22)


@pytest.fixture(scope="module")
def taehv() -> TaehvCodec:
    return load_vae(shipped.pocket_fast_vae())


@pytest.fixture(scope="module")
def vae() -> WanCodec:
    found = load_vae(shipped.trained_set().vae, layers="planes")
    assert isinstance(found, WanCodec)
    return found


@pytest.fixture(scope="module")
def latents(vae) -> Tensor:
    """Held-out clips of 29 frames, `b c t h w`."""
    return vae.encode(torch.stack([render(parse(prompt), torch.arange(29)) for prompt in PROMPTS]))


def test_held_out_clips_look_as_the_vae_shows_them(taehv, vae, latents):
    """To the end, from the first frame, which has nothing before it, and where a thing is.

    Catches: one that has learned the grounds alone, which are most of the pixels.
    """
    shown, truth = taehv.decode(latents)[0], vae.decode(latents)[0]
    assert shown.shape == truth.shape
    error = (shown - truth).square().mean(dim=(2, 3, 4))
    assert -10 * error.mean().log10() > CLOSE
    assert -10 * error[:, 0].mean().log10() > FIRST
    assert -10 * error[:, -4:].mean().log10() > CLOSE
    away = (truth - truth.median(dim=-1, keepdim=True).values).abs().amax(dim=2, keepdim=True) > 0.2
    things = away.expand_as(truth)
    assert things.float().mean() > 0.01
    assert -10 * (shown - truth)[things].square().mean().log10() > THINGS


def test_a_damaged_one_is_refused_only_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    for path in shipped.FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / shipped.FAST_VAE_NAME).unlink()
    (tmp_path / shipped.FAST_VAE_NAME).write_bytes(b"?")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert shipped.trained_set().vae.parent == tmp_path
    assert main(["demo", "--output", str(tmp_path / "out")]) == 2
    assert "the embedded fast_vae, is damaged" in capsys.readouterr().err


ENCODED = {"picture": 0.005, "clip": 0.03}
"""Mean squared error of latents to the VAE's; one block of the target is off by 0.05."""


def test_held_out_pictures_and_clips_are_encoded_as_the_vae_does(taehv, vae):
    frames = torch.stack([render(parse(prompt), torch.arange(29)) for prompt in PROMPTS])
    shown = {"picture": frames[:, 8:9], "clip": frames}
    error = {name: (taehv.encode(one) - vae.encode(one)).square().mean() for name, one in shown.items()}
    assert all(error[name] < limit for name, limit in ENCODED.items()), error
