"""Which shape a frame shows: a small network that learns it from the round trips of training scenes.

    python -m lab.training.shapes OUT.pt [--scenes 5000] [--epochs 12]

A scene has one thing. Its clip of 13 frames is encoded and decoded, in turn by the VAE's and the TAEHV's decoder.
What the network sees is how far each pixel is from its row's median, which is the ground: no colours. Prints the
share of frames of held-back training scenes that are named right, by size and shape; decide by it whether the
network may judge anything.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdvg_core.decoders.open import load_vae
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.pocket.trained_set import pocket_fast_vae, trained_set
from sdvg_core.pocket.world import SHAPES, Scene

from .causal import FRAMES
from .common import save_checkpoint, seeded
from .measure_pair import scenes_of

SEGMENT = 13
KEPT = 8
"""Pixel frames of a round trip, and how many of the last of them are looked at."""

BATCH = 64
RATE = 2e-3
NOISE = 0.03
"""Standard deviation of the noise on pictures to learn from."""


class ShapeNet(nn.Sequential):
    """Four convolutions, and the largest answer anywhere in the picture."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv2d(1, 16, 5, stride=2, padding=2)]
        for before, after in ((16, 32), (32, 64), (64, 64)):
            pooled = [nn.MaxPool2d(2)] if before > 16 else []
            layers += [nn.GroupNorm(8, before), nn.ReLU(), *pooled, nn.Conv2d(before, after, 3, padding=1)]
        super().__init__(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(SHAPES)))

    @torch.no_grad()
    def named(self, frames: Tensor) -> Tensor:
        """Return the number of the shape that each frame `f c h w` shows."""
        return torch.cat([self(outlines(part)).argmax(dim=1) for part in frames.split(256)])

    @classmethod
    def load(cls, path: Path) -> ShapeNet:
        """Return a finished network."""
        net = cls()
        net.load_state_dict(torch.load(path, weights_only=True)["weights"])
        return net.eval().requires_grad_(False)


def outlines(frames: Tensor) -> Tensor:
    """Return how far the pixels of frames `f c h w` are from their row's median, of the farthest: `f 1 h w`."""
    off = (frames - frames.median(dim=-1, keepdim=True).values).square().sum(dim=1, keepdim=True).sqrt()
    return off / off.amax(dim=(2, 3), keepdim=True).clamp(min=1e-3)


@torch.no_grad()
def round_trips(scenes: Sequence[Scene], seed: int) -> Tensor:
    """Return the frames `n f c h w` of scenes, from a moment drawn at random on, encoded and decoded."""
    encoder = load_vae(trained_set().vae, layers="planes")
    decoders = (encoder, load_vae(pocket_fast_vae(), layers="planes"))
    generator = seeded(seed, "moments")
    clips = []
    for number, scene in enumerate(scenes):
        first = generator.randrange(FRAMES - SEGMENT)
        latents = encoder.encode(render_scene(scene, torch.arange(first, first + SEGMENT))[None])
        clips.append(decoders[number % 2].decode(latents)[0][0, -KEPT:].half())
    return torch.stack(clips)


def batches(frames: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all frames once, in pieces: turned as no shape minds, with some noise."""
    for rows in torch.randperm(len(frames)).split(BATCH):
        pictures = frames[rows].float()
        pictures = outlines(pictures + NOISE * torch.rand(()) * torch.randn_like(pictures))
        pictures = torch.rot90(pictures, int(torch.randint(4, ())), (2, 3))
        yield pictures, labels[rows]


def train(frames: Tensor, labels: Tensor, epochs: int) -> ShapeNet:
    """Return a network that has seen all frames `n c h w` so many times."""
    net = ShapeNet()
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.01)
    steps = epochs * -(-len(frames) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    for epoch in range(epochs):
        losses = []
        for pictures, wanted in batches(frames, labels):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(pictures), wanted)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        print(json.dumps({"epoch": epoch, "loss": sum(losses) / len(losses)}), flush=True)
    return net.eval()


def right(net: ShapeNet, scenes: Sequence[Scene], clips: Tensor) -> dict[str, float]:
    """Return the share of frames `n f c h w` that are named right: of all, by size, and by size and shape."""
    shares: dict[str, list[float]] = {}
    for scene, clip in zip(scenes, clips, strict=True):
        thing = scene.mover
        share = (net.named(clip.float()) == SHAPES.index(thing.shape)).float().mean().item()
        for group in ("all", thing.size, f"{thing.size} {thing.shape}"):
            shares.setdefault(group, []).append(share)
    return {group: round(sum(of) / len(of), 4) for group, of in sorted(shares.items())}


def main() -> None:
    """Train it, test it on training scenes that it never saw, and write it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--scenes", type=int, default=5000)
    options.add_argument("--held-back", type=int, default=400)
    options.add_argument("--epochs", type=int, default=12)
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    held_back = scenes_of(seeded(0, "shapes held back"), args.held_back, kind="alone")
    seen = {scene.text for scene in held_back}
    scenes = [s for s in scenes_of(seeded(0, "shapes"), args.scenes, kind="alone") if s.text not in seen]
    clips = round_trips(scenes, 0)
    tested = round_trips(held_back, 1)
    labels = torch.tensor([SHAPES.index(scene.mover.shape) for scene in scenes]).repeat_interleave(KEPT)
    net = train(clips.flatten(0, 1), labels, args.epochs)
    shares = right(net, held_back, tested)
    print(json.dumps(shares, indent=1))
    save_checkpoint(args.out, weights=net.state_dict(), right=shares)


if __name__ == "__main__":
    main()
