"""Encode clips of the small world with the trained VAE: what the transformers learn from.

    python -m training.make_latents --clips 1024 --beginnings 65536 [--first 0] [--seed 0]

Every shard of clips holds 32 of nine blocks: their prompts, their latents, and for blocks 2 to 8 the still image
which their context begins with under the `recompute` policy. Every shard of beginnings holds 512 first blocks: a
clip has only one, and a model that has seen too few of them learns them by heart (training/LOG.md).
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from torch import Tensor

from research.world import draw_scene, render
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.world import Scene

from .common import WORK, save_checkpoint, seeded
from .train_vae import build

BLOCKS, BLOCK = 9, 3
FRAMES = 4 * (BLOCKS * BLOCK - 1) + 1
SHARD = 32
LATENTS = WORK / "latents"
BEGINNINGS = WORK / "beginnings"
BEGINNINGS_SHARD = 512


def codec(path: str = "vae.pt") -> WanCodec:
    """Return the trained VAE."""
    vae = build()
    vae.load_state_dict(torch.load(WORK / path, weights_only=True)["weights"])
    return wrap(vae)


def wrap(vae: Any) -> WanCodec:
    """Return a VAE of ours as the engine uses it."""
    vae = vae.eval().requires_grad_(False)
    return WanCodec(vae, temporal_stride=4, spatial_stride=8)


def anchor_frames(frames: Tensor) -> Tensor:
    """Return the pixel frames `b 7 c h w` that the contexts of blocks 2 to 8 begin with."""
    return frames[:, [4 * BLOCK * (block - 1) for block in range(2, BLOCKS)]]


def encode_stills(vae: WanCodec, stills: Tensor) -> Tensor:
    """Return the latents `b n c h w` of pixel frames `b n c h w`, each encoded as an image."""
    latents = vae.encode(stills.flatten(0, 1)[:, None])
    return latents[:, :, 0].unflatten(0, stills.shape[:2])


def encode_clips(vae: WanCodec, scenes: list[Scene]) -> dict[str, Any]:
    """Return prompts, latents `b c t h w` and anchors `b 7 c h w` of whole clips."""
    frames = torch.stack([render(scene, torch.arange(FRAMES)) for scene in scenes])
    pieces = [vae.encode(part) for part in frames.split(8)]
    anchors = [encode_stills(vae, part) for part in anchor_frames(frames).split(8)]
    return {
        "prompts": [scene.text for scene in scenes],
        "latents": torch.cat(pieces).half(),
        "anchors": torch.cat(anchors).half(),
    }


def encode_beginnings(vae: WanCodec, scenes: list[Scene]) -> dict[str, Any]:
    """Return prompts and first blocks `b c 3 h w`."""
    frames = torch.stack([render(scene, torch.arange(4 * (BLOCK - 1) + 1)) for scene in scenes])
    return {
        "prompts": [scene.text for scene in scenes],
        "latents": torch.cat([vae.encode(part) for part in frames.split(32)]).half(),
    }


def _scene(generator: random.Random, company: bool) -> Scene:
    while True:
        scene = draw_scene(generator, held_out=False)
        if scene.relation or not company:
            return scene


def main() -> None:
    """Write the shards that are not there yet."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clips", type=int, default=1024)
    options.add_argument("--beginnings", type=int, default=65536)
    options.add_argument("--first", type=int, default=0, help="number of the first shard")
    options.add_argument("--every", type=int, default=1, help="make every n-th shard, to share the work")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--company", action="store_true", help="only scenes of two things, which are harder")
    args = options.parse_args()
    torch.set_num_threads(1)
    vae = codec()
    for folder, count, shard, encode in (
        (LATENTS, args.clips, SHARD, encode_clips),
        (BEGINNINGS, args.beginnings, BEGINNINGS_SHARD, encode_beginnings),
    ):
        for number in range(args.first, count // shard, args.every):
            path = folder / f"{number:05d}.pt"
            if not path.exists():
                generator = seeded(args.seed, folder.name, number)
                scenes = [_scene(generator, args.company) for _ in range(shard)]
                save_checkpoint(path, **encode(vae, scenes))


if __name__ == "__main__":
    main()
