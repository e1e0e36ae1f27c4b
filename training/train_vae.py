"""Train the pocket VAE: the Wan 2.1 architecture at base width 8, on clips of the small world.

    python -m training.train_vae [--steps 6500] [--seed 0]

Time is mixed only where the architecture changes its rate, and at both ends: in the residual blocks the weights
that look at earlier frames are zero. With them, what a frame saw reached back over a hundred frames to the padding
at the clip's start, and clips longer than the trained ones fell apart (training/LOG.md).

L1 + L2 on pixels, those of things weighted up; noise on the latents, so that small errors of a transformer stay
small in the picture. Most steps see 32 x 32 crops; then the encoder is frozen, and the decoder goes on alone with
whole frames, since padding at a crop's border is not what a whole frame sees. From the freezing on the latents are
what they will be, so the transformers' training can start. Their statistics are folded into the two 1x1x1
convolutions around them, so that Wan's published mean and deviation normalise them and no loader needs to know.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock
from torch import Tensor, nn

from research.world import centre, draw_scene, render_with_mask
from sdvg_core.decoders.planes import make_planar
from sdvg_core.decoders.wan_vae import WAN_MEAN, WAN_STD
from sdvg_core.pocket.world import SIZE

from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate

BASE = 8
SHAPES = ((1, 16), (1, 16), (1, 16), (9, 8), (17, 4), (33, 2))
"""(pixel frames, clips) of a step; clips count for 32 x 32 crops, a third as many for whole frames."""


def build() -> Any:
    """Return an untrained VAE whose residual blocks see each frame alone, laid out for speed on a CPU."""
    vae = AutoencoderKLWan(
        base_dim=BASE, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, temperal_downsample=[False, True, True]
    )
    for module in vae.modules():
        if isinstance(module, nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)
        if isinstance(module, WanResidualBlock):
            forget_earlier_frames(module)
            module.forward = MethodType(_frame_by_frame, module)
    make_planar(vae)
    return vae


@torch.no_grad()
def forget_earlier_frames(block: Any) -> None:
    """Fold the weights of earlier frames into those of the newest, which changes nothing where nothing moves."""
    for conv in (block.conv1, block.conv2):
        conv.weight[:, :, 2] = conv.weight.sum(dim=2)
        conv.weight[:, :, :2] = 0


def _frame_by_frame(block: Any, x: Tensor, feat_cache: object = None, feat_idx: list[int] | None = None) -> Tensor:
    """Do what a residual block does with such weights, without the two thirds that are zero."""
    kept = block.conv_shortcut(x)
    for norm, conv in ((block.norm1, block.conv1), (block.norm2, block.conv2)):
        frames = F.silu(norm(x)).transpose(1, 2).flatten(0, 1)
        frames = F.conv2d(frames, conv.weight[:, :, 2], conv.bias, padding=1)
        x = frames.unflatten(0, (len(x), -1)).transpose(1, 2)
        if feat_idx is not None:
            feat_idx[0] += 1
    return x + kept


def clips(generator: random.Random, count: int, length: int, crop: int, held_out: bool) -> tuple[Tensor, Tensor]:
    """Return clips `b c f h w` in [-1, 1] and the weights of their pixels `b 1 f h w`, cut around things."""
    videos, weights = [], []
    for _ in range(count):
        scene = draw_scene(generator, held_out=held_out)
        start = generator.choice((0.0, generator.uniform(0, 110)))
        times = start + torch.arange(length, dtype=torch.float32)
        frames, mask = render_with_mask(scene, times)
        thing = generator.choice(scene.things)
        across, down = (int(axis[length // 2]) for axis in centre(thing, times))
        left, top = (
            min(max(middle - crop // 2 + generator.randint(-12, 12), 0), SIZE - crop) for middle in (across, down)
        )
        cut = (slice(None), slice(None), slice(top, top + crop), slice(left, left + crop))
        videos.append(frames[cut].transpose(0, 1) * 2 - 1)
        weights.append(1 + 2 * mask[cut].transpose(0, 1))
    return torch.stack(videos), torch.stack(weights)


def psnr(vae: Any, seed: int = 99, length: int = 17) -> float:
    """Return the PSNR in dB of whole held-out clips."""
    videos, _ = clips(seeded(seed, "held out"), 8, length, SIZE, held_out=True)
    with torch.no_grad():
        decoded = vae.decode(vae.encode(videos).latent_dist.mean).sample.clamp(-1, 1)
    errors = (decoded - videos).square().mean(dim=(1, 2, 3, 4)) / 4
    return float((-10 * errors.log10()).mean())


def fold_statistics(vae: Any, seed: int) -> None:
    """Rescale the latents so that Wan's published mean and deviation are theirs, without changing any picture."""
    videos, _ = clips(seeded(seed, "statistics"), 96, 17, SIZE, held_out=False)
    with torch.no_grad():
        z = torch.cat([vae.encode(part).latent_dist.mean for part in videos.split(8)])
        mean, std = z.mean(dim=(0, 2, 3, 4)), z.std(dim=(0, 2, 3, 4))
        wanted_mean, wanted_std = torch.tensor(WAN_MEAN), torch.tensor(WAN_STD)
        gain = wanted_std / std
        into, out = vae.quant_conv, vae.post_quant_conv
        into.weight[:16] *= gain.view(-1, 1, 1, 1, 1)
        into.bias[:16] = (into.bias[:16] - mean) * gain + wanted_mean
        out.bias += (out.weight[..., 0, 0, 0] * (mean - wanted_mean / gain)).sum(dim=1)
        out.weight /= gain.view(1, -1, 1, 1, 1)


