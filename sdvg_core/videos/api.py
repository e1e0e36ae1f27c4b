"""The Python API: `make()` one video. The command `generate` calls the same functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..devices.device import pick_device, resolved_threads
from ..errors import BadInput, quoted
from ..pocket import POCKET
from ..pocket.grammar import understood
from ..pocket.trained_set import pocket_options
from ..pocket.world import SIZE
from ..report.run_report import RunReport
from ..settings.execution import AUTO
from ..settings.fields import checked
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest
from ..settings.route import DEFAULT_PRESET, route_preset
from ..text.prompts import check_prompt, read_video_prompt, with_prompt_lines
from .asked import Batch
from .chosen_files import choose_files, naming_source
from .maker import make_videos


def make(
    prompt: str,
    *,
    models: Path | str = POCKET,
    preset: str | None = None,
    out: Path | str | None = None,
    say: Callable[[str], None] = lambda line: None,
    **request: Any,
) -> tuple[Path, RunReport]:
    """Make a video like the command `generate`; return its folder and its report.

    `models`: a folder, or `pocket`. `preset`: fast, balanced (default), careful, hybrid, or paper (the gate).
    `out`: its folder, which is refused if it has anything else; without it, `out/001` and so on, or where this very
    video is or was begun. `request`: fields of `VideoRequest`, such as `blocks=4, seed=7`, or a `route`, not a
    preset. `say`: receives lines on the progress, such as `print`; without it nothing is printed. Warnings are in
    the report's notes. Raises `BadInput` for any unusable input before weights are read.
    """
    model_folder: Path = checked(models, Path, "models")
    output: Path = checked("out" if out is None else out, Path, "out")
    if not callable(say):
        raise BadInput(f"say is {quoted(say)}; give a function of a line, such as print")
    embedded = model_folder == POCKET
    check_prompt(prompt)
    prompts = (read_video_prompt(prompt),)
    size = {"width": SIZE, "height": SIZE} if embedded else {}
    if unknown := request.keys() - VideoRequest.__dataclass_fields__.keys():
        raise BadInput(f"a video has no setting {min(unknown)}; see the fields of VideoRequest")
    if preset is not None and "route" in request:
        raise BadInput("a preset is a route, and a route is given too; give one of them")
    video = VideoRequest(**{**size, "route": route_preset(DEFAULT_PRESET if preset is None else preset), **request})
    with resolved_threads(embedded=embedded), naming_source(model_folder):
        batch = Batch(
            files=choose_files(model_folder, video, {}),
            load=pocket_options() if embedded else LoadOptions(device=pick_device(AUTO)),
            request=with_prompt_lines(video, prompts[0]),
            prompts=understood(prompts)[0] if embedded else prompts,
            output=output,
            named=out is not None,
        )
        ((folder, report),) = make_videos(batch, say=say)
    return folder, report
