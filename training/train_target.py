"""Train the target on from the shipped weights, on one core for hours; the same command goes on where it stopped.

    python -m training.train_target OUT [--steps 7000] [--rate 6e-4] [--batch 32]

Four prompts in five are of one big thing. The truth is the label: of first blocks, which are drawn anew for every
step; of true contexts; and, from the moment that they show, of the contexts of clips that the model makes on its
own, which are half of the others. A lot of both is made anew every LOT_EVERY steps, in turn with the VAE and the
TAEHV, as both make the contexts of users. The rate falls to nothing with the steps.

Everything that is drawn depends on the seed and the number of the step or lot alone, so a run that was killed goes
on as if it had not been. OUT/log.jsonl has losses and the errors of held-out blocks, OUT/target.safetensors the
average of the weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.forward import PLAIN, Stages
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
from .train_drafter import copy_of, draw_on_own, later_losses, loss_of_all_steps, make_optimisers

MIX = ("alone, big",) * 8 + ("alone, small", "two")
"""The kinds of prompts, in turn."""

FIRST_EVERY = 4
"""In which steps the batch is of first blocks."""

LOT, LOT_EVERY, LOTS_KEPT = 32, 80, 6
"""Prompts of a lot, in which steps one is made, and how many of them are kept."""

TOGETHER = 8
"""Samples whose gradient is computed at once."""

SAVED, LOOKED = 600.0, 200
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
    return Stages(**{name: torch.compile(getattr(PLAIN, name)) for name in Stages.__slots__})


def drawn_scenes(purpose: str, number: int, count: int, seed: int) -> list[Scene]:
    """Return the training scenes of a step or lot."""
    generator = seeded(seed, "target", purpose, number)
    return [scenes_of(generator, 1, kind=MIX[n % len(MIX)])[0] for n in range(number * count, (number + 1) * count)]


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Prompts as the text encoder reads them, and blocks after true contexts and after the model's own."""

    embedding: Tensor
    real: Tensor
    true: Blocks
    own: Blocks

    @classmethod
    def make(cls, world: World, codec: Any, tree: WanTree, scenes: list[Scene]) -> Lot:
        """Render and encode the clips of scenes, and let the model make them on its own."""
        prompts = world.prompts(scenes)
        rows = torch.arange(len(scenes))
        seen, _, frames = roll_out(tree, codec, *prompts.heard(rows), ask=HalfPrompted)
        contexts = dict(enumerate(seen, start=1))
        true = true_clips(world, prompts, TOGETHER)
        own = recognised_blocks(world, prompts.scenes, rows, contexts, frames.clone(), RECOGNISED)
        return cls(prompts.embedding, prompts.real, true, Blocks.joined([_none_of(true), *own]))

    def state(self) -> dict[str, Any]:
        """Return it as plain tensors."""
        blocks = {kind: _tensors(getattr(self, kind)) for kind in ("true", "own")}
        return {"embedding": self.embedding, "real": self.real, **blocks}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Lot:
        """Return the lot whose state this is."""
        return cls(state["embedding"], state["real"], Blocks(**state["true"]), Blocks(**state["own"]))

    def draw(self, kind: str, count: int) -> tuple[Tensor, ...]:
        """Return embeddings, which of their tokens are real, contexts and blocks; true ones, if there are no own.

        Some noise is on the true contexts, as on no others.
        """
        blocks = self.own if kind == "own" and len(self.own.whose) else self.true
        chosen = torch.randint(len(blocks.whose), (count,))
        context, whose = blocks.context[chosen].float(), blocks.whose[chosen]
        if kind == "true":
            context = context + 0.05 * torch.randint(3, (count, 1, 1, 1, 1)) * torch.randn_like(context)
        return self.embedding[whose].float(), self.real[whose], context, blocks.label[chosen].float()


def _tensors(blocks: Blocks) -> dict[str, Tensor]:
    return {field.name: getattr(blocks, field.name) for field in fields(blocks)}


def _none_of(blocks: Blocks) -> Blocks:
    return Blocks(**{name: part[:0] for name, part in _tensors(blocks).items()})


def first_losses(tree: WanTree, batch: Batch, ask: Callable[..., Prompted]) -> Tensor:
    """Return the loss of every sample of first blocks."""
    embedding, real, label = batch
    return loss_of_all_steps(ask(tree, embedding, real), lambda x, step: label, draw_on_own(label))


