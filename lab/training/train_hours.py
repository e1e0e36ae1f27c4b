"""Train a transformer on from the shipped weights, on one core for hours; the same command goes on.

    python -m lab.training.train_hours target OUT [--steps 7000] [--rate 6e-4] [--batch 32]
    python -m lab.training.train_hours drafter OUT --target FILE [--steps 10000] [--rate 1e-3] [--batch 16]

Labels of the target: the truth, of first blocks, which are drawn anew for every step; of true contexts; and, from
the moment that they show, of the contexts of clips that it makes on its own. Four prompts in five are of one big
thing. Labels of the drafter: the target's blocks after the target's contexts; the truth after true ones and its
own, which begin with the target's first block; of first blocks, what the shipped drafter makes of them.

A lot of contexts is made anew all the time, in turn with the VAE and the TAEHV, as both make the contexts of users.
The rate falls to nothing with the steps. Everything that is drawn depends on the seed and the number of the step or
lot alone, so a run that was killed goes on as if it had not been. OUT/log.jsonl has losses and the errors of
held-out blocks, OUT/target.safetensors or OUT/drafter.safetensors the average of the weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.forward import PLAIN_STAGES, Stages
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.open import load_vae
from sdvg_core.pocket.trained_set import pocket_fast_vae
from sdvg_core.pocket.world import Scene

from .causal import BLOCKS, SCHEDULE, Prompted
from .common import Average, Log, save_checkpoint, seeded, set_rate
from .export import save_model
from .gpu_clips import Blocks, Prompts, World, recognised_blocks, true_clips
from .measure_pair import scenes_of
from .on_gpu import Batch, GpuOps, HalfPrompted, zero_gradients
from .roll_out import FIRST, RECOGNISED, roll_out
from .shipped import load_model
from .train_drafter import copy_of, draw_on_own, first_losses, later_losses, loss_of_all_steps, make_optimisers

LOT = 32
LOTS_KEPT = 6
"""Prompts of a lot, and how many lots are kept."""

USUAL = {
    "target": {"steps": 7000, "rate": 6e-4, "batch": 32},
    "drafter": {"steps": 10_000, "rate": 1e-3, "batch": 16},
}

TOGETHER = 8
"""Samples whose gradient is computed at once."""

SAVED = 600.0
LOOKED = 200
"""Every how many seconds the state is saved, and in which steps the errors are measured."""


class CompiledOps(GpuOps):
    """The same operations, with rotations by cosines and sines: complex numbers do not compile."""

    rope = TorchOps.rope
    rotate = TorchOps.rotate


class CompiledPrompted(HalfPrompted):
    """A model with a batch of prompts, whose layers are compiled: a sixth faster on a CPU."""

    kind = CompiledOps

    def __init__(self, tree: WanTree, embedding: Tensor, real: Tensor) -> None:
        super().__init__(tree, embedding, real)
        self.stages = _compiled_stages()


@cache
def _compiled_stages() -> Stages:
    return Stages(**{name: torch.compile(getattr(PLAIN_STAGES, name)) for name in Stages.__slots__})


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Prompts as the text encoder reads them, and blocks with their contexts, by kind."""

    embedding: Tensor
    real: Tensor
    blocks: dict[str, Blocks]

    def state(self) -> dict[str, Any]:
        """Return it as plain tensors."""
        blocks = {kind: _tensors(of_it) for kind, of_it in self.blocks.items()}
        return {"embedding": self.embedding, "real": self.real, **blocks}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Lot:
        """Return the lot whose state this is."""
        blocks = {kind: Blocks(**of_it) for kind, of_it in state.items() if isinstance(of_it, dict)}
        return cls(state["embedding"], state["real"], blocks)

    def draw(self, kind: str, count: int) -> tuple[Tensor, ...]:
        """Return embeddings, which of their tokens are real, contexts and blocks; true ones, if there are no own.

        Some noise is on the true contexts, as on no others.
        """
        blocks = self.blocks[kind if len(self.blocks[kind].whose) else "true"]
        chosen = torch.randint(len(blocks.whose), (count,))
        context = blocks.context[chosen].float()
        whose = blocks.whose[chosen]
        if kind == "true":
            context = context + 0.05 * torch.randint(3, (count, 1, 1, 1, 1)) * torch.randn_like(context)
        return self.embedding[whose].float(), self.real[whose], context, blocks.label[chosen].float()


