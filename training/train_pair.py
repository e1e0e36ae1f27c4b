"""Train the pocket's drafter or target on from the shipped one, on one CPU core; the same command goes on.

    python -m training.train_pair drafter OUT [--steps 10000] [--rate 1.5e-3] [--target FILE]
    python -m training.train_pair target OUT [--steps 4000] [--rate 6e-4]

A batch is of blocks with their contexts, each shared by the four timesteps. Most of the drafter's are the target's
contexts with the target's blocks; the truth is the label of true contexts and, aligned in time, of the model's own
(training/roll_out.py), as long as these show every thing. First blocks are those of the shipped model, step by
step, so that the gap which the target's first block closes is not closed from below. The target, with twice as
many layers as the shipped one, of which the later add nothing at first, learns from the truth alone.

Clips are made once and stay in OUT. What a step draws depends on its number alone, so the same command goes on
after the last saved step with the same losses. OUT/drafter.safetensors, or target, has the average of the weights.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from research.world import render
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.schedule import Step, predict_clean, renoise
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, SCHEDULE, Prompted, build
from .common import Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .make_latents import BLOCKS, encode_clips
from .measure_pair import Shipped, load_model, scenes_of
from .presence import presence
from .roll_out import moment, roll_out
from .train_text import WIDTH
from .train_transformer import OWN, blocks_of, context_of, go_on_from, make_optimisers, noises, weights_of


@dataclass(frozen=True, slots=True)
class Lesson:
    """How a role is trained.

    `rows`: contexts of a batch: the target's, true ones, and the model's own. `own_from`: the step from which own
    contexts are drawn; before, true ones stand in for them. `clips`: how many of which kind are made first.
    """

    sizes: WanConfig
    rows: Mapping[str, int]
    own_from: int
    clips: Mapping[str, int]
    steps: int
    rate: float


LESSONS = {
    "drafter": Lesson(
        WanConfig(dim=128, ffn_dim=512, num_layers=8, num_heads=1, text_dim=WIDTH),
        {"made": 7, "true": 4, "own": 3},
        own_from=4000,
        clips={"true": 1024, "made": 768},
        steps=10_000,
        rate=1.5e-3,
    ),
    "target": Lesson(
        WanConfig(dim=256, ffn_dim=1024, num_layers=10, num_heads=2, text_dim=WIDTH, patch_size=(1, 1, 1)),
        {"true": 8, "own": 6},
        own_from=0,
        clips={"true": 2048},
        steps=4000,
        rate=6e-4,
    ),
}

FIRSTS, FIRST_EVERY = 8, 4
"""First blocks of a batch, and in which batches there are any: as few at a time as in all would take a fifth."""

OWN_EVERY, OWN_KEPT = 500, 4
"""After how many steps own contexts are made anew, and how many files of them are kept."""

DEEP = 2
"""How many blocks in a row of an own context's clip are the model's at most."""

CHUNK = 64
"""Clips of a file."""

SAVED, LOOKED = 100, 250
"""Every how many steps the state is saved, and the error of a block measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Contexts with what comes next, `n c 3 h w` each, and the number of the prompt of each.

    Of whole clips they are in order: the eight of the first clip, then those of the next.
    """

    prompts: list[str]
    whose: Tensor
    context: Tensor
    label: Tensor

    def save(self, path: Path) -> None:
        """Write them as a whole or not at all."""
        staged = path.with_suffix(".part")
        tensors = {"whose": self.whose, "context": self.context.half(), "label": self.label.half().contiguous()}
        save_file(tensors, staged, {"prompts": "\n".join(self.prompts)})
        staged.replace(path)

    @classmethod
    def joined(cls, paths: Sequence[Path]) -> Samples:
        """Read the samples of files."""
        parts: list[Samples] = []
        for path in paths:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in ("whose", "context", "label")}
                tensors["whose"] += sum(len(part.prompts) for part in parts)
                parts.append(cls(file.metadata()["prompts"].split("\n"), **tensors))
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        return cls([prompt for part in parts for prompt in part.prompts], **tensors)


def true_clips(shipped: Shipped, scenes: list[Scene]) -> Samples:
    """Encode what the prompts say."""
    clips = encode_clips(shipped.vae, scenes)
    numbers = [torch.full((len(scenes),), number) for number in range(1, BLOCKS)]
    context, label = (torch.stack([of(clips, n) for n in numbers], dim=1) for of in (context_of, blocks_of))
    return of_clips(scenes, context, label)


def target_clips(shipped: Shipped, scenes: list[Scene]) -> Samples:
    """Let the target make them."""
    heard = shipped.embed([scene.text for scene in scenes])
    contexts, blocks, _ = roll_out(shipped.models["target"], shipped.vae, *heard)
    return of_clips(scenes, torch.stack(contexts, dim=1), torch.stack(blocks[1:], dim=1))


def of_clips(scenes: list[Scene], context: Tensor, label: Tensor) -> Samples:
    """Return the samples of whole clips, `n 8 c 3 h w`."""
    whose = torch.arange(len(scenes)).repeat_interleave(BLOCKS - 1)
    return Samples([scene.text for scene in scenes], whose, context.flatten(0, 1), label.flatten(0, 1))


def own_contexts(shipped: Shipped, tree: WanTree, clips: Samples, generator: random.Random) -> Samples:
    """Go on from clips; return the contexts that show every thing, with the truth from the moment they show."""
    whose, contexts, truths = [], [], []
    for place in generator.sample(range(BLOCKS - 1 - DEEP), 3):
        rows = generator.sample(range(len(clips.prompts)), min(CHUNK, len(clips.prompts)))
        at = (BLOCKS - 1) * torch.tensor(rows)
        whole = [clips.context[at], *(clips.label[at + number] for number in range(BLOCKS - 1))]
        first = max(place - 1, 0)
        begun = [block.float() for block in whole[first : place + 1]]
        heard = shipped.embed([clips.prompts[row] for row in rows])
        seen, _, frames = roll_out(tree, shipped.vae, *heard, count=len(begun) + DEEP + 1, begun=begun)
        for n, row in enumerate(rows):
            scene = parse(clips.prompts[row])
            for made in range(1, DEEP + 1):
                due, here = 12 * (place + 1 + made), 12 * (place + 1 + made - first)
                newest = frames[n, here - 11 : here - 3]
                ahead = moment(scene, newest, due - 11)
                if ahead is None:
                    break
                times = (torch.arange(due - 16, due + 9) + ahead).clamp(min=0)
                if (presence(newest, scene, times[5:13]) == 0).any():
                    break
                truths.append(render(scene, times))
                contexts.append(seen[made][n])
                whose.append(row)
    labels = [shipped.vae.encode(part)[:, :, -BLOCK:] for part in torch.stack(truths).split(32)]
    return Samples(clips.prompts, torch.tensor(whose), torch.stack(contexts), torch.cat(labels))


def loss_of(prompted: Prompted, label_of: Callable[[Tensor, Step], Tensor], on_own: Tensor) -> Tensor:
    """Return the loss of every sample, over all steps of denoising.

    `label_of`: the right block for a noisy input at a step. `on_own`: of which samples (`b 1 1 1 1`) the next noisy
    input is made of the model's own estimate, and not of the right block.
    """
    x, losses = torch.randn(len(on_own), 16, BLOCK, 8, 8, device=on_own.device), []
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


class Data:
    """The samples of a folder, by kind, made when they are missing."""

    def __init__(self, shipped: Shipped, out: Path, lesson: Lesson) -> None:
        self._shipped, self._out, self.lesson = shipped, out, lesson
        self._clips: list[Path] = []
        self.known: dict[str, Samples] = {}
        makers = {"true": true_clips, "made": target_clips}
        for kind, count in lesson.clips.items():
            paths = [out / f"{kind}-{number:03d}.safetensors" for number in range(count // CHUNK)]
            for path in paths:
                self._make(path, lambda generator, kind=kind: makers[kind](shipped, scenes_of(generator, CHUNK)))
            self.known[kind] = Samples.joined(paths)
            self._clips += paths
        self.held_back = out / "held-back.safetensors"
        self._make(
            self.held_back, lambda generator: true_clips(shipped, scenes_of(generator, CHUNK, held_out=True))
        )

    def _make(self, path: Path, make: Callable[[random.Random], Samples]) -> None:
        """Make a file that is not there yet."""
        if not path.exists():
            generator = seeded(0, path.stem)
            torch.manual_seed(generator.getrandbits(63))
            with torch.no_grad():
                make(generator).save(path)

    def refresh(self, tree: WanTree, step: int) -> None:
        """Make the own contexts of a step, and take in those of the last few."""
        self._make(
            self._own(step),
            lambda generator: own_contexts(
                self._shipped, tree, Samples.joined([generator.choice(self._clips)]), generator
            ),
        )
        steps = range(max(self.lesson.own_from, step - (OWN_KEPT - 1) * OWN_EVERY), step + 1, OWN_EVERY)
        self.known["own"] = Samples.joined([self._own(n) for n in steps])

    def _own(self, step: int) -> Path:
        return self._out / f"own-{step:05d}.safetensors"

    def draw(self, kind: str, count: int) -> tuple[list[str], Tensor, Tensor]:
        """Return prompts, contexts and blocks; some noise is on the true contexts, as on no others."""
        samples = self.known.get(kind) or self.known["true"]
        rows = torch.randint(len(samples.whose), (count,))
        context = samples.context[rows].float()
        if samples is self.known["true"]:
            context += 0.05 * torch.randint(3, (count, 1, 1, 1, 1)) * torch.randn_like(context)
        return [samples.prompts[n] for n in samples.whose[rows]], context, samples.label[rows].float()


def losses(shipped: Shipped, role: str, tree: WanTree, data: Data, step: int) -> dict[str, Tensor]:
    """Return the loss of every sample of a step, by kind."""
    rows = data.lesson.rows
    generator = seeded(0, "step", step)
    torch.manual_seed(generator.getrandbits(63))
    drawn = [data.draw(kind, count) for kind, count in rows.items()]
    heard = shipped.embed([prompt for prompts, _, _ in drawn for prompt in prompts])
    context, label = (torch.cat([parts[n] for parts in drawn]) for n in (1, 2))
    with torch.autocast("cpu", torch.bfloat16):
        later = loss_of(Prompted(tree, *heard).see(context), lambda x, step: label, own_estimates(len(label)))
    found = dict(zip(rows, later.split(list(rows.values())), strict=True))
    return found if step % FIRST_EVERY else found | {"first": first_loss(shipped, role, tree, generator)}


def first_loss(shipped: Shipped, role: str, tree: WanTree, generator: random.Random) -> Tensor:
    """Return the loss of first blocks, whose label is the shipped model's estimate from the same noisy input."""
    heard = shipped.embed([scene.text for scene in scenes_of(generator, FIRSTS)])
    with torch.autocast("cpu", torch.bfloat16):
        teacher = Prompted(shipped.models[role], *heard)

        def taught(x: Tensor, step: Step) -> Tensor:
            return predict_clean(x, teacher.velocity(x, step.timestep).float(), step.sigma)

        return loss_of(Prompted(tree, *heard), taught, own_estimates(FIRSTS))


