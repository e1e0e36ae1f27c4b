"""Go on training the decoder of the shipped TAEHV, so that a clip's first frame is as clean as the others.

    python -m training.refine_taehv [--starts 640] [--clips 3] [--steps 1500] [--seed 0]

The first frame has nothing before it, and in whole clips it is one of 105. Here half of a step are first blocks that
the target made, a new one each step, whose first frame counts four times; the other half are whole clips, so that
nothing later is forgotten. Runs in the tree of aef9fa63, which has what it imports. Writes `taehv.pt` for `training.export --taehv`. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from research.videos import StudyModels, StudyOptions, load_study_models
from research.world import draw_scene
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import LEADING, Memory, Taehv, blank_memory, load_taehv, run_half
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Condition
from sdvg_core.models.loading import encode_prompts
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set

from .common import WORK, Average, Log, falling_rate, save_checkpoint, seeded, set_rate
from .taehv_clips import CLIPS, as_bytes, made_clips
from .train_taehv import HELD_BACK, Clip, Lanes, limited, loss_of, psnr, read_clips, weights_of

TARGET_ONLY = RouterConfig(policy="always-target")
SHARD = 64
"""First blocks of a shard."""
STARTS_OF_A_STEP = 8
LANES = 2
FIRST_FRAME = 4.0
"""How many times a first frame counts."""


def make_starts(models: StudyModels, number: int, seed: int) -> dict[str, Any]:
    """Return latents `b c t h w` and frames `b f c h w` of first blocks by the target, as the VAE shows them."""
    generator = seeded(seed, "starts", number)
    prompts = [draw_scene(generator, held_out=False).text for _ in range(SHARD)]
    embeddings = encode_prompts(trained_set(), prompts, pocket_options())
    vae = load_vae(trained_set().vae, layers="planes")
    latents: list[Tensor] = []
    frames: list[Tensor] = []
    for prompt in prompts:
        run = models.run(Condition(embeddings[prompt], prompt, prompt), generator.getrandbits(31))
        plan = replace(run.plan, router=TARGET_ONLY, spans=run.plan.spans[:1])
        (emitted,) = replace(run, plan=plan).blocks()
        latents.append(emitted.block.latents[0].half())
        frames.append(as_bytes(vae.decode(emitted.block.latents.float())[0][0]))
    return {"latents": torch.stack(latents), "frames": torch.stack(frames)}


def make_clips(starts: int, clips: int, seed: int) -> None:
    """Write the shards that are not there yet."""
    models = load_study_models(StudyOptions(files=trained_set(), load=pocket_options()))
    for number in range(-(-starts // SHARD)):
        path = CLIPS / f"start-{number:05d}.pt"
        if not path.exists():
            save_checkpoint(path, **make_starts(models, number, seed))
    for number in range(clips):
        path = CLIPS / f"made-{number:05d}.pt"
        if not path.exists():
            save_checkpoint(path, **made_clips(models, number, seed))


class TaughtLanes(Lanes):
    """Whole clips, each mirrored at random, that are to be shown as the shipped decoder shows them."""

    def __init__(self, clips: list[Clip], teacher: Taehv) -> None:
        super().__init__(clips, clips, LANES)
        self._teacher = teacher

    @torch.no_grad()
    def _draw(self, generator: random.Random) -> Clip:
        latents, _ = super()._draw(generator)
        latents = latents.flip([axis for axis in (2, 3) if generator.random() < 0.5])
        z = limited(latents.transpose(0, 1).float())
        shown, _ = run_half(self._teacher.decoder, z, blank_memory(self._teacher.decoder, z[:1], 1), 1)
        return latents, as_bytes(shown.clamp(0, 1))


def loss_of_starts(net: Taehv, starts: list[Clip], exact: bool) -> Tensor:
    """Return the loss of first blocks, each with an empty memory. `exact`: in float32, not bfloat16."""
    latents = torch.stack([latents.transpose(0, 1) for latents, _ in starts], dim=1)
    z = limited(latents.flatten(0, 1).float())
    frames = torch.stack([shown for _, shown in starts], dim=1).flatten(0, 1).float() / 255
    with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
        shown, _ = run_half(net.decoder, z, blank_memory(net.decoder, z, len(starts)), len(starts))
    error = shown.float() - frames
    weights = weights_of(frames).unflatten(0, (-1, len(starts)))
    weights[:LEADING] = 0
    weights[LEADING] *= FIRST_FRAME
    return (weights.flatten(0, 1) * (error.abs() + error.square())).mean()


@torch.no_grad()
def first_frame_psnr(net: Taehv, starts: list[Clip]) -> float:
    """Return how close the first frame is to the VAE's, in dB."""
    decibels = []
    for latents, frames in starts:
        z = limited(latents.transpose(0, 1).float())
        shown, _ = run_half(net.decoder, z, blank_memory(net.decoder, z[:1], 1), 1)
        error = (shown.clamp(0, 1) - frames.float() / 255)[LEADING].square().mean()
        decibels.append(-10 * error.log10())
    return float(torch.stack(decibels).mean())


