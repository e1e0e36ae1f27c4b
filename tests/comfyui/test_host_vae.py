"""Block-wise decoding over ComfyUI's VAE, against ComfyUI decoding the same latents in one go."""

from dataclasses import replace
from types import SimpleNamespace

import comfy.sd
import pytest
import torch
from comfy.latent_formats import Wan21
from comfy.ldm.models.autoencoder import AutoencoderKL
from comfy.ldm.wan import vae2_2
from comfy.ldm.wan.vae import WanVAE
from comfy.taesd.taehv import TAEHV
from host_run import make_job
from host_tiny import generator_of, load_vae
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.sockets import RouterValue, StartValue
from sdvg_pack.nodes.host.vae import ComfyCodec, check_vae, codec_of
from sdvg_pack.nodes.pocket import PocketModels
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.decoders.open import load_vae as load_core_vae
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_fast_vae
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.route import First, Route

import nodes

pytestmark = pytest.mark.comfyui

SIZE = (3, 5)
HEIGHT = 8 * SIZE[0]
WIDTH = 8 * SIZE[1]


@pytest.fixture(scope="module")
def vae():
    return load_vae(dim=8)  # of narrower layers torch computes one frame in another way than several


def draw(seed, frames):
    return torch.randn(1, 16, frames, *SIZE, generator=generator_of(seed))


def whole(vae, latents):
    """What VAE Decode shows for the LATENT of these latents, as `b f c h w`."""
    return vae.decode(Wan21().process_out(latents)).movedim(-1, 2).reshape(1, -1, 3, HEIGHT, WIDTH)


def in_blocks(codec, blocks):
    state = None
    shown = []
    for block in blocks:
        frames, state = codec.decode(block, state)
        shown.append(frames)
    return torch.cat(shown, dim=1)


@pytest.mark.parametrize("pattern", ["rar", "arr"])
def test_emitted_frames_are_comfyuis_decode_of_their_latents(pattern, vae):
    """`r`: a rejected draft. Catches a state that it left its mark on, or that a second decode from it changes.

    Every pattern: tests/engine/test_exactness.py.
    """
    codec = ComfyCodec(vae)
    state = None
    emitted = []
    shown = []
    for number, outcome in enumerate(pattern):
        before = state
        block = draw(number, 3)
        frames, state = codec.decode(block, before)
        if outcome == "r":
            block = draw(100 + number, 3)
            frames, state = codec.decode(block, before)
        emitted.append(block)
        shown.append(frames)
    assert torch.equal(torch.cat(shown, dim=1), whole(vae, torch.cat(emitted, dim=2)))


