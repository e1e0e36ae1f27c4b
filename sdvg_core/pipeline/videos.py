"""Videos with models that are loaded once: each in its own folder, and resumable."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from torch import Tensor

from ..checkpoints.model_files import ModelFiles
from ..errors import BadInput
from ..files.outputs import BLOCKS, REPORT, hold, staged_outputs, unfinished_blocks
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..text.prompts import one_prompt
from .batch import Batch, Video, folder_in, plan_videos
from .headers import Headers
from .identity import digest_of
from .loading import load_models, plan_memory
from .options import LoadOptions
from .rendering import render
from .request import ResolvedRequest, VideoRequest, resolve_files
from .table import VideoTable


class Stopping:
    """Whether to end after the block in the making. The first Ctrl-C asks for that, the second stops at once.

    `then`: what the first one does, for whoever pressed it.
    """

    def __init__(self, then: str = "stops after this block and keeps the video") -> None:
        self.asked, self._then = False, then

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take the first Ctrl-C inside for the wish to stop after this block. The next one interrupts as ever."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = signal.getsignal(signal.SIGINT)

        def hear(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, usual)
            sys.stderr.write(f"\nsdvg: {self._then}; Ctrl-C again stops at once\n")

        signal.signal(signal.SIGINT, hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)


def make_video(
    files: ModelFiles, prompt: str, output: Path | str, request: VideoRequest, load: LoadOptions
) -> RunReport:
    """Make one video from a prompt; write video, latents, report and route picture into the folder `output`.

    A video that is there is replaced. Raises `BadInput` for any unusable input, before a weight is read.
    """
    prompts, folder = (one_prompt(prompt),), Path(output)
    batch = Batch(files=files, load=load, request=request, prompts=prompts, output=folder, overwrite=True)
    ((_, report),) = make_videos(batch)
    return report


def make_videos(
    batch: Batch,
    *,
    stopping: Stopping | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make the videos of a batch; return each folder and report.

    Only models are loaded that a block may ask for. `stopping`: hears whether to end after the block in the making,
    and not to begin another video. `say`: hears what is being loaded, which may take minutes. Next to numbered
    folders there is a table.
    """
    with plan_videos(batch) as planned:
        batch, files = planned.batch, planned.batch.files
        table = VideoTable(planned) if batch.numbered else None
        made = {}
        if planned.to_make:
            plan_memory(planned.headers, batch.load, planned.resolved)  # a refusal comes before minutes of loading
            say(f"loading {files.text_encoder.name}, to read the prompt")
            embeddings = planned.embed()
            loaded = (files.vae, files.judge_vae, files.reward, files.drafter, files.target)
            say("loading " + ", ".join(dict.fromkeys(path.name for path in loaded if path)))
            maker = VideoMaker(batch, planned.headers, planned.resolved)
        for video in planned.to_make:
            if stopping and stopping.asked:
                break
            with stopping.heard() if stopping else nullcontext():
                bar = _shown(video, batch.request.blocks)
                report = maker.make(video, embeddings, bar, lambda: stopping is not None and stopping.asked)
            made[video.folder] = report
            if table:
                table.made(video.number, report)
        there = [v for v in planned.videos if v.folder in made or v.exists]
        return [(v.folder, made.get(v.folder) or read_report(v.folder / REPORT)) for v in there]


class VideoMaker:
    """Loaded models, and what they are to make."""

    def __init__(self, batch: Batch, headers: Headers, resolved: ResolvedRequest) -> None:
        """Load the models. `resolved`: what the request of `batch` comes to."""
        self._batch, self._headers, self._resolved = batch, headers, resolved
        self._loaded = load_models(batch.files, batch.load, headers, resolved)

    def _resolve(self, video: Video) -> ResolvedRequest:
        """Return what a video of the batch comes to. Nothing is read again for one with the route of the batch."""
        found = self._resolved
        if video.request.router != self._batch.request.router:
            found = resolve_files(video.request, self._headers)
        return replace(found, request=video.request, notes=(*found.notes, *filter(None, video.notes)))

    def make(
        self,
        video: Video,
        embeddings: Mapping[str, Tensor],
        showing: AbstractContextManager[RouteBar],
        stop: Callable[[], bool],
    ) -> RunReport:
        """Make one video. `embeddings`: of its prompts. `showing`: opens the bar on which it is shown.

        `stop`: asked after every block whether to end there.
        """
        batch = self._batch
        # A run that was killed as it moved its files has its blocks in place, and no report.
        half = (video.folder / BLOCKS).is_dir() and not (video.folder / REPORT).exists()
        reuse = [video.folder] if video.short or half else []
        if batch.reuse:
            reuse.append(folder_in(batch.reuse, video, numbered=batch.numbered))
        asked = {"request": video.identity, "command": batch.command}
        with (
            hold(video.folder) if batch.numbered else nullcontext(),
            staged_outputs(video.folder, asked) as staging,
            showing as bar,
        ):
            return render(
                self._loaded,
                self._resolve(video),
                video.prompt.conditions(embeddings, batch.gate_prompt),
                staging,
                digest_of(video.identity),
                bar.block,
                on_pass=bar.step,
                on_delivery=bar.delivering,
                reuse=reuse,
                stop=stop,
                private=batch.private,
            )


@contextmanager
def _shown(video: Video, blocks: int) -> Iterator[RouteBar]:
    """Show a bar on standard error while a video is made; whatever stops it, say what is kept of it."""
    try:
        with closing(RouteBar(blocks, steps=video.steps)) as bar:
            yield bar
    except BaseException as error:
        kept = [f"{video.number - 1} of {video.of} videos"] if video.number > 1 else []
        if made := len(unfinished_blocks(video.folder)):
            kept.append(f"{made} of {blocks} blocks of {video.folder}")
        if kept:
            again = isinstance(error, BadInput)  # what refused this block would refuse it again
            then = "would stop there again" if again else "continues from there"
            sys.stderr.write(f"sdvg: kept {' and '.join(kept)}; the same command {then}\n")
        raise
