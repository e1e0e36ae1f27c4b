"""Make `taehv.json`: what ComfyUI's own TAEHV makes of our latents and frames, with the published sizes.

It needs ComfyUI's environment and its checkout in the path:

    PYTHONPATH=~/comfy/ComfyUI python tests/golden/make_taehv_golden.py

Weights are random, from a seed. Its two ways through a clip, all frames at once and one by one, must agree.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from taehv_cases import Array, frames, kept, latents, random_weight

GOLDEN = Path(__file__).with_name("taehv.json")
AGREE = 1e-5


def build() -> Any:
    """Return ComfyUI's module with the case's weights. The sizes are its own, which are the published ones."""
    sys.argv = [sys.argv[0], "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    from comfy.taesd.taehv import TAEHV

    module = TAEHV(latent_channels=16, latent_format=None).eval()
    weights = {name: random_weight(name, tuple(t.shape)) for name, t in module.state_dict().items()}
    module.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    return module


def results(module: Any) -> dict[str, Array]:
    """Return the decoded frames `b f c h w`, not yet clamped, and the encoded latents `b c t h w`."""
    made = []
    for module.parallel in (True, False):
        with torch.inference_mode():
            decoded = module.decode(torch.from_numpy(latents())).movedim(1, 2)
            encoded = module.encode(torch.from_numpy(frames()).movedim(2, 1))
        made.append({"decoded": decoded.numpy(), "encoded": encoded.numpy()})
    one, other = made
    for name in one:
        assert np.abs(one[name] - other[name]).max() < AGREE, name
    return one


def main() -> None:
    from comfyui_version import __version__ as comfyui

    made = results(build())
    golden = {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__, "comfyui": comfyui},
        **{name: {"shape": list(result.shape), "numbers": kept(result)} for name, result in made.items()},
    }
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
