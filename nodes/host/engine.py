"""The parts of a run, made of what is wired into the sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...sdvg_core.causal_wan.context import AnchorEncoder, Incremental, Recompute
from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.causal_wan.schedule import get_schedule
from ...sdvg_core.engine.parts import Engine
from ...sdvg_core.errors import BadInput
from ...sdvg_core.pipeline.loading import device_clock
from .model import comfy_generator
from .progress import NodeProgress
from .vae import ComfyCodec

if TYPE_CHECKING:
    from .run import Job


def build_engine(
    job: Job,
    drafter: Preset,
    target: Preset,
    codec: ComfyCodec,
    progress: NodeProgress,
) -> Engine:
    """Return the engine over what is wired in; nothing is loaded. Each has its own keys and values."""
    encoder = AnchorEncoder(codec.encode)

    def build(patcher: Any, name: str, preset: Preset) -> Any:
        context = (
            Recompute(encode_anchor=encoder, frames=preset.context_frames)
            if preset.policy == "recompute"
            # Only a draft that was begun ahead may be on a wrong guess.
            else Incremental(window=preset.window, sink=preset.sink, undo=job.overlap and name == "drafter")
        )
        return comfy_generator(
            patcher,
            name=name,
            context=context,
            schedule=get_schedule(preset.schedule),
            block_frames=preset.block_frames,
            kv_fp8=job.kv_fp8,
            before_pass=progress.before_pass,
            clock=device_clock(patcher.load_device),
        )

    return Engine(
        drafter=build(job.drafter, "drafter", drafter),
        target=build(job.target, "target", target),
        codec=codec,
        scorer=job.router.scorer or NoScorer(),
    )


class NoScorer:
    """Stands where the policy never looks."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Never called by a policy that needs no scores."""
        raise BadInput("expected a reward model for this policy, but none is wired in; choose a reward_file")

    def describe(self) -> dict[str, Any]:
        """Return an empty description."""
        return {"name": "none", "notes": ()}
