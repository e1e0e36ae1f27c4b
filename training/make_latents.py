"""Encode clips of the small world with the trained VAE: what the transformers learn from.

    python -m training.make_latents --clips 1024 [--first 0] [--seed 0]

Every shard holds 32 clips of nine blocks: their prompts, their latents, and for blocks 2 to 8 the still image that
their context begins with under the `recompute` policy.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.decoders.wan_vae_sizes import WAN_MEAN, WAN_STD
from sdvg_core.pocket.world import Scene, draw_scene, render

from .common import WORK, save_checkpoint, seeded
from .train_vae import build

BLOCKS, BLOCK = 9, 3
FRAMES = 4 * (BLOCKS * BLOCK - 1) + 1
SHARD = 32
LATENTS = WORK / "latents"


def codec(path: str = "vae.pt") -> WanCodec:
    """Return the trained VAE."""
    vae = build()
    vae.load_state_dict(torch.load(WORK / path, weights_only=True)["weights"])
    return wrap(vae)


def wrap(vae: Any) -> WanCodec:
    """Return a VAE of ours as the engine uses it."""
    vae = vae.eval().requires_grad_(False)
    return WanCodec(vae, mean=WAN_MEAN, std=WAN_STD, temporal_stride=4, spatial_stride=8)


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


def main() -> None:
    """Write the shards that are not there yet."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clips", type=int, default=1024)
    options.add_argument("--first", type=int, default=0, help="number of the first shard")
    options.add_argument("--every", type=int, default=1, help="make every n-th shard, to share the work")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    vae = codec()
    for number in range(args.first, args.clips // SHARD, args.every):
        path = LATENTS / f"{number:05d}.pt"
        if not path.exists():
            generator = seeded(args.seed, "latents", number)
            save_checkpoint(
                path, **encode_clips(vae, [draw_scene(generator, held_out=False) for _ in range(SHARD)])
            )


if __name__ == "__main__":
    main()
