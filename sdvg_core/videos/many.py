"""Spread work over workers that hold models: whole videos of a batch, or the shots of one film.

A worker makes a video, or a shot, whole: splitting it further would not be faster, as blocks depend on each other,
and so the bits are those of a single process. The shots of a film leave their blocks where a stopped run of the
film leaves its own, so the film is then made of them as a stopped one goes on.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from safetensors.torch import load, save
from tqdm import tqdm

from ..devices.workers import Stop, spread
from ..engine.plan import Roles
from ..engine.records import BlockRecord
from ..errors import BadInput, see
from ..files.outputs import REPORT, open_unfinished
from ..loading.headers import check_models
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..report.summary import OUTCOME_LETTERS, outcome_of
from .asked import Batch
from .batch import BatchPlan, Video, needed_files, plan_videos
from .film import resolve_film
from .maker import StopRequest, VideoMaker, plan_layout
from .table import Row, VideoTable

THE_FILM = "the film"
"""What is said of a film whose shots are made, and which could not be put together."""


@dataclass(frozen=True, slots=True)
class VideoTask:
    """A video for a worker. `embeddings`: of its prompts, as bytes, because tensors are sent as shared memory.

    `spread`: whether workers have made its shots.
    """

    video: Video
    embeddings: bytes
    spread: bool = False


@dataclass(frozen=True, slots=True)
class ShotTask:
    """A shot of a film for a worker, by its key. `embeddings`: see `VideoTask`."""

    video: Video
    embeddings: bytes
    key: str


WorkerTask = VideoTask | ShotTask
WorkerResult = RunReport | list[BlockRecord]
"""Of a shot, the records of its blocks."""


def make_many(
    batch: Batch,
    devices: Sequence[str],
    *,
    ray: str | None = None,
    most: int | None = None,
    stopping: StopRequest,
    warn: Callable[[str], None] = lambda note: None,
) -> tuple[Path, tuple[Row, ...]]:
    """Make the videos of a batch with several workers, in numbered folders; return the table's folder and rows.

    `devices`, `ray`, `most`: see `spread`. A video that fails does not stop the others; each gets a line on stderr.
    `stopping`: ends the videos under way after a block, and begins no other. Raises `BadInput` for any unusable
    input, and if a worker cannot load the models.
    """
    batch = replace(batch, listed=True)
    with plan_videos(batch) as planned, stopping.listen():
        for note in planned.notes:
            warn(note)
        table = VideoTable(planned)
        embeddings = _embed(planned)
        tasks = [VideoTask(video, embeddings(video)) for video in planned.to_make]
        opener = partial(open_worker, batch, torch.get_num_threads(), planned.needed)
        done = spread(tasks, opener, devices, ray=ray, most=most, stop=lambda: stopping.asked)
        for task, made in tqdm(done, total=len(tasks), unit="video", disable=None):
            assert not isinstance(made, list)
            row = table.made(task.video.number, made)
            result = row.error or f"{row.route}, {row.seconds:.1f} s"
            tqdm.write(f"video {row.folder} {row.state}: {result}", file=sys.stderr)
        return planned.folder, table.rows


def make_one_film(
    batch: Batch,
    devices: Sequence[str],
    *,
    ray: str | None = None,
    most: int | None = None,
    stopping: StopRequest,
    warn: Callable[[str], None] = lambda note: None,
) -> tuple[Path, RunReport | None, Mapping[str, BadInput]]:
    """Make the shots of a film with several workers, and the film of them; return its folder, report and failures.

    `devices`, `ray`, `most`: see `spread`. A shot that begins with the last frame of another waits for it. There is
    no report if a shot failed or the user stopped; then what was made waits for the next call. The failures are by
    the key of a shot, or `THE_FILM`. Raises `BadInput` as `make_many` does.
    """
    with plan_videos(batch) as planned, stopping.listen():
        for note in planned.notes:
            warn(note)
        (video,) = planned.videos
        if not planned.to_make:
            return planned.folder, read_report(video.folder / REPORT), {}
        shots = {run.shot.key: run.shot for run in next(iter(planned.resolved.values())).runs}
        embeddings = _embed(planned)(video)
        tasks: list[WorkerTask] = [ShotTask(video, embeddings, key) for key in shots]
        tasks.append(VideoTask(video, embeddings, spread=True))
        made: set[str] = set()

        def is_ready(task: WorkerTask) -> bool:
            origins = {shots[task.key].origin} & shots.keys() if isinstance(task, ShotTask) else shots.keys()
            return origins <= made

        open_unfinished(video.folder, video.fingerprint)  # before the workers, which would make it at once
        opener = partial(open_worker, batch, torch.get_num_threads(), planned.needed)
        done = spread(tasks, opener, devices, ray=ray, most=most, ready=is_ready, stop=lambda: stopping.asked)
        report: RunReport | None = None
        failures: dict[str, BadInput] = {}
        for task, result in tqdm(done, total=len(tasks), unit="shot", disable=None):
            name = task.key if isinstance(task, ShotTask) else THE_FILM
            if isinstance(result, BadInput):
                failures[name] = result
            elif isinstance(result, list):
                made.add(name)
                letters = "".join(OUTCOME_LETTERS[outcome_of(record)] for record in result)
                tqdm.write(f"shot {name}: {letters}", file=sys.stderr)
            else:
                report = result
        return planned.folder, report, failures


def _embed(planned: BatchPlan) -> Callable[[Video], bytes]:
    """Return a function that gives the embeddings of a video's prompts as bytes."""
    embeddings = {text: embedding.cpu().contiguous() for text, embedding in planned.embed().items()}
    return lambda video: save({text: embeddings[text] for text in video.prompt.texts})


def open_worker(
    batch: Batch, threads: int, needed: Roles, device: str
) -> Callable[[WorkerTask, Stop], WorkerResult]:
    """Load the `needed` models, and return a function that makes one video, or one shot, with them.

    `batch`: with all files, as a budget is a share of what both models cost, also if one alone is needed.
    `threads`: of the calling process, as rounding on a CPU depends on them.
    """
    torch.set_num_threads(threads)
    batch = replace(batch, load=replace(batch.load, device=device))
    checked = check_models(batch.files, batch.load)
    resolve = cache(partial(resolve_film, headers=checked))
    batch = replace(batch, files=needed_files(batch.files, needed))
    headers = checked.restrict_to(needed)
    layout = plan_layout(batch, headers, resolve(batch.request))
    maker = VideoMaker(batch, headers, layout, resolve)

    def make(task: WorkerTask, stop: Stop) -> WorkerResult:
        embeddings = load(task.embeddings)
        bar = closing(RouteBar(1, io.StringIO()))
        try:
            if isinstance(task, ShotTask):
                return maker.make_shot(task.video, task.key, embeddings, bar, stop)
            return maker.make(task.video, embeddings, bar, stop, spread=task.spread)
        except (torch.OutOfMemoryError, MemoryError) as error:
            fault = f"out of memory ({str(error)[:80]})"
            raise BadInput(f"{fault}; choose a smaller size" + see("Out of memory")) from None

    return make
