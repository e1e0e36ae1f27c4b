"""Render one video: from loaded models and a resolved request to the output files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import torch

from ..decoders.open import FAST_NOTE
from ..devices.device import device_clock, versions_on
from ..engine.records import BlockRecord
from ..engine.reuse import Reuse, Store
from ..engine.run import Run
from ..engine.types import Block, History
from ..errors import BadInput
from ..files.digest import digest_of_file
from ..files.outputs import BLOCKS_FOLDER, LATENTS, REPORT, ROUTE_PICTURE, VIDEO
from ..files.video import Mp4Writer
from ..loading.load import Models
from ..report.assemble import assemble_report, notes_on
from ..report.embeddings import encoded_otherwise, other_embedding
from ..report.joins import joins
from ..report.picture import route_picture
from ..report.progress import RouteBar
from ..report.run_report import RunReport, read_report
from ..settings.fields import as_json
from ..settings.load import load_as_json
from ..text.prompts import Conditions
from ..weights.latents import SavedShot, lead_metadata, save_latents, shots_metadata
from .blocks import BlockFiles
from .clips import add_film_sound
from .film import FilmBlock, ResolvedFilm
from .fingerprint import MOST_DIFFERENCES
from .tape import Tape

SAME_ENCODER = "Use the text encoder of that run, on the same device and in the same dtype, to use its blocks."


def render_blocks(
    loaded: Models,
    film: ResolvedFilm,
    conditions: Conditions,
    work: Path,
    digest: str,
    bar: RouteBar,
    *,
    reuse: Sequence[Path] = (),
    spread: bool = False,
    stop: Callable[[], bool] = bool,
) -> Generator[BlockRecord, None, RunReport]:
    """Make one video, write video, latents and blocks into the folder `work`, and return the report.

    Each block is written when it is committed, and its record is yielded then. Blocks in `work` and in the folders
    `reuse` are not made again. `digest`: of the request, stored with the latents. `spread`: whether workers have
    made its shots, by `render_shot`. `stop`: called after every block; True ends the video there.
    """
    store, blocks, runs = _prepare(loaded, film, conditions, work, bar, reuse)
    request = film.request
    # Blocks made before this run was interrupted keep their seconds.
    records: list[BlockRecord] = []
    resumed = 0
    used_again = False
    comment = FAST_NOTE if loaded.settings["vae"]["tae_kind"] else None
    made: dict[int, tuple[Block, ...]] = {}  # by number of the run; not its history, which holds a decoder's state
    tape = Tape(measured=len(runs) + len(film.clips) > 1)
    with Mp4Writer(work / VIDEO, request.fps, comment) as video, closing(film.show(runs, stop)) as shown:
        for part in shown:
            record = part.shown.record if isinstance(part, FilmBlock) else None
            if isinstance(part, FilmBlock):
                made[part.run] = part.shown.history.blocks
            if record:
                results = store.take_used()
                records.append(blocks.add(len(records) + 1, record, results))
                store.drop(results)  # written, and no later block needs it
                used_again |= record.reused or not blocks.recalled.isdisjoint(results)
                if record.reused and not records[-1].reused:
                    resumed = len(records)
                bar.block(record)
            if part.frames.shape[1]:
                video.add(part.frames)
                tape.add(film.name_of(part), part.frames)
            if record:
                yield records[-1]

    _save_shots(work / LATENTS, film, list(made.values()), digest)
    more = list(add_film_sound(work / VIDEO, film.clips, film.sound, tape.frames))
    if reuse and not used_again:
        more.append("Nothing of the earlier video could be used again: it followed from something else.")
    if spread:
        more.append("Workers made its shots side by side; the seconds are theirs together.")
    more += _notes_on_files(0 if spread else resumed, blocks.damaged)
    texts = [condition.text for _, condition in conditions.entries]
    report = assemble_report(
        runs,
        records,
        loaded.settings,
        fps=request.fps,
        versions=versions_on(loaded.settings["device"]),
        notes=(*film.notes, *notes_on(loaded.execution, loaded.scorer, texts, loaded.notes), *more),
        request=as_json(request),
        load=load_as_json(loaded.options),
        given=film.given,
        clips=[clip.as_dict() for clip in film.clips if clip.name in tape.frames],
        frames=tape.frames,
        joins=joins([torch.cat(of_part).cpu() for of_part in tape.levels.values()]),
    )
    report = replace(report, notes=(*report.notes, *_notes_on_embeddings(report, reuse)))
    return replace(report, files={name: digest_of_file(work / name) for name in (VIDEO, LATENTS)})


def render_shot(
    loaded: Models,
    film: ResolvedFilm,
    key: str,
    conditions: Conditions,
    work: Path,
    bar: RouteBar,
    *,
    reuse: Sequence[Path] = (),
    stop: Callable[[], bool] = bool,
) -> list[BlockRecord]:
    """Make the blocks of one shot of a film, and return their records.

    They are written into the folder `work` as `render_blocks` writes them, which then makes the film of them.
    """
    alone = film.alone(key)
    store, blocks, runs = _prepare(loaded, alone, conditions, work, bar, reuse)
    records = []
    counts: Counter[str] = Counter()
    with closing(alone.play(runs, stop)) as parts:
        for part in parts:
            if record := part.shown.record:
                name = alone.name_of(part)
                results = store.take_used()
                written = blocks.add(film.first_numbers[name] + counts[name], record, results)
                store.drop(results)
                counts[name] += 1
                records += [written] if name == key else []
    return records


def _prepare(
    loaded: Models,
    film: ResolvedFilm,
    conditions: Conditions,
    work: Path,
    bar: RouteBar,
    reuse: Sequence[Path],
) -> tuple[Store, BlockFiles, tuple[Run, ...]]:
    """Return the runs of a film, the store that they use, and the block files in `work`, which it has."""
    store = Store()
    blocks = BlockFiles(work / BLOCKS_FOLDER)
    blocks.recall(store, *reuse)
    store.begin_run()
    engine = loaded.build(needed=film.models_needed, block_length=film.request.block_length, before_pass=bar.step)
    earlier = Reuse(store=store, part_keys=loaded.part_keys)
    runs = film.prepare_runs(engine, conditions, earlier, device_clock(loaded.device, loaded.side))
    return store, blocks, runs


def _save_shots(path: Path, film: ResolvedFilm, made: Sequence[tuple[Block, ...]], digest: str) -> None:
    """Write the latents of a film's runs; `made`: their blocks. Clips that it shows as they are have none."""
    request = film.request
    block_frames = film.runs[0].plan.spans[0].frames
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": digest}
    parts = [History(of_run).latents(0, of_run[-1].span.stop) for of_run in made]
    latents = torch.cat([part.to(parts[-1]) for part in parts], dim=2)
    firsts = (0, *accumulate(part.shape[2] for part in parts[:-1]))
    noted |= lead_metadata(film.runs[0].plan.lead, latents)
    noted |= shots_metadata(
        [
            SavedShot(run.shot, first, run.plan.lead.start_image_frames)
            for run, first in zip(film.runs, firsts, strict=False)
        ]
    )
    save_latents(path, latents, noted)