def main() -> None:
    """Train, with a checkpoint to go on from every 250 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=6500)
    options.add_argument("--freeze-at", type=int, default=4500, help="step from which the encoder stays as it is")
    options.add_argument("--rate", type=float, default=3e-3)
    options.add_argument("--noise", type=float, default=0.1, help="deviation of the noise on the latents")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--start", type=Path, help="weights to start from, of an earlier training")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    torch.manual_seed(args.seed)
    vae = build()
    if args.start:
        vae.load_state_dict(torch.load(args.start, weights_only=True)["weights"])
        for module in vae.modules():
            if isinstance(module, WanResidualBlock):
                forget_earlier_frames(module)
    average = Average(vae, 0.998)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=args.rate, betas=(0.9, 0.99), weight_decay=1e-4)
    checkpoint, log, first = WORK / "vae.ckpt", Log(WORK / "vae.jsonl"), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        vae.load_state_dict(saved["weights"])
        optimiser.load_state_dict(saved["optimiser"])
        average.weights, first = saved["average"], saved["step"]

    for step in range(first, args.steps):
        frozen = step >= args.freeze_at
        if step == args.freeze_at:
            vae.load_state_dict(average.weights)
            fold_statistics(vae, args.seed)
            average = Average(vae, 0.998)
            save_checkpoint(WORK / "vae.pt", weights=vae.state_dict())
        if frozen:
            vae.encoder.requires_grad_(False)
            vae.quant_conv.requires_grad_(False)
        generator = seeded(args.seed, "vae", step)
        torch.manual_seed(generator.getrandbits(63))
        length, count = generator.choice(SHAPES)
        videos, weights = clips(
            generator, max(1, count // 3) if frozen else count, length, SIZE if frozen else 32, False
        )
        set_rate(optimiser, falling_rate(step, args.steps, args.rate))
        videos = videos.contiguous(memory_format=torch.channels_last_3d)
        z = vae.encode(videos).latent_dist.mean
        unit = torch.tensor(WAN_STD).view(1, -1, 1, 1, 1) if frozen else 1.0
        decoded = vae.decode(z + args.noise * unit * torch.randn_like(z)).sample
        error = decoded - videos
        loss = (weights * (error.abs() + error.square())).mean()
        if not frozen:
            loss = loss + 1e-3 * z.square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        average.update(vae)
        if (step + 1) % 50 == 0:
            log(step=step + 1, loss=loss.item(), deviation=z.std().item())
        if (step + 1) % 250 == 0:
            now = {name: w.clone() for name, w in vae.state_dict().items()}
            save_checkpoint(
                checkpoint, weights=now, optimiser=optimiser.state_dict(), average=average.weights, step=step + 1
            )
            vae.load_state_dict(average.weights)
            log(step=step + 1, held_out_psnr=psnr(vae), of_long_clips=psnr(vae, length=65))
            vae.load_state_dict(now)

    save_checkpoint(WORK / "vae.pt", weights=average.weights)


if __name__ == "__main__":
    main()
