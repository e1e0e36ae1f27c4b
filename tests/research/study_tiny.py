"""A study on the tiny models and doubles, in this process or, called as a program, in one that can be killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny import CONFIG, BrightScorer, generator_of, make_engine
from torch import Tensor

from research.equipment import Equipment
from research.metrics import SeamChange
from research.protocol import Configuration, pick, protocol
from research.run import Notebook, Plan, fill
from research.store import Record
from research.unit import Unit, pack, run_unit
from research.worker import TRIES, StudyWorker
from sdvg_core.errors import BadInput
from sdvg_core.workers.processes import work_here

BLOCKS = 5
TAUS = (-2.0, 0.0, 2.0)
PROMPTS = ("a red ball", "a blue box")
EVERYTHING = protocol(BLOCKS, TAUS, timesteps=(1000.0, 625.0))
SOME = pick(EVERYTHING, ["target-only", "draft-only", "anchor-only", "reward-min@*", "random@0.6"])


class Redness:
    """A judge double: a frame is as good as it is red. It can dawdle, so that there is time to kill it."""

    name = "redness"

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        time.sleep(self._seconds)
        return {"quality": float(frames[:, 0].mean()), "seams": float(len(seams))}

    def frame_quality(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Tensor:
        return frames[:, 0].mean(dim=(1, 2))


class PromptScorer(BrightScorer):
    """Scores that also depend on the prompt."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return super().score(frames, prompt) + len(prompt) % 3 - 1


def open_tiny_bench(policy: str = "recompute", seconds: float = 0.0, **options: Any) -> Equipment:
    torch.set_num_threads(1)
    judge, engine = Redness(seconds), make_engine(policy)
    return Equipment(
        engine=engine, blocks=BLOCKS, width=8, height=8, metrics=(SeamChange(), judge), judge=judge, **options
    )


def refuse_to_open() -> Equipment:
    raise BadInput("expected a bench, but there is none; bring one")


class Doomed:
    """A metric that kills its process."""

    name = "doomed"

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        sys.exit(7)


def open_doomed_bench() -> Equipment:
    return Equipment(engine=make_engine(), blocks=BLOCKS, width=8, height=8, metrics=(Doomed(),))


def embedding(prompt: str) -> Tensor:
    return torch.randn(1, CONFIG.text_len, CONFIG.text_dim, generator=generator_of(len(prompt)))


def embeddings(prompts: Any) -> dict[str, Tensor]:
    return {prompt: embedding(prompt) for prompt in prompts}


def unit(configurations: Sequence[Configuration] = EVERYTHING, prompt: str = PROMPTS[0], **options: Any) -> Unit:
    packed = pack(embedding(prompt))
    return Unit(prompt=prompt, seed=7, embedding=packed, configurations=tuple(configurations), **options)


def plan(configurations: Sequence[Configuration] = SOME, prompts: Sequence[str] = PROMPTS) -> Plan:
    return Plan(prompts=tuple(prompts), seeds=(7,), configurations=tuple(configurations), blocks=BLOCKS)


def lasting(record: Record) -> Record:
    """A row without what depends on the machine and on what was made before it."""
    return {name: value for name, value in record.items() if name not in ("seconds", "sharing")}


def rows_of(bench: Equipment, wanted: Unit) -> list[Record]:
    return [record for file, record in run_unit(bench, wanted) if file == "rows.jsonl"]


def study(folder: Path, wanted: Plan, seconds: float = 0.0, workers: int = 1) -> Iterator[str]:
    """Fill the folder and return the lines of progress."""
    said: list[str] = []
    opener = partial(StudyWorker, partial(open_tiny_bench, seconds=seconds))
    work = partial(work_here, openers=[opener] * workers, tries=TRIES)
    fill(Notebook(folder), wanted, embeddings, work, said.append)
    return iter(said)


if __name__ == "__main__":
    study(Path(sys.argv[1]), plan(), seconds=float(sys.argv[2]))