def _tensors(blocks: Blocks) -> dict[str, Tensor]:
    return {field.name: getattr(blocks, field.name) for field in fields(blocks)}


def _own_of(world: World, prompts: Prompts, seen: Sequence[Tensor], frames: Tensor) -> Blocks:
    """Return the recognised of the contexts before the last blocks of rolled-out clips, perhaps none."""
    rows = torch.arange(len(prompts.scenes))
    contexts = dict(enumerate(seen, start=BLOCKS - len(seen)))
    none = Blocks(rows[:0], seen[0][:0].half(), seen[0][:0].half())
    own = recognised_blocks(world, prompts.scenes, rows, contexts, frames.clone(), RECOGNISED)
    return Blocks.joined([none, *own])


def target_lot(world: World, codec: Any, tree: WanTree, prompts: Prompts) -> dict[str, Blocks]:
    """Return blocks after true contexts, and after those of clips that the target in training makes."""
    heard = prompts.heard(torch.arange(len(prompts.scenes)))
    seen, _, frames = roll_out(tree, codec, *heard, ask=HalfPrompted)
    return {"true": true_clips(world, prompts, TOGETHER), "own": _own_of(world, prompts, seen, frames)}


def drafter_lot(world: World, codec: Any, tree: WanTree, prompts: Prompts) -> dict[str, Blocks]:
    """Return the target's blocks, those after true contexts, and those after the drafter's own."""
    heard = prompts.heard(torch.arange(len(prompts.scenes)))
    seen, blocks, _ = roll_out(world.target, codec, *heard, ask=HalfPrompted)
    made = Blocks.whole(torch.stack(seen, dim=1).half(), torch.stack(blocks[1:], dim=1).half())
    seen, _, frames = roll_out(tree, codec, *heard, begun=blocks[:1], ask=HalfPrompted)
    true = true_clips(world, prompts, TOGETHER)
    return {"made": made, "true": true, "own": _own_of(world, prompts, seen[1:], frames)}


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """How a model is trained.

    `mix`: the kinds of prompts, in turn. `rows`: shares of a batch by kind of context. `first_every`, `lot_every`:
    in which steps the batch is of first blocks, and in which a lot is made. `lot`: makes its blocks.
    """

    mix: tuple[str, ...]
    rows: Mapping[str, float]
    first_every: int
    lot_every: int
    lot: Callable[[World, Any, WanTree, Prompts], dict[str, Blocks]]


ROLES = {
    "target": Role(("alone, big",) * 8 + ("alone, small", "two"), {"true": 0.5, "own": 0.5}, 4, 80, target_lot),
    "drafter": Role(
        ("alone, big", "two", "alone, small", "two"), {"made": 0.5, "true": 0.25, "own": 0.25}, 6, 160, drafter_lot
    ),
}


def drawn_scenes(role: str, purpose: str, number: int, count: int, seed: int) -> list[Scene]:
    """Return the training scenes of a step or lot."""
    generator = seeded(seed, role, purpose, number)
    mix = ROLES[role].mix
    places = range(number * count, (number + 1) * count)
    return [scenes_of(generator, 1, kind=mix[place % len(mix)])[0] for place in places]


def truth_losses(tree: WanTree, batch: Batch, ask: Callable[..., Prompted]) -> Tensor:
    """Return the loss of every sample of first blocks; the label is the truth."""
    embedding, real, label = batch
    return loss_of_all_steps(ask(tree, embedding, real), lambda x, step: label, draw_on_own(label))


def first_blocks(world: World, prompts: Prompts) -> Tensor:
    """Return the first blocks of the clips that prompts say, `n c 3 h w`."""
    times = torch.arange(FIRST).expand(len(prompts.scenes), -1)
    return world.encode(prompts.scenes.render(times)[0])


