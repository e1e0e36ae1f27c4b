"""Many videos on many devices: each video whole on one worker, bit for bit what a single process makes."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
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
    for device in devices:
        check_models(batch.files, replace(batch.load, device=device))
    batch = replace(batch, numbered=True, load=replace(batch.load, device=devices[0]))
    with plan_videos(batch) as planned, stopping.heard():
        table, videos = VideoTable(planned), planned.to_make
        texts = planned.embed() if videos else {}
        tasks = [(one, save({text: texts[text].cpu().contiguous() for text in one.prompt.texts})) for one in videos]
        opener = partial(
            VideoWorker, replace(batch, request=planned.batch.request), torch.get_num_threads(), planned.needed
        )
        done = spread(tasks, opener, devices, ray=ray, most=most, stop=lambda: stopping.asked)
        with tqdm(total=len(videos), unit="video", disable=None) as bar:
            for (video, _), made in done:
                if isinstance(made, BadInput):
                    row, said = table.failed(video.number, str(made)), str(made)
                else:
                    row = table.made(video.number, made)
                    said = f"{row.route}, {row.seconds:.1f} s"
                bar.update()
                bar.write(f"video {row.folder} {row.state}: {said}", file=sys.stderr)
        return planned.folder, table.rows


class VideoWorker:
    """Loaded models, which make one video after the other."""

    def __init__(self, batch: Batch, threads: int, needed: ModelSet, device: str) -> None:
        """Load the models that are `needed`. `batch`: with all files, for a budget goes by models it may not use.

        `threads`: of the caller, for the rounding of a CPU hangs on their number.
        """
        torch.set_num_threads(threads)
        batch = replace(batch, load=replace(batch.load, device=device))
        checked = check_models(batch.files, batch.load)
        resolved = resolve_files(batch.request, checked)
        batch = replace(batch, files=needed_files(batch.files, needed))
        self._maker = VideoMaker(batch, checked.restrict_to(needed), resolved)

    def __call__(self, task: Task, stop: Stop) -> RunReport:
        """Make a video."""
        video, embeddings = task
        try:
            return self._maker.make(video, load(embeddings), closing(RouteBar(1, io.StringIO())), stop)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise BadInput(f"out of memory ({str(error)[:80]}); choose a smaller size") from None
