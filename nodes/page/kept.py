"""Kept blocks: the first blocks of a finished run, which later runs name by the digest of their latents."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import folder_paths
from torch import Tensor

from ...sdvg_core.engine.plan import Lead
from ...sdvg_core.engine.types import Span, plan_spans
from ...sdvg_core.errors import BadInput, see
from ...sdvg_core.settings.request import read_shots
from ...sdvg_core.weights.latents import lead_metadata, load_latents, read_lead, save_latents
from ..host.job import Job, KeptBlocks
from .live import RUNS
from .locks import read_locks

UNREAD = "The locked blocks begin with the start that they were made from; the one that is wired in has no effect."
FOLDER = "sdvg/kept"
CLIP = "clip"
"""Metadata: hash of the clip whose pixels the video shows before the blocks."""
NO_KEPT_FILE = f"output/{FOLDER} has no file of the locked {{blocks}}; unlock, press Run, then lock again"
FORGOTTEN = "the server no longer has {blocks} (restarted, or too many runs since); press Run, then lock"
LONGEST_BLOCK = 21
"""Latent frames: a whole clip of the length that Wan is trained on."""

_writing = threading.Lock()  # the page's request is answered in another thread


def beginnings_of(
    latents: Tensor, spans: Sequence[Span], size: tuple[int, int], lead: Lead, clip: str = ""
) -> dict[str, KeptBlocks]:
    """Return every beginning of a finished run, by digest. `spans`: of its kept and new blocks.

    `clip`: hash of the clip whose pixels the video shows before them, or empty. Their latents are views of one CPU
    tensor: about 10 MB for nine blocks of 832 x 480.
    """
    latents = latents.detach().cpu()
    beginnings = dict[str, KeptBlocks]()
    digest = hashlib.sha256()
    start = latents[:, :, : spans[0].start]
    # Without a clip, the digests are those of files from before its hash was kept.
    given = (lead.start_image_frames, lead.from_pixels, *([clip] if clip else []))
    digest.update(f"{latents.dtype} {size} {given} {start.shape}".encode())
    digest.update(start.contiguous().float().numpy().tobytes())
    for number, span in enumerate(spans, 1):
        digest.update(latents[:, :, span.start : span.stop].contiguous().float().numpy().tobytes())
        name = digest.hexdigest()[:16]
        beginning = latents[:, :, : span.stop]
        beginnings[name] = KeptBlocks(number, name, beginning, *size, lead, spans[0].start, clip)
    return beginnings


def find_locks(text: str, gone: str = NO_KEPT_FILE) -> dict[str, KeptBlocks]:
    """Return the blocks named by `text`, by key of their shot; see `read_locks`.

    Look them up in the runs that the page remembers, then on disk. Raises `BadInput` if they are not there, with the
    sentence `gone`.
    """
    return {key: _find(blocks, name, gone) for key, (blocks, name) in read_locks(text).items()}


def _find(blocks: int, name: str, gone: str) -> KeptBlocks:
    """Return kept blocks by their number and digest. Raises `BadInput` if they are not there."""
    kept = next((run.beginnings[name] for run in RUNS.now() if name in run.beginnings), None)
    kept = kept or _read_lock(name, blocks)
    if kept is None or kept.blocks != blocks:
        sentence = gone.format(blocks="block 1" if blocks == 1 else f"blocks 1 to {blocks}")
        raise BadInput(sentence + see("A lock or a film is gone"))
    return kept


def _read_lock(name: str, blocks: int) -> KeptBlocks | None:
    """Return a lock of so many blocks from the disk; None if it has no file.

    Compute the digest again; a file does not say how long its blocks are, so try every length. Raises `BadInput` for
    a damaged file, and if its latents or their size are not those that it is named after.
    """
    path = _path(name)
    if not path.is_file():
        return None
    try:
        saved = load_latents(path)
    except BadInput as problem:
        message = f"output/{FOLDER}/{path.name}, the lock of {blocks} blocks, is damaged"
        raise BadInput(f"{message}; unlock, press Run, then lock again") from problem
    size = (saved.metadata.get("width", 0), saved.metadata.get("height", 0))
    lead = read_lead(saved.metadata, saved.latents)
    clip = saved.metadata.get(CLIP, "")
    frames = saved.latents.shape[2]
    for block_frames in range(1, min(frames // blocks, LONGEST_BLOCK) + 1):
        spans = plan_spans(blocks, block_frames, frames - blocks * block_frames)
        kept = beginnings_of(saved.latents, spans, size, lead, clip).get(name)
        if kept is not None:
            return kept
    message = f"output/{FOLDER}/{path.name} is not the lock of {blocks} blocks that it is named after"
    raise BadInput(f"{message}; lock again, or put back the file as it was")


def write_kept(kept: KeptBlocks) -> int:
    """Write kept blocks to disk, and return the bytes of all kept blocks there.

    Nothing deletes them: a saved workflow may name any. Raises `BadInput` if they cannot be written.
    """
    path = _path(kept.digest)
    unfinished = path.with_suffix(".part")
    values: dict[str, object] = {"blocks": kept.blocks, "width": kept.width, "height": kept.height}
    values |= lead_metadata(kept.lead, kept.latents) | ({CLIP: kept.clip} if kept.clip else {})
    try:
        with _writing:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _locked(kept):
                save_latents(unfinished, kept.latents.clone(), values)
                unfinished.replace(path)
            return sum(file.stat().st_size for file in path.parent.glob("*.safetensors"))
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise BadInput(
            f"output/{FOLDER} cannot be written ({error.strerror}); make room, or let ComfyUI write there"
        ) from None


def check_kept(kept: KeptBlocks, blocks: int | None, width: int | None, height: int | None) -> None:
    """Raise `BadInput` unless a run of that many blocks and that size can begin with them; None is not checked."""
    if blocks is not None and kept.blocks > blocks:
        raise BadInput(
            f"{kept.blocks} blocks are locked, and the video has {blocks}; make it longer, or unlock some"
        )
    if width is not None and height is not None and (width, height) != (kept.width, kept.height):
        sizes = f"{kept.width} x {kept.height} pixels and the video {width} x {height}"
        raise BadInput(f"the locked blocks have {sizes}; use their size, or unlock them")


def with_locks(job: Job, text: str) -> Job:
    """Return the job with its locked blocks. Write these to disk if the page has not."""
    first_key = read_shots(job.request.shots)[0].key
    locks = find_locks(text)
    if first_key in locks and "" in locks:
        raise BadInput(f"the first shot, {first_key}, has two locks; leave one of them out")
    job = replace(job, locks={key or first_key: lock for key, lock in locks.items()})
    if not locks:
        return job
    request = job.request
    for lock in locks.values():
        check_kept(lock, request.blocks, request.width, request.height)
    if job.start is not None and job.start.strength:
        raise BadInput("blocks of a restyled clip cannot be locked; unlock them, or remove SDVG Start")
    for lock in locks.values():
        write_kept(lock)
    first_lock = job.locks.get(first_key)
    wired = any(start is not None for start in (job.start, job.start_image, job.continue_from))
    if first_lock is None or first_lock.clip or not wired:
        return job
    return replace(job, continue_from=None, start_image=None, start=None, notes=(*job.notes, UNREAD))


def _locked(kept: KeptBlocks) -> bool:
    """True if its lock is on the disk, unaltered."""
    with suppress(BadInput):
        return _read_lock(kept.digest, kept.blocks) is not None
    return False


def _path(digest: str) -> Path:
    return Path(folder_paths.get_output_directory()) / FOLDER / f"{digest}.safetensors"
