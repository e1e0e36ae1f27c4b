"""The sampler's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ...sdvg_core.decoders import StatedKind
from ...sdvg_core.devices.execution import AUTO, Execution
from ...sdvg_core.engine.roles import Roles
from ...sdvg_core.engine.types import DrafterContext
from ..sockets import PromptEntry, RouterValue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One run of the sampler node. `execution`: only the part ComfyUI leaves to us, kv_dtype and overlap.

    `drafter`, `target`: None if it is not wired in, or if the run will not ask for it. `judge_vae`: what decodes drafts,
    None for the VAE. `tae_kind`: which latents a TAEHV takes. `schedules`: by role, None for
    the preset's. `reuse_bytes`: of host memory for what later runs may use again.
    """

    drafter: Any
    target: Any
    vae: Any
    judge_vae: Any = None
    tae_kind: StatedKind = AUTO
    router: RouterValue
    prompts: tuple[PromptEntry, ...]
    width: int
    height: int
    blocks: int
    seed: int
    schedules: Mapping[str, str | None] = field(default_factory=dict)
    directions: str = ""
    takes: str = ""
    reuse_bytes: int = 0
    drafter_context: DrafterContext = "committed"
    execution: Execution = field(default_factory=Execution)
    continue_from: dict[str, Any] | None = None
    start_image: Tensor | None = None
    node_id: str | None = None
    workflow_id: str | None = None

    @property
    def models(self) -> dict[str, Any]:
        """The MODELs by role, the target first."""
        wired = {"target": self.target, "drafter": self.drafter}
        return {role: patcher for role, patcher in wired.items() if patcher is not None}

    @property
    def decoders(self) -> dict[str, Any]:
        """The VAEs by role: the one that makes the video, and perhaps a judge."""
        return {"vae": self.vae, **({"judge": self.judge_vae} if self.judge_vae is not None else {})}

    @property
    def main(self) -> Any:
        """The MODEL that tells what both have in common."""
        return next(iter(self.models.values()))

    def only(self, asked: Roles) -> Job:
        """Return the job without the MODELs that its run will not ask for."""
        return replace(
            self,
            drafter=self.drafter if asked.drafter else None,
            target=self.target if asked.target else None,
            router=self.router if asked.scorer else replace(self.router, scorer=None),
        )
