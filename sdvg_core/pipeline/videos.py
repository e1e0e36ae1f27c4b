"""Many videos with models that are loaded once: each in its own folder, and resumable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.model_files import ModelFiles
from ..engine.roles import Roles
from ..errors import BadInput
from ..files.outputs import LATENTS, REPORT, check_room, check_writable, staged_outputs
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..text.prompts import Conditions, PromptSchedule, check_prompt, one_prompt
from .identity import Identity, digest_of, identify
from .journal import Journal, drop_unfinished, find_unfinished
from .latents import load_latents
from .loading import Loaded, check_models, encode_prompts, load_models
from .options import LoadOptions
from .parts import identify_parts
from .rendering import render
from .request import Beginning, VideoRequest, begin, predict_bytes
from .results import check_reusable
from .stopping import Stopping


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


def make_video(
    files: ModelFiles, prompt: str, output: Path | str, request: VideoRequest, load: LoadOptions
) -> RunReport:
    """Make one video from a prompt; write video, latents, report and route picture into the folder `output`.

    Raises `BadInput` for any unusable input, before a weight is read.
    """
    ((_, report),) = make_videos(files, load, request, (one_prompt(prompt),), Path(output))
    return report


def make_videos(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompts: tuple[PromptSchedule, ...],
    output: Path,
    gate_prompt: str | None = None,
    *,
    resume: bool = False,
    reuse: Path | None = None,
    stopping: Stopping | None = None,
    prompt_in_report: bool = False,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make a video for each entry of `prompts`; return each folder and report.

    Only models are loaded that a block may ask for. `resume`: continue stopped runs of the same request, and leave
    finished videos alone. `reuse`: the folder of an earlier call, whose blocks are used again where they are
    provably the same. `stopping`: hears whether to end after the block in the making, and not to begin another
    video.
    """
    if gate_prompt is not None:
        check_prompt(gate_prompt)
    check_writable(output)
    checked = check_models(files, load)
    beginning = begin(request, checked, scorer=files.reward is not None)
    files, checked = needed_files(files, beginning.asked), checked.only(beginning.asked)
    for note in (*checked.notes, *beginning.notes):
        sys.stderr.write(f"sdvg: {note}\n")
    videos = [
        Video(
            number=number,
            of=len(prompts),
            folder=output if len(prompts) == 1 else output / f"{number:04d}",
            prompt=prompt,
            identity=identify(files, load, request, prompt, gate_prompt),
            steps=len(checked.shapes[1].timesteps),
        )
        for number, prompt in enumerate(prompts, 1)
    ]
    if resume:
        videos = [_look_up(video, request.blocks) for video in videos]
    to_make = [video for video in videos if not video.exists]
    if reuse:
        identities = identify_parts(files, load, *checked.identities)
        # Of many videos, an earlier call that was stopped has not begun the last ones.
        for video in [v for v in to_make if _folder_in(reuse, v).is_dir()] or to_make[:1]:
            check_reusable(_folder_in(reuse, video), identities, beginning.asked)
    check_room(output, len(to_make) * predict_bytes(request, beginning, checked))
    made = {}
    if to_make:
        embeddings = encode_prompts(files, (text for v in to_make for text in v.prompt.texts), load)
        loaded = load_models(files, load, checked)
        for video in to_make:
            if stopping and stopping.asked:
                break
            conditions = video.prompt.conditions(embeddings, gate_prompt)
            made[video.folder] = _make(
                video,
                loaded,
                request,
                beginning,
                conditions,
                _folder_in(reuse, video) if reuse else video.folder if video.short else None,
                stopping,
                prompt_in_report,
            )
    there = [v for v in videos if v.folder in made or v.exists]
    return [(v.folder, made[v.folder] if v.folder in made else read_report(v.folder / REPORT)) for v in there]


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


def _folder_in(reuse: Path, video: Video) -> Path:
    """Return the folder of the earlier video to re-use: of many, the one with the same number."""
    return reuse if video.of == 1 else reuse / video.folder.name


def _look_up(video: Video, blocks: int) -> Video:
    """Find what exists of a video. Raises `BadInput` if another one is in its place."""
    unfinished = find_unfinished(video.folder, video.identity)
    finished = (video.folder / LATENTS).is_file() and unfinished is None
    if finished and load_latents(video.folder / LATENTS).metadata.get("request") != digest_of(video.identity):
        raise BadInput(
            f"{video.folder} holds another finished video; name another folder, or leave --resume out to replace it"
        )
    exists = finished and len(read_report(video.folder / REPORT).blocks) == blocks
    return replace(video, unfinished=unfinished, exists=exists, short=finished and not exists)


def _make(
    video: Video,
    loaded: Loaded,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    reuse: Path | None,
    stopping: Stopping | None,
    prompt_in_report: bool,
) -> RunReport:
    with staged_outputs(video.folder, video.unfinished) as staging:
        journal = Journal(staging.journal, video.identity)
        with _shown(video, journal, request.blocks) as bar, stopping.heard() if stopping else nullcontext():
            bar.made_before([entry.record for entry in journal.before])
            report = render(
                loaded,
                request,
                beginning,
                conditions,
                staging,
                journal,
                bar.block,
                on_pass=bar.step,
                on_delivery=bar.delivering,
                reuse=reuse,
                stop=lambda: stopping is not None and stopping.asked,
                prompt_in_report=prompt_in_report,
            )
    drop_unfinished(video.folder, video.identity)
    return report


@contextmanager
def _shown(video: Video, journal: Journal, blocks: int) -> Iterator[RouteBar]:
    """Show a bar on standard error while a video is made; whatever stops it, say what is kept of it."""
    try:
        with closing(RouteBar(blocks, steps=video.steps)) as bar:
            yield bar
    except BaseException as error:
        kept = [f"{video.number - 1} of {video.of} videos"] if video.number > 1 else []
        kept += [f"{journal.blocks} of {blocks} blocks of {video.folder}"] if journal.blocks else []
        if kept:
            again = isinstance(error, BadInput)  # what refused this block would refuse it again
            then = "with --resume would stop there again" if again else "with --resume continues from there"
            sys.stderr.write(f"sdvg: kept {' and '.join(kept)}; the same command {then}\n")
        raise
