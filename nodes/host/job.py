"""The sampler's inputs, unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...sdvg_core.devices.execution import Execution
from ...sdvg_core.engine.speculate import DrafterContext
from ..sockets import PromptEntry, RouterValue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One run of the sampler node. `execution`: only the part ComfyUI leaves to us, kv_dtype and overlap."""

    drafter: Any
    target: Any
    vae: Any
    router: RouterValue
    prompts: tuple[PromptEntry, ...]
    width: int
    height: int
    blocks: int
    seed: int
    schedule: str | None = None
    drafter_context: DrafterContext = "committed"
    execution: Execution = field(default_factory=Execution)
    continue_from: dict[str, Any] | None = None
    start_image: Tensor | None = None
    node_id: str | None = None
    workflow_id: str | None = None
