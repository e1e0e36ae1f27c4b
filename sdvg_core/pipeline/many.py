"""Many videos on many devices: each video whole on one worker, bit for bit what a single process makes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load, save
from tqdm import tqdm

from ..devices.workers import Stop, spread
from ..engine.plan import ModelSet
from ..errors import BadInput
from ..report.progress import RouteBar
from ..report.run_report import RunReport
from .batch import Batch, Video, needed_files, plan_videos
from .headers import check_models
from .request import resolve_files
from .table import Row, VideoTable
from .videos import Stopping, VideoMaker

Task = tuple[Video, bytes]
"""A video, and the embeddings of its prompts; tensors would be sent as handles to memory."""


def make_many(
    batch: Batch, devices: Sequence[str], *, ray: str | None = None, most: int | None = None, stopping: Stopping
) -> tuple[Path, tuple[Row, ...]]:
    """Make the videos of a batch in numbered folders; return their table's folder, and its rows.

    `devices`, `ray`, `most`: of the workers, see `spread`. The others go on if a video is refused. There is a line
    on standard error for every video. `stopping`: hears whether to begin no other video and to end those under way
    after a block. Raises `BadInput` for any unusable input, or if a worker cannot load the models.
    """
    batch = replace(batch, numbered=True, load=replace(batch.load, device=devices[0]))
    with plan_videos(batch) as planned, stopping.heard():
        table, videos = VideoTable(planned), planned.to_make
        texts = planned.embed()
        tasks = [(one, save({text: texts[text].cpu().contiguous() for text in one.prompt.texts})) for one in videos]
        batch = replace(batch, request=planned.batch.request)
        opener = partial(open_worker, batch, torch.get_num_threads(), planned.needed)
        done = spread(tasks, opener, devices, ray=ray, most=most, stop=lambda: stopping.asked)
        for (video, _), made in tqdm(done, total=len(videos), unit="video", disable=None):
            row = table.made(video.number, made)
            said = row.error or f"{row.route}, {row.seconds:.1f} s"
            tqdm.write(f"video {row.folder} {row.state}: {said}", file=sys.stderr)
        return planned.folder, table.rows


def open_worker(batch: Batch, threads: int, needed: ModelSet, device: str) -> Callable[[Task, Stop], RunReport]:
    """Load the models that are `needed`, and return what makes one video after the other with them.

    `batch`: with all files, for a budget goes by models it may not use. `threads`: of the caller, for the rounding
    of a CPU hangs on their number.
    """
    torch.set_num_threads(threads)
    batch = replace(batch, load=replace(batch.load, device=device))
    checked = check_models(batch.files, batch.load)
    batch = replace(batch, files=needed_files(batch.files, needed))
    maker = VideoMaker(batch, checked.restrict_to(needed), resolve_files(batch.request, checked))

    def make(task: Task, stop: Stop) -> RunReport:
        video, embeddings = task
        try:
            return maker.make(video, load(embeddings), closing(RouteBar(1, io.StringIO())), stop)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise BadInput(f"out of memory ({str(error)[:80]}); choose a smaller size") from None

    return make
