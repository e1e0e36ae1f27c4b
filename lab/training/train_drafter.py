"""Train the drafter on by the target's blocks, on a GPU, within given seconds; the same command goes on.

    python -m lab.training.train_drafter OUT [--seconds 480] [--rate 1e-3] [--batch 256]

`--seconds`: of everything, measuring included. Half of a batch are the target's contexts with the target's
blocks. The truth is the label of true contexts and, from the moment that they show, of the drafter's own, which
are made anew all the time: after the target's first block or first few, the drafter goes on. First blocks keep
the shipped drafter's estimates, so that the gap which the target closes is not closed from below. The rate falls
to nothing with the time that is left.

OUT/log.jsonl has losses and errors as they come, OUT/drafter.safetensors the average of the weights.
OUT/before.jsonl and OUT/after.jsonl have the decibels of held-out prompts by route, of the shipped drafter and of
this one; what the time did not suffice for, the same command measures. A CPU does all this slowly, without CUDA
graphs. Presence is measured afterwards: `python -m lab.training.measure_pair OUT/pair.jsonl --prompts 200 --drafter
OUT/drafter.safetensors`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rows import add_rows, read_rows
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.generator import predict_clean, renoise
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.settings.schedules import Step

from .causal import BLOCK, SCHEDULE, Prompted
from .common import Average, Log, save_checkpoint, seeded, set_rate
from .export import save_model
from .gpu_clips import Data, Prompts, World, route_qualities, step_errors, true_clips
from .measure_pair import ROUTES, interval_of_mean, scenes_of
from .on_gpu import Batch, Gradients, HalfPrompted, cuda_graph

ROWS = {"made": 0.5, "true": 0.2, "own": 0.3}
"""Shares of a batch: the target's contexts, true ones, and the drafter's own."""

FIRST_EVERY = 8
"""In which steps the batch is of first blocks."""

OWN_FROM = 0.05
OWN_KEPT = 4
"""After which share of the fall own contexts are made, and how many lots of them are kept."""

OWN_REST = 4.0
"""How many times the seconds that a lot took pass before the next one is begun."""

OWN = 0.5
"""How often noisy inputs are built on the model's own estimate."""

THING_WEIGHT = 5.0
"""What a place with a thing weighs more than one of the ground."""

SAVED = 30.0
LOOKED = 20.0
CHECKED = 10
"""Every how many seconds the state is saved and an error measured; every how many steps the clock is read."""

MEASURED = 50
"""Prompts measured at once."""

RESERVED = 45.0
"""Seconds at the end for measuring."""

TIMED = 20
"""Steps by which a recorded step is compared with one that is not."""


def later_losses(tree: WanTree, batch: Batch, ask: Callable[..., Prompted] = HalfPrompted) -> Tensor:
    """Return the loss of every sample of blocks with contexts."""
    embedding, real, context, label = batch
    prompted = ask(tree, embedding, real).see(context)
    return loss_of_all_steps(prompted, lambda x, step: label, draw_on_own(label))


def first_losses(tree: WanTree, teacher: WanTree, batch: Batch) -> Tensor:
    """Return the loss of every sample of first blocks; the label is the teacher's estimate from the same noise."""
    embedding, real = batch
    with torch.no_grad():
        taught = HalfPrompted(teacher, embedding, real)

    def label_of(x: Tensor, step: Step) -> Tensor:
        return predict_clean(x, taught.velocity(x, step.timestep).float(), step.sigma)

    return loss_of_all_steps(HalfPrompted(tree, embedding, real), label_of, draw_on_own(embedding))


def loss_of_all_steps(prompted: Prompted, label_of: Callable[[Tensor, Step], Tensor], on_own: Tensor) -> Tensor:
    """Return the loss of every sample, over all steps of denoising.

    `label_of`: the right block for a noisy input at a step. `on_own`: of which samples (`b 1 1 1 1`) the next noisy
    input is made of the model's own estimate, and not of the right block.
    """
    x = torch.randn(len(on_own), 16, BLOCK, 8, 8, device=on_own.device)
    losses = []
    for step, following in zip_longest(SCHEDULE, SCHEDULE[1:]):
        with torch.no_grad():
            label = label_of(x, step)
        velocity = prompted.velocity(x, step.timestep).float()
        error = (velocity - (x - label) / step.sigma).square().mean(dim=1, keepdim=True)
        losses.append((weights_of(label) * error).mean(dim=(1, 2, 3, 4)))
        if following:
            clean = torch.where(on_own, predict_clean(x, velocity.detach(), step.sigma), label)
            x = renoise(clean, torch.randn_like(x), following.sigma)
    return torch.stack(losses).mean(dim=0)