def finished(blocks: Generator[BlockRecord, None, RunReport]) -> RunReport:
    """Make all blocks of a video; return its report."""
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            report: RunReport = end.value
            return report


def _notes_on_files(resumed: int, damaged: Sequence[str]) -> Iterator[str]:
    """Yield notes on blocks of an interrupted run. `resumed`: their number. `damaged`: names of files."""
    if resumed:
        yield f"Blocks 1 to {resumed} of this run were made before it was interrupted; it was then resumed."
    if damaged:
        yield f"Not as they were written, and so not used again: {', '.join(damaged[:MOST_DIFFERENCES])}."


def _notes_on_embeddings(report: RunReport, reuse: Sequence[Path]) -> Iterator[str]:
    """Yield notes on prompts that an earlier run had with another embedding. `reuse`: folders of such runs."""
    for folder in reuse:
        try:
            earlier = read_report(folder / REPORT)
        except BadInput:
            continue  # of a run that was cut off, or of blocks alone
        if numbers := encoded_otherwise(earlier, report):
            fault = other_embedding(numbers, f"in {folder.name}")
            yield f"{fault}, so block {numbers[0]} and those that follow from it were made anew. {SAME_ENCODER}"


def write_report(report: RunReport, work: Path) -> None:
    """Write the report and the route picture, which never shows the prompt."""
    (work / REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(report.without_prompts()).save(work / ROUTE_PICTURE, format="PNG")
