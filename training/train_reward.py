"""Train the pocket reward: ImageReward's architecture, on the oracle's opinion of pictures of the small world.

    python -m training.train_reward [--steps 1500] [--seed 0] [--from out/training/reward.safetensors]

The reward of a picture and a prompt is the PSNR in decibels to the best moment of the clip the prompt determines,
as far as it can be seen. While training, linear layers must also tell from each patch's token what is there and how
wrong it is, and from each word's whether the picture shows it, and the words must look where their thing is; or the
prompt finds nothing to look at for a long time. The first steps only look at pictures. At the end the last layer is
rescaled so that right prompts' rewards have mean 0 and deviation 1.

Pictures that models made join in if there are any in out/training/rollouts/*.safetensors: `frames`, uint8
`n 3 64 64`, and in the metadata `prompts`, a line a frame.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdvg_core.pocket.world import COLOURS, GROUNDS, RADII, SHAPES
from sdvg_core.scorers.blip import RewardModel
from sdvg_core.scorers.tokenizer import PromptTokenizer, load_tokenizer

from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .reward_data import UNKNOWN, Group, Pool, Shown, draw_clean, draw_group, read_pool
from .reward_model import (
    SIZES,
    Read,
    file_weights,
    initial_weights,
    normalised,
    read_pairs,
    rewards_of,
    standardised,
    trainable,
    write_vocabulary,
    write_weights,
)

CENTRE, SPREAD, CEILING = 18.0, 6.0, 32.0
"""Decibels: the reward's 0 and 1 while training, and above which differences cannot be seen."""

WEIGHTS = {
    "value": 1.0,
    "colours": 0.2,
    "kinds": 0.4,
    "covers": 2.0,
    "flaws": 0.3,
    "pictures": 0.3,
    "words": 0.5,
    "looks": 0.1,
}
"""Of the losses."""

ROLLOUTS = WORK / "rollouts"


class Teacher(nn.Module):
    """Asks the towers' tokens for what they should know already; thrown away afterwards.

    Each patch: whose colour is there, which shape and size, which pixels it covers, and how wrong it is. The
    picture: how good it is under its own prompt. Each word: whether the picture shows it; and it must look there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.colour = nn.Linear(SIZES.vision_width, len(COLOURS) + len(GROUNDS))
        self.kind = nn.Linear(SIZES.vision_width, 1 + len(SHAPES) * len(RADII))
        self.cover = nn.Linear(SIZES.vision_width, SIZES.patch_size**2)
        self.flaw = nn.Linear(SIZES.vision_width, 1)
        self.picture = nn.Linear(SIZES.vision_width, 1)
        self.word = nn.Linear(SIZES.text_width, 2)

    def of_things(self, images: Tensor, shown: list[Shown]) -> dict[str, Tensor]:
        """Return the losses of the image tower's tokens `n 1+l c` for what is where."""
        patches = images[:, 1:].flatten(0, 1)
        colours, kinds = torch.cat([of.patches for of in shown]).flatten(2).transpose(0, 1).flatten(1)
        covers = torch.cat([of.covers for of in shown]).flatten(2).transpose(1, 2).flatten(0, 1)
        known = colours != UNKNOWN
        # Most patches show no thing, and without the weight the shapes are never learned.
        weight = torch.ones(self.kind.out_features)
        weight[0] = 0.1
        return {
            "colours": cross_entropy(self.colour(patches), colours),
            "kinds": cross_entropy(self.kind(patches), kinds, weight=weight),
            "covers": F.binary_cross_entropy_with_logits(self.cover(patches).float()[known], covers[known]),
        }

    def of_pictures(self, images: Tensor, groups: list[Group]) -> dict[str, Tensor]:
        """Return the losses of the image tower's tokens `n 1+l c` for how good the pictures are."""
        flaws = torch.cat([target(group.flaws) for group in groups]).flatten()
        own = torch.cat([target(group.own_quality) for group in groups])
        return {
            "flaws": distance(self.flaw(images[:, 1:].flatten(0, 1))[:, 0], flaws),
            "pictures": distance(self.picture(images[:, 0])[:, 0], own),
        }

    def of_words(self, read: Read, groups: list[Group]) -> dict[str, Tensor]:
        """Return the losses of the text tower's tokens, asked a layer early: the last one sums them up."""
        words = torch.cat([group.words for group in groups]).flatten()
        colours = torch.cat([group.shown.patches[:, 0].flatten(1) for group in groups])
        places = torch.cat([group.places for group in groups])
        there = ((colours[:, None, None, :] == places[..., None]) & (places[..., None] != UNKNOWN)).flatten(0, 1)
        seen = (read.looks[..., 1:].float() * there).sum(dim=-1)[there.any(dim=-1)]
        return {
            "words": cross_entropy(self.word(read.before).flatten(0, 1), words),
            "looks": -seen.clamp(min=1e-4).log().mean(),
        }


cross_entropy = partial(F.cross_entropy, ignore_index=UNKNOWN)


