"""The cost of passes, by one measured table of weights.

Counted operations would not predict seconds: a decoder reaches a quarter of a GPU's peak rate, a transformer half.
The table is of one pair on one GPU, so that a budget gives the same video on every device and with every decoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..causal_wan.presets import Preset

WEIGHTED_FRAMES = 3
"""Latent frames of a pass and a decode in `WEIGHTS`."""
WEIGHTS: Mapping[str, float] = {
    "drafter_denoising": 0.0301,
    "drafter_context": 0.0227,
    "target_denoising": 0.1839,
    "target_context": 0.1514,
    "decodes": 0.1042,
    "encodes": 0.0088,
    "scores": 0.0037,
}
"""The cost of each kind of pass in target blocks: four denoising steps, a context pass, a decode, an encode.

Named as in `RunReport.passes`; `encodes` and `scores` are of one pixel frame. From seconds on one H200 (26 November
2026, benchmarks/LOG.md): random weights of 1.3B and 14B, 832x480, nine blocks, compiled, bfloat16, the Wan VAE as
planes in float16, the scorer in float32, torch 2.11. With one draft of eight rejected, 32 draft steps take 1.37 s,
10 decodes 1.48, the scores of 96 frames 0.50, all contexts and encodes 0.56; a later block of the target's takes
1.42 s. An encode was not timed apart: 12.5 ms are taken.
"""


def pass_weights(presets: Mapping[str, Preset]) -> dict[str, float]:
    """Return `WEIGHTS` scaled to the block sizes of the models, by role."""
    frames = {role: preset.block_frames for role, preset in presets.items()}
    frames["decodes"] = frames["target"]
    shares = {name: frames.get(name.split("_")[0], WEIGHTED_FRAMES) / WEIGHTED_FRAMES for name in WEIGHTS}
    return {name: weight * shares[name] for name, weight in WEIGHTS.items()}


def context_passes(preset: Preset) -> int:
    """Return the number of context passes before a block."""
    return -(-preset.context_frames // preset.block_frames) if preset.policy == "recompute" else 1
