"""Make a live run into files: first the run, as words come, then the video of its recording.

The run writes its blocks and its prompts into a hidden folder beside the video's. The video is then made as any
other, of the recording, with these blocks for re-use: no model is called again. What a run leaves that is cut off
is made into a video in the same way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from torch import Tensor

from ..devices.device import device_clock
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse, Store, Tensors
from ..errors import BadInput, count
from ..files.outputs import BLOCKS_FOLDER
from ..files.video import Mp4Writer
from ..loading.headers import check_models
from ..loading.load import Models, load_encoder, load_models
from ..report.run_report import RunReport
from ..text.prompts import prompt_lines, with_prompt_lines
from .asked import Batch
from .batch import BatchPlan, plan_videos
from .blocks import BlockFiles
from .live import LiveFilm, Recording, Steering, live_film, live_request
from .maker import VideoMaker, plan_layout, show_bar

SESSION = "session.txt"
"""The prompts of a live run, as a prompt file."""
LIVE_VIDEO = "live.mp4"
"""The video of a live run as it grows, for a player that follows it."""
Listen = Callable[[Steering], AbstractContextManager[Callable[[], bool]]]
"""Opens the way by which a run is steered; yields a function that says whether to wait with the next block."""
Shown = Callable[[int, BlockRecord, int], None]
"""Receives the number, the record and the pixel frames of each block as it is made."""


def make_live(
    batch: Batch,
    listen: Listen,
    shown: Shown,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    bars: TextIO,
) -> tuple[Path, RunReport]:
    """Make a live run and the video of its recording; return the folder and the report.

    `batch`: of one video, whose request has the most blocks, and whose prompt's lines are not in the request yet.
    Raises `BadInput` for any unusable input before weights are read, and if an earlier run was cut off there.
    """
    (prompt,) = batch.prompts
    headers = check_models(batch.files, batch.load)
    film = live_film(batch.request, prompt, headers)
    longest = with_prompt_lines(live_request(batch.request, prompt, headers), prompt)
    with plan_videos(replace(batch, request=longest)) as planned:
        for note in (*planned.notes, *film.notes):
            warn(note)
        if not planned.to_make:
            raise BadInput(f"{planned.folder} has this very video; add --overwrite, or name another --output")
        folder = planned.folder
        session = _begin_session(folder)
        with _kept(session, film, private=batch.private, warn=warn):
            layout = plan_layout(planned.batch, planned.headers, next(iter(planned.resolved.values())))
            files = planned.batch.files
            names = [path.name for path in (files.text_encoder, files.vae, files.drafter) if path]
            say("loading " + ", ".join(names))
            encode = lru_cache(None)(load_encoder(files, planned.batch.load))
            loaded = load_models(files, planned.batch.load, planned.headers, layout)
            with listen(film.steering) as wait:
                for number, record, frames in _play(film, loaded, encode, session, wait, private=batch.private):
                    shown(number, record, frames)
    recording = film.steering.recording()
    assert recording is not None, "a run that is not interrupted has a block"
    of_recording = replace(
        batch,
        request=with_prompt_lines(recording.request, recording.prompt),
        prompts=(recording.prompt,),
        output=folder,
        named=True,
        reuse=session,
        stated=(),
    )
    with _kept(session, film, private=batch.private, warn=warn), plan_videos(of_recording) as planned:
        report = _finish(planned, loaded, encode, bars)
    if not batch.private:
        (folder / SESSION).write_text(session_text(recording), encoding="utf-8")
    shutil.rmtree(session)
    return folder, report


def session_text(recording: Recording) -> str:
    """Return a recording as a prompt file; its first line, a remark, has the options that make these blocks."""
    return f"# {recorded_options(recording)}\n{prompt_lines(recording.prompt)}"


def recorded_options(recording: Recording) -> str:
    """Return the options of `generate` that make the blocks of a recording from its prompts."""
    request = recording.request
    takes = f" --takes {request.takes}" if request.takes else ""
    return f"--blocks {request.blocks} --seed {request.seed}{takes} --policy first --forced-blocks 0"


def _begin_session(folder: Path) -> Path:
    """Make the hidden folder of a live run for `folder`. Raises `BadInput` if that of an earlier run is there."""
    session = folder.with_name(f".{folder.name}.live")
    if session.exists():
        words = f"--reuse {session} --prompt-file {session / SESSION} and the options in that file's first line"
        way = f"make its video with {words}, or remove it"
        raise BadInput(f"{session} has a live run that was cut off; {way}")
    (session / BLOCKS_FOLDER).mkdir(parents=True)
    return session


@contextmanager
def _kept(session: Path, film: LiveFilm, *, private: bool, warn: Callable[[str], None]) -> Iterator[None]:
    """After an error, say what the folder of a live run keeps, and remove it if that is nothing."""
    try:
        yield
    except BaseException:
        if recording := film.steering.recording():
            words = f"--reuse {session} {recorded_options(recording)}"
            file = "FILE, with its prompts," if private else session / SESSION
            blocks = count(recording.request.blocks, "block")
            warn(f"the run's {blocks} went into {session}; {words} --prompt-file {file} makes their video")
        else:
            shutil.rmtree(session)
        raise


def _play(
    film: LiveFilm,
    loaded: Models,
    encode: Callable[[str], Tensor],
    session: Path,
    wait: Callable[[], bool],
    *,
    private: bool,
) -> Generator[tuple[int, BlockRecord, int]]:
    """Play a live run into its folder; yield number, record and pixel frames of each block."""
    request = film.longest.request
    engine = loaded.build(needed=film.longest.plan.models_needed, block_length=request.block_length)
    store = Store()
    blocks = BlockFiles(session / BLOCKS_FOLDER)
    written: set[str] = set()
    clock = device_clock(loaded.device, loaded.side)
    reuse = Reuse(store=store, part_keys=loaded.part_keys)
    with (
        Mp4Writer(session / LIVE_VIDEO, request.fps, growing=True) as video,
        closing(film.play(engine, encode, reuse, clock, wait=wait)) as parts,
    ):
        for number, part in parts:
            video.add(part.frames)
            record = part.shown.record
            if record is None:
                continue
            # Of a run that was set back, the store looked up blocks that have their files.
            results: dict[str, Tensors] = {
                key: made for key, made in store.take_used().items() if key not in written
            }
            written |= results.keys()
            blocks.add(number, record, results)
            recording = film.steering.recording()
            if recording and not private:
                (session / SESSION).write_text(session_text(recording), encoding="utf-8")
            yield number, record, part.frames.shape[1]


def _finish(planned: BatchPlan, loaded: Models, encode: Callable[[str], Tensor], bars: TextIO) -> RunReport:
    """Make the video of a recording with the models of its run."""
    (video,) = planned.to_make
    maker = VideoMaker(planned.batch, planned.headers, None, planned.resolved.__getitem__, loaded)
    embeddings = {text: encode(text) for text in video.prompt.texts}
    return maker.make(video, embeddings, show_bar(video, 1, bars), bool)
