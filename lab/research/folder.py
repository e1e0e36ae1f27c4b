"""A study's folder: what it covers, rows that survive a kill at any moment, and the processes that add them."""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from lab.rows import add_rows, read_rows
from sdvg_core.devices.workers import spread
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import whole_file
from sdvg_core.files.small_files import parse_json
from sdvg_core.memory.budget import WEIGHTS

from .protocol import Configuration
from .statistics import Record
from .videos import PromptSeedJob, StudyModels, pack, rows_of

ROWS = "rows.jsonl"
STUDY = "study.json"
LOCK = ".study.lock"
Key = tuple[str, str, int]
"""Configuration, prompt and seed of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study covers: every prompt with every seed in every configuration.

    `weights`: the cost of each kind of pass, in target blocks.
    """

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    configurations: tuple[Configuration, ...]
    blocks: int
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)

    @property
    def pairs(self) -> tuple[tuple[str, int], ...]:
        """Every prompt with every seed; the rows of one pair differ only by the route."""
        return tuple((prompt, seed) for prompt in self.prompts for seed in self.seeds)

    def missing(self, rows: Mapping[Key, Record]) -> list[PromptSeedJob]:
        """Return what every pair still lacks, without the embeddings. `rows`: what there is."""
        jobs = []
        for prompt, seed in self.pairs:
            wanted = tuple(c for c in self.configurations if (c.name, prompt, seed) not in rows)
            if wanted:
                jobs.append(PromptSeedJob(prompt=prompt, seed=seed, configurations=wanted))
        return jobs

    def select(self, rows: Mapping[Key, Record]) -> list[Record]:
        """Return those of the rows that the plan asks for, in its order."""
        keys = ((c.name, *pair) for c in self.configurations for pair in self.pairs)
        return [rows[key] for key in keys if key in rows]


def read_study(folder: Path) -> dict[Key, Record]:
    """Return a folder's rows by their key; of two with one key, the first. Raises `BadInput` for a damaged file."""
    rows: dict[Key, Record] = {}
    for number, row in enumerate(read_rows(folder / ROWS), 1):
        try:
            rows.setdefault((row["configuration"], row["prompt"], row["seed"]), row)
        except (KeyError, TypeError) as error:
            fault = f"line {number} of {folder / ROWS} is no row of a study ({type(error).__name__})"
            raise BadInput(f"{fault}; remove it to make it again") from error
    return rows


def held(folder: Path) -> AbstractContextManager[Any]:
    """Keep other runs of the study out of its folder. Raises `BadInput` if one is using it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise BadInput(f"another study is running in {folder}; wait for it, or name another folder") from None


def claim_folder(folder: Path, settings: Mapping[str, Any], configurations: Mapping[str, Any]) -> None:
    """Claim the folder for this study, or check that it already belongs to it.

    `settings`: common to all rows, and may never change. `configurations`: by name; more may be added, but a name
    keeps its meaning. Raises `BadInput` if the folder holds another study.
    """
    path = folder / STUDY
    wanted = json.loads(json.dumps([settings, configurations]))
    before: list[Record] = [wanted[0], {}]
    if path.exists():
        try:
            known = parse_json(path.read_bytes())
            before = [dict(known[name]) for name in ("settings", "configurations")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} cannot be read ({type(error).__name__}); name another folder") from error
    same = [{*before[0], *wanted[0]}, {*before[1]} & {*wanted[1]}]
    for old, new, names in zip(before, wanted, same, strict=True):
        for name in sorted(names):
            if old.get(name) != new.get(name):
                was, now = (json.dumps(of.get(name), ensure_ascii=False)[:160] for of in (old, new))
                raise BadInput(f"{folder} holds a study whose {name} is {was}, not {now}; name another folder")
    content = {"settings": wanted[0], "configurations": {**before[1], **wanted[1]}}
    with whole_file(folder / STUDY) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- the work


def fill(
    folder: Path,
    plan: Plan,
    embeddings_of: Callable[[Iterable[str]], Mapping[str, Tensor]],
    load: Callable[[], StudyModels],
    workers: int,
    say: Callable[[str], None],
) -> dict[Key, Record]:
    """Compute what is missing, and return everything. If nothing is missing, load nothing.

    `embeddings_of`: encodes prompts. `load`: loads the models. `say`: receives lines of progress.
    Raises `BadInput` for a job that is refused or whose worker died; the rows that were added stay.
    """
    rows = read_study(folder)
    missing = plan.missing(rows)
    if not missing:
        return rows
    embeddings = embeddings_of(dict.fromkeys(job.prompt for job in missing))
    jobs = [replace(job, embedding=pack(embeddings[job.prompt])) for job in missing]
    began = time.monotonic()
    opened = partial(open_worker, folder, load)
    made: Iterable[tuple[PromptSeedJob, BadInput | None]]
    if workers == 1:
        work = opened()
        made = ((job, work(job)) for job in jobs)
    else:
        made = spread(jobs, opened, [""] * min(workers, len(jobs)))
    for done, (job, refusal) in enumerate(made, 1):
        if refusal:
            raise BadInput(f"{refusal}; all rows so far are kept: call again")
        left = math.ceil((time.monotonic() - began) / done * (len(jobs) - done))
        say(
            f"{done}/{len(jobs)}  {len(job.configurations)} rows of {job.prompt!r}, seed {job.seed}; "
            f"{left // 60}:{left % 60:02d} left"
        )
    return read_study(folder)


def open_worker(folder: Path, load: Callable[[], StudyModels], device: str = "") -> Callable[..., None]:
    """Load the models, which know their device, and return what makes a job's rows and adds each to the folder."""
    models = load()

    def work(job: PromptSeedJob, stop: Callable[[], bool] = bool) -> None:
        for row in rows_of(models, job):
            add_rows(folder / ROWS, [row])
            # GNU's C library would keep freed memory: small blocks that a memo still holds lie between large ones.
            with suppress(AttributeError, OSError, TypeError):
                ctypes.CDLL(None).malloc_trim(0)

    return work