def distance(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the loss of rewards."""
    return F.smooth_l1_loss(found.float(), wanted, beta=0.5)


def losses(
    model: RewardModel,
    teacher: Teacher,
    tokenizer: PromptTokenizer,
    groups: list[Group],
    clean: Shown,
    *,
    read_prompts: bool,
) -> dict[str, Tensor]:
    """Judge every picture of each group with every prompt of it; or only look at the pictures."""
    shown = [*(group.shown for group in groups), clean]
    frames = torch.cat([of.frames for of in shown])
    all_images = model.vision(pixel_values=normalised(frames), return_dict=True).last_hidden_state
    images = all_images[: len(frames) - len(clean.frames)]
    found = teacher.of_things(all_images, shown) | teacher.of_pictures(images, groups)
    if not read_prompts:
        return found
    pictures, prompts = groups[0].quality.shape
    texts = [scene.text for group in groups for _ in range(pictures) for scene in group.scenes]
    picture = torch.arange(len(images)).repeat_interleave(prompts)
    read = read_pairs(model, images, tokenizer, texts, picture)
    wanted = torch.cat([target(group.quality) for group in groups]).flatten()
    value = distance(rewards_of(model, read), wanted)
    return {"value": value, **found, **teacher.of_words(read, groups)}


def target(quality: Tensor) -> Tensor:
    """Return the reward for decibels."""
    return (quality.clamp(max=CEILING) - CENTRE) / SPREAD


def split(model: RewardModel) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the image tower's matrices and all other weights.

    Muon trains the former: it learns shapes in a fifth of AdamW's steps. The text tower does not take it.
    """
    matrices = [w for name, w in model.vision.named_parameters() if name.startswith("encoder.") and w.ndim == 2]
    known = {id(w) for w in matrices}
    return matrices, [w for w in model.parameters() if id(w) not in known]


def export(path: Path, weights: dict[str, Tensor], rewards: Tensor, metadata: dict[str, str]) -> None:
    """Write the standardised model in 16 bits with its vocabulary beside it."""
    write_weights(path, standardised(weights, rewards), torch.float16, metadata)
    write_vocabulary(path.parent / "vocab.txt")


@torch.no_grad()
def reference(model: RewardModel, tokenizer: PromptTokenizer, seed: int, pool: Pool, count: int = 80) -> Tensor:
    """Return the rewards of pictures under their own prompts: what mean and deviation are taken over."""
    found = []
    for number in range(count):
        group = draw_group(seeded(seed, "reference", number), pool)
        frames = group.frames[group.origin == 0]
        images = model.vision(pixel_values=normalised(frames), return_dict=True).last_hidden_state
        texts = [group.scenes[0].text] * len(frames)
        read = read_pairs(model, images, tokenizer, texts, torch.arange(len(frames)))
        found.append(rewards_of(model, read))
    return torch.cat(found)


def main() -> None:
    """Train, with a checkpoint to go on from every 200 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--groups", type=int, default=2, help="groups of pairs a step")
    options.add_argument("--seeing", type=int, default=400, help="steps before prompts are read")
    options.add_argument("--rate", type=float, default=1e-3)
    options.add_argument("--matrix-rate", type=float, default=5e-3, help="the rate of Muon")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--name", default="reward")
    options.add_argument("--from", dest="start", type=Path, help="a reward to go on from")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    torch.manual_seed(args.seed)
    checkpoint, log, first = WORK / f"{args.name}.ckpt", Log(WORK / f"{args.name}.jsonl"), 0
    write_vocabulary(WORK / "vocab.txt")
    tokenizer = load_tokenizer(WORK / "vocab.txt")
    start = args.start
    if start is None:
        start = WORK / f"{args.name}_start.safetensors"
        write_weights(start, initial_weights(args.seed), torch.float32, {})
    model, teacher = trainable(start), Teacher()
    pool = read_pool(sorted(ROLLOUTS.glob("*.safetensors")))
    average = Average(model, 0.995)
    matrices, others = split(model)
    optimisers = [
        torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([*others, *teacher.parameters()], betas=(0.9, 0.98), weight_decay=0.01),
    ]
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["weights"])
        teacher.load_state_dict(saved["teacher"])
        for optimiser, state in zip(optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        average.weights, first = saved["average"], saved["step"]

    recent: dict[str, list[float]] = {}
    for step in range(first, args.steps):
        generator = seeded(args.seed, "reward", step)
        reads = step >= args.seeing
        groups = [draw_group(generator, pool) for _ in range(args.groups)]
        clean = draw_clean(generator, 4 if reads else 10)
        for optimiser, rate in zip(optimisers, (args.matrix_rate, args.rate), strict=True):
            set_rate(optimiser, falling_rate(step, args.steps, rate, warm_up=30))
        with torch.autocast("cpu", torch.bfloat16):
            found = losses(model, teacher, tokenizer, groups, clean, read_prompts=reads)
        model.zero_grad(set_to_none=True)
        teacher.zero_grad(set_to_none=True)
        torch.stack([WEIGHTS[name] * loss for name, loss in found.items()]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        average.update(model)
        for name, loss in found.items():
            recent.setdefault(name, []).append(float(loss.detach()))
        if (step + 1) % 25 == 0:
            log(step=step + 1, **{name: sum(values) / len(values) for name, values in recent.items()})
            recent.clear()
        if (step + 1) % 200 == 0:
            save_checkpoint(
                checkpoint,
                weights=model.state_dict(),
                teacher=teacher.state_dict(),
                optimisers=[optimiser.state_dict() for optimiser in optimisers],
                average=average.weights,
                step=step + 1,
            )

    model.load_state_dict(average.weights)
    rewards = reference(model, tokenizer, args.seed, pool)
    log(mean=float(rewards.mean()), deviation=float(rewards.std()))
    made_by = {"steps": str(args.steps), "seed": str(args.seed)}
    export(WORK / f"{args.name}.safetensors", file_weights(model.state_dict()), rewards, made_by)


if __name__ == "__main__":
    main()
