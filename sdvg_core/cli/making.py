"""The work of `generate`: the batch that options and an earlier report ask for, and what is printed.

Their options are elsewhere, as this imports torch, for which `--help` should not wait.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..devices.device import device_line, resolved_threads
from ..errors import BadInput, count
from ..files.outputs import REPORT, VIDEOS_TABLE
from ..pocket import POCKET
from ..pocket.grammar import understood
from ..pocket.trained_set import pocket_options
from ..pocket.world import SIZE
from ..report.run_report import RunReport, read_report
from ..report.summary import summarise
from ..settings.fields import settings_of
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest, read_shots
from ..settings.route import DEFAULT_PRESET
from ..text.prompt_files import read_prompt_file
from ..text.prompts import PromptSchedule, one_prompt, read_video_prompt, with_prompt_lines
from ..videos.asked import Batch
from ..videos.chosen_files import naming_source
from ..videos.live import DEFAULT_LONGEST
from ..videos.live_video import make_live
from ..videos.maker import StopRequest, make_videos
from ..videos.many import make_many, make_one_film
from ..videos.table import FAILED, FINISHED, Row
from . import FAILURES, INTERRUPTED
from .again import (
    FILE_OPTIONS,
    compared,
    embedded_again,
    files_again,
    is_embedded,
    latents_in,
    load_again,
    prompts_again,
    request_again,
    route_again,
)
from .options import ROUTE_SETTINGS, load_options, model_files, stated, video_request, worker_devices
from .steering import LiveTerminal

IN_WORLD = {"width": SIZE, "height": SIZE}
say: Callable[[str], None] = partial(print, flush=True)


def warn(note: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"sdvg: {note}\n")


def generate(options: argparse.Namespace) -> int:
    """Make the requested videos; return the exit code."""
    if options.report and options.report.is_dir():
        options.report /= REPORT
    again = read_report(options.report) if options.report else None
    embedded = options.models == POCKET or bool(again and options.models is None and is_embedded(again))
    options.models = POCKET if embedded else options.models or Path("models")
    with resolved_threads(embedded=embedded), naming_source(options.models):
        prompts, notes, listed = read_prompts(options, again)
        batch = _batch(options, again, prompts, listed=listed)
        for note in notes:
            warn(note)
        if options.live:
            return _generate_live(options, batch)
        return _generate(options, again, batch)


def _generate(options: argparse.Namespace, again: RunReport | None, batch: Batch) -> int:
    of_shots = not batch.numbered and len(read_shots(batch.request.shots)) > 1
    devices = worker_devices(options, batch.load.device, of_shots=of_shots)
    stopping = StopRequest()
    # Read the earlier latents now, as the new video may replace them.
    compare: Callable[[RunReport, Path], str] | None = None
    if again:
        compare = partial(compared, again, latents_in(options.report.parent), options.report.parent)
    say(device_line(batch.load.device, batch.load.dtype))
    workers: Any = {"ray": options.ray, "most": options.workers, "stopping": stopping, "warn": warn}
    if devices and of_shots:
        folder, report, failures = make_one_film(batch, devices, **workers)
        _warn_of_missing((name, str(error)) for name, error in failures.items())
        stopped = _print_videos([(folder, report)] if report else [], batch, compare, stopping)
        return stopped or (FAILURES if failures else 0)
    if devices:
        folder, rows = make_many(batch, devices, **workers)
        _print_rows(rows, folder)
        for row in rows:
            if compare and row.state == FINISHED:
                video = folder / row.folder
                say(f"{video}: {compare(read_report(video / REPORT), video)}")
        stopped = exit_code(stopping, whole=all(row.state in (FINISHED, FAILED) for row in rows))
        return stopped or (FAILURES if any(row.state == FAILED for row in rows) else 0)
    reports = make_videos(batch, stopping=stopping, say=say, warn=warn, bars=sys.stderr)
    return _print_videos(reports, batch, compare, stopping)


def _print_videos(
    reports: Sequence[tuple[Path, RunReport]],
    batch: Batch,
    compare: Callable[[RunReport, Path], str] | None,
    stopping: StopRequest,
) -> int:
    """Print the results of one process's videos, or of one film; return the exit code."""
    for folder, report in reports:
        print(f"{summarise(report)}\nThe video is in {folder}")
        if compare:
            say(compare(report, folder))
    whole = len(reports) == len(batch.prompts) * max(len(batch.seeds), 1) and all(
        len(report.blocks) == batch.request.blocks for _, report in reports
    )
    return exit_code(stopping, whole=whole)


def _check_live(options: argparse.Namespace, prompts: Sequence[PromptSchedule]) -> None:
    """Raise `BadInput` for options that a live run does not have."""
    if len(prompts) > 1 or len(options.seeds) > 1:
        raise BadInput("a live run is one video; give one prompt and one seed")
    of_route = {of.dest: of.flags[0] for kind in ROUTE_SETTINGS for of in settings_of(kind).values() if of.help}
    of_route |= {name: f"--{name}" for name in ("preset", "policy", "budget")}
    if stated_route := [flag for dest, flag in of_route.items() if getattr(options, dest, None) is not None]:
        fault = f"the drafter makes a live run alone, without {stated_route[0]}"
        raise BadInput(f"{fault}; leave it out, and add it to --from the run's report.json")
    flags = {"report": "--from", "reuse": "--reuse", "workers": "--workers", "ray": "--ray"}
    if others := [flag for name, flag in flags.items() if getattr(options, name)]:
        raise BadInput(f"a live run begins from nothing, in this process; leave {others[0]} out")