def main() -> None:
    """Make the clips, then train, with a checkpoint to go on from every 250 steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--starts", type=int, default=640, help="first blocks to learn from")
    options.add_argument("--clips", type=int, default=3, help="shards of whole clips, of 16 each")
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--exact", type=float, default=0.15, help="share of the steps, the last, in float32")
    options.add_argument("--rate", type=float, default=5e-4)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    make_clips(args.starts, args.clips, args.seed)
    starts, made = read_clips(CLIPS, "start"), read_clips(CLIPS, "made")
    learned, held_back = starts[:-SHARD], starts[-SHARD:]

    net = load_taehv(pocket_fast_vae(), channels_last=True).net.float().requires_grad_(True)
    average = Average(net, 0.998)
    optimiser = torch.optim.Adam(net.decoder.parameters(), lr=args.rate, betas=(0.9, 0.99))
    checkpoint, log, first = WORK / "taehv_refined.ckpt", Log(WORK / "taehv_refined.jsonl"), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(saved["weights"])
        optimiser.load_state_dict(saved["optimiser"])
        average.weights, first = saved["average"], saved["step"]
    log(step=first, first_frame=first_frame_psnr(net, held_back), whole_clips=psnr(net, made[-HELD_BACK:]))
    teacher = load_taehv(pocket_fast_vae(), channels_last=True).net.float()
    lanes = TaughtLanes(made[:-HELD_BACK], teacher)
    memory: Memory | None = None
    for step in range(first, args.steps):
        generator = seeded(args.seed, "refine", step)
        set_rate(optimiser, falling_rate(step, args.steps, args.rate))
        exact = step >= (1 - args.exact) * args.steps
        z, frames, begins = lanes.next(generator)
        memory, loss = loss_of(net, limited(z), frames, begins, memory, exact)
        loss = loss + loss_of_starts(net, generator.sample(learned, STARTS_OF_A_STEP), exact)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.decoder.parameters(), 1.0)
        optimiser.step()
        average.update(net)
        if (step + 1) % 50 == 0:
            log(step=step + 1, loss=loss.item())
        if (step + 1) % 250 == 0:
            weights = {name: w.clone() for name, w in net.state_dict().items()}
            save_checkpoint(
                checkpoint,
                weights=weights,
                optimiser=optimiser.state_dict(),
                average=average.weights,
                step=step + 1,
            )
            net.load_state_dict(average.weights)
            log(
                step=step + 1,
                first_frame=first_frame_psnr(net, held_back),
                whole_clips=psnr(net, made[-HELD_BACK:]),
            )
            net.load_state_dict(weights)
    save_checkpoint(WORK / "taehv.pt", weights=average.weights)


if __name__ == "__main__":
    main()
