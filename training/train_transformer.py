"""Train the pocket drafter or target: the causal Wan 2.1 architecture, as the engine will run it.

    python -m training.train_transformer drafter|target [--steps 4000] [--seed 0]

One sample is a block of a clip: three clean latent frames of context (none for the first block), and three noisy
ones to be denoised, at the four timesteps that sampling uses. Prompt and context determine the block, so the mean
the loss asks for is sharp. Three things keep the models from drifting once they feed on their own blocks: some
contexts are blocks the model sampled itself, some noisy inputs are built on its own previous estimate, and once
there are any (training/roll_out.py), some contexts come from whole clips the model made.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.schedule import renoise

from .causal import BLOCK, SCHEDULE, Prompted, build, embed
from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .make_latents import BEGINNINGS, BLOCKS, LATENTS
from .train_text import CONFIG, WIDTH, Tokens

MODELS = {
    "drafter": WanConfig(dim=128, ffn_dim=512, num_layers=6, num_heads=1, text_dim=WIDTH),
    "target": WanConfig(dim=256, ffn_dim=1024, num_layers=5, num_heads=2, text_dim=WIDTH),
}
BATCH = 32
THING_WEIGHT = 5.0
ROLLOUTS = WORK / "rollouts"
OWN_SHARDS = 6
HELD_BACK = 1
"""Shards at the start that are not trained on, to measure by."""


class Shards:
    """The shards of a folder, with the embeddings of their prompts; looks for new ones when asked."""

    def __init__(self, folder: Path, encoder: Any, tokens: Tokens) -> None:
        self._folder, self._encoder, self.tokens = folder, encoder, tokens
        self._shards: dict[Path, dict[str, Any]] = {}

    def refresh(self) -> int:
        """Read shards that are new, and return how many samples there are."""
        for path in sorted(self._folder.glob("*.pt")):
            if path not in self._shards:
                shard = torch.load(path, weights_only=True)
                embedding, shard["real"] = embed(self._encoder, self.tokens, shard["prompts"])
                shard["embedding"] = embedding.bfloat16()
                self._shards[path] = shard
        return sum(len(shard["prompts"]) for shard in self._shards.values())

    def draw(self, generator: random.Random, count: int, held_back: bool = False) -> dict[str, Tensor]:
        """Return latents, prompts and what else the shards have of some samples."""
        shards = list(self._shards.values())
        shards = shards[:HELD_BACK] if held_back else shards[HELD_BACK:]
        picked = [
            (shard, generator.randrange(len(shard["prompts"]))) for shard in generator.choices(shards, k=count)
        ]
        longest = max(shard["real"].shape[1] for shard, _ in picked)

        def padded(w: Tensor) -> Tensor:
            return torch.cat((w, w.new_zeros(longest - len(w), *w.shape[1:])))

        stacked = {
            name: torch.stack([padded(shard[name][i]) for shard, i in picked]) for name in ("embedding", "real")
        }
        for name in set(picked[0][0]) & {"latents", "anchors"}:
            stacked[name] = torch.stack([shard[name][i].float() for shard, i in picked])
        return stacked | {"embedding": stacked["embedding"].float()}


class OwnClips:
    """The contexts that came up when the model made whole clips, each with what should have come next."""

    def __init__(self, model: str, encoder: Any, tokens: Tokens) -> None:
        self._folder, self._encoder, self._tokens = ROLLOUTS / model, encoder, tokens
        self._shards: dict[Path, dict[str, Any]] = {}

    def refresh(self) -> int:
        """Read shards that are new, and return how many contexts there are; only the newest few shards are kept."""
        for path in sorted(self._folder.glob("*.pt"))[-OWN_SHARDS:]:
            if path not in self._shards:
                shard = torch.load(path, weights_only=True)
                shard["embedding"], shard["real"] = embed(self._encoder, self._tokens, shard["prompts"])
                self._shards[path] = shard
        self._shards = dict(sorted(self._shards.items())[-OWN_SHARDS:])
        return sum(len(shard["prompts"]) for shard in self._shards.values())

    def draw(self, generator: random.Random, count: int) -> dict[str, Tensor]:
        """Return contexts, blocks and prompts of one shard."""
        shard = generator.choice(list(self._shards.values()))
        rows = torch.tensor(generator.choices(range(len(shard["prompts"])), k=count))
        return {
            name: shard[name][rows].float() if name != "real" else shard[name][rows]
            for name in ("context", "blocks", "embedding", "real")
        }


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


def own_context(tree: nn.Module, clips: dict[str, Tensor], blocks: Tensor) -> Tensor:
    """Return the context of blocks 2 to 8 with the block before each as the model itself samples it.

    The still it begins with is the true one, out of place by the difference between sampled and true first frame.
    """
    before = blocks - 1
    with torch.no_grad():
        sampled = (
            Prompted(tree, clips["embedding"], clips["real"])
            .see(context_of(clips, before))
            .sample(noises(blocks_of(clips, before)))
        )
    context = context_of(clips, blocks)
    off = sampled[:, :, :1] - blocks_of(clips, before)[:, :, :1]
    return torch.cat((context[:, :, :1] + off, sampled[:, :, 1:]), dim=2)


def loss_of(prompted: Prompted, truth: Tensor, on_own: bool) -> Tensor:
    """Return the loss over a batch of blocks, a quarter of it at each timestep."""
    rows, weights, losses = len(truth) // len(SCHEDULE), weights_of(truth), []
    for number, step in enumerate(SCHEDULE):
        here = slice(number * rows, (number + 1) * rows)
        part, clean = prompted.rows(here), truth[here]
        base = clean
        if on_own and number:
            with torch.no_grad():
                base = part.sample([torch.randn_like(clean) for _ in range(number)])
        noise = torch.randn_like(clean)
        x = renoise(base, noise, step.sigma)
        wanted = (x - clean) / step.sigma
        error = (part.velocity(x, step.timestep).float() - wanted).square().mean(dim=1, keepdim=True)
        losses.append((weights[here] * error).mean())
    return torch.stack(losses).mean()


def weights_of(truth: Tensor) -> Tensor:
    """Return the weight of every place of blocks `b c t h w`, as `b 1 t h w`: things count more than the ground.

    The ground is the same all along a row, so what differs from the row's median is a thing.
    """
    off = (truth - truth.median(dim=-1, keepdim=True).values).square().mean(dim=1, keepdim=True).sqrt()
    return 1 + THING_WEIGHT * off.clamp(max=1)


def draw_batch(
    tree: nn.Module,
    clips: Shards,
    beginnings: Shards,
    own: OwnClips | None,
    generator: random.Random,
    steady: bool,
) -> tuple[Prompted, Tensor]:
    """Return a batch that has seen its context, and the true blocks; `steady`: the model samples well enough."""
    chances = (4, 3, 2 * steady, 3 * bool(own))
    kind = generator.choices(("first", "true", "sampled", "rolled out"), chances)[0]
    if kind == "rolled out":
        assert own is not None
        drawn = own.draw(generator, BATCH)
        return Prompted(tree, drawn["embedding"], drawn["real"]).see(drawn["context"]), drawn["blocks"]
    if kind == "first":
        # Without a context a sample takes half as long, and where things begin is the hardest to learn.
        drawn = beginnings.draw(generator, 2 * BATCH)
        return Prompted(tree, drawn["embedding"], drawn["real"]), drawn["latents"]
    drawn = clips.draw(generator, BATCH)
    prompted = Prompted(tree, drawn["embedding"], drawn["real"])
    earliest = 2 if kind == "sampled" else 1
    blocks = torch.tensor([generator.randint(earliest, BLOCKS - 1) for _ in range(BATCH)])
    context = own_context(tree, drawn, blocks) if kind == "sampled" else context_of(drawn, blocks)
    noise = generator.choice((0.0, 0.05, 0.1)) * torch.randn_like(context)
    return prompted.see(context + noise), blocks_of(drawn, blocks)


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


def clean_error(tree: nn.Module, clips: Shards, seed: int, runs: int = 4) -> dict[str, float]:
    """Return the mean squared error of sampled blocks, at the start of clips and in them."""
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, choices in (("error_first", (0,)), ("error_later", tuple(range(1, BLOCKS)))):
            total = 0.0
            for run in range(runs):
                generator = seeded(seed, "measure", run)
                torch.manual_seed(run)
                drawn = clips.draw(generator, 32, held_back=True)
                blocks = torch.tensor(generator.choices(choices, k=32))
                prompted = Prompted(tree, drawn["embedding"], drawn["real"])
                if choices != (0,):
                    prompted.see(context_of(drawn, blocks))
                truth = blocks_of(drawn, blocks)
                total += (prompted.sample(noises(truth)) - truth).square().mean().item()
            found[name] = total / runs
    return found


def main() -> None:
    """Train, with a checkpoint to go on from every 100 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=sorted(MODELS))
    options.add_argument("--steps", type=int, default=4000)
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--start", type=Path, help="weights to start from, of an earlier training; it may have had fewer layers"
    )
    args = options.parse_args()
    torch.set_num_threads(1)

    saved_text = torch.load(WORK / "text.pt", weights_only=True)
    encoder = UMT5EncoderModel(CONFIG).eval()
    encoder.load_state_dict(saved_text["weights"])
    tokens = Tokens(saved_text["pieces"].numpy().tobytes())
    clips, beginnings = Shards(LATENTS, encoder, tokens), Shards(BEGINNINGS, encoder, tokens)
    own = OwnClips(args.model, encoder, tokens)
    clips.refresh()
    beginnings.refresh()
    rolled_out = own.refresh()

    torch.manual_seed(args.seed)
    tree = build(MODELS[args.model])
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
    for step in range(first, args.steps):
        generator = seeded(args.seed, args.model, step)
        torch.manual_seed(generator.getrandbits(63))
        for optimiser in optimisers:
            set_rate(optimiser, falling_rate(step, args.steps, args.rate))
            optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prompted, truth = draw_batch(
                tree, clips, beginnings, own if rolled_out else None, generator, step > 0.3 * args.steps
            )
            loss = loss_of(prompted, truth, generator.random() < 0.5)
        loss.backward()
        nn.utils.clip_grad_norm_(tree.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        average.update(tree)
        smooth = loss.item() if step == first else 0.95 * smooth + 0.05 * loss.item()
        if (step + 1) % 25 == 0:
            log(step=step + 1, loss=smooth)
        if (step + 1) % 100 == 0:
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
            counts = {"clips": clips.refresh(), "beginnings": beginnings.refresh(), "rolled_out": rolled_out}
            log(step=step + 1, **counts, **clean_error(tree, clips, args.seed))
            tree.load_state_dict(current)
            rolled_out = own.refresh()
    save_checkpoint(WORK / f"{args.model}.pt", weights=average.weights)


if __name__ == "__main__":
    main()
