"""Latents come back as they were saved, and say how their clip began."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.engine.plan import Lead
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import Shot
from sdvg_core.weights.latents import (
    SavedShot,
    lead_metadata,
    load_latents,
    read_lead,
    save_latents,
    shots_in,
    shots_metadata,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_latents_and_metadata_come_back_unchanged(tmp_path, dtype):
    latents = torch.randn(1, 16, 6, 4, 5, generator=torch.Generator().manual_seed(3)).to(dtype)
    metadata = {"seed": 42, "block_frames": 3, "size": [40, 32], "prompts": ["a red fox"]}
    save_latents(tmp_path / "latents.safetensors", latents, metadata)
    read = load_latents(tmp_path / "latents.safetensors")
    assert torch.equal(read.latents, latents)
    assert read.latents.dtype is dtype
    assert read.metadata == metadata


@pytest.mark.parametrize(
    "name, tensor, sentence",
    [
        ("latent_tensor", torch.zeros(1, 16, 3, 2, 2), "holds latent_tensor, no tensor latents"),
        ("latents", torch.zeros(16, 3, 2, 2), r"\(16, 3, 2, 2\), not one video's"),
        ("latents", torch.zeros(2, 16, 3, 2, 2), r"\(2, 16, 3, 2, 2\), not one video's"),
        ("latents", torch.zeros(1, 16, 3, 2, 2, dtype=torch.int8), "latents.safetensors are int8 of"),
        (
            "latents",
            torch.zeros(1, 16, 3, 2, 2, dtype=torch.float64),
            "are float64 of .* in float32, bfloat16 or float16; give",
        ),
        ("latents", torch.full((1, 16, 3, 2, 2), float("nan")), "hold NaN or infinity"),
    ],
)
def test_file_without_latents_is_refused(tmp_path, name, tensor, sentence):
    save_file({name: tensor}, tmp_path / "latents.safetensors")
    with pytest.raises(BadInput, match=sentence):
        load_latents(tmp_path / "latents.safetensors")


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_broken_metadata_is_refused(tmp_path, text):
    save_file({"latents": torch.zeros(1, 16, 3, 2, 2)}, tmp_path / "latents.safetensors", {"sdvg": text})
    with pytest.raises(BadInput, match=r"latents\.safetensors has damaged metadata \(sdvg is not a JSON object\)"):
        load_latents(tmp_path / "latents.safetensors")


# --- how the clip began

CLIP = torch.randn(1, 4, 12, 2, 2, generator=torch.Generator().manual_seed(0))
IMAGE = Lead(frames=12, start_image_frames=3)
PIXELS = Lead(frames=12, from_pixels=9)


@pytest.mark.parametrize("lead", [IMAGE, PIXELS], ids=["image", "pixels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("first", "last", "begins"), [(0, 12, True), (0, 6, True), (0, 2, True), (3, 12, False)])
def test_cut_clip_keeps_its_lead_with_its_beginning(first, last, begins, dtype, lead, tmp_path):
    """Catches a tail that is taken for a start image, whose pixels are then left out of the video."""
    clip = CLIP.to(dtype)
    values = lead_metadata(lead, clip)
    cut = clip[:, :, first:last]
    frames = last - first
    wanted = Lead(frames=frames)
    if begins:
        image = min(lead.start_image_frames, frames)
        wanted = Lead(frames=frames, start_image_frames=image, from_pixels=min(lead.from_pixels, frames))
    assert read_lead(values, cut) == wanted
    save_latents(tmp_path / "cut.safetensors", cut, values)
    file = load_latents(tmp_path / "cut.safetensors")
    assert read_lead(file.metadata, file.latents) == wanted


@pytest.mark.parametrize("name", ["start_image_frames", "from_pixels"])
@pytest.mark.parametrize("count", [-1, 1.5, "3", True, None])
def test_damaged_lead_is_refused(name: str, count: object) -> None:
    """Catches: a clip from ComfyUI's wire whose frames are counted with what is no number of them."""
    with pytest.raises(BadInput, match="no count of latent frames; make the clip again"):
        read_lead({**lead_metadata(PIXELS, CLIP), name: count}, CLIP)


def test_changed_values_keep_the_lead():
    """A node between two samplers may sharpen latents; how many frames came as pixels is still true."""
    assert read_lead(lead_metadata(PIXELS, CLIP), CLIP * 1.01) == PIXELS


def test_clip_without_a_lead_has_no_metadata():
    assert lead_metadata(Lead(frames=12), CLIP) == {}
    assert read_lead({}, CLIP) == Lead(frames=12)


# --- shots of a film

SHOTS = [SavedShot(Shot(), 0), SavedShot(Shot(key="#k3f"), 6), SavedShot(Shot(key="#a"), 12, 3)]


@pytest.mark.parametrize(("frames", "left"), [(18, 3), (13, 3), (12, 2), (6, 1)])
def test_shots_come_back_as_far_as_the_clip_goes(frames: int, left: int) -> None:
    """Catches: a shot that a cut clip no longer has, and a key or a held picture that is lost."""
    assert shots_in(shots_metadata(SHOTS), torch.zeros(1, 16, frames, 2, 2)) == SHOTS[:left]


def test_film_of_one_plain_shot_has_no_metadata() -> None:
    """Catches: files of plain videos that are no longer the same."""
    assert shots_metadata(SHOTS[:1]) == {}
    assert shots_metadata([SavedShot(Shot(key="#a"), 0)]) != {}


@pytest.mark.parametrize(
    "damaged",
    [
        *([], 3, "#a", [3], [["#a", 0]], [["#a", 3, 0]], [["#a", 0, 0], ["#b", 0, 0]], [["#a", True, 0]]),
        *(
            [["#a", "0", 0]],
            [[None, 0, 0]],
            [["#a", 0, -1]],
            [["#A B", 0, 0]],
            [["#a", 0, 0], ["#b", 9, 0], ["#c", 3, 0]],
        ),
    ],
    ids=str,
)
def test_damaged_shots_are_refused(damaged: object) -> None:
    with pytest.raises(BadInput, match="make the clip again"):
        shots_in({"shots": damaged}, torch.zeros(1, 16, 18, 2, 2))