class Bench:
    """Held-out clips by kind of prompt, and the errors of a model's blocks on them."""

    def __init__(self, world: World, count: int) -> None:
        self._kinds = dict.fromkeys(ROLES["target"].mix)
        scenes = [s for kind in self._kinds for s in scenes_of(seeded(0, "bench", kind), count, True, kind)]
        self._prompts = world.prompts(scenes)
        self._clips = true_clips(world, self._prompts, TOGETHER)
        self._firsts = first_blocks(world, self._prompts)

    @torch.no_grad()
    def errors(self, tree: WanTree) -> dict[str, float]:
        """Return the mean squared error of latents by kind: of first blocks, and of one after a true context."""
        rows = torch.arange(len(self._prompts.scenes))
        heard = self._prompts.heard(rows)
        torch.manual_seed(0)
        first = _sampled(HalfPrompted(tree, *heard), self._firsts)
        later = []
        for number in (1, 2, 4, 8):
            at = rows * (BLOCKS - 1) + number - 1
            prompted = HalfPrompted(tree, *heard).see(self._clips.context[at].float())
            later.append(_sampled(prompted, self._clips.label[at].float()))
        named = {"first": first, "later": torch.stack(later).mean(dim=0)}
        return {
            f"{name}, {kind}": part.mean().item()
            for name, errors in named.items()
            for kind, part in zip(self._kinds, errors.chunk(len(self._kinds)), strict=True)
        }


def _sampled(prompted: Any, label: Tensor) -> Tensor:
    sampled = prompted.sample([torch.randn_like(label) for _ in SCHEDULE])
    error: Tensor = (sampled - label).square().mean(dim=(1, 2, 3, 4))
    return error