CUTS = [(1, 3, 3, 3), (1, 2, 1, 3, 1, 1, 2), (4, 1, 4)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_blocks_of_any_lengths_decode_as_a_whole(cut, vae):
    """A start image is a block of one. Catches that ComfyUI's layers forget the frame before a block of one."""
    latents = draw(1, sum(cut))
    assert torch.equal(in_blocks(ComfyCodec(vae), latents.split(cut, dim=2)), whole(vae, latents))


def test_codec_computes_in_the_vaes_dtype():
    """Catches: float32 where Load VAE chose another, with twice the memory."""
    vae = load_vae()
    vae.first_stage_model.to(torch.bfloat16)
    vae.vae_dtype = torch.bfloat16
    latents = draw(1, 6)
    frames = in_blocks(ComfyCodec(vae), latents.split(3, dim=2))
    assert torch.equal(frames, whole(vae, latents))
    assert not torch.equal(frames, whole(load_vae(), latents))
    assert torch.equal(ComfyCodec(vae).encode(frames[:, :5]), encoded(vae, frames[:, :5]))


def encoded(vae, frames):
    """The normalised latents of what VAE Encode gives for an IMAGE."""
    return Wan21().process_in(vae.encode(frames[0].movedim(1, -1)))


@pytest.mark.parametrize("count", [1, 5, 9, 13])
def test_clip_is_encoded_as_comfyui_encodes_it(count, vae):
    """Catches: latents of another scale, or a first frame that is encoded with those after it."""
    frames = torch.rand(1, count, 3, HEIGHT, WIDTH, generator=generator_of(4))
    latents = ComfyCodec(vae).encode(frames)
    assert latents.shape == (1, 16, 1 + count // 4, *SIZE)
    assert torch.equal(latents, encoded(vae, frames))


def test_another_vae_is_refused_by_its_kind(monkeypatch):
    """Another first stage in a VAE object; building whole ones would take gigabytes."""
    layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
    with torch.device("meta"):
        foreign = {
            "Wan 2.2's": (vae2_2.WanVAE(dim=16, z_dim=48, **layout), 48),
            "TAEHV of another model": (TAEHV(latent_channels=48, latent_format=None), 48),
            "another family": (AutoencoderKL.__new__(AutoencoderKL), 4),
            "a variant": (WanVAE(dim=8, z_dim=16, image_channels=4, conv_out_channels=4, **layout), 16),
        }
    vae = load_vae()
    for name, (model, channels) in foreign.items():
        monkeypatch.setattr(vae, "first_stage_model", model)
        monkeypatch.setattr(vae, "latent_channels", channels)
        with pytest.raises(BadInput, match=name):
            check_vae(vae, "taew2_1")


# --- a TAEHV: ComfyUI's, and the one of SDVG Pocket Models


ROUTE = "rardta"


@pytest.fixture(scope="module")
def tae():
    return load_tae()


def load_tae(dtype=torch.float32, *, encoder=True):
    """A TAEHV of the published sizes and random weights, as Load VAE returns it."""
    g = generator_of(7)
    empty = TAEHV(latent_channels=16).state_dict()
    weights = {name: torch.randn(w.shape, generator=g) * 0.7 / w[0].numel() ** 0.5 for name, w in empty.items()}
    weights = {name: w if w.ndim > 1 else 0.1 * w for name, w in weights.items()}
    weights["decoder.22.bias"] += 0.5
    named = {name: w.to(dtype) for name, w in weights.items() if encoder or name.startswith("decoder.")}
    return comfy.sd.VAE(sd=named)


def made(parts, **changes):
    frames, latent, report, *_ = run_job(make_job(parts, script=ROUTE, **changes))
    return frames, latent["samples"], report


def test_taehv_alone_decodes_the_video_with_a_note(parts, tae):
    """Catches: rough pixels, unsaid."""
    frames, _, report = made(replace(parts, vae=tae), tae_kind="taew2_1")
    assert frames.shape == (69, 32, 32, 3)
    assert float(frames.min()) >= 0
    assert report.settings["vae"]["tae_kind"] == "taew2_1"
    assert any("Fast decoder (TAEHV)" in note for note in report.notes)


TAE_LATENTS = torch.randn(1, 16, 2, 4, 4, generator=generator_of(1))


def test_lighttaew2_1_takes_what_comfyui_shows(tae):
    """Of float32 ComfyUI shows a LATENT. Catches: latents that are scaled for the other kind."""
    shown, _ = codec_of(tae, "lighttaew2_1").decode(TAE_LATENTS)
    host = tae.decode(Wan21().process_out(TAE_LATENTS)).reshape(1, 5, 32, 32, 3).movedim(-1, 2).clamp(0, 1)
    torch.testing.assert_close(shown, host, atol=1e-5, rtol=0)
    assert not torch.equal(shown, codec_of(tae, "taew2_1").decode(TAE_LATENTS)[0])


@pytest.mark.parametrize("dtype, rounding", [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_taew2_1_takes_latents_as_they_are(dtype, rounding):
    """ComfyUI takes a float16 file for HunyuanVideo's, and scales its latents. Catches: its scale in ours."""
    vae = load_tae(dtype)
    plain = TAEHV(latent_channels=16)
    plain.load_state_dict(vae.first_stage_model.state_dict())
    plain.to(vae.vae_dtype)
    frames = torch.rand(1, 9, 3, 32, 48, generator=generator_of(2))
    with torch.inference_mode():
        encoded = plain.encode(frames.to(vae.vae_dtype).movedim(2, 1)).float()
        decoded = plain.decode(TAE_LATENTS.to(vae.vae_dtype)).float().movedim(2, 1).clamp(0, 1)
    codec = codec_of(vae, "taew2_1")
    assert torch.allclose(codec.decode(TAE_LATENTS)[0], decoded, atol=rounding)
    assert torch.allclose(codec.encode(frames), encoded, atol=rounding)


# --- a file without an encoder, of which ComfyUI makes an encoder of what lay in memory


CLIP = torch.full((9, 32, 32, 3), 0.5)
SHORT = {"samples": torch.ones(1, 16, 2, 4, 4)}
WAYS = {
    "the start image": {"start_image": CLIP[:1]},
    "the clip to continue": {"start": StartValue(CLIP, "extend", "", "16 a second")},
    "the clip to restyle": {"start": StartValue(CLIP, "restyle", "medium", "16 a second")},
    "a clip shorter than a block": {"continue_from": SHORT},
}


@pytest.fixture(scope="module")
def half():
    return load_tae(encoder=False)


def two_blocks(parts, vae, *, incremental=True, **more):
    """Make a video of two blocks and return its frames. `incremental`: no context encodes pixels."""
    if incremental:
        rolling = get_preset("longlive-1.0")
        drafter = attach_origin(parts.drafter.clone(), preset=rolling)
        target = attach_origin(parts.target.clone(), preset=rolling)
        parts = replace(parts, drafter=drafter, target=target)
    router = RouterValue(Route(First(1)), parts.scorer)
    frames, *_ = made(replace(parts, vae=vae), router=router, blocks=2, tae_kind="taew2_1", **more)
    return frames


def test_taehv_without_encoder_decodes_a_video(parts, half):
    assert two_blocks(parts, half).shape == (21, 32, 32, 3)


@pytest.mark.parametrize("need", [*WAYS, "the target's context"])
def test_missing_encoder_is_refused_where_one_is_needed(parts, half, need):
    """Catches: latents of what lay in memory, or a refusal after blocks were made."""
    with pytest.raises(BadInput, match=f"no encoder, which {need} needs"):
        two_blocks(parts, half, incremental=need in WAYS, **WAYS.get(need, {}))


def test_codec_without_encoder_refuses_to_encode(half):
    """Catches: latents of what lay in memory, for whoever asks without a check."""
    with pytest.raises(BadInput, match="has no encoder"):
        codec_of(half, "taew2_1").encode(CLIP.movedim(-1, 1)[None])


# --- the one of the pocket node


@pytest.fixture(scope="module")
def pocket():
    """What the node puts out, by name."""
    names = [output.display_name for output in PocketModels.define_schema().outputs]
    assert names[-1] == "fast_vae"
    return SimpleNamespace(**dict(zip(names, PocketModels.execute(prompt=DEFAULT_PROMPT).args, strict=True)))


def test_vae_decode_shows_what_the_codec_shows(pocket):
    """And the wire carries the kind, with `tae_kind` at auto."""
    latents = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (shown,) = nodes.VAEDecode().decode(pocket.fast_vae, {"samples": Wan21().process_out(latents)})
    expected, _ = load_core_vae(pocket_fast_vae()).decode(latents)
    assert shown.shape == (9, 64, 64, 3)
    assert torch.allclose(shown, expected[0].movedim(1, -1), atol=1e-4)
    assert torch.allclose(codec_of(pocket.fast_vae, "auto").decode(latents)[0], expected, atol=1e-4)
    (tiled,) = nodes.VAEDecodeTiled().decode(pocket.fast_vae, {"samples": Wan21().process_out(latents)}, 512)
    assert torch.equal(tiled, shown)


@pytest.mark.parametrize("encoder", [nodes.VAEEncode, nodes.VAEEncodeTiled])
def test_fast_vae_refuses_to_encode_outside_the_sampler(pocket, encoder):
    """Catches: latents of another scale, from ComfyUI's own encode."""
    sizes = (512, 64) if encoder is nodes.VAEEncodeTiled else ()
    with pytest.raises(BadInput, match="encodes only in the sampler"):
        encoder().encode(pocket.fast_vae, CLIP, *sizes)


def test_fitting_kind_of_taehv_is_taken(parts, pocket, tae):
    for vae, kind in ((parts.vae, "auto"), (tae, "lighttaew2_1"), (pocket.fast_vae, "taew2_1")):
        check_vae(vae, kind)


def test_kind_of_taehv_without_effect_is_refused(parts, pocket, tae):
    """Catches: the kind that a wire carries, taken without a word."""
    for vae, kind, words in (
        (tae, "auto", "set tae_kind to"),
        (parts.vae, "taew2_1", "Wan VAE, so tae_kind has no effect"),
        (pocket.fast_vae, "lighttaew2_1", "lighttaew2_1 has no effect"),
    ):
        with pytest.raises(BadInput, match=words):
            check_vae(vae, kind)
