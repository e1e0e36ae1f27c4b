"""A control as pixels: which frames make what a module takes, and which pixels come back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sdvg_core.engine.types import Span
from sdvg_core.errors import BadInput
from sdvg_core.files.footage import Footage
from sdvg_core.videos.control import ControlFootage
from sdvg_core.videos.resolve import fit_control

ROWS = 16
COLUMNS = 24


class MeanCodec:
    """A codec double: a latent frame is the newest of its pixel frames, in every one of 16 channels."""

    temporal_stride = 4
    spatial_stride = 8
    latent_channels = 16

    def encode(self, frames):
        small = torch.nn.functional.avg_pool2d(frames[0], 8)[::4].mean(dim=1)
        return small[None, None].expand(1, 16, -1, -1, -1)


def footage(frames, seed=1, channels=3):
    pixels = torch.rand(frames, channels, ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))
    return Footage(pixels.expand(-1, 3, -1, -1), "clip.mp4.")


def mask_of(numbers, frames=33):
    """A mask that is white in these frames alone."""
    pixels = torch.zeros(frames, 3, ROWS, COLUMNS)
    pixels[list(numbers)] = 1
    return Footage(pixels, "mask.mp4.")


@pytest.mark.parametrize("frames", [3, 6, 9])
def test_latent_mask_is_one_pixel_frames_mask(frames):
    """Latent 0 takes frame 0, latent i frame 4i - 1. Catches: a frame that depends on the clip's length."""
    for number, latent in {0: 0, 3: 1, 7: 2}.items():
        control = ControlFootage(footage=footage(33), mask=mask_of([number]))
        cells = control.clip(MeanCodec(), frames).context[0, 32:]
        assert [bool(cells[:, i].all()) for i in range(frames)] == [i == latent for i in range(frames)]
    others = ControlFootage(footage=footage(33), mask=mask_of({*range(33)} - {0, *range(3, 33, 4)}))
    assert not others.clip(MeanCodec(), frames).context[0, 32:].any()


def test_context_holds_kept_made_and_mask_channels():
    """Catches: the two streams swapped, black in place of grey, rows and columns of the mask swapped."""
    clip = footage(9)
    mask = torch.zeros(9, 3, ROWS, COLUMNS)
    mask[:, :, 8:, 16:] = 1
    mask[:, :, 1, 2] = 1
    control = ControlFootage(footage=clip, mask=Footage(mask, "mask.mp4."), strength=0.5).clip(MeanCodec(), 3)
    context = control.context[0]
    assert context.shape == (96, 3, ROWS // 8, COLUMNS // 8)
    assert control.strength == 0.5
    whole = torch.nn.functional.avg_pool2d(clip.pixels, 8)[::4].mean(dim=1)
    assert torch.allclose(context[16, :, 1, 2], whole[:, 1, 2], atol=1e-6), "made: the control's own"
    assert torch.allclose(context[0, :, 1, 2], torch.full((3,), 0.5), atol=1e-6), "grey where nothing is kept"
    assert torch.allclose(context[0, :, 1, 1], whole[:, 1, 1], atol=1e-6), "kept"
    assert torch.allclose(context[16, :, 1, 1], torch.full((3,), 0.5), atol=1e-6)
    assert context[32:, 0, 0, 0].nonzero().flatten().tolist() == [1 * 8 + 2]
    assert context[32:, :, 1, 2].all()


def test_without_a_mask_everything_is_made():
    context = ControlFootage(footage=footage(9)).clip(MeanCodec(), 3).context[0]
    assert context[32:].all()
    assert torch.allclose(context[:16], torch.full_like(context[:16], 0.5), atol=1e-6)


def test_lead_shows_the_controls_first_frame():
    """A start image fills a block of nine frames, of which the video shows one. Catches: a control that is late."""
    plain = ControlFootage(footage=footage(13), mask=mask_of([0, 4]))
    held = ControlFootage(footage=footage(13), mask=mask_of([0, 4]), lead=8, new=1).clip(MeanCodec(), 6).context
    assert torch.equal(held[:, :, 2:], plain.clip(MeanCodec(), 4).context)
    assert torch.equal(held[:, :, 0], held[:, :, 2])


# --- paste


def test_soft_edge_leaves_kept_pixels_alone():
    """Catches: an edge that reaches into the kept region."""
    half = torch.ones(1, 3, ROWS, COLUMNS)
    half[..., :8] = 0
    white = Footage(torch.ones(1, 3, ROWS, COLUMNS), "white.png.")
    control = ControlFootage(footage=white, mask=Footage(half, "mask.png."), edge=3)
    row = control.paste(torch.zeros(1, 1, 3, ROWS, COLUMNS), 0)[0, 0, 0, 8]
    assert torch.equal(row[:8], torch.ones(8))
    assert torch.equal(row[15:], torch.zeros(COLUMNS - 15))
    fading = row[8:14]
    assert bool((fading[1:] < fading[:-1]).all())
    assert 0 < fading[-1] < fading[0] < 1


@pytest.mark.parametrize("first", [0, 3, 4, 5, 7])
def test_given_frames_are_not_pasted_over(first):
    """In pieces of any beginning. Catches: the last frame of a clip to continue under what its control keeps."""
    white = Footage(torch.ones(9, 3, ROWS, COLUMNS), "white.mp4.")
    control = ControlFootage(footage=white, mask=mask_of([], frames=9), new=5)
    pasted = control.paste(torch.zeros(1, 9 - first, 3, ROWS, COLUMNS), first)
    assert pasted[0, :, 0, 0, 0].tolist() == [float(frame >= 5) for frame in range(first, 9)]


# --- length


PLAN = SimpleNamespace(spans=tuple(Span(index, 3 * index, 3) for index in range(3)))
"""Of 33 pixel frames, in blocks of 12."""


@pytest.mark.parametrize(
    ("frames", "note"),
    [
        (33, "Control clip.mp4."),
        (21, "Control clip.mp4. Its last frame is held for 12 frames."),
        (30, "Control clip.mp4. Its last frame is held for 3 frames."),
        (40, "Control clip.mp4. Without its last 7 frames."),
    ],
)
def test_note_states_the_length_in_frames(frames, note):
    assert fit_control(ControlFootage(footage=footage(frames)), PLAN, 4, 0)[1] == note


def test_control_short_of_a_block_is_refused():
    with pytest.raises(BadInput, match="has 20 frames, and the video needs 33"):
        fit_control(ControlFootage(footage=footage(20)), PLAN, 4, 0)


def test_note_states_what_the_mask_lost():
    """Catches: a mask drawn as alpha alone, which is read as if it were opaque, unsaid."""
    mask = Footage(mask_of([0]).pixels, "mask.png: a picture, without alpha, cropped to 24x16.")
    note = fit_control(ControlFootage(footage=footage(33), mask=mask), PLAN, 4, 0)[1]
    assert note == "Control clip.mp4. Mask mask.png: a picture, without alpha, cropped to 24x16."
