"""A study on the tiny models and doubles, in this process or, called as a program, in one that can be killed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.research.folder import Key, Plan, fill
from lab.research.metrics import SeamChange
from lab.research.protocol import Configuration, pick, protocol
from lab.research.statistics import Record
from lab.research.videos import PromptSeedJob, StudyModels, pack
from tests.support.tiny import CONFIG, generator_of, make_engine

BLOCKS = 5
TAUS = (-2.0, 0.0, 2.0)
PROMPTS = ("a red ball", "a blue box")
EVERYTHING = protocol(BLOCKS, TAUS, steps=2)
SOME = pick(EVERYTHING, ["target-only", "draft-only", "anchor-only", "reward-min@*", "random@0.6"])


class Redness:
    """Judge a frame to be as good as it is red; slowly, if there must be time for a kill."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        time.sleep(self._seconds)
        return {"quality": float(frames[:, 0].mean()), "seams": float(len(seams))}


def tiny_models(policy: str = "recompute", seconds: float = 0.0, **options: Any) -> StudyModels:
    torch.set_num_threads(1)
    metrics = (SeamChange(), Redness(seconds))
    return StudyModels(engine=make_engine(policy), metrics=metrics, blocks=BLOCKS, width=8, height=8, **options)


def embedding(prompt: str) -> Tensor:
    return torch.randn(1, CONFIG.text_len, CONFIG.text_dim, generator=generator_of(len(prompt)))


def embeddings(prompts: Any) -> dict[str, Tensor]:
    return {prompt: embedding(prompt) for prompt in prompts}


def job(
    configurations: Sequence[Configuration] = EVERYTHING, prompt: str = PROMPTS[0], **more: Any
) -> PromptSeedJob:
    packed = pack(embedding(prompt))
    return PromptSeedJob(prompt=prompt, seed=7, embedding=packed, configurations=tuple(configurations), **more)


def plan(configurations: Sequence[Configuration] = SOME, prompts: Sequence[str] = PROMPTS) -> Plan:
    return Plan(prompts=tuple(prompts), seeds=(7,), configurations=tuple(configurations), blocks=BLOCKS)


def study(folder: Path, plan: Plan, load: Any = tiny_models) -> tuple[dict[Key, Record], list[str]]:
    """Fill the folder; return what is in it, and the lines of progress."""
    progress: list[str] = []
    rows = fill(folder, plan, embeddings, load, 1, progress.append)
    return rows, progress
