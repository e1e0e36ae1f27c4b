"""What a run begins with is said: a picture that is cropped, and a prompt that begins after its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import comfy.utils
import pytest
import torch
from host_run import load_parts, make_job, video_of
from sdvg_pack.nodes.host.job import fit
from sdvg_pack.nodes.sockets import PromptEntry

pytestmark = pytest.mark.comfyui


@pytest.mark.parametrize("picture", [(40, 64), (64, 40), (33, 57), (57, 33), (48, 80), (1, 90)])
@pytest.mark.parametrize("size", [(80, 48), (48, 80), (32, 32)])
def test_a_picture_is_cropped_as_comfyui_crops_it(picture: tuple[int, int], size: tuple[int, int]) -> None:
    images = torch.rand(2, *picture, 4, generator=torch.Generator().manual_seed(1))
    theirs = comfy.utils.common_upscale(images[:1, :, :, :3].movedim(-1, 1), *size, "lanczos", "center")
    assert torch.equal(fit(images, *size), theirs)


def test_a_cropped_picture_and_a_prompt_that_never_comes_are_told_in_the_report(tmp_path: Path) -> None:
    job = make_job(load_parts(tmp_path), script="d", start_image=torch.full((1, 40, 64, 3), 0.5))
    [prompt] = job.prompts
    job = replace(job, prompts=(prompt, PromptEntry(1, prompt.conditioning, "a storm")))
    notes = video_of(job)[2].notes
    assert (
        "The start image was cropped at its centre from 64 x 40 to 40 x 40, the shape of the video of 32 x 32."
        in (notes)
    )
    assert "The prompt from block 2 on is not shown: the video ends with block 1." in notes
