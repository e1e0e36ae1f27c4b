"""Many videos with models that are loaded once: each in its own folder, and resumable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.model_files import ModelFiles
from ..errors import BadInput
from ..files.outputs import LATENTS, REPORT, check_room, check_writable, staged_outputs
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..text.prompts import Conditions, PromptSchedule, one_prompt
from .identity import Identity, digest_of, identify
from .journal import Journal, drop_unfinished, find_unfinished
from .latents import load_latents
from .loading import Loaded, check_models, encode_prompts, load_models
from .options import LoadOptions
from .rendering import render
from .request import Beginning, VideoRequest, begin, predict_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One of the videos to make: its folder, its prompts, and its identity.

    `number`, `of`: its number and how many there are. `steps`: denoising steps per block. `unfinished`: the hidden
    folder of a run to resume. `exists`: whether it is already finished.
    """

    number: int
    of: int
    folder: Path
    prompt: PromptSchedule
    identity: Identity
    steps: int = 4
    unfinished: Path | None = None
    exists: bool = False


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
    prompt_in_report: bool = False,
) -> list[tuple[Path, RunReport]]:
    """Load the models once and make a video for each entry of `prompts`; return each folder and report.

    The scorer is loaded only if the router needs scores. `resume`: continue stopped runs of the same request, and
    leave finished videos alone.
    """
    if not request.router.needs_scorer:
        files = replace(files, reward=None, vocabulary=None)
    check_writable(output)
    checked = check_models(files, load)
    beginning = begin(request, checked)
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
        videos = [_look_up(video) for video in videos]
    to_make = [video for video in videos if not video.exists]
    check_room(output, len(to_make) * predict_bytes(request, beginning, checked))
    made = {}
    if to_make:
        embeddings = encode_prompts(files, (text for v in to_make for text in v.prompt.texts), load)
        loaded = load_models(files, load, checked)
        for video in to_make:
            conditions = video.prompt.conditions(embeddings, gate_prompt)
            made[video.folder] = _make(video, loaded, request, beginning, conditions, prompt_in_report)
    return [(v.folder, made[v.folder] if v.folder in made else read_report(v.folder / REPORT)) for v in videos]


def _look_up(video: Video) -> Video:
    """Find what exists of a video. Raises `BadInput` if another one is in its place."""
    unfinished = find_unfinished(video.folder, video.identity)
    exists = (video.folder / LATENTS).is_file() and unfinished is None
    if exists and load_latents(video.folder / LATENTS).metadata.get("request") != digest_of(video.identity):
        raise BadInput(
            f"{video.folder} holds another finished video; name another folder, or leave --resume out to replace it"
        )
    return replace(video, unfinished=unfinished, exists=exists)


def _make(
    video: Video,
    loaded: Loaded,
    request: VideoRequest,
    beginning: Beginning,
    conditions: Conditions,
    prompt_in_report: bool,
) -> RunReport:
    with staged_outputs(video.folder, video.unfinished) as staging:
        journal = Journal(staging.journal, video.identity)
        with _shown(video, journal, request.blocks) as bar:
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
    except BaseException:
        kept = [f"{video.number - 1} of {video.of} videos"] if video.number > 1 else []
        kept += [f"{journal.blocks} of {blocks} blocks of {video.folder}"] if journal.blocks else []
        if kept:
            sys.stderr.write(
                f"sdvg: kept {' and '.join(kept)}; the same command with --resume continues from there\n"
            )
        raise