def own_estimates(count: int) -> Tensor:
    """Draw for which samples noisy inputs are made of the model's own estimates, `b 1 1 1 1`."""
    return torch.rand(count, 1, 1, 1, 1) < OWN


@torch.no_grad()
def step_error(shipped: Shipped, tree: WanTree, clips: Samples) -> dict[str, float]:
    """Return the mean squared error of latents of one block from a true context, alone and of two things."""
    torch.manual_seed(0)
    heard, found = shipped.embed(clips.prompts), []
    for number in (1, 2, 4, 8):
        at = torch.arange(len(clips.prompts)) * (BLOCKS - 1) + number - 1
        sampled = Prompted(tree, *heard).see(clips.context[at].float()).sample(noises(clips.label[at].float()))
        found.append((sampled - clips.label[at]).square().mean(dim=(1, 2, 3, 4)))
    errors = torch.stack(found).mean(dim=0)
    return {"error_alone": errors[::2].mean().item(), "error_two": errors[1::2].mean().item()}


def save_model(path: Path, tree: WanTree) -> None:
    """Write a transformer as the pocket set holds it."""
    weights = {f"model.{name}": w.half().contiguous() for name, w in tree.state_dict().items()}
    names = ("text_dim", "num_heads", "patch_size", "out_dim")  # ComfyUI would take any patch for 2 x 2
    stated = {name: getattr(tree, name) for name in names}
    save_file(weights, path.with_suffix(".part"), {"config": json.dumps({"transformer": stated})})
    path.with_suffix(".part").replace(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and now and then save everything needed to go on."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("role", choices=LESSONS)
    options.add_argument("out", type=Path)
    options.add_argument("--steps", type=int, help="over which the rate falls to nothing")
    options.add_argument("--rate", type=float)
    options.add_argument("--target", type=Path, help="whose blocks teach, a file in place of the shipped one")
    options.add_argument("--stop-at", type=int, help="stop after this step")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    lesson = LESSONS[args.role]
    steps, rate = args.steps or lesson.steps, args.rate or lesson.rate
    shipped, log, saved_at = Shipped(), Log(args.out / "log.jsonl"), args.out / "state.ckpt"
    if args.target:
        shipped.models["target"] = load_model(args.target)
    data = Data(shipped, args.out, lesson)
    held_back = Samples.joined([data.held_back])
    torch.manual_seed(0)
    tree = build(lesson.sizes)
    go_on_from(tree, shipped.models[args.role].state_dict())
    average, mean, first = Average(tree, 0.998), build(lesson.sizes).requires_grad_(False), 0
    optimisers = make_optimisers(tree, rate)
    if saved_at.exists():
        saved = torch.load(saved_at, weights_only=True)
        tree.load_state_dict(saved["weights"])
        for optimiser, state in zip(optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        average.weights, average.steps, first = saved["average"], saved["step"], saved["step"]
    found: dict[str, list[float]] = {}
    for step in range(first, args.stop_at or steps):
        if step >= lesson.own_from and (step == first or step % OWN_EVERY == 0):
            mean.load_state_dict(average.weights)
            data.refresh(mean, step - step % OWN_EVERY)
        by_kind = losses(shipped, args.role, tree, data, step)
        for optimiser in optimisers:
            set_rate(optimiser, falling_rate(step, steps, rate))
            optimiser.zero_grad(set_to_none=True)
        torch.cat(list(by_kind.values())).mean().backward()
        nn.utils.clip_grad_norm_(tree.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        average.update(tree)
        for kind, loss in by_kind.items():
            found.setdefault(kind, []).append(loss.mean().item())
        if (step + 1) % 50 == 0:
            log(step=step + 1, **{kind: fmean(numbers) for kind, numbers in found.items()})
            found.clear()
        if (step + 1) % LOOKED == 0 or step + 1 == steps:
            mean.load_state_dict(average.weights)
            log(step=step + 1, **step_error(shipped, mean, held_back))
            save_model(args.out / f"{args.role}.safetensors", mean)
        if (step + 1) % SAVED == 0 or step + 1 == steps:
            save_checkpoint(
                saved_at,
                weights=tree.state_dict(),
                optimisers=[optimiser.state_dict() for optimiser in optimisers],
                average=average.weights,
                step=step + 1,
            )


if __name__ == "__main__":
    main()
