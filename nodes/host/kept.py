"""Blocks that stay as they are: the first ones of a finished run, given to the next ones by the digest of their latents."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import folder_paths
from torch import Tensor

from ...sdvg_core.engine.plan import read_takes
from ...sdvg_core.engine.types import Span
from ...sdvg_core.errors import BadInput
from ...sdvg_core.pipeline.latents import FROM_PIXELS, STILL, from_pixels_in, load_latents, save_latents, still_in
from .job import Job, KeptBlocks

MOST_CLIPS = 8
"""Runs whose latents are kept: about 10 MB each for nine blocks of 832 x 480."""
GONE = "the kept blocks are no longer there; choose 'make them again' on the strip"
FOLDER, BLOCKS, WIDTH, HEIGHT = "sdvg/kept", "blocks", "width", "height"


_clips: OrderedDict[str, KeptBlocks] = OrderedDict()
"""By the digest of each beginning of a finished run; the tensors of one run are views of one another."""


def remember(
    latents: Tensor, spans: Sequence[Span], before: int, width: int, height: int, still: int, from_pixels: int = 0
) -> list[str]:
    """Keep a finished run's latents on the host; return a digest for each of its beginnings, of `before` blocks and more."""
    latents, digest, digests = latents.detach().cpu(), hashlib.sha256(), list[str]()
    digest.update(
        f"{latents.dtype} {width} {height} {still} {from_pixels} {latents[:, :, : spans[0].start].shape}".encode()
    )
    digest.update(latents[:, :, : spans[0].start].contiguous().float().numpy().tobytes())
    for number, span in enumerate(spans, before + 1):
        digest.update(latents[:, :, span.start : span.stop].contiguous().float().numpy().tobytes())
        name = digest.hexdigest()[:16]
        _clips[name] = KeptBlocks(number, name, latents[:, :, : span.stop], width, height, still, from_pixels)
        digests.append(name)
    while len({clip.latents.untyped_storage().data_ptr() for clip in _clips.values()}) > MOST_CLIPS:
        _clips.popitem(last=False)
    return digests


def find_kept(text: str) -> KeptBlocks | None:
    """Return the blocks that `text`, such as "5:0123456789abcdef", names; None if it is empty. Raises `BadInput`."""
    if not text.strip():
        return None
    match = re.fullmatch(r"([0-9]{1,6}):([0-9a-f]{16})", text.strip())
    if match is None:
        raise BadInput(f"the kept blocks are {text!r:.60}; choose 'keep blocks' on the strip, or empty the field")
    number, name = int(match[1]), match[2]
    if name not in _clips and (path := _path(name)).is_file():
        saved = load_latents(path)
        measures = {key: int(saved.metadata.get(key, 0)) for key in (WIDTH, HEIGHT)}
        blocks = int(saved.metadata.get(BLOCKS, number))
        begun = {"still": still_in(saved.metadata), "from_pixels": from_pixels_in(saved.metadata, saved.latents)}
        _clips[name] = KeptBlocks(blocks, name, saved.latents, **measures, **begun)
    if name not in _clips or _clips[name].blocks != number:
        raise BadInput(GONE)
    return _clips[name]


def check_kept(kept: KeptBlocks, blocks: int | None, width: int | None, height: int | None) -> None:
    """Raise `BadInput` unless a run of this length and size can begin with them."""
    if blocks is not None and kept.blocks >= blocks:
        raise BadInput(f"all {blocks} blocks are kept, so there is nothing to make; raise the length or keep fewer")
    if width is not None and height is not None and (width, height) != (kept.width, kept.height):
        sizes = f"{kept.width} x {kept.height} pixels and the video {width} x {height}"
        raise BadInput(f"the kept blocks have {sizes}; use their size, or make them again")


def with_kept(job: Job, text: str) -> Job:
    """Return the job for the blocks after the kept ones, and write the kept ones to the disk for later sessions."""
    kept = find_kept(text)
    if kept is None:
        return job
    request = job.request
    check_kept(kept, request.blocks, request.width, request.height)
    if job.start is not None and job.start.strength:
        raise BadInput("no blocks of a restyled clip can be kept; make them again, or remove SDVG Start")
    path = _path(kept.digest)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {BLOCKS: kept.blocks, WIDTH: kept.width, HEIGHT: kept.height, STILL: kept.still}
        values[FROM_PIXELS] = kept.from_pixels
        save_latents(path, kept.latents.clone(), values)
    takes = read_takes(request.takes, request.blocks).items()
    request = replace(
        request,
        blocks=request.blocks - kept.blocks,
        directions=request.directions[kept.blocks :],
        takes=", ".join(f"{at + 1 - kept.blocks}:{take}" for at, take in takes if at >= kept.blocks),
    )
    return replace(job, kept=kept, continue_from=None, start_image=None, start=None, request=request)


def _path(digest: str) -> Path:
    return Path(folder_paths.get_output_directory()) / FOLDER / f"{digest}.safetensors"
