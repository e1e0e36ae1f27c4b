"""Train the decoder of the embedded TAEHV to show latents as the shipped VAE does.

    python -m training.taehv_clips
    python -m training.train_taehv [--steps 5000] [--seed 0]

It learns the VAE's picture and not the world's. Clips run side by side, each at another block of its own; every
step all of them go on by one block, with the memory that the block before has left. So what a frame sees of earlier
ones is what the engine gives it, and no frame is spent on filling the memory.

L1 + L2 on pixels, those of things weighted up. Most steps compute in bfloat16 with channels last, three times as
fast as float32 on a CPU; the last ones in float32, as it will run.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor

from sdvg_core.decoders.taehv import LEADING, LIMIT, Memory, Taehv, blank_memory, run_half

from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .make_latents import BLOCK, BLOCKS
from .taehv_clips import CLIPS

WIDTHS, ENCODER = (40, 32, 16, 16), (16, 24, 32, 40)
"""0.34 million weights decode a block in 22 ms on one core, where the VAE takes 71; 0.38 million more encode."""

LANES = 4
"""Clips side by side."""

HELD_BACK = 6
"""Made clips that nothing is learned from."""

MADE = 0.5
"""The share of clips that the shipped models made."""

Clip = tuple[Tensor, Tensor]
"""Latents `c t h w`, and frames `4 t c h w` as bytes, of which the first three do not count."""


def build() -> Taehv:
    """Return an untrained TAEHV, laid out for speed on a CPU."""
    net = Taehv(16, WIDTHS, ENCODER)
    with torch.no_grad():
        net.decoder[-1].bias.fill_(0.5)
    return net.to(memory_format=torch.channels_last)


def read_clips(folder: Path, kind: str) -> list[Clip]:
    """Return the clips of all shards of a kind."""
    found: list[Clip] = []
    for path in sorted(folder.glob(f"{kind}-*.pt")):
        shard = torch.load(path, weights_only=True)
        for latents, frames in zip(shard["latents"], shard["frames"], strict=True):
            found.append((latents, torch.cat([frames[:1].expand(LEADING, -1, -1, -1), frames])))
    return found


class Lanes:
    """Clips that run side by side. `blocks`: which block each of them shows next."""

    def __init__(self, true: list[Clip], made: list[Clip], lanes: int = LANES) -> None:
        self._pools, self._lanes = (true, made), lanes
        self._clips: list[Clip] = []
        self.blocks: list[int] = []

    def next(self, generator: random.Random) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents `(t b) c h w`, frames `(t b) c h w` in [0, 1], and which lanes begin, `b`."""
        if not self._clips:
            self._clips = [self._draw(generator) for _ in range(self._lanes)]
            self.blocks = [lane * BLOCKS // self._lanes for lane in range(self._lanes)]
        for lane, block in enumerate(self.blocks):
            if block == BLOCKS:
                self.blocks[lane], self._clips[lane] = 0, self._draw(generator)
        latents, frames = [], []
        for (z, shown), block in zip(self._clips, self.blocks, strict=True):
            first = block * BLOCK
            latents.append(z[:, first : first + BLOCK].transpose(0, 1).float())
            frames.append(shown[4 * first : 4 * (first + BLOCK)])
        begins = torch.tensor([block == 0 for block in self.blocks])
        self.blocks = [block + 1 for block in self.blocks]
        return (
            torch.stack(latents, dim=1).flatten(0, 1),
            torch.stack(frames, dim=1).flatten(0, 1).float() / 255,
            begins,
        )

    def _draw(self, generator: random.Random) -> Clip:
        return generator.choice(self._pools[generator.random() < MADE])


def limited(z: Tensor) -> Tensor:
    """Return latents as the decoder takes them."""
    return (torch.tanh(z / LIMIT) * LIMIT).contiguous(memory_format=torch.channels_last)


def weights_of(frames: Tensor) -> Tensor:
    """Return the weights of pixels `n 1 h w`: three where there is more than the ground of the row."""
    ground = frames.median(dim=-1, keepdim=True).values
    return 1 + 2 * ((frames - ground).abs().amax(dim=1, keepdim=True) > 0.1).float()


@torch.no_grad()
def psnr(net: Taehv, clips: list[Clip]) -> float:
    """Return how close the TAEHV is to the VAE in dB, over whole clips."""
    found = []
    for latents, frames in clips:
        z = limited(latents.transpose(0, 1).float())
        shown, _ = run_half(net.decoder, z, blank_memory(net.decoder, z[:1], 1), 1)
        error = (shown.clamp(0, 1) - frames.float() / 255)[LEADING:].square().mean()
        found.append(-10 * error.log10())
    return float(torch.stack(found).mean())


def loss_of(
    net: Taehv, z: Tensor, frames: Tensor, begins: Tensor, memory: Memory | None, exact: bool
) -> tuple[Memory, Tensor]:
    """Return the memory after a step and its loss; arguments as of `Lanes.next`, the latents `limited`.

    `exact`: in float32, not bfloat16.
    """
    lanes = len(begins)
    if memory is None:
        memory = blank_memory(net.decoder, z, lanes)
    memory = tuple(entry.masked_fill(begins.view(-1, 1, 1, 1), 0) for entry in memory)
    with torch.autocast(z.device.type, torch.bfloat16, enabled=not exact):
        shown, memory = run_half(net.decoder, z, memory, lanes)
    error = shown.float() - frames
    weights = weights_of(frames).unflatten(0, (-1, lanes))
    weights[:LEADING] *= ~begins.view(-1, 1, 1, 1)
    loss = (weights.flatten(0, 1) * (error.abs() + error.square())).mean()
    return tuple(entry.detach() for entry in memory), loss


def main() -> None:
    """Train, with a checkpoint to go on from every 500 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=5000)
    options.add_argument("--exact", type=float, default=0.15, help="share of the steps, the last, in float32")
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    net = build()
    average = Average(net, 0.998)
    optimiser = torch.optim.Adam(net.parameters(), lr=args.rate, betas=(0.9, 0.99))
    checkpoint, log, first = WORK / "taehv.ckpt", Log(WORK / "taehv.jsonl"), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(saved["weights"])
        optimiser.load_state_dict(saved["optimiser"])
        average.weights, first = saved["average"], saved["step"]
    made = read_clips(CLIPS, "made")
    lanes = Lanes(read_clips(CLIPS, "true"), made[:-HELD_BACK])
    memory: Memory | None = None
    for step in range(first, args.steps):
        z, frames, begins = lanes.next(seeded(args.seed, "judge", step))  # as in `taehv_clips`
        set_rate(optimiser, falling_rate(step, args.steps, args.rate))
        exact = step >= (1 - args.exact) * args.steps
        memory, loss = loss_of(net, limited(z), frames, begins, memory, exact)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        average.update(net)
        if (step + 1) % 50 == 0:
            log(step=step + 1, loss=loss.item())
        if (step + 1) % 500 == 0:
            now = {name: w.clone() for name, w in net.state_dict().items()}
            save_checkpoint(
                checkpoint, weights=now, optimiser=optimiser.state_dict(), average=average.weights, step=step + 1
            )
            net.load_state_dict(average.weights)
            log(step=step + 1, held_back_psnr=psnr(net, made[-HELD_BACK:]))
            net.load_state_dict(now)

    save_checkpoint(WORK / "taehv.pt", weights=average.weights)


if __name__ == "__main__":
    main()
