"""Train the pocket's drafter, cheap decoder and a wider target within the seconds given, and measure them.

    python -m training.on_gpu OUT --seconds 530 [--drafter 215] [--decoder 45] [--target 180] [--device cuda]
    python -m training.on_gpu OUT --measure 200 [--drafter-file FILE] [--target-file FILE]

Everything is made on the device: clips, what the target makes of them, and the contexts that the model brings about
itself. Drafter: the target's block for the target's contexts, the truth for true contexts and, aligned in time, for
its own that still show every thing; its first blocks are those of the shipped drafter, step by step, so that the
gap is not closed from below. Target: the truth everywhere. The rate falls to nothing over the seconds, so there are
as many steps as fit. Whatever happens, weights, log and figures so far are in OUT, saved twice a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import UMT5EncoderModel

from research.metrics import judge
from research.world import _bounce, _distance, draw_scene
from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.schedule import predict_clean, renoise
from sdvg_core.decoders.taehv import LEADING, taehv_from_weights
from sdvg_core.decoders.wan_vae import WanCodec, load_wan_vae
from sdvg_core.pocket.trained_set import pocket_judge, trained_set
from sdvg_core.pocket.world import COLOURS, DIRECTIONS, GROUNDS, PACES, PLACES, RADII, SHAPES, SIZE, Scene

from . import restore, train_judge
from .causal import BLOCK, SCHEDULE, Prompted, build
from .common import Log, seeded
from .joint import TOKENS, Trainer
from .make_latents import BLOCKS, FRAMES, anchor_frames, encode_stills
from .presence import presence
from .roll_out import FIRST, moment, roll_out
from .train_text import CONFIG, WIDTH, Tokens

ROWS = {"drafter": (104, 72, 56, 24), "target": (0, 104, 88, 64)}
"""Samples of a batch: of the target's contexts, true ones, own ones, and first blocks."""

SIZES = {"drafter": (192, 5, 3), "target": (360, 5, 5)}
"""Width, layers and heads; on one thread, a drafter of eight layers and width 128 takes as long as this one."""

LARGEST = 15 << 20
"""Bytes of one file."""

REFRESHED = (0.05, 0.15, 0.3, 0.45, 0.6, 0.78)
"""When own contexts are made anew, by the share of the time that is over; from the middle on, four deep."""

SEAMS = tuple(FIRST + 4 * BLOCK * number for number in range(BLOCKS - 1))


