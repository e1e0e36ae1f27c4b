"""Let a model make whole clips on its own, and write down what should have come next at every block.

    python -m training.roll_out drafter|target [--clips 96] [--seed 0]

A model that runs a little ahead or behind is not wrong from there on: what is right after a context is what the
world would show next after it. So the moment that the context shows is looked for, and the true continuation is
rendered from there. Contexts in which no moment of the clip can be recognised are left out.

Half of the prompts leave something open. What the clip shows then is what the oracle takes its first block for; a
clip that comes out as a scene held out of training teaches nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import UMT5EncoderModel

from research.metrics import weighted_error
from research.world import is_held_out, render, render_with_mask
from sdvg_core.causal_wan.schedule import Schedule
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, SCHEDULE, Prompted, build, embed
from .common import WORK, save_checkpoint, seeded
from .make_latents import BLOCKS, codec, encode_stills
from .open_prompts import choice
from .train_text import CONFIG, Tokens, any_scene
from .train_transformer import MODELS, ROLLOUTS

TOGETHER = 16
"""Clips made side by side."""

REACH = 12
"""How many frames a context may be ahead or behind."""

FIRST = 4 * (BLOCK - 1) + 1
"""Pixel frames of the first block."""

RECOGNISED = 0.06
"""The mean squared error, things and ground weighing the same, above which a context is not recognised (12 dB).

Of two things, one may be lost or discoloured in it: the prompt says what it should be, and so it can come back.
"""

ALONE = 0.3
"""The share of prompts with a single thing."""


def roll_out(
    tree: Any,
    vae: WanCodec,
    embedding: Tensor,
    real: Tensor,
    *,
    schedule: Schedule = SCHEDULE,
    count: int = BLOCKS,
    begun: Sequence[Tensor] = (),
    ask: Callable[[Any, Tensor, Tensor], Prompted] = Prompted,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the contexts of the blocks a model made on its own, all blocks, and the pixel frames of these.

    `begun`: the first of the `count` blocks, `b c 3 h w`, made by somebody else.
    """
    contexts, blocks, shown, state = [], list(begun), [], None
    for block in begun:
        frames, state = vae.decode(block, state)
        shown.append(frames)
    for number in range(len(begun), count):
        prompted = ask(tree, embedding, real)
        if number:
            context = blocks[-1].clone()
            if number > 1:
                still = shown[-1][:, 3::4][:, :1]
                context[:, :, 0] = encode_stills(vae, still)[:, 0]
            contexts.append(context)
            prompted.see(context)
        noises = [torch.randn(len(real), 16, BLOCK, 8, 8, device=real.device) for _ in SCHEDULE]
        blocks.append(prompted.sample(noises[: len(schedule)], schedule))
        frames, state = vae.decode(blocks[-1], state)
        shown.append(frames)
    return contexts, blocks, torch.cat(shown, dim=1)


def moment(scene: Scene, seen: Tensor, due: int) -> int | None:
    """Return by how many frames the frames `f c h w`, due at `due` and after, are ahead; None if unrecognisable."""
    count = len(seen)
    first = max(due - REACH, 0)
    truth, mask = render_with_mask(scene, torch.arange(first, due + count + REACH))
    truths, masks = (of.unfold(0, count, 1).movedim(-1, 1).flatten(0, 1) for of in (truth, mask))
    starts = len(truth) - count + 1
    errors = weighted_error(seen.repeat(starts, 1, 1, 1), truths, masks).view(starts, count).mean(dim=1).tolist()
    error, _, ahead = min((error, abs(first + n - due), first + n - due) for n, error in enumerate(errors))
    return ahead if error < RECOGNISED else None


def continuations(vae: WanCodec, scene: Scene, frames: Tensor) -> tuple[list[int], Tensor]:
    """Return the blocks (1 to 8) whose context was recognised, and the true latents `n c 3 h w` after each."""
    numbers, clips = [], []
    for number in range(1, BLOCKS):
        due = 12 * number
        newest = slice(due - 11, due - 3)
        ahead = moment(scene, frames[newest], newest.start)
        if ahead is not None:
            numbers.append(number)
            clips.append(render(scene, (torch.arange(due - 16, due + 9) + ahead).clamp(min=0)))
    if not clips:
        return [], torch.empty(0, 16, BLOCK, 8, 8)
    return numbers, vae.encode(torch.stack(clips))[:, :, -BLOCK:]


def _scene(generator: random.Random) -> Scene:
    alone = generator.random() < ALONE
    while True:
        scene = any_scene(generator, held_out=False)
        if bool(scene.relation) != alone:
            return scene


def main() -> None:
    """Write one shard of contexts and continuations, and the frames with their prompts for the reward."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=sorted(MODELS))
    options.add_argument("--clips", type=int, default=96)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    saved_text = torch.load(WORK / "text.pt", weights_only=True)
    encoder = UMT5EncoderModel(CONFIG).eval()
    encoder.load_state_dict(saved_text["weights"])
    tokens, vae, tree = Tokens(saved_text["pieces"].numpy().tobytes()), codec(), build(MODELS[args.model])
    tree.load_state_dict(torch.load(WORK / f"{args.model}.ckpt", weights_only=True)["average"])
    tree.requires_grad_(False)

    generator = seeded(args.seed, "roll out", args.model)
    torch.manual_seed(generator.getrandbits(63))
    prompts: list[str] = []
    contexts, truths, pictures, captions = [], [], [], []
    for _ in range(0, args.clips, TOGETHER):
        scenes = [_scene(generator) for _ in range(TOGETHER)]
        seen, _, frames = roll_out(tree, vae, *embed(encoder, tokens, [scene.text for scene in scenes]))
        for i, scene in enumerate(scenes):
            chosen = choice(frames[i, :FIRST], scene)
            if is_held_out(chosen):
                continue
            numbers, truth = continuations(vae, chosen, frames[i])
            contexts += [seen[number - 1][i] for number in numbers]
            truths.append(truth)
            prompts += [scene.text] * len(numbers)
            pictures.append((frames[i, 4::12] * 255).round().byte())
            captions += [scene.text] * len(pictures[-1])
    print(f"{len(prompts)} of {args.clips * (BLOCKS - 1)} contexts recognised", flush=True)
    if not contexts:
        return
    save_checkpoint(
        ROLLOUTS / args.model / f"{args.seed:05d}.pt",
        prompts=prompts,
        context=torch.stack(contexts).half(),
        blocks=torch.cat(truths).half(),
    )
    save_file(
        {"frames": torch.cat(pictures)},
        ROLLOUTS / f"{args.model}-{args.seed:05d}.safetensors",
        {"prompts": "\n".join(captions)},
    )


if __name__ == "__main__":
    main()