class Trainer:
    """The model in training, its average, and what batches are drawn from."""

    def __init__(self, args: argparse.Namespace, log: Log, world: World) -> None:
        self.args = args
        self.log = log
        self.world = world
        self.role: Role = ROLES[args.role]
        self.codecs = (world.vae, load_vae(pocket_fast_vae(), layers="planes"))
        self.path = args.out / "state.ckpt"
        shipped = getattr(world, args.role)
        self.tree = copy_of(shipped).requires_grad_(True)
        self.mean = copy_of(shipped)
        self.optimisers = make_optimisers(self.tree, args.rate)
        self.average = Average(self.tree, 0.998)
        self.number = 0
        self.lots = list[Lot]()
        self.seconds = 0.0
        for weight in self.tree.parameters():
            weight.grad = torch.zeros_like(weight)
        if self.path.exists():
            self._take_up(torch.load(self.path, weights_only=True))

    def _take_up(self, saved: dict[str, Any]) -> None:
        self.tree.load_state_dict(saved["weights"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.number = saved["number"]
        self.seconds = saved["seconds"]
        self.average.weights = saved["average"]
        self.average.steps = self.number
        self.lots = [Lot.of(state) for state in saved["lots"]]

    def save(self) -> None:
        """Write the average, and everything needed to go on."""
        save_model(self.args.out / f"{self.args.role}.safetensors", self.averaged())
        save_checkpoint(
            self.path,
            weights=self.tree.state_dict(),
            optimisers=[optimiser.state_dict() for optimiser in self.optimisers],
            average=self.average.weights,
            number=self.number,
            seconds=self.spent(),
            lots=[lot.state() for lot in self.lots],
        )

    def spent(self) -> float:
        """Return the seconds of processor time of this run and of those that it goes on from."""
        return self.seconds + time.process_time()

    def averaged(self) -> WanTree:
        """Return the averaged model."""
        self.mean.load_state_dict(self.average.weights)
        return self.mean

    def refresh(self) -> None:
        """Make a lot, and forget the oldest."""
        number = self.number // self.role.lot_every
        torch.manual_seed(-1 - number)
        prompts = self.world.prompts(drawn_scenes(self.args.role, "lot", number, LOT, self.args.seed))
        blocks = self.role.lot(self.world, self.codecs[number % 2], self.averaged(), prompts)
        self.lots = [*self.lots, Lot(prompts.embedding, prompts.real, blocks)][-LOTS_KEPT:]
        counts = {kind: len(of_it.whose) for kind, of_it in blocks.items()}
        self.log(step=self.number, lot=counts, seconds=self.spent())

    def batch(self) -> dict[str, Batch]:
        """Draw the batch of a step, by kind."""
        args = self.args
        count = self.args.batch
        if self.number % self.role.first_every:
            return {kind: self._later(kind, round(share * count)) for kind, share in self.role.rows.items()}
        number = self.number // self.role.first_every
        prompts = self.world.prompts(drawn_scenes(args.role, "first", number, count, args.seed))
        heard = prompts.heard(torch.arange(count))
        if args.role == "drafter":
            return {"first": heard}
        return {"first": (*heard, first_blocks(self.world, prompts))}

    def _later(self, kind: str, count: int) -> Batch:
        drawn = torch.randint(len(self.lots), (count,)).bincount(minlength=len(self.lots)).tolist()
        parts = [lot.draw(kind, of_it) for lot, of_it in zip(self.lots, drawn, strict=True)]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def losses(self, kind: str, part: Batch) -> Tensor:
        """Return the losses of some samples."""
        if kind != "first":
            return later_losses(self.tree, part, CompiledPrompted)
        if self.args.role == "drafter":
            return first_losses(self.tree, self.world.drafter, part)
        return truth_losses(self.tree, part, CompiledPrompted)

    def step(self) -> dict[str, float]:
        """Make one step; return the losses by kind."""
        torch.manual_seed(self.number)
        zero_gradients(self.tree.parameters())
        shown: dict[str, float] = {}
        for kind, batch in self.batch().items():
            total = 0.0
            for part in zip(*(tensor.split(TOGETHER) for tensor in batch), strict=True):
                loss = self.losses(kind, part).sum()
                (loss / self.args.batch).backward()
                total += loss.item()
            shown[kind] = total / max(len(batch[0]), 1)
        nn.utils.clip_grad_norm_(self.tree.parameters(), 1.0, error_if_nonfinite=True)
        rate = self.args.rate * min(1.0, (self.number + 1) / 100) * (1 - self.number / self.args.steps)
        for optimiser in self.optimisers:
            set_rate(optimiser, rate)
            optimiser.step()
        self.average.update(self.tree)
        self.number += 1
        return shown

    def run(self, bench: Bench) -> None:
        """Train until the rate is nothing."""
        saved = time.monotonic()
        shown: dict[str, list[float]] = {}
        while self.number < self.args.steps:
            if self.number % self.role.lot_every == 0:
                self.refresh()
            for kind, loss in self.step().items():
                shown.setdefault(kind, []).append(loss)
            over = self.number == self.args.steps
            if self.number % LOOKED == 0 or over:
                losses = {kind: sum(of) / len(of) for kind, of in shown.items()}
                self.log(step=self.number, seconds=self.spent(), **losses, errors=bench.errors(self.averaged()))
                shown = {}
            if time.monotonic() - saved >= SAVED or over:
                self.save()
                saved = time.monotonic()


def main(argv: Sequence[str] | None = None) -> None:
    """Take up what there is, and train."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("role", choices=ROLES)
    options.add_argument("out", type=Path)
    options.add_argument("--target", type=Path, help="a file in place of the shipped one, for the drafter")
    options.add_argument("--steps", type=int, help="after which the rate is nothing")
    options.add_argument("--rate", type=float)
    options.add_argument("--batch", type=int)
    options.add_argument("--bench", type=int, default=32, help="held-out clips of each kind")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args(argv)
    for name, value in USUAL[args.role].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.jsonl")
    world = World(torch.device("cpu"))
    if args.target:
        world.target = load_model(args.target)
    bench = Bench(world, args.bench)
    trainer = Trainer(args, log, world)
    begun = bench.errors(trainer.averaged())
    log(stage="begins", step=trainer.number, seconds=trainer.spent(), errors=begun, **_numbers(args))
    trainer.run(bench)


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if not isinstance(value, Path)}


if __name__ == "__main__":
    main()
