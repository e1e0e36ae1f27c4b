"""Train the pocket drafter or target: the causal Wan 2.1 architecture, as the engine will run it.

    python -m training.train_transformer drafter|target [--steps 4000] [--seed 0]

One sample is a block of a clip: three clean latent frames of context (none for the first block), and three noisy
ones to be denoised, at the four timesteps that sampling uses. Prompt and context determine the block, so the mean
the loss asks for is sharp; but for the first block of an open prompt, where it becomes sharp only in the course of
the four steps, as the noise decides (training/families.py). Later blocks go on with what their context shows,
whatever the prompt leaves open. Three things keep the models from drifting once they feed on their own blocks: some
contexts are blocks the model sampled itself, some noisy inputs are built on its own previous estimate, and once
there are any (training/roll_out.py), some contexts come from whole clips the model made.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from research.world import is_held_out
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.schedule import renoise
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, SCHEDULE, Prompted, build, embed
from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .families import Families, Right
from .make_latents import BEGINNINGS, BLOCKS, LATENTS
from .open_prompts import KINDS_OF_OPEN, opened
from .train_text import CONFIG, WIDTH, Tokens

MODELS = {
    "drafter": WanConfig(dim=128, ffn_dim=512, num_layers=8, num_heads=1, text_dim=WIDTH),
    "target": WanConfig(dim=256, ffn_dim=1024, num_layers=5, num_heads=2, text_dim=WIDTH, patch_size=(1, 1, 1)),
}
BATCH = 32
THING_WEIGHT = 5.0
ROLLOUTS = WORK / "rollouts"
OWN_SHARDS = 4
HELD_BACK = 1
"""Shards at the start that are not trained on, to measure by."""


GIVEN_UP = 0.67
"""How often a draw of a thing alone is given up, so that three samples in four show two, which are harder."""

OWN, OWN_OPEN = 0.5, 0.75
"""How often noisy inputs are built on the model's own estimate; more often where it has a choice to make."""

OPEN_SHARE = 0.4
"""How many of the clips' prompts leave something open."""


