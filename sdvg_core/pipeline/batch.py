"""Many videos of one call: what they share, which are there already, and every check that needs no weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.model_files import ModelFiles
from ..engine.roles import Roles
from ..errors import BadInput
from ..files.outputs import LATENTS, REPORT, check_room, check_writable
from ..report.run_report import read_report
from ..text.prompts import PromptSchedule, check_prompt
from .checking import Checked, check_models
from .identity import Identity, digest_of, identify
from .journal import find_unfinished
from .latents import load_latents
from .options import LoadOptions
from .parts import identify_parts
from .request import Beginning, VideoRequest, begin, predict_bytes
from .results import check_reusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One of the videos to make: its folder, its prompts, and its identity.

    `number`, `of`: its number and how many there are. `steps`: denoising steps per block. `unfinished`: the hidden
    folder of a run to resume. `exists`: whether it is already finished. `short`: whether it is, but with fewer
    blocks, because it was stopped as asked.
    """

    number: int
    of: int
    folder: Path
    prompt: PromptSchedule
    identity: Identity
    steps: int = 4
    unfinished: Path | None = None
    exists: bool = False
    short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What all videos of a call share. It holds values only, so it can be sent to other processes.

    `reuse`: the folder of an earlier call, whose blocks are used again where they are provably the same.
    """

    files: ModelFiles
    load: LoadOptions
    request: VideoRequest
    gate_prompt: str | None = None
    reuse: Path | None = None
    prompt_in_report: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """Videos that can be made, as far as the models' headers tell. `batch`: with only the files that are needed."""

    batch: Batch
    checked: Checked
    beginning: Beginning
    videos: tuple[Video, ...]

    @property
    def to_make(self) -> tuple[Video, ...]:
        """The videos that are not there yet."""
        return tuple(video for video in self.videos if not video.exists)


def plan_videos(batch: Batch, prompts: tuple[PromptSchedule, ...], output: Path, *, resume: bool) -> Planned:
    """Check everything that needs no weights, and say on standard error what a user should know.

    Raises `BadInput` for any unusable input.
    """
    request = batch.request
    if batch.gate_prompt is not None:
        check_prompt(batch.gate_prompt)
    check_writable(output)
    checked = check_models(batch.files, batch.load)
    beginning = begin(request, checked, scorer=batch.files.reward is not None)
    checked = checked.only(beginning.asked)
    batch = replace(batch, files=needed_files(batch.files, beginning.asked))
    for note in (*checked.notes, *beginning.notes):
        sys.stderr.write(f"sdvg: {note}\n")
    videos = [
        Video(
            number=number,
            of=len(prompts),
            folder=output if len(prompts) == 1 else output / f"{number:04d}",
            prompt=prompt,
            identity=identify(batch.files, batch.load, request, prompt, batch.gate_prompt),
            steps=len(checked.shapes[1].timesteps),
        )
        for number, prompt in enumerate(prompts, 1)
    ]
    if resume:
        videos = [look_up(video, request.blocks) for video in videos]
    planned = Planned(batch=batch, checked=checked, beginning=beginning, videos=tuple(videos))
    if batch.reuse:
        _check_reuse(planned, batch.reuse)
    check_room(output, len(planned.to_make) * predict_bytes(request, beginning, checked))
    return planned


def _check_reuse(planned: Planned, reuse: Path) -> None:
    identities = identify_parts(planned.batch.files, planned.batch.load, *planned.checked.identities)
    # Of many videos, an earlier call that was stopped has not begun the last ones.
    begun = [video for video in planned.to_make if folder_in(reuse, video).is_dir()]
    for video in begun or planned.to_make[:1]:
        check_reusable(folder_in(reuse, video), identities, planned.beginning.asked)


def texts_of(videos: Iterable[Video]) -> Iterator[str]:
    """Yield the prompts of videos."""
    return (text for video in videos for text in video.prompt.texts)


def needed_files(files: ModelFiles, asked: Roles) -> ModelFiles:
    """Return the files without those of parts that no block asks for."""
    return replace(
        files,
        drafter=files.drafter if asked.drafter else None,
        target=files.target if asked.target else None,
        reward=files.reward if asked.scorer else None,
        vocabulary=files.vocabulary if asked.scorer else None,
        judge_vae=files.judge_vae if asked.scorer else None,
    )


def folder_in(reuse: Path, video: Video) -> Path:
    """Return the folder of the earlier video to re-use: of many, the one with the same number."""
    return reuse if video.of == 1 else reuse / video.folder.name


def look_up(video: Video, blocks: int) -> Video:
    """Find what exists of a video. Raises `BadInput` if another one is in its place."""
    unfinished = find_unfinished(video.folder, video.identity)
    finished = (video.folder / LATENTS).is_file() and unfinished is None
    if finished and load_latents(video.folder / LATENTS).metadata.get("request") != digest_of(video.identity):
        raise BadInput(
            f"{video.folder} holds another finished video; name another folder, or leave --resume out to replace it"
        )
    exists = finished and len(read_report(video.folder / REPORT).blocks) == blocks
    return replace(video, unfinished=unfinished, exists=exists, short=finished and not exists)
