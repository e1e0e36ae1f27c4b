"""Make the videos of a batch with models that are loaded once, each in its own folder, and resumable."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TextIO

from torch import Tensor

from ..devices.device import device_clock
from ..engine.records import BlockRecord
from ..engine.run import Run
from ..errors import BadInput
from ..files.outputs import REPORT, lock_folder, open_unfinished, staged_video, unfinished_blocks
from ..loading.headers import FileHeaders
from ..loading.load import Models, load_models, plan_memory
from ..memory.plan import Plan
from ..report.progress import Lines, RouteBar
from ..report.run_report import RunReport, read_report
from ..settings.request import VideoRequest
from ..text.prompts import Conditions
from .asked import Batch
from .batch import Video, folder_in, plan_videos
from .film import ResolvedFilm
from .fingerprint import digest_of
from .folders import State, shows
from .rendering import finished, render_blocks, render_shot, write_report
from .table import VideoTable


class StopRequest:
    """Whether the user asked to end after the current block, by a first Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Inside, the first Ctrl-C sets `asked`; the next one interrupts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = signal.getsignal(signal.SIGINT)

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, usual)
            sys.stderr.write("\nsdvg: stops after this block and keeps the video; Ctrl-C again stops at once\n")

        signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)


def make_videos(
    batch: Batch,
    *,
    stopping: StopRequest | None = None,
    say: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda note: None,
    bars: TextIO | None = None,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make the videos of a batch; return each folder and report.

    Only models that a block may need are loaded. Numbered folders get a table. `stopping`: ends the run after a
    block. `say`: receives lines on the progress; loading may take minutes. `warn`: receives each note. `bars`:
    where the progress of blocks is drawn instead.
    """
    with plan_videos(batch) as planned:
        for note in planned.notes:
            warn(note)
        batch = planned.batch
        headers = planned.headers
        files = batch.files
        table = VideoTable(planned) if batch.numbered else None
        made = {}
        if planned.to_make:
            # The videos of a batch share one size. Raises before minutes of loading.
            layout = plan_layout(batch, headers, next(iter(planned.resolved.values())))
            say(f"loading {files.text_encoder.name}, to read the prompt")
            embeddings = planned.embed()
            loaded = (files.vae, files.reward, files.drafter, files.target)
            say("loading " + ", ".join(dict.fromkeys(path.name for path in loaded if path)))
            maker = VideoMaker(batch, headers, layout, planned.resolved.__getitem__)
        for video in planned.to_make:
            if stopping and stopping.asked:
                break
            with stopping.listen() if stopping else nullcontext():
                bar = show_bar(video, len(planned.videos), bars or Lines(say))
                report = maker.make(video, embeddings, bar, lambda: bool(stopping and stopping.asked))
            made[video.folder] = report
            if table:
                table.made(video.number, report)
        whole = [v for v in planned.videos if v.folder in made or v.state is State.FINISHED]
        return [(v.folder, made.get(v.folder) or read_report(v.folder / REPORT)) for v in whole]


def plan_layout(batch: Batch, headers: FileHeaders, video: ResolvedFilm) -> Plan | None:
    """Return the memory plan for a video of a batch. Raises `BadInput` if it does not fit."""
    return plan_memory(headers, batch.load, video.width, video.height, video.request.blocks)


class VideoMaker:
    """Makes the videos of a batch with loaded models."""

    def __init__(
        self,
        batch: Batch,
        headers: FileHeaders,
        layout: Plan | None,
        resolve: Callable[[VideoRequest], ResolvedFilm],
        loaded: Models | None = None,
    ) -> None:
        """Load the models in `headers`. `resolve`: returns a resolved request that has the batch's seed.

        `loaded`: these models, if they are loaded already.
        """
        self._batch = batch
        self._resolve_request = resolve
        self._loaded = loaded or load_models(batch.files, batch.load, headers, layout)

    def _resolve(self, video: Video) -> ResolvedFilm:
        """Return the resolved film of a video. Only noise depends on its seed, so clips are read once."""
        resolved = self._resolve_request(replace(video.request, seed=self._batch.request.seed))
        return resolved.with_request(video.request, video.notes)

    def make(
        self,
        video: Video,
        embeddings: Mapping[str, Tensor],
        shown_bar: AbstractContextManager[RouteBar],
        stop: Callable[[], bool],
        *,
        spread: bool = False,
    ) -> RunReport:
        """Make one video. `embeddings`: by prompt. `shown_bar`: opens the progress bar.

        `stop`: called after every block; True ends the video there. `spread`: see `render_blocks`.
        """
        return finished(self.make_blocks(video, embeddings, shown_bar, stop, spread=spread))

    def make_shot(
        self,
        video: Video,
        key: str,
        embeddings: Mapping[str, Tensor],
        shown_bar: AbstractContextManager[RouteBar],
        stop: Callable[[], bool],
    ) -> list[BlockRecord]:
        """Make the blocks of one shot of a single video, whose folder the caller has locked; return their records.

        For the other arguments see `make`, which then makes the video of them.
        """
        with shown_bar as bar:
            return render_shot(
                self._loaded,
                self._resolve(video),
                key,
                video.prompt.conditions(embeddings),
                open_unfinished(video.folder, video.fingerprint),
                bar,
                reuse=self._reused_by(video),
                stop=stop,
            )

    def _is_shorter_there(self, video: Video) -> bool:
        """True if a video is there with fewer blocks, as its run was stopped: begin with those, and replace it."""
        return not self._batch.overwrite and shows(video.folder, video.fingerprint)

    def _reused_by(self, video: Video) -> list[Path]:
        """Return the folders whose blocks a video may use again."""
        folders = [video.folder] if self._is_shorter_there(video) else []
        if self._batch.reuse:
            folders.append(folder_in(self._batch.reuse, video, numbered=self._batch.numbered))
        return folders

    def make_blocks(
        self,
        video: Video,
        embeddings: Mapping[str, Tensor],
        shown_bar: AbstractContextManager[RouteBar],
        stop: Callable[[], bool],
        *,
        spread: bool = False,
    ) -> Generator[BlockRecord, None, RunReport]:
        """Make one video as `make` does; yield the record of each block that is written, and return the report."""
        batch = self._batch
        reuse = self._reused_by(video)
        replaced = batch.overwrite or self._is_shorter_there(video)
        with (
            # `plan_videos` keeps the folder of a single video locked.
            lock_folder(video.folder) if batch.numbered else nullcontext(),
            staged_video(video.folder, video.fingerprint, replace=replaced) as work,
            shown_bar as bar,
        ):
            report = yield from render_blocks(
                self._loaded,
                self._resolve(video),
                video.prompt.conditions(embeddings),
                work,
                digest_of(video.fingerprint),
                bar,
                reuse=reuse,
                spread=spread,
                stop=stop,
            )
            report = report.without_prompts() if batch.private else report
            write_report(report, work)
            return report

    def run_of(self, request: VideoRequest, conditions: Conditions) -> Run:
        """Return the run of a request for one shot, with the batch's seed. It writes and re-uses nothing."""
        resolved = self._resolve_request(request)
        loaded = self._loaded
        engine = loaded.build(needed=resolved.models_needed, block_length=request.block_length)
        (run,) = resolved.prepare_runs(engine, conditions, None, device_clock(loaded.device, loaded.side))
        return run


@contextmanager
def show_bar(video: Video, of: int, stream: TextIO) -> Iterator[RouteBar]:
    """Show the progress while a video is made; after an error, say what is kept."""
    blocks = video.request.blocks
    try:
        with closing(RouteBar(blocks, stream)) as bar:
            yield bar
    except BaseException as error:
        kept = [f"{video.number - 1} of {of} videos"] if video.number > 1 else []
        if made := len(unfinished_blocks(video.folder)):
            kept.append(f"{made} of {blocks} blocks of {video.folder}")
        if kept:
            then = "would stop there again" if isinstance(error, BadInput) else "continues from there"
            stream.write(f"sdvg: kept {' and '.join(kept)}; the same command {then}\n")
        raise