class Shards:
    """The shards of a folder, with their scenes; looks for new ones when asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: dict[Path, dict[str, Any]] = {}

    def refresh(self) -> int:
        """Read shards that are new, and return how many samples there are."""
        for path in sorted(self._folder.glob("*.pt")):
            if path not in self._shards:
                shard = torch.load(path, weights_only=True)
                shard["scenes"] = [parse(prompt) for prompt in shard["prompts"]]
                self._shards[path] = shard
        return sum(len(shard["scenes"]) for shard in self._shards.values())

    def draw(
        self, generator: random.Random, count: int, held_back: bool = False, open_share: float = 0.0
    ) -> tuple[list[str], dict[str, Tensor]]:
        """Return prompts of some samples, a share of them open, and what the shards have of them."""
        shards = list(self._shards.values())
        shards = shards[:HELD_BACK] if held_back else shards[HELD_BACK:]
        picked = [(shard, _drawn(shard["scenes"], generator)) for shard in generator.choices(shards, k=count)]
        prompts = [said_in_part(shard["scenes"][i], generator, open_share).text for shard, i in picked]
        names = set(picked[0][0]) & {"latents", "anchors"}
        return prompts, {name: torch.stack([shard[name][i].float() for shard, i in picked]) for name in names}


def _drawn(scenes: list[Scene], generator: random.Random) -> int:
    """Draw the number of a scene; one of a thing alone is often given up for another draw."""
    number = generator.randrange(len(scenes))
    while not scenes[number].relation and generator.random() < GIVEN_UP:
        number = generator.randrange(len(scenes))
    return number


def said_in_part(scene: Scene, generator: random.Random, share: float) -> Scene:
    """Leave something of a scene open, in a share of cases; never so that words are read that are held out."""
    if generator.random() >= share:
        return scene
    candidate = opened(scene, generator.choice(KINDS_OF_OPEN))
    return scene if is_held_out(candidate) else candidate


class OwnClips:
    """The contexts that came up when the model made whole clips, each with what should have come next."""

    def __init__(self, model: str) -> None:
        self._folder = ROLLOUTS / model
        self._shards: dict[Path, dict[str, Any]] = {}

    def refresh(self) -> int:
        """Read shards that are new, and return how many contexts there are; only the newest few shards are kept."""
        for path in sorted(self._folder.glob("*.pt"))[-OWN_SHARDS:]:
            if path not in self._shards:
                self._shards[path] = torch.load(path, weights_only=True)
        self._shards = dict(sorted(self._shards.items())[-OWN_SHARDS:])
        return sum(len(shard["prompts"]) for shard in self._shards.values())

    def draw(self, generator: random.Random, count: int) -> tuple[list[str], Tensor, Tensor]:
        """Return prompts, contexts and blocks of one shard."""
        shard = generator.choice(list(self._shards.values()))
        rows = generator.choices(range(len(shard["prompts"])), k=count)
        prompts = [shard["prompts"][row] for row in rows]
        return prompts, shard["context"][rows].float(), shard["blocks"][rows].float()


def context_of(clips: dict[str, Tensor], blocks: Tensor) -> Tensor:
    """Return the true context `b c 3 h w` of blocks 1 to 8, one per clip, as the `recompute` policy gives it."""
    rows = torch.arange(len(blocks))[:, None]
    frames = BLOCK * blocks[:, None] + torch.arange(-BLOCK, 0)
    context = clips["latents"].transpose(1, 2)[rows, frames].transpose(1, 2).clone()
    later = blocks >= 2
    context[later, :, 0] = clips["anchors"][later, blocks[later] - 2]
    return context


def blocks_of(clips: dict[str, Tensor], blocks: Tensor) -> Tensor:
    """Return the true blocks `b c 3 h w`, one per clip."""
    rows = torch.arange(len(blocks))[:, None]
    frames = BLOCK * blocks[:, None] + torch.arange(BLOCK)
    return clips["latents"].transpose(1, 2)[rows, frames].transpose(1, 2)


def noises(like: Tensor) -> list[Tensor]:
    """Return the noise of every denoising step."""
    return [torch.randn_like(like) for _ in SCHEDULE]


def own_context(
    ask: Callable[[list[str]], Prompted], prompts: list[str], clips: dict[str, Tensor], blocks: Tensor
) -> Tensor:
    """Return the context of blocks 2 to 8 with the block before each as the model itself samples it.

    The still it begins with is the true one, out of place by the difference between sampled and true first frame.
    """
    before = blocks - 1
    with torch.no_grad():
        sampled = ask(prompts).see(context_of(clips, before)).sample(noises(blocks_of(clips, before)))
    context = context_of(clips, blocks)
    off = sampled[:, :, :1] - blocks_of(clips, before)[:, :, :1]
    return torch.cat((context[:, :, :1] + off, sampled[:, :, 1:]), dim=2)


def loss_of(prompted: Prompted, right: Right, on_own: bool) -> Tensor:
    """Return the loss over a batch of blocks, a quarter of it at each timestep."""
    rows, losses = len(right.blocks) // len(SCHEDULE), []
    for number, step in enumerate(SCHEDULE):
        here = slice(number * rows, (number + 1) * rows)
        part, of_part = prompted.rows(here), right.rows(here)
        base = of_part.drawn
        if on_own and number:
            with torch.no_grad():
                base = part.sample([torch.randn_like(base) for _ in range(number)])
        x = renoise(base, torch.randn_like(base), step.sigma)
        clean = of_part.expected(x, step.sigma)
        wanted = (x - clean) / step.sigma
        error = (part.velocity(x, step.timestep).float() - wanted).square().mean(dim=1, keepdim=True)
        losses.append((weights_of(clean) * error).mean())
    return torch.stack(losses).mean()


def weights_of(truth: Tensor) -> Tensor:
    """Return the weight of every place of blocks `b c t h w`, as `b 1 t h w`: things count more than the ground.

    The ground is the same all along a row, so what differs from the row's median is a thing.
    """
    off = (truth - truth.median(dim=-1, keepdim=True).values).square().mean(dim=1, keepdim=True).sqrt()
    return 1 + THING_WEIGHT * off.clamp(max=1)


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What batches are drawn from. `own`: None as long as the model has made no clips."""

    clips: Shards
    beginnings: Shards
    families: Families
    own: OwnClips | None


CHANCES = {"first": 1.0, "open first": 4.0, "true": 3.0, "sampled": 1.0, "rolled out": 5.0}
"""How often a batch is of which kind."""


def draw_batch(
    ask: Callable[[list[str]], Prompted], material: Material, generator: random.Random, steady: bool
) -> tuple[Prompted, Right]:
    """Return a batch that has seen its context, and the right blocks; `steady`: the model samples well enough."""
    chances = CHANCES | {
        "sampled": CHANCES["sampled"] * steady,
        "rolled out": CHANCES["rolled out"] * bool(material.own),
    }
    kind = generator.choices(tuple(chances), tuple(chances.values()))[0]
    if kind == "rolled out":
        assert material.own is not None
        prompts, context, blocks = material.own.draw(generator, BATCH)
        return ask(prompts).see(context), Right.only(blocks)
    # Without a context a sample takes half as long, and where things begin is the hardest to learn.
    if kind == "open first":
        prompts, right = material.families.draw(generator, 2 * BATCH)
        return ask(prompts), right
    if kind == "first":
        prompts, drawn = material.beginnings.draw(generator, 2 * BATCH)
        return ask(prompts), Right.only(drawn["latents"])
    prompts, drawn = material.clips.draw(generator, BATCH, open_share=OPEN_SHARE)
    earliest = 2 if kind == "sampled" else 1
    blocks = torch.tensor([generator.randint(earliest, BLOCKS - 1) for _ in range(BATCH)])
    sampled = kind == "sampled"
    context = own_context(ask, prompts, drawn, blocks) if sampled else context_of(drawn, blocks)
    noise = generator.choice((0.0, 0.05, 0.1)) * torch.randn_like(context)
    return ask(prompts).see(context + noise), Right.only(blocks_of(drawn, blocks))


