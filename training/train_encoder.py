"""Train the encoder of the embedded TAEHV, so that it can stand in for the VAE altogether; minutes of one CPU core.

    python -m training.train_encoder OUT.safetensors [--steps 3000] [--clips 2048]

Its label is what the VAE's encoder makes of the same pixels: the beginnings of true clips, and of clips that begin
somewhere in one of the target's, as the TAEHV shows them. Three batches in four are of single pictures, which
is what the context policy `recompute` encodes. The decoder stays as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from research.world import render
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import LEADING, Taehv, TaehvCodec, blank_memory, run_half
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.trained_set import pocket_fast_vae

from .common import Average, Log, falling_rate, seeded, set_rate
from .make_latents import FRAMES
from .measure_pair import Shipped, scenes_of
from .roll_out import roll_out
from .train_taehv import build

SHOWN = 13
"""Pixel frames of a sample, which are four latent frames."""

PICTURES, STARTS, TOGETHER, HELD_BACK = 32, 8, 32, 64
"""Samples of a batch of pictures and of one of clips; clips made at once; samples that nothing is learned from."""


def true_starts(vae: WanCodec, count: int) -> tuple[Tensor, Tensor]:
    """Return pixel frames `n f c h w` from somewhere in true clips, and their latents `n c t h w`."""
    generator = seeded(0, "encoder")
    pieces = []
    for scene in scenes_of(generator, count):
        first = generator.randrange(FRAMES - SHOWN)
        pieces.append(render(scene, torch.arange(first, first + SHOWN)))
    return labelled(vae, torch.stack(pieces))


def made_starts(shipped: Shipped, taehv: TaehvCodec, count: int) -> tuple[Tensor, Tensor]:
    """Return the same of clips that the target makes, as the TAEHV shows them."""
    generator = seeded(1, "encoder")
    torch.manual_seed(0)
    pieces = []
    while len(pieces) < count:
        heard = shipped.embed([scene.text for scene in scenes_of(generator, TOGETHER)])
        _, blocks, _ = roll_out(shipped.models["target"], shipped.vae, *heard)
        frames, _ = taehv.decode(torch.cat(blocks, dim=2))
        starts = range(generator.randrange(SHOWN), FRAMES - SHOWN, SHOWN)
        pieces += [clip[first : first + SHOWN] for clip in frames for first in starts]
    return labelled(shipped.vae, torch.stack(pieces[:count]))


def labelled(vae: WanCodec, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Return frames as bytes, with the VAE's latents of them."""
    latents = [vae.encode(part) for part in frames.split(TOGETHER)]
    return (frames * 255).round().byte(), torch.cat(latents)


def encoded(net: Taehv, frames: Tensor) -> Tensor:
    """Return the latents `b c t h w` of pixel frames `b f c h w`, with gradients; see `TaehvCodec.encode`."""
    assert net.encoder is not None
    video = torch.cat([frames, frames[:, -1:].expand(-1, LEADING, -1, -1, -1)], dim=1)
    x = video.transpose(0, 1).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    made, _ = run_half(net.encoder, x, blank_memory(net.encoder, x, len(frames)), len(frames))
    return made.unflatten(0, (-1, len(frames))).permute(1, 2, 0, 3, 4)


@torch.no_grad()
def errors(net: Taehv, frames: Tensor, latents: Tensor) -> dict[str, float]:
    """Return the mean squared error of the latents of pictures, and of clips."""
    still = encoded(net, frames[:, :1].float() / 255) - latents[:, :, :1]
    clip = encoded(net, frames.float() / 255) - latents
    return {"error_picture": still.square().mean().item(), "error_clip": clip.square().mean().item()}


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and write the whole TAEHV."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--steps", type=int, default=3000)
    options.add_argument("--clips", type=int, default=2048, help="true ones, and as many made ones")
    options.add_argument("--rate", type=float, default=3e-3)
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    shipped = Shipped()
    taehv = load_vae(pocket_fast_vae())
    assert isinstance(taehv, TaehvCodec)
    with torch.no_grad():
        both = true_starts(shipped.vae, args.clips), made_starts(shipped, taehv, args.clips)
    frames, latents = (torch.cat(parts).clone() for parts in zip(*both, strict=True))
    decoder = {name: w for name, w in load_file(pocket_fast_vae()).items() if name.startswith("decoder.")}
    torch.manual_seed(0)
    order = torch.randperm(len(frames))
    held, order = order[:HELD_BACK], order[HELD_BACK:]
    net = build()
    assert net.encoder is not None
    average, log = Average(net.encoder, 0.998), Log(args.out.with_suffix(".jsonl"))
    optimiser = torch.optim.Adam(net.encoder.parameters(), lr=args.rate, betas=(0.9, 0.99))
    for step in range(args.steps):
        set_rate(optimiser, falling_rate(step, args.steps, args.rate))
        count, seen = (PICTURES, 1) if step % 4 else (STARTS, SHOWN)
        rows = order[torch.randint(len(order), (count,))]
        shown, label = frames[rows, :seen].float() / 255, latents[rows, :, : 1 + seen // 4]
        with torch.autocast("cpu", torch.bfloat16, enabled=step < 0.8 * args.steps):
            made = encoded(net, shown)
        loss = (made.float() - label).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.encoder.parameters(), 1.0)
        optimiser.step()
        average.update(net.encoder)
        if (step + 1) % 250 == 0:
            log(step=step + 1, loss=loss.item(), **errors(net, frames[held], latents[held]))
    net.encoder.load_state_dict(average.weights)
    log(step=args.steps, **errors(net, frames[held], latents[held]))
    encoder = {f"encoder.{name}": w.half().contiguous() for name, w in average.weights.items()}
    save_file(decoder | encoder, args.out)


if __name__ == "__main__":
    main()
