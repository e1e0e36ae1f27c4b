"""A tiny benchmark's parts, shared by its tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from benchmarks import models
from benchmarks.measure import Bench, Gauge
from benchmarks.models import Models, random_models
from benchmarks.variants import OURS, Case, Variant, parse_route, set_up

TINY = replace(models.TINY, blocks=4)
NINE = 9
SHORT = ["--scale", "tiny", "--blocks", "3", "--repeats", "1"]


def case(name: str, execution: Variant = OURS, blocks: int = NINE) -> Case:
    return Case(route=parse_route(name, blocks), variant=execution)


class Clock:
    """Counts how often it was asked; every interval is a whole number."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return float(self.now)


@cache
def tiny_models() -> Models:
    return random_models(TINY, torch.device("cpu"))


def tiny_bench() -> Bench:
    """Where tiny videos of four blocks are made."""
    setups = set_up([OURS], tiny_models(), TINY)
    return Bench(setups=setups, request=TINY, clock=Clock(), gauge=Gauge(torch.device("cpu")))
