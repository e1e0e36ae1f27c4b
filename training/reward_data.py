"""What the reward model learns from: pictures and prompts, each pair with the oracle's opinion.

Pairs come in groups, every picture of a group with every prompt of it: of a scene, of two that differ from it in a
word, and of another one. So the same picture is seen with right and nearly right prompts, and the same prompt with
good, spoiled and wrong pictures; and each scene is rendered, and each picture read, once for many pairs.

In some groups the prompts leave something open. A picture is then as good as it is under the best completion.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from research.metrics import BEST
from research.world import centre, draw_scene, is_held_out, render_with_mask
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import COLOURS, GROUNDS, RADII, SHAPES, SIZE, Scene
from sdvg_core.scorers.tokenizer import MAX_TOKENS

from .corruptions import Shot, corrupt
from .open_prompts import KINDS_OF_OPEN, completions, left_open, opened
from .scene_changes import can_be_seen, changed

LENGTH = 105
"""Frames of a clip: the moments a picture may be of."""
STRIDE = 3
"""Every how many frames a picture is compared to; its own moment is always among them."""
PICTURES = (7, 3, 3, 3)
"""How many pictures of each of a group's scenes."""
CLEAN_PICTURES = 8
"""How many pictures of a scene `draw_clean` draws."""
CLEAN_SHARE = 0.25
CHANGES = {"ground": 1, "colour": 2, "shape": 4, "size": 3, "place": 2, "pace": 0.5, "direction": 1}
"""How often a nearly right scene differs in what."""
READABLE = 19.0
"""Decibels below which a picture is not asked what it shows: it may show something else."""

OPEN_SHARE = 0.4
"""How many of the groups have open prompts."""
MOMENTS = 300
"""Of all completions of an open prompt together, to which pictures are compared, besides those of the group."""

POOL_SHARE = 0.4
"""How many of the groups begin with a pool's pictures, where there is a pool."""

PATCHES = 8
UNKNOWN = -1
"""A label that does not count."""

