"""Clips made where the model is: the world's, the target's, and those on which a drafter goes on by itself.

Nothing is read but the embedded set: scenes are drawn, rendered, encoded, decoded and recognised in batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.trained_set import trained_set
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, BLOCKS, FRAMES, SCHEDULE
from .common import seeded
from .many_scenes import Scenes, quality, recognise
from .measure_pair import HANDED_OVER, ROUTES, SEAMS, HandedOver, scenes_of
from .on_gpu import GpuPrompted, HalfPrompted
from .roll_out import REACH, encode_stills, roll_out
from .shipped import Shipped

RECOGNISED = 0.04
LOST = 0.15
"""Mean squared errors: of a context from which it is not recognised, and of one thing from which it is not there.

The truth could not say where it comes back.
"""

PADDED = 32
"""Tokens of every prompt, padding included, so that batches have one shape; no prompt of the grammar has more."""

ONWARD = 4
"""How many blocks a model goes on for at most, if it begins after several of the target's."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Scenes with what the text encoder makes of their prompts, `n m c` and which tokens are real, `n m`."""

    scenes: Scenes
    embedding: Tensor
    real: Tensor

    def heard(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of some."""
        return self.embedding[rows].float(), self.real[rows]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks with their contexts, `n 16 3 8 8` each, and the number of each one's prompt.

    Of whole clips they are in order: the eight of the first clip, then those of the next.
    """

    whose: Tensor
    context: Tensor
    label: Tensor

    @classmethod
    def whole(cls, context: Tensor, label: Tensor) -> Blocks:
        """Return the blocks of whole clips, `n 8 c 3 h w`."""
        whose = torch.arange(len(label), device=label.device).repeat_interleave(BLOCKS - 1)
        return cls(whose, context.flatten(0, 1), label.flatten(0, 1))

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        """Return the blocks of several lots as one."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("whose", "context", "label")))


class World:
    """What is needed to make clips: the embedded set on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._shipped = Shipped()
        vae = load_vae(trained_set().vae, layers="planes", device=device)
        assert isinstance(vae, WanCodec)
        self.vae = vae
        self.drafter, self.target = (self._shipped.models[role].to(device) for role in ("drafter", "target"))

    def prompts(self, scenes: list[Scene]) -> Prompts:
        """Let the text encoder read them."""
        encoder = self._shipped._encoder.to(self.device)
        ids, real = self._shipped._tokens([scene.text for scene in scenes])
        ids, real = (F.pad(part, (0, PADDED - ids.shape[1])).to(self.device) for part in (ids, real))
        with torch.no_grad():
            made = [
                encoder(input_ids=i, attention_mask=r.long()).last_hidden_state.half()
                for i, r in zip(ids.split(2048), real.split(2048), strict=True)
            ]
        return Prompts(Scenes.of(scenes, self.device), torch.cat(made), real)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode clips `n f c h w` into `n c t h w`, as an ordinary tensor."""
        return torch.cat([self.vae.encode(part) for part in frames.split(256)]).clone()

    def kept_random(self) -> AbstractContextManager[Any]:
        """Return a context after which training goes on with the random numbers it would have had."""
        return torch.random.fork_rng([torch.cuda.current_device()] if self.device.type == "cuda" else [])


@torch.no_grad()
def true_clips(world: World, prompts: Prompts, chunk: int = 128) -> Blocks:
    """Return blocks 1 to 8 of the clips that the prompts say, with the contexts that `recompute` gives them."""
    contexts = []
    labels = []
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
    return Blocks.whole(torch.cat(contexts), torch.cat(labels))


@torch.no_grad()
def target_clips(world: World, prompts: Prompts, chunk: int = 512) -> Blocks:
    """Return the same blocks as the target makes them, with its contexts."""
    contexts = []
    labels = []
    for rows in torch.arange(len(prompts.scenes), device=world.device).split(chunk):
        seen, blocks, _ = roll_out(world.target, world.vae, *prompts.heard(rows), ask=HalfPrompted)
        contexts.append(torch.stack(seen, dim=1).half())
        labels.append(torch.stack(blocks[1:], dim=1).half())
    return Blocks.whole(torch.cat(contexts), torch.cat(labels))


@torch.no_grad()
def own_blocks(
    world: World, tree: WanTree, prompts: Prompts, clips: Blocks, count: int, begun: int
) -> tuple[list[Blocks], int]:
    """Let a model go on after the first `begun` blocks of drawn clips; after one, to the end of the clip.

    Return the contexts in which every thing is to be seen, with the truth from the moment that they show, and how
    many contexts there were.
    """
    rows = torch.randint(len(prompts.scenes), (count,), device=world.device)
    scenes = prompts.scenes[rows]
    at = (BLOCKS - 1) * rows
    blocks = [clips.context[at], *(clips.label[at + number] for number in range(begun - 1))]
    last = BLOCKS - 1 if begun == 1 else min(begun + ONWARD, BLOCKS - 1)
    seen, _, frames = roll_out(
        tree,
        world.vae,
        *prompts.heard(rows),
        count=last + 1,
        begun=[block.float() for block in blocks],
        ask=HalfPrompted,
    )
    contexts = {number: seen[number - begun] for number in range(begun + 1, last + 1)}
    return recognised_blocks(world, scenes, rows, contexts, frames, RECOGNISED), count * (last - begun)


def recognised_blocks(
    world: World, scenes: Scenes, rows: Tensor, contexts: Mapping[int, Tensor], frames: Tensor, limit: float
) -> list[Blocks]:
    """Return those contexts of rolled-out clips in which every thing is to be seen, with what is right after them.

    That is the truth from the moment that they show. `rows`: the numbers of the prompts. `contexts`: by number of
    the block that comes after. `frames`: of the whole clips, `n f c h w`. `limit`: the error above which a
    context is not recognised.
    """
    recognised: list[Blocks] = []
    for number, context in contexts.items():
        due = 12 * number
        ahead, error, on_things = recognise(scenes, frames[:, due - 11 : due - 3], due - 11, REACH)
        good = ((error < limit) & (on_things.amax(dim=1) < LOST)).nonzero()[:, 0]
        if len(good):
            times = (torch.arange(due - 16, due + 9, device=world.device) + ahead[good, None]).clamp(min=0)
            labels = world.encode(scenes[good].render(times)[0])[:, :, -BLOCK:]
            recognised.append(Blocks(rows[good], context[good].half(), labels.half()))
    return recognised


@dataclass(slots=True, eq=False)
class Data:
    """What batches are drawn from. `own`: lots of a model's own contexts, the newest last."""

    world: World
    prompts: Prompts
    true: Blocks
    made: Blocks
    own: list[Blocks] = field(default_factory=list)

    @classmethod
    def make(cls, world: World, clips: int, seed: int) -> Data:
        """Draw scenes, render them, and let the target make them."""
        prompts = world.prompts(scenes_of(seeded(seed, "drafter clips"), clips))
        return cls(world, prompts, true_clips(world, prompts), target_clips(world, prompts))

    def draw(self, rows: Mapping[str, int]) -> tuple[Tensor, ...]:
        """Return embeddings, which of their tokens are real, contexts and blocks of as many samples of each kind.

        Some noise is on the true contexts, as on no others. They stand in for own ones until there are any.
        """
        parts = []
        for kind, count in rows.items():
            blocks = Blocks.joined(self.own) if kind == "own" and self.own else getattr(self, kind)
            blocks = self.true if blocks == [] else blocks
            chosen = torch.randint(len(blocks.whose), (count,), device=self.world.device)
            context = blocks.context[chosen].float()
            if blocks is self.true:
                amount = 0.05 * torch.randint(3, (count, 1, 1, 1, 1), device=context.device)
                context = context + amount * torch.randn_like(context)
            parts.append((blocks.whose[chosen], context, blocks.label[chosen].float()))
        whose, context, label = (torch.cat(of) for of in zip(*parts, strict=True))
        return (*self.prompts.heard(whose), context, label)

    def refresh(self, tree: WanTree, count: int, kept: int) -> float:
        """Make a lot of own contexts, half of them of whole clips; return which share was recognised."""
        begun = int(torch.randint(2, BLOCKS - 2, ()))
        lot: list[Blocks] = []
        wanted = 0
        for first in (1, begun):
            blocks, contexts = own_blocks(self.world, tree, self.prompts, self.made, count, first)
            lot += blocks
            wanted += contexts
        made = sum(len(blocks.whose) for blocks in lot)
        if made:
            self.own = [*self.own, Blocks.joined(lot)][-kept:]
        return made / wanted


@torch.no_grad()
def step_errors(world: World, tree: WanTree, prompts: Prompts, clips: Blocks) -> dict[str, float]:
    """Return the mean squared error of latents of one block from a true context, alone and of two things."""
    rows = torch.arange(len(prompts.scenes), device=world.device)
    errors = []
    with world.kept_random():
        torch.manual_seed(0)
        for number in (1, 2, 4, 8):
            at = rows * (BLOCKS - 1) + number - 1
            label = clips.label[at].float()
            prompted = GpuPrompted(tree, *prompts.heard(rows)).see(clips.context[at].float())
            sampled = prompted.sample([torch.randn_like(label) for _ in SCHEDULE])
            errors.append((sampled - label).square().mean(dim=(1, 2, 3, 4)))
    error = torch.stack(errors).mean(dim=0)
    return {"error_alone": error[::2].mean().item(), "error_two": error[1::2].mean().item()}


@torch.no_grad()
def route_qualities(world: World, drafter: WanTree, scenes: list[Scene], seed: int) -> list[dict[str, Any]]:
    """Return for each scene the decibels of every block by route, as `measure_pair` does, without presence."""
    prompts = world.prompts(scenes)
    heard = prompts.heard(torch.arange(len(scenes), device=world.device))
    models = {"drafter": drafter, "target": world.target}
    rows: list[dict[str, Any]] = [{"prompt": scene.text} for scene in scenes]
    for name, stages in ROUTES.items():
        with world.kept_random():
            torch.manual_seed(seed)
            blocks: list[Tensor] = []
            for count, maker in stages:
                tree, ask = (models, HandedOver) if maker == HANDED_OVER else (models[maker], GpuPrompted)
                _, blocks, frames = roll_out(tree, world.vae, *heard, count=count, begun=blocks, ask=ask)
        dB = quality(prompts.scenes, frames.clone())
        by_block = torch.stack([block.mean(dim=1) for block in dB.tensor_split(SEAMS, dim=1)], dim=1)
        for row, blocks_of_clip in zip(rows, by_block.tolist(), strict=True):
            row[name] = [round(value, 3) for value in blocks_of_clip]
    return rows
