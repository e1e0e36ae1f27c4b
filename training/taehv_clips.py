"""Make what the decoder of the TAEHV learns from: latents, and how the shipped VAE shows them.

    python -m training.taehv_clips [--true 4] [--made 48] [--first 0] [--every 1]

True clips are those of make_latents, its first shards. The made ones are what it will see: the shipped models
make them with the engine, from training prompts, once all but the first block by the drafter and once all by the
target.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from research.videos import StudyModels, StudyOptions, load_study_models
from research.world import draw_scene
from sdvg_core.decoders.open import load_vae
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Condition
from sdvg_core.models.loading import encode_prompts
from sdvg_core.pocket.trained_set import pocket_options, trained_set

from .common import WORK, save_checkpoint, seeded
from .make_latents import LATENTS

CLIPS = WORK / "taehv_clips"
WAYS = (RouterConfig(policy="first", forced_blocks=1), RouterConfig(policy="always-target"))
SHARD = 8
"""Prompts of a shard of made clips."""


def as_bytes(frames: Tensor) -> Tensor:
    """Return pixel frames in [0, 1] as bytes, 59 dB from what they were."""
    return (frames * 255).round().byte()


def shown_by_the_vae(latents: Tensor) -> Iterator[Tensor]:
    """Yield the pixel frames `f c h w` of each of the clips `b c t h w`, as bytes."""
    vae = load_vae(trained_set().vae, layers="planes")
    for clip in latents:
        yield as_bytes(vae.decode(clip[None].float())[0][0])


def true_clips(number: int) -> dict[str, Any]:
    """Return latents `b c t h w` and frames `b f c h w` of a shard of make_latents."""
    latents = torch.load(LATENTS / f"{number:05d}.pt", weights_only=True)["latents"]
    return {"latents": latents, "frames": torch.stack(list(shown_by_the_vae(latents)))}


def made_clips(models: StudyModels, number: int, seed: int) -> dict[str, Any]:
    """Return the same of clips that the shipped models made."""
    generator = seeded(seed, "judge", number)  # the word that the shipped weights were drawn with
    prompts = [draw_scene(generator, held_out=False).text for _ in range(SHARD)]
    embeddings = encode_prompts(trained_set(), prompts, pocket_options())
    latents, frames = [], []
    for prompt in prompts:
        run = models.run(Condition(embeddings[prompt], prompt, prompt), generator.getrandbits(31))
        for way in WAYS:
            emitted = list(replace(run, plan=replace(run.plan, router=way)).blocks())
            latents.append(torch.cat([one.block.latents for one in emitted], dim=2)[0].half())
            frames.append(as_bytes(torch.cat([one.frames for one in emitted], dim=1)[0]))
    return {"latents": torch.stack(latents), "frames": torch.stack(frames)}


def main() -> None:
    """Write the shards that are not there yet."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--true", type=int, default=4, help="shards of make_latents")
    options.add_argument("--made", type=int, default=48, help="prompts for made clips, two clips each")
    options.add_argument("--first", type=int, default=0, help="number of the first shard")
    options.add_argument("--every", type=int, default=1, help="make every n-th shard, to share the work")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    models = load_study_models(StudyOptions(files=trained_set(), load=pocket_options()))
    for number in range(args.first, args.made // SHARD, args.every):
        path = CLIPS / f"made-{number:05d}.pt"
        if not path.exists():
            save_checkpoint(path, **made_clips(models, number, args.seed))
    for number in range(args.first, args.true, args.every):
        path = CLIPS / f"true-{number:05d}.pt"
        if not path.exists():
            save_checkpoint(path, **true_clips(number))


if __name__ == "__main__":
    main()
