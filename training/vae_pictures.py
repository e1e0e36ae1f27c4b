"""Make pictures as they come out of the VAE, from good and bad latents, for the reward model to learn from.

    python -m training.vae_pictures [--clips 1500] [--seed 0]

Clips of training prompts go through the VAE; on the way their latents stay as they are, or get noise, or are mixed
with those of another moment or of another scene, in all strengths. Written as train_reward reads them.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from research.world import draw_scene, render

from .common import WORK, seeded
from .scene_changes import OPTIONS, changed
from .train_vae import build

FRAMES = 9
KEPT = 5
"""Of the frames of a clip, how many are kept."""


def spoiled(z: Tensor, moment: Tensor, other: Tensor, generator: random.Random) -> Tensor:
    """Return latents that are worse by a random amount; `moment`, `other`: latents to mix in."""
    strength = generator.random()
    kind = generator.choice(("as it is", "noise", "smooth noise", "moment", "scene", "moment and noise"))
    if "moment" in kind:
        z = z.lerp(moment, 0.7 * strength)
    if kind == "scene":
        z = z.lerp(other, strength)
    if kind == "smooth noise":
        coarse = torch.randn(1, z.shape[1], 1, 3, 3)
        size = (1, *z.shape[-2:])
        z = z + z.std() * 1.5 * strength * torch.nn.functional.interpolate(coarse, size, mode="trilinear")
    if kind.endswith("noise") and kind != "smooth noise":
        z = z + z.std() * 0.8 * strength**2 * torch.randn_like(z)
    return z


@torch.no_grad()
def pictures(vae: Any, generator: random.Random) -> tuple[str, Tensor]:
    """Return a training prompt and pictures of it, `n 3 h w` in [0, 1]."""
    scene = draw_scene(generator, held_out=False)
    start = generator.choice((0.0, generator.uniform(0, 96)))
    later = generator.uniform(0, 96)
    wrong = changed(scene, generator.choice(("ground", *OPTIONS)), generator)
    times = torch.arange(FRAMES, dtype=torch.float32)
    clips = [render(scene, start + times), render(scene, later + times), render(wrong, start + times)]
    videos = torch.stack(clips).transpose(1, 2) * 2 - 1
    z, moment, other = vae.encode(videos).latent_dist.mean.split(1)
    made = vae.decode(spoiled(z, moment, other, generator)).sample[0].transpose(0, 1)
    return scene.text, made[generator.sample(range(FRAMES), KEPT)].clamp(-1, 1) / 2 + 0.5


def load_vae(path: Path) -> Any:
    """Return the VAE of a file of `train_vae`, finished or a checkpoint."""
    saved = torch.load(path, weights_only=True)
    vae = build()
    vae.load_state_dict(saved.get("average", saved["weights"]))
    return vae.eval()


def write_pictures(path: Path, prompts: list[str], frames: Tensor) -> None:
    """Write pictures, `n 3 h w` in [0, 1], with one prompt each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"frames": (frames * 255).round().to(torch.uint8)}, path, {"prompts": "\n".join(prompts)})


def main() -> None:
    """Make them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clips", type=int, default=1500)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--vae", type=Path, default=WORK / "vae.pt")
    options.add_argument("--out", type=Path, default=WORK / "rollouts" / "vae.safetensors")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    vae = load_vae(args.vae)
    prompts: list[str] = []
    frames = []
    for number in range(args.clips):
        generator = seeded(args.seed, "vae pictures", number)
        torch.manual_seed(generator.getrandbits(63))
        prompt, made = pictures(vae, generator)
        prompts += [prompt] * len(made)
        frames.append(made)
    write_pictures(args.out, prompts, torch.cat(frames))


if __name__ == "__main__":
    main()
