"""What a clip that goes on says of its beginning, when it was cut or changed since it was saved.

The kind: a count that belongs to the beginning of a clip and outlives it. Members: cut at either end, saved to a
file or handed on as a dictionary, changed values, other dtypes.
"""

import pytest
import torch

from sdvg_core.checkpoints.latents import lead_metadata, load_latents, read_lead, save_latents
from sdvg_core.engine.plan import Lead

CLIP = torch.randn(1, 4, 12, 2, 2, generator=torch.Generator().manual_seed(0))
IMAGE = Lead(frames=12, start_image_frames=3)
PIXELS = Lead(frames=12, from_pixels=9)


@pytest.mark.parametrize("lead", [IMAGE, PIXELS], ids=["image", "pixels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("first", "last", "begins"), [(0, 12, True), (0, 6, True), (0, 2, True), (3, 12, False)])
def test_a_cut_clip_keeps_what_its_beginning_was_only_if_it_still_begins_so(
    first, last, begins, dtype, lead, tmp_path
):
    """Catches a tail that is taken for a start image, whose pixels are then left out of the video."""
    clip = CLIP.to(dtype)
    values = lead_metadata(lead, clip)
    cut = clip[:, :, first:last]
    frames = last - first
    kept = {
        "start_image_frames": min(lead.start_image_frames, frames),
        "from_pixels": min(lead.from_pixels, frames),
    }
    wanted = Lead(frames=frames, **(kept if begins else {}))
    assert read_lead(values, cut) == wanted
    save_latents(tmp_path / "cut.safetensors", cut, values)
    file = load_latents(tmp_path / "cut.safetensors")
    assert read_lead(file.metadata, file.latents) == wanted


def test_a_whole_clip_with_other_values_keeps_it():
    """A node between two samplers may sharpen latents; how many frames came as pixels is still true."""
    assert read_lead(lead_metadata(PIXELS, CLIP), CLIP * 1.01) == PIXELS


def test_a_clip_that_models_made_says_nothing():
    assert lead_metadata(Lead(frames=12), CLIP) == {}
    assert read_lead({}, CLIP) == Lead(frames=12)