def first_blocks(world: World, prompts: Prompts) -> Tensor:
    """Return the first blocks of the clips that prompts say, `n c 3 h w`."""
    times = torch.arange(FIRST).expand(len(prompts.scenes), -1)
    return world.encode(prompts.scenes.render(times)[0])


class Bench:
    """Held-out clips by kind of prompt, and the errors of a model's blocks on them."""

    def __init__(self, world: World, count: int) -> None:
        self._kinds = dict.fromkeys(MIX)
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
    """The target in training, its average, and what batches are drawn from."""

    def __init__(self, args: argparse.Namespace, log: Log, world: World) -> None:
        self.args, self.log, self.world = args, log, world
        self.codecs = (world.vae, load_vae(pocket_fast_vae(), layers="planes"))
        self.path = args.out / "state.ckpt"
        self.tree = copy_of(world.target).requires_grad_(True)
        self.mean = copy_of(world.target)
        self.optimisers = make_optimisers(self.tree, args.rate)
        self.average = Average(self.tree, 0.998)
        self.number, self.lots = 0, list[Lot]()
        self.seconds = 0.0
        for weight in self.tree.parameters():
            weight.grad = torch.zeros_like(weight)
        if self.path.exists():
            self._take_up(torch.load(self.path, weights_only=True))

    def _take_up(self, saved: dict[str, Any]) -> None:
        self.tree.load_state_dict(saved["weights"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.number, self.seconds = saved["number"], saved["seconds"]
        self.average.weights, self.average.steps = saved["average"], self.number
        self.lots = [Lot.of(state) for state in saved["lots"]]

    def save(self) -> None:
        """Write the average, and everything needed to go on."""
        save_model(self.args.out / "target.safetensors", self.averaged())
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
        number = self.number // LOT_EVERY
        torch.manual_seed(-1 - number)
        scenes = drawn_scenes("lot", number, LOT, self.args.seed)
        lot = Lot.make(self.world, self.codecs[number % 2], self.averaged(), scenes)
        self.lots = [*self.lots, lot][-LOTS_KEPT:]
        recognised = len(lot.own.whose) / len(lot.true.whose)
        self.log(step=self.number, recognised=recognised, seconds=self.spent())

    def batch(self) -> dict[str, Batch]:
        """Draw the batch of a step, by kind."""
        count = self.args.batch
        if self.number % FIRST_EVERY == 0:
            prompts = self.world.prompts(drawn_scenes("first", self.number // FIRST_EVERY, count, self.args.seed))
            heard = prompts.heard(torch.arange(count))
            return {"first": (*heard, first_blocks(self.world, prompts))}
        return {"true": self._later("true", count - count // 2), "own": self._later("own", count // 2)}

    def _later(self, kind: str, count: int) -> Batch:
        drawn = torch.randint(len(self.lots), (count,)).bincount(minlength=len(self.lots)).tolist()
        parts = [lot.draw(kind, of_it) for lot, of_it in zip(self.lots, drawn, strict=True)]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def step(self) -> dict[str, float]:
        """Make one step; return the losses by kind."""
        torch.manual_seed(self.number)
        zero_gradients(self.tree.parameters())
        shown: dict[str, float] = {}
        for kind, batch in self.batch().items():
            losses_of = first_losses if kind == "first" else later_losses
            total = 0.0
            for part in zip(*(tensor.split(TOGETHER) for tensor in batch), strict=True):
                loss = losses_of(self.tree, part, CompiledPrompted).sum()
                (loss / self.args.batch).backward()
                total += loss.item()
            shown[kind] = total / max(len(batch[0]), 1)
        nn.utils.clip_grad_norm_(self.tree.parameters(), 1.0)
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
            if self.number % LOT_EVERY == 0:
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
    options.add_argument("out", type=Path)
    options.add_argument("--steps", type=int, default=7000, help="after which the rate is nothing")
    options.add_argument("--rate", type=float, default=6e-4)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--bench", type=int, default=32, help="held-out clips of each kind")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    log, world = Log(args.out / "log.jsonl"), World(torch.device("cpu"))
    bench = Bench(world, args.bench)
    trainer = Trainer(args, log, world)
    begun = bench.errors(trainer.averaged())
    log(stage="begins", step=trainer.number, seconds=trainer.spent(), errors=begun, **_numbers(args))
    trainer.run(bench)


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name != "out"}


if __name__ == "__main__":
    main()