class Kit:
    """The shipped set on the device, and the clock."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self._ends = device, time.monotonic() + seconds
        files = trained_set()
        with tempfile.TemporaryDirectory() as folder:
            restore.main(Path(folder))
            saved = torch.load(Path(folder) / "text.pt", weights_only=True)
        self._encoder = UMT5EncoderModel(CONFIG).eval().requires_grad_(False)
        self._encoder.load_state_dict(saved["weights"])
        self._encoder.to(device)
        self._tokens = Tokens(saved["pieces"].numpy().tobytes())
        self.vae: WanCodec = load_wan_vae(files.vae, device=device, layers="planes")
        self.shipped = {role: self.load(getattr(files, role)) for role in SIZES}

    def load(self, path: Path) -> WanTree:
        """Return a transformer of a file."""
        return load_wan(path, dtype=torch.float32, device=self.device).tree.requires_grad_(False)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._ends - time.monotonic()

    @torch.no_grad()
    def hear(self, scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
        """Return the embeddings `n m c` of the prompts, and which of their tokens are real."""
        found = []
        for first in range(0, len(scenes), 512):
            ids, real = self._tokens([scene.text for scene in scenes[first : first + 512]])
            ids, real = (F.pad(of, (0, TOKENS - of.shape[1])).to(self.device) for of in (ids, real))
            hidden = self._encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state
            found.append((hidden * real[..., None], real))
        return torch.cat([hidden for hidden, _ in found]), torch.cat([real for _, real in found])

    def show(self, scenes: Sequence[Scene], times: Tensor) -> Tensor:
        """Render the frames of scenes side by side, `n f c h w`, at times for all, `f`, or for each, `n f`."""
        with self.device:
            return render_many(scenes, times.float().expand(len(scenes), -1))


def render_many(scenes: Sequence[Scene], times: Tensor) -> Tensor:
    """Return what `render` does, for many scenes at once: `n f c h w` at `times`, `n f`."""
    rows = (torch.arange(SIZE, dtype=torch.float32) + 0.5) / SIZE
    grounds = torch.tensor([GROUNDS[scene.ground] for scene in scenes])[:, :, None, :, None, None]
    frames = grounds[:, 0] + (grounds[:, 1] - grounds[:, 0]) * rows.view(1, 1, 1, SIZE, 1)
    for layer in range(2):
        here = [n for n, scene in enumerate(scenes) if len(scene.things) > layer]
        things = [scenes[n].things[layer] for n in here]
        if not things:
            continue
        radius = torch.tensor([RADII[thing.size] for thing in things]).view(-1, 1)
        room = SIZE - 2 * radius
        starts = torch.tensor([PLACES[thing.place] for thing in things])
        ways = torch.tensor([DIRECTIONS[thing.direction] if thing.pace else (0, 0) for thing in things])
        steps = torch.tensor([PACES[thing.pace] if thing.pace else 0.0 for thing in things])[:, None] * ways
        at = torch.tensor(here)
        across, down = (
            radius + _bounce(starts[:, n : n + 1] * room + steps[:, n : n + 1] * times[at], room) for n in range(2)
        )
        axis = torch.arange(SIZE, dtype=torch.float32) + 0.5
        x, y = axis.view(1, 1, 1, SIZE) - across[..., None, None], axis.view(1, 1, SIZE, 1) - down[..., None, None]
        radius = radius.view(-1, 1, 1, 1)
        cover = torch.zeros(len(here), times.shape[1], SIZE, SIZE)
        for shape in SHAPES:
            of = torch.tensor([n for n, thing in enumerate(things) if thing.shape == shape], dtype=torch.long)
            cover[of] = (0.5 - _distance(shape, x[of], y[of], radius[of])).clamp(0, 1)
        shade = (1 - 0.2 * ((x + y) / radius).clamp(-1, 1))[:, :, None]
        colours = torch.tensor([COLOURS[thing.colour] for thing in things]).view(-1, 1, 3, 1, 1)
        below = frames[at].expand(-1, times.shape[1], -1, -1, SIZE)
        frames = frames.expand(-1, times.shape[1], -1, -1, SIZE).clone()
        frames[at] = below + (colours * shade - below) * cover[:, :, None]
    return frames.clamp(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Samples to draw from: whose prompt (a row of `heard`), context and block, `n c 3 h w`.

    `noisy`: what each step of the shipped drafter began with, `n 4 c 3 h w`, if there; blocks are such then, too.
    """

    heard: tuple[Tensor, Tensor]
    whose: Tensor
    context: Tensor | None
    label: Tensor
    noisy: Tensor | None = None

    def put(self, trainer: Trainer, rows: slice, shake: bool = False) -> None:
        """Draw samples into some rows of the batch; `shake`: with some noise on the contexts."""
        count = rows.stop - rows.start
        i = torch.randint(len(self.whose), (count,), device=self.whose.device)
        prompts = (self.heard[0][self.whose[i]], self.heard[1][self.whose[i]])
        number = trainer.number[rows]
        context = None if self.context is None else self.context[i].float()
        if context is not None and shake:
            levels = torch.randint(3, (count, 1, 1, 1, 1), device=i.device) * 0.05
            context = context + levels * torch.randn_like(context)
        trainer.fill(rows, prompts, context, self.label[i] if self.noisy is None else self.label[i, number])
        if self.noisy is not None:
            trainer.noisy[rows] = self.noisy[i, number].float()

    def joined(self, other: Pool) -> Pool:
        """Return the samples of both."""
        assert self.context is not None
        assert other.context is not None
        return Pool(
            (torch.cat((self.heard[0], other.heard[0])), torch.cat((self.heard[1], other.heard[1]))),
            torch.cat((self.whose, other.whose + len(self.heard[0]))),
            torch.cat((self.context, other.context)),
            torch.cat((self.label, other.label)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Clips of nine blocks, `n c 3 h w` each, and their eight contexts."""

    scenes: list[Scene]
    heard: tuple[Tensor, Tensor]
    blocks: list[Tensor]
    contexts: list[Tensor]

    def pool(self) -> Pool:
        """Return every block after the first with its context."""
        whose = torch.arange(len(self.scenes), device=self.heard[0].device).repeat(BLOCKS - 1)
        return Pool(self.heard, whose, torch.cat(self.contexts), torch.cat(self.blocks[1:]))


def scenes_of(generator: random.Random, count: int, held_out: bool = False) -> list[Scene]:
    """Draw scenes, every second one of a thing alone."""
    found: list[Scene] = []
    while len(found) < count:
        scene = draw_scene(generator, held_out=held_out)
        if bool(scene.relation) == bool(len(found) % 2):
            found.append(scene)
    return found


@torch.no_grad()
def true_clips(kit: Kit, scenes: list[Scene]) -> Clips:
    """Encode what the prompts say."""
    frames = kit.show(scenes, torch.arange(FRAMES, device=kit.device))
    latents, stills = kit.vae.encode(frames).half(), encode_stills(kit.vae, anchor_frames(frames)).half()
    blocks = [block.clone() for block in latents.split(BLOCK, dim=2)]
    contexts = [block.clone() for block in blocks[:-1]]
    for number, context in enumerate(contexts[1:]):
        context[:, :, 0] = stills[:, number]
    return Clips(scenes, kit.hear(scenes), blocks, contexts)


@torch.no_grad()
def made_clips(kit: Kit, tree: WanTree, scenes: list[Scene]) -> Clips:
    """Let a model make them."""
    heard = kit.hear(scenes)
    contexts, blocks, _ = roll_out(tree, kit.vae, *heard)
    return Clips(scenes, heard, [block.half() for block in blocks], [context.half() for context in contexts])


@torch.no_grad()
def first_blocks(kit: Kit, scenes: list[Scene], drafter: WanTree | None) -> Pool:
    """Return first blocks: the true ones, or every step of the shipped drafter's."""
    heard, whose = kit.hear(scenes), torch.arange(len(scenes), device=kit.device)
    if drafter is None:
        frames = kit.show(scenes, torch.arange(FIRST, device=kit.device))
        return Pool(heard, whose, None, torch.cat([kit.vae.encode(part) for part in frames.split(512)]).half())
    prompted = Prompted(drafter, *heard)
    x, noisy, made = torch.randn(len(scenes), 16, BLOCK, 8, 8, device=kit.device), [], []
    for number, step in enumerate(SCHEDULE):
        if number:
            x = renoise(made[-1].float(), torch.randn_like(x), step.sigma)
        noisy.append(x.half())
        made.append(predict_clean(x, prompted.velocity(x, step.timestep), step.sigma).half())
    return Pool(heard, whose, None, torch.stack(made, dim=1), torch.stack(noisy, dim=1))


def extended(pool: Pool | None, more: Pool) -> Pool:
    """Return both, without the oldest samples where there are too many."""
    return more if pool is None else pool.joined(more)


@torch.no_grad()
def own_contexts(
    kit: Kit, tree: WanTree, clips: Sequence[Clips], deep: int, count: int, generator: random.Random
) -> Pool | None:
    """Go on from clips for `deep` blocks; return the contexts in which every thing is seen, and what comes next.

    What comes next is the truth from the moment that the context shows.
    """
    whose, contexts, truths, shown, heards = [], [], [], [], []
    for place in generator.sample(range(BLOCKS - 2), 3):
        source = generator.choice(clips)
        rows = generator.sample(range(len(source.scenes)), min(count, len(source.scenes)))
        at = torch.tensor(rows, device=kit.device)
        heard = (source.heard[0][at], source.heard[1][at])
        first = max(place - 1, 0)
        begun = [source.blocks[n][at].float() for n in range(first, place + 1)]
        seen, _, frames = roll_out(tree, kit.vae, *heard, count=len(begun) + deep + 1, begun=begun)
        for row, scene in enumerate(source.scenes[i] for i in rows):
            for made in range(1, deep + 1):
                number = place + 1 + made
                due, here = 12 * number, 12 * (number - first)
                newest = frames[row, here - 11 : here - 3]
                with kit.device:
                    ahead = moment(scene, newest, due - 11)
                    if ahead is None:
                        break
                    times = torch.arange(due - 11, due - 3) + ahead - (due - 11)
                    if (presence(newest, scene, times.clamp(min=0)) == 0).any():
                        break
                    lead = ahead - (due - 11)
                    truths.append((torch.arange(due - 16, due + 9) + lead).clamp(min=0))
                shown.append(scene)
                contexts.append(seen[made][row].half())
                whose.append(len(heards) * count + row)
        short = count - len(rows)
        heards.append(tuple(F.pad(of, (0, 0) * (of.ndim - 1) + (0, short)) for of in heard))
    if not contexts:
        return None
    labels = []
    for n in range(0, len(truths), 256):
        frames = kit.show(shown[n : n + 256], torch.stack(truths[n : n + 256]))
        labels.append(kit.vae.encode(frames)[:, :, -BLOCK:])
    embedding, real = (torch.cat([heard[n] for heard in heards]) for n in range(2))
    return Pool(
        (embedding, real), torch.tensor(whose, device=kit.device), torch.stack(contexts), torch.cat(labels).half()
    )


@torch.no_grad()
def step_error(kit: Kit, tree: WanTree, clips: Clips) -> dict[str, float]:
    """Return the mean squared error of latents of one block from a true context, alone and of two things."""
    found = []
    for number in (1, 2, 4, 8):
        prompted = Prompted(tree, *clips.heard).see(clips.contexts[number - 1].float())
        noises = [torch.randn(len(clips.scenes), 16, BLOCK, 8, 8, device=kit.device) for _ in SCHEDULE]
        found.append((prompted.sample(noises) - clips.blocks[number].float()).square().mean(dim=(1, 2, 3, 4)))
    errors = torch.stack(found).mean(dim=0)
    return {"error_alone": errors[::2].mean().item(), "error_two": errors[1::2].mean().item()}


class Figures:
    """What routes measure on held-out prompts, half of them of a thing alone; the same noise for every route."""

    def __init__(self, kit: Kit, prompts: int) -> None:
        self._kit, self.found = kit, {"prompts": prompts}
        self._scenes = scenes_of(seeded(0, "figures"), prompts, held_out=True)
        self._heard = kit.hear(self._scenes)

    @torch.no_grad()
    def add(self, name: str, first: WanTree, rest: WanTree, vae: Any = None) -> None:
        """Make block 0 by one model and the rest by another, and keep decibels and presence, `prompts blocks`."""
        kit, dB, there = self._kit, [], []
        for start in range(0, len(self._scenes), 50):
            here = slice(start, start + 50)
            heard, scenes = (self._heard[0][here], self._heard[1][here]), self._scenes[here]
            torch.manual_seed(start)
            begun = roll_out(first, kit.vae, *heard, count=1)[1]
            _, blocks, frames = roll_out(rest, kit.vae, *heard, begun=begun)
            if vae is not None:
                frames = vae.decode(torch.cat(blocks, dim=2))[0]
            for clip, scene in zip(frames, scenes, strict=True):
                with kit.device:
                    quality = judge(clip, scene, SEAMS).quality
                    seen = presence(clip, scene, torch.arange(FRAMES)).nanmean(dim=1)
                dB.append(torch.stack([part.mean() for part in quality.tensor_split(SEAMS)]).cpu())
                there.append(torch.stack([part.nanmean() for part in seen.tensor_split(SEAMS)]).cpu())
        self.found[name] = {"dB": torch.stack(dB).tolist(), "there": torch.stack(there).tolist()}

    def summary(self, draft: str, anchor: str, target: str) -> dict[str, Any]:
        """Return means and the share of the gap that the anchor closes, with 95 % bootstrap intervals."""
        routes = {name: self.found[name] for name in (draft, anchor, target)}
        made: dict[str, Any] = {}
        for kind, of in (("all", slice(None)), ("alone", slice(0, None, 2)), ("two", slice(1, None, 2))):
            dB = {name: np.array(route["dB"])[of] for name, route in routes.items()}
            there = {name: np.array(route["there"])[of] for name, route in routes.items()}
            drawn = np.random.default_rng(0).integers(len(dB[draft]), size=(2000, len(dB[draft])))

            def interval(value: Callable[[Any], Any], drawn: Any = drawn) -> list[float]:
                low, high = np.nanquantile(np.array([value(i) for i in drawn]), (0.025, 0.975))
                return [round(float(x), 3) for x in (value(slice(None)), low, high)]

            def share(i: Any, blocks: int, dB: Any = dB) -> float:
                d, a, t = (dB[name][i, :blocks].mean() for name in (draft, anchor, target))
                return float((a - d) / (t - d))

            made[kind] = {
                "dB": {n: interval(lambda i, q=q: q[i].mean()) for n, q in dB.items()},
                "dB_by_block": {n: q.mean(axis=0).round(2).tolist() for n, q in dB.items()},
                "there_by_block": {n: np.nanmean(q, axis=0).round(3).tolist() for n, q in there.items()},
                "there_in_the_last": {n: interval(lambda i, q=q: np.nanmean(q[i, -1])) for n, q in there.items()},
                "share": {b: interval(lambda i, b=b: share(i, b)) for b in (3, 5, 9)},
            }
        return made


def save_model(path: Path, tree: WanTree) -> None:
    """Write a transformer as the pocket set holds it, but a large one in two parts, which `join` puts together."""
    weights = {f"model.{name}": w.half().cpu().contiguous() for name, w in tree.state_dict().items()}
    stated = {"text_dim": tree.text_dim, "num_heads": tree.num_heads}
    half = len(weights) // 2 if sum(w.nbytes for w in weights.values()) > LARGEST else len(weights)
    names = list(weights)
    for part in filter(None, (names[:half], names[half:])):
        at = path if half == len(names) else path.with_stem(f"{path.stem}-{1 + (part[0] != names[0])}")
        save_file({name: weights[name] for name in part}, at, {"config": json.dumps({"transformer": stated})})


def join(parts: Sequence[Path], whole: Path) -> None:
    """Put the parts of a transformer together."""
    with safe_open(parts[0], "pt") as file:
        stated = file.metadata()
    save_file({name: w for part in parts for name, w in load_file(part).items()}, whole, stated)


def new_tree(role: str, device: torch.device) -> WanTree:
    """Return an untrained drafter or target."""
    dim, layers, heads = SIZES[role]
    torch.manual_seed(0)
    return build(WanConfig(dim=dim, ffn_dim=4 * dim, num_layers=layers, num_heads=heads, text_dim=WIDTH)).to(device)


def trainer_of(role: str, device: torch.device, rows: Sequence[int], compiled: bool) -> Trainer:
    """Return a trainer of an untrained model."""
    given = role == "drafter"
    return Trainer(new_tree(role, device), sum(rows), rows[-1], given=given, peak=2e-3, compiled=compiled)


def train(
    trainer: Trainer, put: Callable[[], None], seconds: float, log: Log, refresh: Callable[[bool], None],
    look: Callable[[], dict[str, float]], save: Callable[[], None],
) -> None:  # fmt: skip
    """Train for some seconds; the rate rises over 100 steps and falls to nothing at the end."""
    began, step, due, saved = time.monotonic(), 0, list(REFRESHED), 0.0
    put()
    trainer.rate.fill_(0.0)
    for attempt in ("first", "second"):
        try:
            trainer.capture()
            break
        except Exception as error:
            log(attempt=attempt, graphs=f"none: {error!r:.300}")
            trainer.make_plain()
    good = trainer.state()
    log(ready=time.monotonic() - began)
    while (over := (time.monotonic() - began) / max(seconds, 0.1)) < 1:
        if due and over > due[0]:
            due.pop(0)
            refresh(over > 0.5)
            continue
        put()
        trainer.rate.fill_(trainer.peak * min(1.0, (step + 1) / 100) * (1 - over))
        loss = trainer.step(own=step % 3 == 2)
        step += 1
        if step % 20 == 0 and (
            step % 500 == 0 or not bool(loss.isfinite()) or time.monotonic() - began - saved > 30
        ):
            if not bool(loss.isfinite()):
                trainer.go_back(good)
            good = trainer.state()
            log(step=step, seconds=time.monotonic() - began, loss=loss.item(), peak=trainer.peak)
            if time.monotonic() - began - saved > 30:
                saved = time.monotonic() - began
                log(step=step, **look())
                save()
    log(step=step, seconds=time.monotonic() - began, **look())
    save()


def train_model(
    kit: Kit,
    role: str,
    out: Path,
    seconds: float,
    log: Log,
    clips: dict[str, list[Clips]],
    args: argparse.Namespace,
) -> WanTree:
    """Train a drafter or target within some seconds, data included, and return it."""
    began, generator = time.monotonic(), seeded(0, "on gpu", role)
    rows = [max(4, n * args.rows // 256) if n else 0 for n in ROWS[role]]
    steps = steps_of()
    compiled = steps.get(f"{role} compiled", [0.0, 9.0])[1] < 0.9 * steps.get(f"{role} plain", [0.0, 9.0])[1]
    trainer = trainer_of(role, kit.device, rows, compiled)
    log(role=role, parameters=sum(w.numel() for w in trainer.tree.parameters()), compiled=compiled, steps=steps)
    chunk = args.chunk
    firsts = [
        first_blocks(kit, scenes_of(generator, 8 * chunk), kit.shipped["drafter"] if trainer.given else None)
        for _ in range(args.chunks if trainer.given else 2 * args.chunks)
    ]  # fmt: skip
    first = Pool(
        (torch.cat([p.heard[0] for p in firsts]), torch.cat([p.heard[1] for p in firsts])),
        torch.arange(sum(len(p.whose) for p in firsts), device=kit.device), None,
        torch.cat([p.label for p in firsts]),
        torch.cat([p.noisy for p in firsts if p.noisy is not None]) if trainer.given else None,
    )  # fmt: skip
    pools: dict[str, Pool | None] = {"made": None, "true": None, "own": None}
    for kind, found in clips.items():
        for one in found:
            pools[kind] = extended(pools[kind], one.pool())
    held = true_clips(kit, scenes_of(seeded(0, "held back"), 2 * args.rows // 4, held_out=True))

    def refresh(late: bool, tree: WanTree = trainer.average) -> None:
        sources = [clips["true"][-1], clips["true"][generator.randrange(len(clips["true"]))]]
        sources += clips["made"][-2:] if role == "drafter" else []
        own = own_contexts(kit, tree, sources, 4 if late else 2, chunk // (2 if late else 1), generator)
        if own is not None:
            kept.append(own)
            del kept[:-4]
            pools["own"] = None
            for pool in kept:
                pools["own"] = extended(pools["own"], pool)
        if tree is trainer.average:
            more = true_clips(kit, scenes_of(generator, chunk))
            clips["true"].append(more)
            pools["true"] = extended(pools["true"], more.pool())
        log(own=0 if own is None else len(own.whose), seconds=time.monotonic() - began)

    kept: list[Pool] = []
    refresh(False, kit.shipped[role])
    starts = np.cumsum([0, *rows])

    def put() -> None:
        for n, (kind, shake) in enumerate((("made", False), ("true", True), ("own", False))):
            pool = pools[kind] or pools["true"]
            if rows[n] and pool is not None:
                pool.put(trainer, slice(int(starts[n]), int(starts[n + 1])), shake)
        first.put(trainer, slice(int(starts[3]), int(starts[4])))

    def look() -> dict[str, float]:
        return step_error(kit, trainer.average, held)

    def save() -> None:
        save_model(out / f"{role}.safetensors", trainer.average)

    train(trainer, put, seconds - (time.monotonic() - began), log, refresh, look, save)
    return trainer.average


def train_decoder(kit: Kit, out: Path, seconds: float, log: Log, clips: Sequence[Clips], lanes: int) -> Any:
    """Go on with the shipped TAEHV on whole clips, and return the codec; it learns the VAE's picture."""
    from sdvg_core.checkpoints.weights import open_weights

    began, generator = time.monotonic(), seeded(0, "decoder")
    net = train_judge.build()
    stored = open_weights(pocket_judge())
    net.load_state_dict({name: stored[name].float() for name in net.state_dict()})
    net = net.to(kit.device)
    known = []
    for one in clips:
        latents = torch.cat(one.blocks, dim=2)[: 4 * lanes].float()
        for z, shown in zip(latents, kit.vae.decode(latents)[0], strict=True):
            shown = (shown * 255).round().byte()
            known.append((z, torch.cat([shown[:1].expand(LEADING, -1, -1, -1), shown])))
    held, known = (
        known[:: max(2, len(known) // 16)],
        [c for n, c in enumerate(known) if n % max(2, len(known) // 16)],
    )
    side = train_judge.Lanes(known, known, lanes)
    log(clips=len(known), psnr=train_judge.psnr(net, held))
    average = [w.detach().clone() for w in net.parameters()]
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.99))
    memory, step, begins_at = None, 0, time.monotonic()
    while (over := (time.monotonic() - begins_at) / max(seconds - begins_at + began, 0.1)) < 1:
        z, frames, begins = side.next(generator)
        z, begins = train_judge.limited(z), begins.to(kit.device)
        memory, loss = train_judge.loss_of(net, z, frames, begins, memory, exact=over > 0.85)
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 50) * (1 - over)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        torch._foreach_lerp_(average, list(net.parameters()), 0.005)
        step += 1
        if step % 250 == 0:
            log(step=step, decoder_loss=loss.item(), seconds=time.monotonic() - began)
    with torch.no_grad():
        for w, mean in zip(net.parameters(), average, strict=True):
            w.copy_(mean)
    log(step=step, psnr=train_judge.psnr(net, held))
    weights = {name: w.half().cpu().contiguous() for name, w in net.state_dict().items()}
    save_file(weights, out / "judge.safetensors")
    return taehv_from_weights({name: w.float().to(kit.device) for name, w in weights.items()}, kind="taew2_1")


def try_compiling(device: torch.device) -> None:
    """Compile, capture and time a step of each model, in a process that may fail; the code stays on disk."""
    found = {}
    for role, rows in ROWS.items():
        for compiled in (False, True):
            trainer = trainer_of(role, device, rows, compiled)
            trainer.text[..., -1].fill_(5.0)
            began = time.monotonic()
            trainer.capture()
            ready = time.monotonic()
            losses = [trainer.step(own=n % 3 == 2) for n in range(24)]
            assert bool(torch.stack(losses).isfinite().all())
            found[f"{role} {'compiled' if compiled else 'plain'}"] = [
                ready - began,
                (time.monotonic() - ready) / 24,
            ]
            (Path(tempfile.gettempdir()) / "steps.json").write_text(json.dumps(found))


def steps_of() -> dict[str, list[float]]:
    """Return what the trial has found so far: seconds to be ready, and of a step."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((Path(tempfile.gettempdir()) / "steps.json").read_text()))
    return {}


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--seconds", type=float, default=530, help="of the whole, from the start of Python's work")
    for role, seconds in (("drafter", 215), ("decoder", 45), ("target", 180)):
        options.add_argument(
            f"--{role}", type=float, default=seconds, help="seconds for it, data included; 0: none"
        )
    options.add_argument("--measure", type=int, default=0, help="measure files on so many prompts, no training")
    options.add_argument("--drafter-file", type=Path)
    options.add_argument("--target-file", type=Path)
    options.add_argument("--prompts", type=int, default=100)
    options.add_argument("--rows", type=int, default=256, help="of a batch")
    options.add_argument("--chunk", type=int, default=128, help="clips made side by side")
    options.add_argument(
        "--chunks", type=int, default=20, help="chunks of true clips, half as many of the target's"
    )
    options.add_argument("--lanes", type=int, default=48)
    options.add_argument("--plain", action="store_true", help="never compile")
    options.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    return options.parse_args(argv)


def main() -> None:
    """Make clips, train one after the other, and measure in between."""
    args = parsed()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(args.device)
    torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        torch.set_num_threads(1)
    if args.trial:
        try_compiling(device)
        return
    log = Log(args.out / "log.jsonl")
    (Path(tempfile.gettempdir()) / "steps.json").unlink(missing_ok=True)
    trial = None
    if device.type == "cuda" and not args.plain and not args.measure:
        trial = subprocess.Popen([sys.executable, "-m", "training.on_gpu", str(args.out), "--trial"])
    kit = Kit(device, args.seconds)
    log(device=str(device), torch=torch.__version__, started=time.monotonic() - began)
    figures = Figures(kit, args.measure or args.prompts)

    def tell(name: str, *routes: str) -> None:
        figures.found[name] = figures.summary(*routes)
        (args.out / "figures.json").write_text(json.dumps(figures.found))
        log(**{name: figures.found[name]["all"], "left": kit.left})

    drafter, target = kit.shipped["drafter"], kit.shipped["target"]
    figures.add("draft", drafter, drafter)
    figures.add("anchor", target, drafter)
    figures.add("target", target, target)
    tell("before", "draft", "anchor", "target")
    if args.measure:
        parts = sorted(args.out.glob("target-?.safetensors"))
        if parts:
            args.target_file = args.target_file or args.out / "target.safetensors"
            join(parts, args.out / "target.safetensors")
        if not (args.drafter_file or args.target_file):
            return
        drafter = kit.load(args.drafter_file) if args.drafter_file else drafter
        target = kit.load(args.target_file) if args.target_file else target
        figures.add("new draft", drafter, drafter)
        figures.add("new anchor", target, drafter)
        figures.add("new target", target, target)
        tell("after", "draft", "new anchor", "new target")
        tell("after, against its own drafts", "new draft", "new anchor", "new target")
        return
    generator, clips = seeded(0, "on gpu", "clips"), {"true": [], "made": []}
    for number in range(args.chunks):
        clips["true"].append(true_clips(kit, scenes_of(generator, args.chunk)))
        if number % 2 == 0:
            clips["made"].append(made_clips(kit, target, scenes_of(generator, args.chunk)))
        if number % 4 == 0:
            log(clips=number + 1, left=kit.left)
        if time.monotonic() - began > 0.15 * args.seconds:
            break
    while trial is not None and trial.poll() is None and time.monotonic() - began < 0.21 * args.seconds:
        if "drafter compiled" in steps_of():
            break
        time.sleep(0.5)
    reserve = 12.0 if device.type == "cuda" else 1.0
    for role in ("drafter", "decoder", "target"):
        seconds = min(getattr(args, role), kit.left - reserve)
        if seconds <= 3:
            continue
        try:
            if role == "decoder":
                known = [clips["true"][0], clips["made"][0]]
                known.append(made_clips(kit, drafter, scenes_of(generator, args.chunk)))
                codec = train_decoder(kit, args.out, seconds, log, known, args.lanes)
                if kit.left > reserve:
                    figures.add("target, cheap decoder", target, target, codec)
                    tell("cheap decoder", "draft", "target, cheap decoder", "target")
            elif role == "drafter":
                drafter = train_model(kit, role, args.out, seconds, log, clips, args)
                figures.add("new draft", drafter, drafter)
                figures.add("new anchor", target, drafter)
                tell("drafter", "draft", "new anchor", "target")
                tell("drafter, against its own drafts", "new draft", "new anchor", "target")
            else:
                target = train_model(kit, role, args.out, seconds, log, clips, args)
                figures.add("wide target", target, target)
                figures.add("wide anchor", target, drafter)
                tell("wide target", "draft", "wide anchor", "wide target")
        except Exception:
            log(role=role, failed=traceback.format_exc()[-1500:])
    if trial is not None and trial.poll() is None:
        trial.kill()
    log(done=True, left=kit.left)


if __name__ == "__main__":
    main()
