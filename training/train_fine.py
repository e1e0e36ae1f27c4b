"""Train the target on from the shipped one, on a GPU, within given seconds.

    python -m training.train_fine OUT --seconds 380 [--layers 5] [--rate 2e-3] [--batch 256]
    python -m training.train_fine OUT --seconds 380 --start OUT/target.safetensors --elapsed 200

The truth is the label, as for the shipped target: of true contexts, and of the model's own, aligned in time.
Nothing is read but the embedded set: clips are rendered, encoded and decoded where the model is. A context is
shared by the four timesteps; each timestep's gradient is taken by itself, so that the activations of two passes are
alive at once.

The rate falls to nothing with the time that is left, not with steps. OUT/target.safetensors is the average of the
weights, OUT/now.safetensors the weights themselves; `--start` goes on from either, `--elapsed` seconds into the
fall. A CPU does the same, slowly.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.forward import PLAIN, Stages
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.schedule import predict_clean, renoise
from sdvg_core.decoders.wan_vae import WanCodec, load_wan_vae
from sdvg_core.pocket.trained_set import trained_set
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, SCHEDULE, Prompted, TrainingOps
from .common import Average, Log, seeded, set_rate
from .make_latents import BLOCKS, FRAMES, encode_stills
from .many_scenes import Scenes, quality, recognise
from .measure_pair import SEAMS, Shipped, load_model, scenes_of
from .roll_out import REACH, RECOGNISED, roll_out
from .train_pair import save_model
from .train_transformer import OWN, go_on_from, make_optimisers, weights_of

LOST = 0.15
"""The mean squared error on a thing from which it is not there: the truth could not say where it comes back."""

FIRST_EVERY = 4
"""In which steps the batch is of first blocks."""

OWN_SHARE = 0.55
"""How many of a batch's contexts are the model's own, once there are any."""

OWN_FROM, OWN_EVERY, OWN_KEPT = 0.12, 0.07, 4
"""After which share of the time own contexts are made, how often, and how many lots of them are kept."""

SAVED, LOOKED = 60.0, 30.0
"""Every how many seconds the weights are saved, and the error of a block measured."""

CHECKED = 10
"""Every how many steps the clock is read and the losses are looked at."""


class GpuOps(TrainingOps):
    """The same operations, by the kernels that are fast on a GPU; under a compiler without complex numbers."""

    compiled = False
    ropes: ClassVar[dict[Any, Any]] = {}

    def rope(self, tree: Any, first: int, grid: tuple[int, int, int], device: torch.device) -> Any:
        """Return the rotary table, made once."""
        key = (first, grid, str(device), tree.dim // tree.num_heads, self.compiled)
        if key not in self.ropes:
            table = super().rope(tree, first, grid, device)
            self.ropes[key] = torch.view_as_real(table).unbind(-1) if self.compiled else table
        return self.ropes[key]

    def rotate(self, x: Tensor, rope: Any) -> Tensor:
        """Rotate `b l n d` by the table."""
        if torch.is_tensor(rope):
            return super().rotate(x, rope)
        cos, sin = rope
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; to a prompt in the open, as its keys are few and weighted."""
        if k.shape[1] == self._bias.shape[-1] or not q.is_cuda:
            return super().attention(q, k, v)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cuda") else q.dtype
        q, k, v = (x.transpose(1, 2).to(dtype) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class GpuPrompted(Prompted):
    """A model with a batch of prompts, whose shared parts can be cut off and taken up again."""

    kind = GpuOps

    def shared(self) -> Shared:
        """Cut off keys and values of the prompt and of the context seen so far: one gradient for many passes."""
        of_text = Shared([part for pair in self.text for part in pair])
        self.text = tuple(zip(of_text.leaves[::2], of_text.leaves[1::2], strict=True))
        return of_text

    def shared_context(self) -> Shared:
        """The same for the context, once it was seen."""
        layers = self.cache._layers
        of_context = Shared([part for layer in layers for part in layer[0]])
        pairs = zip(of_context.leaves[::2], of_context.leaves[1::2], strict=True)
        for layer, pair in zip(layers, pairs, strict=True):
            layer[0] = pair
        return of_context


class HalfPrompted(GpuPrompted):
    """The same with matrix products in bfloat16."""

    def __init__(self, tree: WanTree, embedding: Tensor, real: Tensor, stages: Stages = PLAIN) -> None:
        with torch.autocast(embedding.device.type, torch.bfloat16):
            super().__init__(tree, embedding, real, stages)

    def see(self, context: Tensor) -> Prompted:
        """Take in clean latents."""
        with torch.autocast(context.device.type, torch.bfloat16):
            return super().see(context)

    def velocity(self, x: Tensor, timestep: float) -> Tensor:
        """Predict the velocity of noisy blocks."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().velocity(x, timestep)


class Shared:
    """Tensors that several passes read: their gradients are summed up before they are handed on."""

    def __init__(self, made: Sequence[Tensor]) -> None:
        self._made = made
        self.leaves = [part.detach().requires_grad_() for part in made]

    def backward(self) -> None:
        """Hand the sum on."""
        read = [n for n, leaf in enumerate(self.leaves) if leaf.grad is not None]
        torch.autograd.backward([self._made[n] for n in read], [self.leaves[n].grad for n in read])


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks with their contexts (`n 16 3 8 8` each; none before first blocks), and the number of each prompt."""

    whose: Tensor
    label: Tensor
    context: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Scenes with what the text encoder makes of their prompts, `n m c` and which tokens are real, `n m`."""

    scenes: Scenes
    embedding: Tensor
    real: Tensor

    def heard(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of some."""
        return self.embedding[rows].float(), self.real[rows]


class World:
    """What is needed to make clips: the text encoder, the VAE on the device, the drawn scenes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._shipped = device, Shipped()
        self.vae: WanCodec = load_wan_vae(trained_set().vae, layers="planes", device=device)
        self.shipped = self._shipped.models["target"].to(device)

    def prompts(self, scenes: list[Scene]) -> Prompts:
        """Let the text encoder read them, all padded to one length so that every batch has the same shape."""
        encoder = self._shipped._encoder.to(self.device)
        ids, real = self._shipped._tokens([scene.text for scene in scenes])
        width = PADDED - ids.shape[1]
        assert width >= 0, ids.shape
        ids, real = F.pad(ids, (0, width)).to(self.device), F.pad(real, (0, width)).to(self.device)
        with torch.no_grad():
            made = [
                encoder(input_ids=i, attention_mask=r.long()).last_hidden_state.half()
                for i, r in zip(ids.split(2048), real.split(2048), strict=True)
            ]
        return Prompts(Scenes.of(scenes, self.device), torch.cat(made), real)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode clips `n f c h w` into `n c t h w`, as an ordinary tensor."""
        return torch.cat([self.vae.encode(part) for part in frames.split(256)]).clone()


PADDED = 32
"""Tokens of every prompt, padding included: no prompt of the grammar has more."""


@torch.no_grad()
def true_blocks(world: World, prompts: Prompts, chunk: int = 128) -> Blocks:
    """Return blocks 1 to 8 of the clips that the prompts say, with the contexts that `recompute` gives them."""
    contexts, labels = [], []
    times = torch.arange(FRAMES, device=world.device)
    for first in range(0, len(prompts.scenes), chunk):
        scenes = prompts.scenes[first : first + chunk]
        frames, _ = scenes.render(times.expand(len(scenes), -1))
        latents = world.encode(frames)
        stills = encode_stills(world.vae, frames[:, [12 * (number - 1) for number in range(2, BLOCKS)]])
        blocks = latents.unflatten(2, (BLOCKS, BLOCK)).transpose(1, 2)  # n 9 c 3 h w
        context = blocks[:, :-1].clone()
        context[:, 1:, :, 0] = stills
        contexts.append(context.half())
        labels.append(blocks[:, 1:].half())
    whose = torch.arange(len(prompts.scenes), device=world.device).repeat_interleave(BLOCKS - 1)
    return Blocks(whose, torch.cat(labels).flatten(0, 1), torch.cat(contexts).flatten(0, 1))


@torch.no_grad()
def first_blocks(world: World, prompts: Prompts, chunk: int = 1024) -> Blocks:
    """Return the first blocks of the clips that the prompts say."""
    labels, times = [], torch.arange(4 * (BLOCK - 1) + 1, device=world.device)
    for first in range(0, len(prompts.scenes), chunk):
        scenes = prompts.scenes[first : first + chunk]
        labels.append(world.encode(scenes.render(times.expand(len(scenes), -1))[0]).half())
    return Blocks(torch.arange(len(prompts.scenes), device=world.device), torch.cat(labels))


@torch.no_grad()
def own_blocks(
    world: World, tree: WanTree, prompts: Prompts, clips: Blocks, count: int, begun: int
) -> list[Blocks]:
    """Go on from the first `begun` true blocks of drawn clips, up to four blocks on, or from nothing to the end.

    Return the contexts in which every thing is to be seen, with the truth from the moment that they show.
    """
    rows = torch.randint(len(prompts.scenes), (count,), device=world.device)
    scenes, at = prompts.scenes[rows], (BLOCKS - 1) * rows
    whole = [clips.context[at], *(clips.label[at + number] for number in range(begun - 1))][:begun]
    last = min(begun + 4, BLOCKS - 1) if begun else BLOCKS - 1
    seen, _, frames = roll_out(
        tree,
        world.vae,
        *prompts.heard(rows),
        count=last + 1,
        begun=[block.float() for block in whole],
        ask=HalfPrompted,
    )
    found: list[Blocks] = []
    for number in range(begun + 1, last + 1):
        due = 12 * number
        ahead, error, on_things = recognise(scenes, frames[:, due - 11 : due - 3], due - 11, REACH)
        good = (error < RECOGNISED) & (on_things.amax(dim=1) < LOST)
        good = good.nonzero()[:, 0]
        if len(good):
            times = (torch.arange(due - 16, due + 9, device=world.device) + ahead[good, None]).clamp(min=0)
            labels = world.encode(scenes[good].render(times)[0])[:, :, -BLOCK:]
            found.append(Blocks(rows[good], labels.half(), seen[number - max(begun, 1)][good].half()))
    return found


def joined(parts: Sequence[Blocks]) -> Blocks:
    """Return the blocks of several lots as one."""
    return Blocks(*(torch.cat([getattr(part, name) for part in parts]) for name in ("whose", "label", "context")))


@dataclass(slots=True, eq=False)
class Data:
    """What batches are drawn from; `own` grows and is renewed."""

    world: World
    prompts: Prompts
    clips: Blocks
    first_prompts: Prompts
    firsts: Blocks
    own: list[Blocks]

    @classmethod
    def make(cls, world: World, clips: int, firsts: int, seed: int) -> Data:
        """Draw, render and encode."""
        of_clips = world.prompts(scenes_of(seeded(seed, "fine clips"), clips))
        of_firsts = world.prompts(scenes_of(seeded(seed, "fine firsts"), firsts))
        return cls(world, of_clips, true_blocks(world, of_clips), of_firsts, first_blocks(world, of_firsts), [])

    def draw_first(self, count: int) -> tuple[tuple[Tensor, Tensor], None, Tensor]:
        """Return prompts and first blocks."""
        rows = torch.randint(len(self.firsts.whose), (count,), device=self.world.device)
        return self.first_prompts.heard(rows), None, self.firsts.label[rows].float()

    def draw(self, count: int) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """Return prompts, contexts and blocks; some noise is on the true contexts, as on no others."""
        owned = round(OWN_SHARE * count) if self.own else 0
        parts = []
        for blocks, of_it in ((self.clips, count - owned), (self.lot(), owned)):
            if of_it:
                rows = torch.randint(len(blocks.whose), (of_it,), device=self.world.device)
                assert blocks.context is not None
                context = blocks.context[rows].float()
                if blocks is self.clips:
                    amount = 0.05 * torch.randint(3, (of_it, 1, 1, 1, 1), device=context.device)
                    context = context + amount * torch.randn_like(context)
                parts.append((blocks.whose[rows], context, blocks.label[rows].float()))
        whose, context, label = (torch.cat(of) for of in zip(*parts, strict=True))
        return self.prompts.heard(whose), context, label

    def lot(self) -> Blocks:
        """Return all own contexts that are kept, as one."""
        return joined(self.own) if self.own else self.clips

    def refresh(self, tree: WanTree, count: int) -> float:
        """Make own contexts, half of them of whole clips; return which share was recognised."""
        begun = int(torch.randint(1, BLOCKS - 2, ()))
        lots: list[Blocks] = []
        wanted = 0
        for first in (0, begun):
            lots += own_blocks(self.world, tree, self.prompts, self.clips, count, first)
            wanted += count * (BLOCKS - 1 if not first else min(first + 4, BLOCKS - 1) - first)
        made = sum(len(lot.whose) for lot in lots)
        if made >= max(count // 4, 1):
            kept = [joined(lots)]
            self.own = [*self.own[1 - OWN_KEPT :], *kept]
        return made / wanted


def step_losses(tree: WanTree, stages: Stages, drawn: Any) -> Tensor:
    """Take the gradient of a batch, timestep by timestep; return the loss of each timestep."""
    heard, context, label = drawn
    weights, losses = weights_of(label), []
    on_own = torch.rand(len(label), 1, 1, 1, 1, device=label.device) < OWN
    prompted = HalfPrompted(tree, *heard, stages)
    of_text, of_context = prompted.shared(), None
    if context is not None:
        prompted.see(context)
        of_context = prompted.shared_context()
    x = torch.randn_like(label)
    for step, following in zip_longest(SCHEDULE, SCHEDULE[1:]):
        velocity = prompted.velocity(x, step.timestep).float()
        error = (velocity - (x - label) / step.sigma).square().mean(dim=1, keepdim=True)
        loss = (weights * error).mean()
        (loss / len(SCHEDULE)).backward()
        losses.append(loss.detach())
        if following:
            clean = torch.where(on_own, predict_clean(x, velocity.detach(), step.sigma), label)
            x = renoise(clean, torch.randn_like(x), following.sigma)
    if of_context:
        of_context.backward()
    of_text.backward()
    return torch.stack(losses)


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """What a model is measured on: held-out clips, every second one of a thing alone."""

    world: World
    prompts: Prompts
    clips: Blocks
    judged: Prompts

    @classmethod
    def make(cls, world: World, count: int, judged: int) -> Bench:
        """Encode the clips to be held back, and read the prompts of the tables of the log."""
        prompts = world.prompts(scenes_of(seeded(0, "held-back"), count, held_out=True))
        scenes = scenes_of(seeded(0, "figures"), judged, held_out=True)
        return cls(world, prompts, true_blocks(world, prompts), world.prompts(scenes))

    def kept_random(self) -> Any:
        """Return a context after which training goes on with the random numbers it would have had."""
        return torch.random.fork_rng([torch.cuda.current_device()] if self.world.device.type == "cuda" else [])

    @torch.no_grad()
    def errors(self, tree: WanTree) -> dict[str, float]:
        """Return the mean squared error of latents of one block from a true context, and of a first block."""
        rows = torch.arange(len(self.prompts.scenes), device=self.world.device)
        assert self.clips.context is not None
        with self.kept_random():
            torch.manual_seed(0)
            heard, later = self.prompts.heard(rows), []
            first = _sampled(GpuPrompted(tree, *heard), self.clips.context[rows * (BLOCKS - 1)].float())
            for number in (1, 2, 4, 8):
                at = rows * (BLOCKS - 1) + number - 1
                prompted = GpuPrompted(tree, *heard).see(self.clips.context[at].float())
                later.append(_sampled(prompted, self.clips.label[at].float()))
        error = torch.stack(later).mean(dim=0)
        named = {"alone": error[::2], "two": error[1::2], "first_alone": first[::2], "first_two": first[1::2]}
        return {f"error_{name}": part.mean().item() for name, part in named.items()}

    @torch.no_grad()
    def oracle(self, tree: WanTree) -> dict[str, Any]:
        """Return the decibels of whole clips that a model makes on its own, by block and in the mean."""
        rows, made = torch.arange(len(self.judged.scenes), device=self.world.device), []
        with self.kept_random():
            torch.manual_seed(7)
            for part in rows.split(256):
                _, _, frames = roll_out(tree, self.world.vae, *self.judged.heard(part), ask=GpuPrompted)
                dB = quality(self.judged.scenes[part], frames.clone())
                made.append(torch.stack([block.mean(dim=1) for block in dB.tensor_split(SEAMS, dim=1)], dim=1))
        by_block = torch.cat(made)
        clips = by_block.mean(dim=1)
        return {
            "dB": clips.mean().item(),
            "dB_alone": clips[::2].mean().item(),
            "dB_two": clips[1::2].mean().item(),
            "dB_by_block": [round(x, 2) for x in by_block.mean(dim=0).tolist()],
        }


def _sampled(prompted: Prompted, label: Tensor) -> Tensor:
    sampled = prompted.sample([torch.randn_like(label) for _ in SCHEDULE])
    return (sampled - label).square().mean(dim=(1, 2, 3, 4))


class Trainer:
    """The model, its optimisers and its average, and the clock."""

    def __init__(self, args: argparse.Namespace, log: Log, world: World, data: Data, bench: Bench) -> None:
        self.args, self.world, self.data, self.bench = args, world, data, bench
        self.device, self.out, self.log = world.device, args.out, log
        torch.manual_seed(args.seed)
        shipped = world.shipped
        sizes = replace(sizes_of(shipped), num_layers=args.layers)
        self.tree = WanTree(sizes).to(self.device)
        start = (load_model(args.start) if args.start else shipped).state_dict()
        go_on_from(self.tree, {name: w.float().to(self.device) for name, w in start.items()})
        self.mean = WanTree(sizes).to(self.device).requires_grad_(False)
        self.stages = PLAIN
        self.begin_again(1.0)

    def begin_again(self, slower: float) -> None:
        """Make optimisers and average anew for the weights as they are."""
        self.optimisers, self.slower, self.warm = make_optimisers(self.tree, self.args.rate), slower, 0
        self.average = Average(self.tree, self.args.average)

    def sync(self) -> float:
        """Wait for the device; return the seconds of a clock."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    def averaged(self) -> WanTree:
        """Return the averaged model."""
        self.mean.load_state_dict(self.average.weights)
        return self.mean

    def step(self, number: int, passed: float) -> Tensor:
        """Make one step; return its losses and the norm of its gradient."""
        count = self.args.batch
        drawn = self.data.draw_first(count) if number % FIRST_EVERY == 0 else self.data.draw(count)
        rate = self.args.rate * self.slower * min(1.0, (self.warm + 1) / 100) * max(0.0, 1 - passed)
        for optimiser in self.optimisers:
            set_rate(optimiser, rate)
            optimiser.zero_grad(set_to_none=True)
        losses = step_losses(self.tree, self.stages, drawn)
        norm = nn.utils.clip_grad_norm_(self.tree.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.average.update(self.tree)
        self.warm += 1
        return torch.cat([losses, norm.detach().reshape(1)])

    def compile(self) -> None:
        """Try compiled layers, and keep them if they are faster by a tenth."""
        before = self.speed()
        try:
            GpuOps.compiled = True
            self.stages = Stages(**{name: torch.compile(getattr(PLAIN, name)) for name in Stages.__slots__})
            began = self.sync()
            self.speed(2)
            compiling, after = self.sync() - began, self.speed()
        except Exception as problem:
            compiling, after = 0.0, float("inf")
            self.log(compile_failed=str(problem)[:300])
        if after > 0.9 * before:
            GpuOps.compiled, self.stages = False, PLAIN
        self.log(eager=before, compiled=after, seconds_of_compiling=compiling, kept=after <= 0.9 * before)

    def speed(self, steps: int = 6) -> float:
        """Return the seconds of a step, measured on steps that change nothing."""
        drawn = [self.data.draw(self.args.batch) for _ in range(2)]
        began = 0.0
        for number in range(-2, steps):
            if number == 0:
                began = self.sync()
            step_losses(self.tree, self.stages, drawn[number % 2])
        took = (self.sync() - began) / steps
        self.tree.zero_grad(set_to_none=True)
        return took

    def save(self) -> None:
        """Write the average, and the weights as they are."""
        save_model(self.out / "target.safetensors", self.averaged())
        save_model(self.out / "now.safetensors", self.tree)

    def run(self) -> None:
        """Train until the time is up."""
        args, step = self.args, 0
        began = self.sync() - args.elapsed
        if args.compile:
            self.compile()
        looked = saved = refreshed = window = self.sync()
        own_from = began + OWN_FROM * args.seconds
        found: dict[str, list[Tensor]] = {"later": [], "first": []}
        stepping, steps_before, over = 0.0, 0, False
        while not over:
            kind = "later" if step % FIRST_EVERY else "first"
            found[kind].append(self.step(step, (time.monotonic() - began) / args.seconds))
            step += 1
            if step % CHECKED:
                continue
            now = self.sync()
            stepping, over = stepping + now - window, now - began >= args.seconds
            if not all(part.isfinite().all() for parts in found.values() for part in parts):
                self.recover(step)
                found = {"later": [], "first": []}
            elif now >= own_from and not over and now - refreshed >= OWN_EVERY * args.seconds:
                share = self.data.refresh(self.averaged(), args.own)
                refreshed = self.sync()
                lots = [len(lot.whose) for lot in self.data.own]
                self.log(step=step, recognised=share, own=lots, seconds_of_refreshing=refreshed - now)
            if over or self.sync() - looked > LOOKED:
                self.look(step, found, (step - steps_before) / stepping)
                found = {"later": [], "first": []}
                looked, stepping, steps_before = self.sync(), 0.0, step
            if over or looked - saved > SAVED:
                self.save()
                saved = self.sync()
            window = self.sync()
        (self.out / "now.safetensors").unlink()  # at the end of the fall it is the average
        self.log(step=step, whose="the end", **self.bench.oracle(self.averaged()))

    def recover(self, step: int) -> None:
        """Go back to the average, with half of the rate."""
        self.log(step=step, problem="a loss is not finite; back to the average")
        if all(w.isfinite().all() for w in self.average.weights.values()):
            self.tree.load_state_dict(self.average.weights)
        elif (self.out / "target.safetensors").exists():
            self.tree.load_state_dict(load_model(self.out / "target.safetensors").state_dict())
        self.begin_again(self.slower / 2)

    def look(self, step: int, found: dict[str, list[Tensor]], rate: float) -> None:
        """Log losses, speed and errors."""
        tokens = self.args.batch * 5 * BLOCK * 64 * rate
        shown: dict[str, Any] = {"step": step, "steps_per_s": rate, "tokens_per_s": tokens}
        for kind, parts in found.items():
            if parts:
                mean = torch.stack(parts).mean(dim=0).tolist()
                shown |= {kind: sum(mean[:-1]) / len(SCHEDULE), f"{kind}_by_step": [round(x, 3) for x in mean[:-1]]}
                shown |= {f"{kind}_norm": mean[-1]}
        if self.device.type == "cuda":
            shown["GB"] = torch.cuda.max_memory_allocated() / 1e9
            with contextlib.suppress(Exception):
                shown["busy"] = torch.cuda.utilization()
        self.log(**shown, **self.bench.errors(self.averaged()))


def sizes_of(tree: WanTree) -> WanConfig:
    """Return the sizes of a tree."""
    names = [field.name for field in fields(WanConfig) if hasattr(tree, field.name)]
    return WanConfig(**{name: getattr(tree, name) for name in names})


def main(argv: Sequence[str] | None = None) -> None:
    """Make the data, measure the shipped target, train, and measure again."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=380, help="of training, without what comes before")
    options.add_argument("--elapsed", type=float, default=0, help="how far into these to begin")
    options.add_argument("--until", type=float, help="in place of --seconds: the clock by which it all is to end")
    options.add_argument("--start", type=Path, help="a file of this training, in place of the shipped target")
    options.add_argument("--layers", type=int, default=5)
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--average", type=float, default=0.998)
    options.add_argument("--clips", type=int, default=8192)
    options.add_argument("--firsts", type=int, default=49152)
    options.add_argument("--own", type=int, default=512, help="clips of each half of a lot of own contexts")
    options.add_argument("--held-back", type=int, default=256)
    options.add_argument("--judged", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--compile", action="store_true")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = options.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "cuda":  # on a CPU it would only change the bits of what this process does next
        torch.set_num_threads(4)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)
    log, world = Log(args.out / "log.jsonl"), World(torch.device(args.device))
    log(stage="models are there", device=args.device, torch=torch.__version__)
    bench = Bench.make(world, args.held_back, args.judged)
    log(stage="held back", whose="the shipped target", **bench.errors(world.shipped), **bench.oracle(world.shipped))
    data = Data.make(world, args.clips, args.firsts, args.seed)
    log(stage="data is there", clips=len(data.clips.whose), firsts=len(data.firsts.whose))
    trainer = Trainer(args, log, world, data, bench)
    trainer.log(stage="begins", layers=args.layers, **bench.errors(trainer.averaged()))
    if args.until:
        args.seconds = args.until - time.time()
    trainer.run()


if __name__ == "__main__":
    main()