def weights_of(truth: Tensor) -> Tensor:
    """Return the weight of every place of blocks `b c t h w`, as `b 1 t h w`: things count more than the ground.

    The ground is the same all along a row, so what differs from the row's median is a thing.
    """
    off = (truth - truth.median(dim=-1, keepdim=True).values).square().mean(dim=1, keepdim=True).sqrt()
    return 1 + THING_WEIGHT * off.clamp(max=1)


def make_optimisers(tree: nn.Module, rate: float) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices of the layers, and AdamW for everything else, at one learning rate."""
    matrices = [w for name, w in tree.named_parameters() if name.startswith("blocks.") and w.ndim == 2]
    known = {id(w) for w in matrices}
    others = [w for w in tree.parameters() if id(w) not in known]
    return (
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.01),
    )


def draw_on_own(like: Tensor) -> Tensor:
    """Draw for which samples noisy inputs are made of the model's own estimates, `b 1 1 1 1`."""
    return torch.rand(len(like), 1, 1, 1, 1, device=like.device) < OWN


class Trainer:
    """The drafter in training, its average, and how much of the fall of its rate has passed."""

    def __init__(self, args: argparse.Namespace, log: Log, data: Data, held_back: tuple[Prompts, Any]) -> None:
        self.args = args
        self.log = log
        self.data = data
        self.held_back = held_back
        self.world = data.world
        self.state = args.out / "state.ckpt"
        torch.manual_seed(args.seed)
        shipped = self.world.drafter
        self.tree = copy_of(shipped).requires_grad_(True)
        self.mean = copy_of(shipped)
        self.optimisers = make_optimisers(self.tree, args.rate)
        self.average = Average(self.tree, 0.998)
        self.number = 0
        self.passed = 0.0
        shares = {kind: round(share * args.batch) for kind, share in ROWS.items()}
        self.rows = {kind: max(count, 1) for kind, count in shares.items()}
        self.steps = {
            "later": Gradients(self.tree, lambda *batch: later_losses(self.tree, batch)),
            "first": Gradients(self.tree, lambda *batch: first_losses(self.tree, shipped, batch)),
        }
        if self.state.exists():
            self._take_up(torch.load(self.state, map_location=self.world.device, weights_only=True))

    def _take_up(self, saved: dict[str, Any]) -> None:
        self.tree.load_state_dict(saved["weights"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.average.weights = saved["average"]
        self.average.steps = saved["number"]
        self.number = saved["number"]
        self.passed = saved["passed"]

    def save(self) -> None:
        """Write the average, and everything needed to go on."""
        save_model(self.args.out / "drafter.safetensors", self.averaged())
        save_checkpoint(
            self.state,
            weights=self.tree.state_dict(),
            optimisers=[optimiser.state_dict() for optimiser in self.optimisers],
            average=self.average.weights,
            number=self.number,
            passed=self.passed,
        )

    def averaged(self) -> WanTree:
        """Return the averaged model."""
        self.mean.load_state_dict(self.average.weights)
        return self.mean

    def batch(self, kind: str) -> Batch:
        """Draw a batch."""
        if kind == "later":
            return self.data.draw(self.rows)
        prompts = self.data.prompts
        return prompts.heard(torch.randint(len(prompts.scenes), (self.args.batch,), device=self.world.device))

    def record(self) -> None:
        """Record both kinds of step as CUDA graphs, and keep them if they are faster by a tenth."""
        for kind, step in self.steps.items():
            batch = self.batch(kind)
            step(batch)
            plain = self._seconds(partial(step, batch))
            try:
                step.record(batch, cuda_graph)
                recorded = self._seconds(partial(step, batch))
            except RuntimeError as problem:
                step.forget()
                self.log(stage="not recorded", kind=kind, seconds=plain, problem=str(problem)[:300])
                continue
            if recorded > 0.9 * plain:
                step.forget()
            self.log(stage="recorded", kind=kind, plain=plain, recorded=recorded, kept=recorded <= 0.9 * plain)

    def _seconds(self, work: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(TIMED):
            work()
        torch.cuda.synchronize()
        return (time.monotonic() - began) / TIMED

    def step(self, kind: str) -> Tensor:
        """Make one step; return the losses of its samples."""
        rate = self.args.rate * min(1.0, (self.number + 1) / 100) * max(0.0, 1 - self.passed)
        losses = self.steps[kind](self.batch(kind))
        nn.utils.clip_grad_norm_(self.tree.parameters(), 1.0)
        for optimiser in self.optimisers:
            set_rate(optimiser, rate)
            optimiser.step()
        self.average.update(self.tree)
        self.number += 1
        return losses

    def run(self, until: float) -> None:
        """Train until the clock says `until`, where the rate is nothing."""
        began = time.monotonic()
        start = self.passed
        saved = looked = began
        next_lot = 0.0
        shown: dict[str, list[Tensor]] = {}
        while self.passed < 1:
            kind = "later" if self.number % FIRST_EVERY else "first"
            losses = self.step(kind)
            for name, part in self._by_kind(kind, losses).items():
                shown.setdefault(name, []).append(part.mean())
            if self.number % CHECKED:
                continue
            now = time.monotonic()
            self.passed = min(1.0, start + (1 - start) * (now - began) / max(until - began, 1e-9))
            if self.passed >= OWN_FROM and now >= next_lot and self.passed < 1:
                self._refresh(now)
                next_lot = time.monotonic() + OWN_REST * (time.monotonic() - now)
            if now - looked > LOOKED or self.passed == 1:
                self._look(shown)
                shown = {}
                looked = time.monotonic()
            if now - saved > SAVED or self.passed == 1:
                self.save()
                saved = time.monotonic()

    def _by_kind(self, kind: str, losses: Tensor) -> dict[str, Tensor]:
        if kind == "first":
            return {kind: losses}
        return dict(zip(self.rows, losses.split(list(self.rows.values())), strict=True))

    def _refresh(self, began: float) -> None:
        share = self.data.refresh(self.averaged(), self.args.own, OWN_KEPT)
        lots = [len(lot.whose) for lot in self.data.own]
        self.log(step=self.number, recognised=share, own=lots, seconds=time.monotonic() - began)

    def _look(self, shown: dict[str, list[Tensor]]) -> None:
        losses = {kind: torch.stack(parts).mean().item() for kind, parts in shown.items()}
        errors = step_errors(self.world, self.averaged(), *self.held_back)
        self.log(step=self.number, passed=self.passed, **losses, **errors)


def copy_of(tree: WanTree) -> WanTree:
    """Return a transformer of the same sizes and weights, which does not learn."""
    sizes = WanConfig(**{part.name: getattr(tree, part.name) for part in fields(WanConfig)})
    copied = WanTree(sizes).to(next(tree.parameters()).device).requires_grad_(False)
    copied.load_state_dict(tree.state_dict())
    return copied


def measure(world: World, drafter: WanTree, path: Path, prompts: int, until: float) -> list[dict[str, Any]]:
    """Measure what is missing of the tables' prompts, until the clock says `until`; return all rows there are."""
    scenes = scenes_of(seeded(0, "figures"), prompts, held_out=True)
    for first in range(len(read_rows(path)), prompts, MEASURED):
        if time.monotonic() >= until:
            break
        add_rows(path, route_qualities(world, drafter, scenes[first : first + MEASURED], first))
    return read_rows(path)


def compared(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return by route the decibels before and after, and their difference, with intervals over common prompts."""
    count = min(len(before), len(after))
    figures: dict[str, str] = {}
    for name in ROUTES if count > 2 else ():
        old, new = (np.array([np.mean(row[name]) for row in rows[:count]]) for rows in (before, after))
        figures[f"{name} before"] = interval_of_mean(old)
        figures[f"{name} after"] = interval_of_mean(new)
        figures[f"{name} change"] = interval_of_mean(new - old)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Make the data, measure the shipped drafter, train, and measure again."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=480)
    options.add_argument("--rate", type=float, default=1e-3)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--clips", type=int, default=4096)
    options.add_argument("--own", type=int, default=256, help="videos of each half of a lot of own contexts")
    options.add_argument("--held-back", type=int, default=256)
    options.add_argument("--prompts", type=int, default=200, help="held-out prompts to measure on")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = options.parse_args(argv)
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "cuda":  # on a CPU it would only change the bits of what this process does next
        torch.set_num_threads(4)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)
    log = Log(args.out / "log.jsonl")
    world = World(torch.device(args.device))
    log(stage="models are there", device=args.device, torch=torch.__version__)
    before = measure(world, world.drafter, args.out / "before.jsonl", args.prompts, end)
    prompts = world.prompts(scenes_of(seeded(0, "held-back"), args.held_back, held_out=True))
    held_back = prompts, true_clips(world, prompts)
    log(stage="shipped drafter", **step_errors(world, world.drafter, *held_back))
    trainer = Trainer(args, log, Data.make(world, args.clips, args.seed), held_back)
    log(stage="data is there", step=trainer.number, passed=trainer.passed)
    if args.device == "cuda" and trainer.passed < 1:
        trainer.record()
    trainer.run(end - RESERVED)
    after = measure(world, trainer.averaged(), args.out / "after.jsonl", args.prompts, end)
    log(stage="measured", prompts=min(len(before), len(after)), **compared(before, after))


if __name__ == "__main__":
    main()