Pool = Mapping[str, Tensor]
"""Pictures made by models, `n 3 h w` uint8, by prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Pictures, and what is where in them.

    `frames`: `n 3 h w` in [0, 1]. `patches`: `n 2 8 8`, see `patch_labels`. `covers`: `n 64 8 8`, how much a thing
    covers of each of a patch's pixels.
    """

    frames: Tensor
    patches: Tensor
    covers: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Pictures, each of the scene `origin`, `n`, and their `quality` under each prompt, `n p` decibels.

    `scenes`: what the prompts say; where they are open, the pictures show one of the completions. What the
    towers' tokens are asked besides: `flaws`, `n 8 8`, decibels of each patch; `words` and `places`, `n p 35` each,
    see `word_labels`.
    """

    scenes: tuple[Scene, ...]
    shown: Shown
    origin: Tensor
    quality: Tensor
    flaws: Tensor
    words: Tensor
    places: Tensor

    @property
    def frames(self) -> Tensor:
        """The pictures, `n 3 h w`."""
        return self.shown.frames

    @property
    def own_quality(self) -> Tensor:
        """Decibels of each picture under the prompt of its own scene: `n`."""
        return self.quality.gather(1, self.origin[:, None])[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """A scene at `times`, `m`: `frames`, `m 3 h w`, and what things `cover`. The first `count` are its pictures."""

    scene: Scene
    count: int
    times: Tensor
    frames: Tensor
    cover: Tensor

    @classmethod
    def draw(cls, scene: Scene, count: int, generator: random.Random) -> Truth:
        """Draw moments of a scene, and add those that pictures of other scenes are compared to."""
        drawn = torch.tensor([float(generator.randrange(LENGTH)) for _ in range(count)])
        times = torch.cat([drawn, torch.arange(0, LENGTH, STRIDE, dtype=torch.float32)])
        return cls(scene, count, times, *render_with_mask(scene, times))

    def spoiled(self, generator: random.Random) -> Tensor:
        """Return the frames of the drawn moments, most of them corrupted, in any strength."""
        shots = [Shot(self.frames[i], self.scene, float(self.times[i])) for i in range(self.count)]
        return torch.stack(
            [
                shot.frame if generator.random() < CLEAN_SHARE else corrupt(shot, generator.random(), generator)
                for shot in shots
            ]
        )


def draw_group(generator: random.Random, pool: Pool | None = None) -> Group:
    """Draw a group of training prompts."""
    scene, made = draw_scene(generator, held_out=False), torch.zeros(0, 3, SIZE, SIZE)
    slots = generator.choice(KINDS_OF_OPEN) if generator.random() < OPEN_SHARE else ()
    if pool and generator.random() < POOL_SHARE:
        prompt = generator.choice(sorted(pool))
        said, made = parse(prompt), pool[prompt]
        made = made[generator.sample(range(len(made)), min(len(made), PICTURES[0]))].float() / 255
        slots, scene = left_open(said), _shown(made, said)
    scenes = (scene, *relatives(scene, generator))
    truths = [Truth.draw(scene, count, generator) for scene, count in zip(scenes, PICTURES, strict=True)]
    frames = torch.cat([truth.spoiled(generator) for truth in truths])
    frames[: len(made)] = made
    return judged(scenes, truths, (frames * 255).floor() / 255, slots)


def _shown(frames: Tensor, said: Scene) -> Scene:
    """Return the completion that most pictures `n 3 h w` of one clip, at any time of it, look like."""
    if not left_open(said):
        return said
    candidates = completions(said)
    times = torch.linspace(0, LENGTH - 1, max(2, MOMENTS // len(candidates))).round()
    found = [decibels(frames, *render_with_mask(one, times)).amax(dim=1).mean() for one in candidates]
    return candidates[int(torch.stack(found).argmax())]


def judged(scenes: tuple[Scene, ...], truths: list[Truth], frames: Tensor, slots: tuple[str, ...] = ()) -> Group:
    """Judge pictures, PICTURES of each scene, with the prompt of every scene; `slots`: what prompts leave open."""
    origin = torch.arange(len(scenes)).repeat_interleave(torch.tensor(PICTURES))
    found = [decibels(frames, truth.frames, truth.cover) for truth in truths]
    exact = [of_scene.amax(dim=1) for of_scene in found]
    shown, scenes = scenes, tuple(said_without(scene, slots) for scene in scenes)
    quality = torch.stack([_quality(frames, said, shown, exact) for said in scenes], dim=1)
    shown_by = [(truths[number], int(found[number][i].argmax())) for i, number in enumerate(origin.tolist())]
    patches = torch.stack([patch_labels(truth.scene, float(truth.times[best])) for truth, best in shown_by])
    cover = torch.stack([truth.cover[best] for truth, best in shown_by])
    asked = [[word_labels(said, one) for said in scenes] for one in shown]
    words, places = (torch.stack([torch.stack([w[kind] for w in row]) for row in asked])[origin] for kind in (0, 1))
    unreadable = torch.stack(exact, dim=1).gather(1, origin[:, None])[:, 0] < READABLE
    for labels in (patches, words, places):
        labels[unreadable] = UNKNOWN
    return Group(
        scenes=scenes,
        shown=Shown(frames, patches, F.pixel_unshuffle(cover, SIZE // PATCHES)),
        origin=origin,
        quality=quality,
        flaws=patch_decibels(frames, torch.stack([truth.frames[best] for truth, best in shown_by])),
        words=words,
        places=places,
    )


def said_without(scene: Scene, slots: tuple[str, ...]) -> Scene:
    """Return the scene with some things left open, unless the words for that are held out of training."""
    candidate = opened(scene, slots)
    return scene if is_held_out(candidate) else candidate


def _quality(frames: Tensor, said: Scene, shown: tuple[Scene, ...], exact: list[Tensor]) -> Tensor:
    """Return decibels of pictures, `n`, under a prompt, given those under each of the group's scenes.

    A completion that is one of those scenes is known exactly; of all others a few moments must do.
    """
    candidates = completions(said)
    found = [of_scene for scene, of_scene in zip(shown, exact, strict=True) if scene in candidates]
    others = [one for one in candidates if one not in shown]
    times = torch.linspace(0, LENGTH - 1, max(2, MOMENTS // max(1, len(others)))).round()
    found += [decibels(frames, *render_with_mask(one, times)).amax(dim=1) for one in others]
    return torch.stack(found).amax(dim=0)


def draw_clean(generator: random.Random, scenes: int) -> Shown:
    """Draw clean pictures of training prompts: cheap, and nothing distracts from what is there."""
    found = []
    for _ in range(scenes):
        scene = draw_scene(generator, held_out=False)
        times = [generator.uniform(0, LENGTH) for _ in range(CLEAN_PICTURES)]
        frames, cover = render_with_mask(scene, torch.tensor(times))
        patches = torch.stack([patch_labels(scene, time) for time in times])
        found.append((frames, patches, F.pixel_unshuffle(cover, SIZE // PATCHES)))
    return Shown(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def relatives(scene: Scene, generator: random.Random, *, held_out: bool = False) -> list[Scene]:
    """Return two scenes that differ in one word, and one that differs in most of them."""
    near = [_of_side(scene, generator, held_out) for _ in range(2)]
    other = draw_scene(generator, held_out=held_out)
    on_same = replace(other, ground=scene.ground)
    if is_held_out(on_same) == held_out and can_be_seen(on_same) and generator.random() < 0.5:
        other = on_same
    return [*near, other]


def _of_side(scene: Scene, generator: random.Random, held_out: bool) -> Scene:
    while True:
        attribute = generator.choices(tuple(CHANGES), tuple(CHANGES.values()))[0]
        candidate = changed(scene, attribute, generator)
        if is_held_out(candidate) == held_out:
            return candidate


def decibels(frames: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Return `n m` decibels of frames `n c h w` against m moments; `oracle.still_quality` is their maximum."""
    on_things = mask / mask.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1)
    on_ground = (1 - mask) / (1 - mask).sum(dim=(1, 2, 3), keepdim=True).clamp(min=1)
    weight = (on_things + on_ground) / (2 * truth.shape[1])
    # The square of a difference, multiplied out, so that it is two products of matrices.
    squares = frames.square().sum(dim=1).flatten(1) @ weight.flatten(1).T
    products = frames.flatten(1) @ (weight * truth).flatten(1).T
    errors = squares - 2 * products + (weight * truth.square()).sum(dim=(1, 2, 3))
    return (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST)


