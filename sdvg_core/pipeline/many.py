"""Many videos on many devices: each video whole on one worker, bit for bit what a single process makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..devices.device import check_device
from ..engine.records import BlockRecord
from ..errors import BadInput
from ..report.run_report import RunReport
from ..text.prompts import PromptSchedule
from ..workers.news import Failed, Finished, Heard, News
from ..workers.on_ray import work_on_ray
from ..workers.processes import work_here
from .batch import Batch, Planned, Video, needed_files, plan_videos, texts_of
from .checking import check_models
from .journal import Journal, left_by
from .loading import encode_prompts
from .request import begin
from .stopping import Stopping
from .table import Row, VideoTable, table_of
from .videos import VideoMaker

TRIES = 2
"""How often a video is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who makes the videos: a worker for each of `devices`, or workers on the Ray cluster at `ray`.

    `most`: of a cluster's workers, None for as many as fit.
    """

    devices: tuple[str, ...] = ()
    ray: str | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoTask:
    """A video to make. `embeddings`: of its prompts, as bytes; a tensor would be sent as a handle to memory."""

    video: Video
    embeddings: bytes


class Progress(Protocol):
    """Shows how many videos come about."""

    def block(self, worker: int, video: Video, record: BlockRecord) -> None:
        """A block is done."""
        ...

    def video(self, worker: int, row: Row) -> None:
        """A video was made, or given up."""
        ...

    def again(self, worker: int, video: Video, reason: str) -> None:
        """A video failed and will be tried once more."""
        ...


def make_many(
    batch: Batch,
    prompts: tuple[PromptSchedule, ...],
    output: Path,
    crew: Crew,
    show: Callable[[Sequence[Video], Sequence[Row]], Progress],
    *,
    resume: bool = False,
    overwrite: bool = False,
    stopping: Stopping | None = None,
) -> tuple[Path, tuple[Row, ...]]:
    """Make a video for each of `prompts` in numbered folders; return their table's folder, and its rows.

    A video that a worker refuses or dies of is tried once more, elsewhere if there is another worker; the others go
    on. `show`: gets the videos to make and the rows there are. `stopping`: hears whether to begin no other video
    and to end those under way after a block.
    Raises `BadInput` for any unusable input, or if no worker can load the models.
    """
    for device in crew.devices:
        check_models(batch.files, replace(batch.load, device=device))
    batch = replace(batch, load=replace(batch.load, device=crew.devices[0])) if crew.devices else batch
    batch = replace(batch, numbered=True)
    with plan_videos(batch, prompts, output, resume=resume, overwrite=overwrite) as planned:
        return planned.folder, _make_many(planned, batch, crew, show, stopping)


def _make_many(
    planned: Planned,
    batch: Batch,
    crew: Crew,
    show: Callable[[Sequence[Video], Sequence[Row]], Progress],
    stopping: Stopping | None,
) -> tuple[Row, ...]:
    table = table_of(planned)
    if not planned.to_make:
        return table.rows
    embeddings = encode_prompts(planned.batch.files, texts_of(planned.to_make), batch.load)
    tasks = [VideoTask(video=video, embeddings=_pack(video, embeddings)) for video in planned.to_make]
    progress = show(planned.to_make, table.rows)
    with stopping.heard() if stopping else nullcontext():
        asked = stopping or Stopping()
        for news in _work(tasks, batch, crew, lambda: asked.asked):
            _take(news, table, progress)
    return table.rows


def _work(
    tasks: Sequence[VideoTask], batch: Batch, crew: Crew, stop: Callable[[], bool]
) -> Iterator[News[VideoTask]]:
    threads = torch.get_num_threads()
    if crew.ray:
        gpus = 0 if check_device(batch.load.device).type == "cpu" else 1
        opener = partial(VideoWorker, batch, threads)
        return work_on_ray(tasks, opener, address=crew.ray, gpus=gpus, most=crew.most, tries=TRIES, stop=stop)
    loads = [replace(batch.load, device=device) for device in crew.devices]
    openers = [partial(VideoWorker, replace(batch, load=load), threads) for load in loads]
    return work_here(tasks, openers, tries=TRIES, stop=stop)


def _take(news: News[VideoTask], table: VideoTable, progress: Progress) -> None:
    video = news.task.video
    if isinstance(news, Heard) and isinstance(news.said, BlockRecord):
        progress.block(news.worker, video, news.said)
    elif isinstance(news, Heard):
        progress.video(news.worker, table.made(video.number, news.said))
    elif isinstance(news, Failed) and news.again:
        progress.again(news.worker, video, news.reason)
    elif not isinstance(news, Finished):
        progress.video(news.worker, table.failed(video.number, news.reason))


class VideoWorker:
    """Loaded models in a process of their own, which make one video after the other."""

    def __init__(self, batch: Batch, threads: int) -> None:
        """Load the models that are needed. `batch`: with all files, for a budget goes by models it may not use.

        `threads`: of the caller, for the rounding of a CPU hangs on their number.
        """
        torch.set_num_threads(threads)
        self._batch = batch
        checked = check_models(batch.files, batch.load)
        beginning = begin(batch.request, checked, scorer=batch.files.reward is not None)
        needed = replace(batch, files=needed_files(batch.files, beginning.asked))
        self._maker = VideoMaker(needed, checked.only(beginning.asked), beginning)

    def do(self, task: VideoTask, say: Callable[[BlockRecord | RunReport], None], stop: Callable[[], bool]) -> None:
        """Make a video; say each block's record, and at the end the report."""
        video = replace(task.video, unfinished=left_by(task.video.folder, task.video.identity))
        try:
            say(self._maker.make(video, load(task.embeddings), partial(_telling, say), stop))
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise BadInput(
                f"out of memory on {self._batch.load.device} ({str(error)[:80]}); choose a smaller size"
            ) from None


@contextmanager
def _telling(say: Callable[[BlockRecord], None], video: Video, journal: Journal) -> Iterator[_Teller]:
    with closing(_Teller(say)) as teller:
        yield teller


class _Teller:
    """A `Watch` that passes on the blocks."""

    def __init__(self, say: Callable[[BlockRecord], None]) -> None:
        self.block = say

    def made_before(self, records: Sequence[BlockRecord]) -> None:
        """Pass on the blocks that the first try left."""
        for record in records:
            self.block(record)

    def step(self, kind: str) -> None:
        """Pass on nothing: there are many."""

    def delivering(self, blocks_left: int) -> None:
        """Pass on nothing."""

    def close(self) -> None:
        """There is nothing to close."""


def _pack(video: Video, embeddings: Mapping[str, Tensor]) -> bytes:
    packed: bytes = save({text: embeddings[text].detach().cpu().contiguous() for text in video.prompt.texts})
    return packed
