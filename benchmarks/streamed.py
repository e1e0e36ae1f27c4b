"""A block of the target with as many layers streamed as the plan says for cards of 24, 16 and 12 GB.

    python -m benchmarks.streamed [cuda | cpu]

Under the allocator's limit of each card: the same bits as with all layers there, the peak against the plan, seconds
a pass. On a CPU a tiny model without a limit. Prints a line of JSON for each card.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.backends import choose_attention
from sdvg_core.causal_wan.cache import CacheSlots, KVCache
from sdvg_core.causal_wan.forward import Pass, context_pass, denoise_pass, project_text
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.devices.device import DTYPES, waiting_clock
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.memory.choose import plan
from sdvg_core.memory.request import PlanRequest
from sdvg_core.memory.sizes import GB

from .models import SCALES, Random, random_wan

CARDS = (24, 16, 12)
FRAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A tree and how its passes run."""

    tree: WanTree
    ops: TorchOps
    request: PlanRequest
    device: torch.device

    @torch.inference_mode()
    def block(self) -> tuple[Tensor, float]:
        """Make a block of two steps after a context pass; return its velocity, and the seconds of the last step."""
        request = self.request
        rows, columns = request.height // 8, request.width // 8
        grid = (FRAMES, rows // 2, columns // 2)
        draw = Random(self.device, 3).normal
        x = draw((1, 16, FRAMES, rows, columns))
        sizes = request.target.config
        text = project_text(self.tree, draw((1, sizes.text_len, sizes.text_dim)), self.ops)
        cache = KVCache(self.tree, 2 * FRAMES, grid[1] * grid[2], self.ops.dtype, self.device)
        clock = waiting_clock(self.device)

        def at(first: int) -> Pass:
            slots = CacheSlots(first, tuple(range(first, first + FRAMES)), first + FRAMES)
            return Pass(text, cache, slots, self.ops.rope(self.tree, first, grid, self.device), self.ops)

        context_pass(self.tree, x, at(0))
        denoise_pass(self.tree, x, 1000.0, at(FRAMES))
        began = clock()
        velocity = denoise_pass(self.tree, x, 937.5, at(FRAMES))
        return velocity.cpu(), clock() - began


def on_card(trial: Trial, gb: int, whole: Tensor) -> dict[str, Any]:
    """Return what a block takes on a card of `gb`, with the layers in main memory that the plan puts there."""
    gpu = trial.device.type == "cuda"
    # Of 12 GB a VAE and eight bits a weight leave too little for this model in bfloat16.
    request = replace(trial.request, vae="tae") if gb < CARDS[1] else trial.request
    planned = plan(gb, request)
    layers = list(trial.tree.blocks)
    count = min(planned.streamed.get("target", 0), len(layers)) if gpu else len(layers) - 1
    if not count:
        return {"card_gb": gb, "fits": planned.fits, "streamed_layers": 0}
    stream = LayerStream(layers[-count:], trial.device)
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.get_device_properties(trial.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gb * GB / total))
    try:
        trial.block()
        velocity, seconds = trial.block()
        return {
            "card_gb": gb,
            "fits": planned.fits,
            "streamed_layers": count,
            "copied_bytes": stream.bytes,
            "same_bits": torch.equal(velocity, whole),
            "seconds": seconds,
            "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None,
        }
    except torch.OutOfMemoryError as error:
        return {"card_gb": gb, "fits": planned.fits, "streamed_layers": count, "failed": str(error)[:200]}
    finally:
        if gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
        for layer in layers[-count:]:  # back onto the device
            layer._forward_pre_hooks.clear()
            layer._forward_hooks.clear()
            layer.to(trial.device)


def main() -> int:
    """Print what each card takes."""
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    request = replace(SCALES["tiny" if device.type == "cpu" else "full"], where="on the command line")
    dtype = DTYPES[request.dtype]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        tree = random_wan(request.target.config, dtype, Random(device, 0))
        kernel = choose_attention("auto", device=device, dtype=dtype, head_dim=tree.head_dim)
        trial = Trial(tree=tree, ops=TorchOps(dtype, kernel), request=request, device=device)
        trial.block()
        whole, seconds = trial.block()
        print(json.dumps({"benchmark": "sdvg streamed", "layout": "all there", "seconds": seconds}), flush=True)
        for gb in CARDS:
            print(json.dumps({"benchmark": "sdvg streamed", **on_card(trial, gb, whole)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
