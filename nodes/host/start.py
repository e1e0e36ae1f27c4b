"""What a video starts from: a clip's latents, or a picture, which is cropped to the video's shape."""

from __future__ import annotations

import comfy.utils
from torch import Tensor

from ...sdvg_core.engine.parts import VideoCodec
from .job import Job


def given_frames(job: Job) -> int:
    """Return the latent frames of the clip that the run continues."""
    return job.continue_from["samples"].shape[2] if job.continue_from else int(job.start_image is not None)


def given_latents(job: Job, codec: VideoCodec) -> Tensor | None:
    """Return the latents before the first new block, normalised, or None."""
    if job.continue_from is not None:
        return job.main.model.process_latent_in(job.continue_from["samples"].float())
    if job.start_image is None:
        return None
    return codec.encode(fit(job.start_image, job.width, job.height)[:, None])


def fit(images: Tensor, width: int, height: int) -> Tensor:
    """Return the first of some images `f h w c` as `1 c h w` of that size, its sides or its top and bottom cut off."""
    image = cropped(images, width, height)[:1, :, :, :3].movedim(-1, 1)
    return comfy.utils.common_upscale(image, width, height, "lanczos", "disabled")


def cropped(images: Tensor, width: int, height: int) -> Tensor:
    """Return the middle of images `f h w c`, as much as has the shape of `width` x `height`."""
    rows, columns = images.shape[1:3]
    # Half of what is too much, rounded as ComfyUI's Upscale Image rounds it.
    left = max(0, round((columns - columns * ((width / height) / (columns / rows))) / 2))
    top = max(0, round((rows - rows * ((columns / rows) / (width / height))) / 2))
    return images[:, top : rows - top, left : columns - left]


def crop_note(job: Job) -> tuple[str, ...]:
    """Say what is cut off the start image, if anything is."""
    if job.start_image is None:
        return ()
    rows, columns = job.start_image.shape[1:3]
    left = cropped(job.start_image, job.width, job.height).shape
    if left[1:3] == (rows, columns):
        return ()
    return (
        f"The start image was cropped at its centre from {columns} x {rows} to {left[2]} x {left[1]}, the shape of the "
        f"video of {job.width} x {job.height}.",
    )
