"""From loaded transformers, codec and scorer to an engine: the only place that builds generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..devices.device import device_clock
from ..engine.framewise import FramewiseAdapter
from ..engine.protocols import Absent, BlockGenerator, Engine, Scorer, VideoCodec
from .attention import TorchOps
from .context import AnchorEncoder, ContextPolicy, Recompute
from .forward import PLAIN, Stages
from .generator import CausalWanGenerator, go_on
from .incremental import Incremental
from .presets import Preset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wan:
    """A loaded transformer and how to run it. It is kept between videos; the generator over it is not.

    `tree`: ours or a host's, with the checkpoint's own names. `kv_fp8`: keep keys and values in float8_e4m3fn.
    `stages`: of every layer, perhaps compiled. `control`: its control module, None for none. `copied`: bytes of the
    layers in main memory, which are copied over in every pass.
    """

    tree: Any
    ops: TorchOps
    preset: Preset
    device: torch.device
    kv_fp8: bool = False
    stages: Stages = PLAIN
    control: Any = None
    copied: int = 0


def build_engine(
    drafter: Wan | BlockGenerator | None,
    target: Wan | BlockGenerator | None,
    codec: VideoCodec,
    scorer: Scorer | None,
    *,
    judge: VideoCodec | None = None,
    before_pass: Callable[[str], None] = go_on,
    clock: Callable[[], float] | None = None,
    around_context: Callable[[ContextPolicy], ContextPolicy] = lambda policy: policy,
) -> Engine:
    """Return the engine for one video; nothing is loaded. The models' K/V caches last as long as the engine.

    `drafter`, `target`: one of them may be None if no block will ask for it; what is no `Wan` is taken as it is.
    `codec`, `judge`: see `Engine`.
    A drafter with smaller blocks than the target's makes several for one of them. `before_pass`: called with
    "context" or "denoise" before every forward pass; may raise to interrupt. `clock`: for both models; None waits
    for each one's device. `around_context`: wraps their context policies.
    """
    encoder = AnchorEncoder(codec.encode)

    def build(name: str, wan: Wan | BlockGenerator, *, undo: int) -> BlockGenerator:
        if not isinstance(wan, Wan):
            return wan
        return CausalWanGenerator(
            wan.tree,
            name=name,
            ops=wan.ops,
            context=around_context(context_policy(wan.preset, encoder, undo=undo)),
            schedule=wan.preset.steps,
            first_schedule=wan.preset.first_steps,
            block_frames=wan.preset.block_frames,
            device=wan.device,
            kv_fp8=wan.kv_fp8,
            stages=wan.stages,
            control=wan.control,
            before_pass=before_pass,
            clock=clock or device_clock(wan.device),
        )

    sizes = [
        one.preset.block_frames if isinstance(one, Wan) else one.block_frames for one in (target, drafter) if one
    ]
    sub_blocks = max(sizes[0] // sizes[-1], 1)
    # The first sub-block of a draft writes over what a dropped draft leaves; the others must be taken back.
    drafts: BlockGenerator | None = build("drafter", drafter, undo=sub_blocks - 1) if drafter else None
    targets: BlockGenerator | None = build("target", target, undo=0) if target else None
    if drafts and targets and drafts.block_frames != targets.block_frames:
        drafts = FramewiseAdapter(drafts, targets.block_frames)
    there = drafts or targets
    assert there is not None, "a run has at least one model"
    return Engine(
        drafter=drafts or Absent("drafter", there),
        target=targets or Absent("target", there),
        codec=codec,
        scorer=scorer,
        judge=judge,
    )


def context_policy(preset: Preset, encoder: AnchorEncoder, *, undo: int = 0) -> ContextPolicy:
    """Return the context policy of a preset, for one generator only. `undo`: see `Incremental`."""
    if preset.policy == "recompute":
        first = preset.keep_first_frame
        return Recompute(encode_anchor=encoder, frames=preset.context_frames, keep_first=first)
    return Incremental(
        window=preset.window,
        sink=preset.kept_frames,
        relative=preset.rotates_later,
        means=preset.context_memory == "memrope",
        recache=preset.recache,
        flush=preset.flush,
        undo=undo,
    )