def patch_decibels(frames: Tensor, truth: Tensor) -> Tensor:
    """Return `n 8 8` decibels of each patch of frames against as many true ones."""
    errors = F.avg_pool2d((frames - truth).square().mean(dim=1), SIZE // PATCHES)
    return (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST)


def read_pool(files: Sequence[Path]) -> dict[str, Tensor]:
    """Read pictures that models made: `frames` uint8 `n 3 h w`; in the metadata `prompts`, a line a frame."""
    found: dict[str, list[Tensor]] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            prompts = file.metadata()["prompts"].split("\n")
            for prompt, frame in zip(prompts, file.get_tensor("frames"), strict=True):
                found.setdefault(prompt, []).append(frame)
    return {prompt: torch.stack(frames) for prompt, frames in found.items()}


def patch_labels(scene: Scene, time: float) -> Tensor:
    """Return what is in each patch, `2 8 8`: whose colour, a thing's or a ground's; which shape and size.

    A thing is where its middle is no farther than its radius; without one, the second is 0.
    """
    grid = (PATCHES, PATCHES)
    found = torch.stack([torch.full(grid, _ground_label(scene)), torch.zeros(grid, dtype=torch.long)])
    axis = (torch.arange(PATCHES) + 0.5) * (SIZE / PATCHES)
    for thing in scene.things:
        across, down = centre(thing, torch.tensor([time]))
        near = torch.maximum((axis - across).abs()[None, :], (axis - down).abs()[:, None]) <= RADII[thing.size]
        kind = 1 + 2 * SHAPES.index(thing.shape) + list(RADII).index(thing.size)
        found[0][near], found[1][near] = list(COLOURS).index(thing.colour), kind
    return found


def word_labels(said: Scene, shown: Scene) -> tuple[Tensor, Tensor]:
    """Return for each token of a prompt whether a picture shows it, and where to look, (35,) each.

    Asked are the ground, each thing's colour, and the size and shape of the thing of that colour: 1, 0, or -1 for
    what is not asked. Where: the patches of this colour in `patch_labels`, or -1.
    """
    found, where = torch.full((2, MAX_TOKENS), UNKNOWN)
    text = said.text.split()
    if said.ground:
        found[len(text)] = said.ground == shown.ground
    if said.ground == shown.ground:
        where[len(text)] = _ground_label(said)
    articles = [number for number, word in enumerate(text, 1) if word == "a"]
    by_colour = {thing.colour: thing for thing in shown.things}
    for article, thing in zip(articles, filter(None, (said.mover, said.other)), strict=True):
        meant = by_colour.get(thing.colour)
        colour = article + (2 if thing.size else 1)
        found[colour] = meant is not None
        if meant is not None:
            where[article + 1 : colour + 2] = list(COLOURS).index(thing.colour)
            found[colour + 1] = thing.shape == meant.shape
            if thing.size:
                found[article + 1] = thing.size == meant.size
    return found, where


def _ground_label(scene: Scene) -> int:
    return len(COLOURS) + list(GROUNDS).index(scene.ground)