def _nearest(text: str) -> str:
    """Return the nearest prompt that the embedded models know; warn if it is another."""
    (prompt,), notes = understood((one_prompt(text),))
    for note in notes:
        warn(note)
    return prompt.texts[0]


def _generate_live(options: argparse.Namespace, batch: Batch) -> int:
    """Make a live run and its video; return the exit code."""
    stopping = StopRequest()
    # A report's prompts are understood too, so without this the recording would be made again from other words.
    understand = _nearest if options.models == POCKET else str
    terminal = LiveTerminal(sys.stdin, batch.request.fps, say, warn, understand)
    say(device_line(batch.load.device, batch.load.dtype))
    with stopping.listen():
        listen = partial(terminal.listen, stop=lambda: stopping.asked)
        folder, report = make_live(batch, listen, terminal.show, say=say, warn=warn, bars=sys.stderr)
    print(f"{summarise(report)}\nThe video is in {folder}")
    prompts = " and --prompt-file with its prompts" if options.private else ""
    say(f"--from {folder / REPORT}{prompts} makes it again; with --preset {DEFAULT_PRESET}, both models make it")
    return 0


def _batch(
    options: argparse.Namespace, again: RunReport | None, prompts: tuple[PromptSchedule, ...], *, listed: bool
) -> Batch:
    """Return the batch: the user's options over the report's values over the defaults. `listed`: by a file."""
    embedded = options.models == POCKET
    if options.seeds:
        options.seed = options.seeds[0]
    base: dict[str, Any] = dict(IN_WORLD) if embedded else {}
    load = pocket_options() if embedded else LoadOptions()
    named: dict[str, Path] = {}
    if again:
        base |= request_again(again, stated(options, VideoRequest))
        loras: tuple[str, ...] = ()
        if embedded:
            named = embedded_again(again)
        else:
            given = [role for role in FILE_OPTIONS.values() if getattr(options, role)]
            named, loras = files_again(again, options.models, given)
        load = load_again(again, load, loras)
    route = route_again(again) if again and not hasattr(options, "budget") else None
    if options.live:
        _check_live(options, prompts)
        if not any(hasattr(options, clip) for clip in ("restyle", "control")):
            base = {"blocks": DEFAULT_LONGEST, **base}
    request = video_request(options, base, route)
    copied = ("overwrite", "reuse", "private")
    return Batch(
        files=model_files(options, options.models, request, named),
        load=load_options(options, load, embedded=embedded),
        # Only the one prompt of a single video changes within it, or has lines of its own.
        request=request if options.live else with_prompt_lines(request, prompts[0]),
        prompts=prompts,
        seeds=tuple(options.seeds),
        output=options.output or Path("out"),
        named=options.output is not None,
        listed=listed and not options.live,
        stated=_stated_flags(options),
        **{name: getattr(options, name) for name in copied},
    )


def _stated_flags(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the flags whose value is not the default. The batch notes those among them that have no effect."""
    actions = [action for action in options.parser._actions if action.option_strings]
    return tuple(a.option_strings[0] for a in actions if getattr(options, a.dest, a.default) != a.default)


def read_prompts(
    options: argparse.Namespace, again: RunReport | None
) -> tuple[tuple[PromptSchedule, ...], list[str], bool]:
    """Return the prompts of each video, notes, and whether a file lists them.

    The embedded models get the nearest prompts they know.
    """
    listed = False
    if options.prompt_file:
        prompts, listed = read_prompt_file(options.prompt_file)
    elif options.prompt is not None:
        prompts = (read_video_prompt(options.prompt),)
    elif again:
        prompts = (prompts_again(again),)
    else:
        options.parser.error("there is no prompt; add --prompt TEXT, --prompt-file FILE or --from report.json")
    prompts, notes = understood(prompts) if options.models == POCKET else (prompts, [])
    return prompts, notes, listed


def _print_rows(rows: Sequence[Row], folder: Path) -> None:
    """Print the results of many videos, with failures grouped by reason. `folder`: of their table."""
    _warn_of_missing((row.folder, row.error) for row in rows if row.state == FAILED)
    finished = sum(row.state == FINISHED for row in rows)
    print(f"{finished} of {count(len(rows), 'video')} finished; the table is {folder / VIDEOS_TABLE}")


def _warn_of_missing(failures: Iterable[tuple[str, str]]) -> None:
    """Warn of what was not made, grouped by reason. `failures`: pairs of name and error."""
    for why, missing in groupby(failures, key=itemgetter(1)):
        names = ", ".join(name for name, _ in missing)
        warn(f"not made: {names}: {why}; the same command tries again")


def exit_code(stopping: StopRequest, *, whole: bool) -> int:
    """Return 0, or 130 after Ctrl-C with a line on how to go on. `whole`: whether everything was made anyway."""
    if whole or not stopping.asked:
        return 0
    warn("stopped as asked; the same command makes the rest")
    return INTERRUPTED