@torch.no_grad()
def go_on_from(tree: nn.Module, weights: dict[str, Tensor]) -> None:
    """Take over the weights of an earlier training; layers that it did not have begin by adding nothing."""
    missing, unknown = tree.load_state_dict(weights, strict=False)
    assert not unknown, f"the earlier training had {unknown[0]}, which this model has not"
    for name in missing:
        if name.rsplit(".", 1)[0].endswith(("self_attn.o", "cross_attn.o", "ffn.2")):
            nn.init.zeros_(tree.get_parameter(name))


def make_optimisers(tree: nn.Module, rate: float) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices of the layers, and AdamW for everything else, at one learning rate."""
    matrices = [w for name, w in tree.named_parameters() if name.startswith("blocks.") and w.ndim == 2]
    known = {id(w) for w in matrices}
    others = [w for w in tree.parameters() if id(w) not in known]
    return (
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.01),
    )


def clean_error(ask: Callable[[list[str]], Prompted], clips: Shards, seed: int, runs: int = 4) -> dict[str, float]:
    """Return the mean squared error of sampled blocks, at the start of clips and in them."""
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, choices in (("error_first", (0,)), ("error_later", tuple(range(1, BLOCKS)))):
            total = 0.0
            for run in range(runs):
                generator = seeded(seed, "measure", run)
                torch.manual_seed(run)
                prompts, drawn = clips.draw(generator, 32, held_back=True)
                blocks = torch.tensor(generator.choices(choices, k=32))
                prompted = ask(prompts)
                if choices != (0,):
                    prompted.see(context_of(drawn, blocks))
                truth = blocks_of(drawn, blocks)
                total += (prompted.sample(noises(truth)) - truth).square().mean().item()
            found[name] = total / runs
    return found


def refreshed(material: Material) -> dict[str, int]:
    """Read what is new, and return how much there is."""
    names = ("clips", "beginnings", "families")
    return {name: getattr(material, name).refresh() for name in names}


def main() -> None:
    """Train, with a checkpoint to go on from every 100 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=sorted(MODELS))
    options.add_argument("--steps", type=int, default=4000)
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--stop-at", type=int, help="stop after this step, to make clips and go on")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--steady", type=int, default=1200, help="steps before the model's own samples are contexts"
    )
    options.add_argument(
        "--start", type=Path, help="weights to start from, of an earlier training; it may have had fewer layers"
    )
    args = options.parse_args()
    torch.set_num_threads(1)

    saved_text = torch.load(WORK / "text.pt", weights_only=True)
    encoder = UMT5EncoderModel(CONFIG).eval()
    encoder.load_state_dict(saved_text["weights"])
    tokens = Tokens(saved_text["pieces"].numpy().tobytes())
    own = OwnClips(args.model)
    material = Material(Shards(LATENTS), Shards(BEGINNINGS), Families(), own if own.refresh() else None)
    refreshed(material)

    torch.manual_seed(args.seed)
    tree = build(MODELS[args.model])

    def ask(prompts: list[str]) -> Prompted:
        with torch.autocast("cpu", enabled=False):
            embedded = embed(encoder, tokens, prompts)
        return Prompted(tree, *embedded)

    average = Average(tree, 0.995)
    optimisers = make_optimisers(tree, args.rate)
    checkpoint, log, first = WORK / f"{args.model}.ckpt", Log(WORK / f"{args.model}.jsonl"), 0
    if args.start:
        go_on_from(tree, torch.load(args.start, weights_only=True)["weights"])
        average = Average(tree, 0.995)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        tree.load_state_dict(saved["weights"])
        for optimiser, state in zip(optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        average.weights, first = saved["average"], saved["step"]

    smooth = 0.0
    last = min(args.steps, args.stop_at or args.steps)
    for step in range(first, last):
        generator = seeded(args.seed, args.model, step)
        torch.manual_seed(generator.getrandbits(63))
        for optimiser in optimisers:
            set_rate(optimiser, falling_rate(step, args.steps, args.rate))
            optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prompted, right = draw_batch(ask, material, generator, step >= args.steady)
            loss = loss_of(prompted, right, generator.random() < (OWN_OPEN if right.is_open else OWN))
        loss.backward()
        nn.utils.clip_grad_norm_(tree.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        average.update(tree)
        smooth = loss.item() if step == first else 0.95 * smooth + 0.05 * loss.item()
        if (step + 1) % 25 == 0:
            log(step=step + 1, loss=smooth)
        if (step + 1) % 100 == 0 or step + 1 == last:
            states = [optimiser.state_dict() for optimiser in optimisers]
            save_checkpoint(
                checkpoint,
                weights=tree.state_dict(),
                optimisers=states,
                average=average.weights,
                step=step + 1,
            )
        if (step + 1) % 250 == 0:
            current = {name: w.clone() for name, w in tree.state_dict().items()}
            tree.load_state_dict(average.weights)
            counts = refreshed(material) | {"rolled_out": own.refresh()}
            log(step=step + 1, **counts, **clean_error(ask, material.clips, args.seed))
            tree.load_state_dict(current)
            material = replace(material, own=own if counts["rolled_out"] else None)
    save_checkpoint(WORK / f"{args.model}.pt", weights=average.weights)


if __name__ == "__main__":
    main()
