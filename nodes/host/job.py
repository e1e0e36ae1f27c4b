"""The sampler's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.utils
from torch import Tensor

from ...sdvg_core.causal_wan.header import WanHeader
from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.decoders import StatedKind
from ...sdvg_core.devices.execution import AUTO, Execution
from ...sdvg_core.engine.plan import Lead, ModelSet
from ...sdvg_core.files.footage import Footage
from ...sdvg_core.models.headers import Headers
from ...sdvg_core.request.request import VideoRequest
from ..sockets import PICTURE, RESTYLE, PromptEntry, RouterValue, StartValue
from .model import CONTROL, config_of, origin_of, preset_of
from .vae import header_of


@dataclass(frozen=True, slots=True, eq=False)
class KeptBlocks:
    """The first `blocks` blocks of a run of `width` x `height` pixels: normalised latents `b c t h w`.

    `lead`: which of their latent frames no model made.
    """

    blocks: int
    digest: str
    latents: Tensor
    width: int
    height: int
    lead: Lead


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One run of the sampler node. `execution`: only the part ComfyUI leaves to us, kv_dtype.

    `drafter`, `target`: None if it is not wired in, or if the run will not ask for it. `tae_kind`: which latents a TAEHV takes. `schedules`: by role, where it is not the preset's.
    `draft_steps`: after how many steps the drafter stops; 0 for the preset's.
    `reuse_bytes`: of host memory for results that later runs may use. `notes`: on inputs that have no effect.
    `request`: what its widgets say, without router and start. `kept`: blocks of an earlier run; the
    request is then for those after them.
    `until_block`: the last of the node's blocks that is made now; 0 for all. `controlled`: whether the conditioning has a
    control. `prompt_id`, `signature`: of the prompt in API form, for the page.
    """

    drafter: Any = None
    target: Any = None
    vae: Any
    tae_kind: StatedKind = AUTO
    router: RouterValue
    prompts: tuple[PromptEntry, ...]
    request: VideoRequest
    schedules: Mapping[str, str] = field(default_factory=dict)
    draft_steps: int = 0
    reuse_bytes: int = 0
    notes: tuple[str, ...] = ()
    execution: Execution = field(default_factory=Execution)
    continue_from: dict[str, Any] | None = None
    start_image: Tensor | None = None
    start: StartValue | None = None
    kept: KeptBlocks | None = None
    until_block: int = 0
    controlled: bool = False
    node_id: str | None = None
    workflow_id: str | None = None
    prompt_id: str | None = None
    signature: dict[str, Any] | None = None

    @property
    def models(self) -> dict[str, Any]:
        """The MODELs by role, the target first."""
        wired = {"target": self.target, "drafter": self.drafter}
        return {role: patcher for role, patcher in wired.items() if patcher is not None}

    @property
    def presets(self) -> dict[str, Preset]:
        """The presets of the MODELs, each with the schedule and the draft steps that the node states."""
        presets = {role: preset_of(patcher) for role, patcher in self.models.items()}
        changed = {role: replace(p, schedule=self.schedules.get(role, p.schedule)) for role, p in presets.items()}
        if self.draft_steps and "drafter" in changed:
            changed["drafter"] = replace(changed["drafter"], draft_steps=self.draft_steps)
        return changed

    @property
    def headers(self) -> Headers:
        """What is known of its models before a weight is used."""
        presets = self.presets
        controls = self.controls
        return Headers(
            models={
                role: WanHeader(
                    config=config_of(patcher.model.diffusion_model),
                    preset=presets[role],
                    weights=(id(patcher.model), patcher.patches_uuid),
                    notes=origin_of(patcher).notes,
                    control_blocks=len(controls[role].model.diffusion_model.vace_blocks) if role in controls else 0,
                )
                for role, patcher in self.models.items()
            },
            vae=header_of(self.vae, self.tae_kind),
            scorer=self.router.scorer is not None,
        )

    @property
    def restyles(self) -> bool:
        """True if it restyles a clip."""
        return self.start is not None and self.start.how == RESTYLE

    @property
    def continues(self) -> bool:
        """True if it continues a clip, given as latents or as frames."""
        extends = self.start is not None and self.start.how not in (PICTURE, RESTYLE)
        return self.continue_from is not None or extends

    @property
    def controls(self) -> dict[str, Any]:
        """The VACE MODELs attached to the models, by role, if the run has a control."""
        if not self.controlled:
            return {}
        attached = {role: patcher.get_attachment(CONTROL) for role, patcher in self.models.items()}
        return {role: control for role, control in attached.items() if control is not None}

    @property
    def main(self) -> Any:
        """The MODEL that stands for both where they agree."""
        return next(iter(self.models.values()))

    def restrict_to(self, needed: ModelSet) -> Job:
        """Return the job without the MODELs that its run will not ask for."""
        return replace(
            self,
            drafter=self.drafter if needed.drafter else None,
            target=self.target if needed.target else None,
            router=self.router if needed.scorer else replace(self.router, scorer=None),
        )


# --- the picture that a video starts from


def fit(images: Tensor, width: int, height: int) -> Tensor:
    """Return the first of some images `f h w c` as `1 1 c h w` of that size, its sides or its top and bottom cut off."""
    image = cropped(images, width, height)[:1, :, :, :3].movedim(-1, 1).expand(-1, 3, -1, -1)
    return comfy.utils.common_upscale(image, width, height, "lanczos", "disabled")[:, None]


def start_picture(images: Tensor, width: int, height: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return a start image in the video's size, `1 1 c h w`, and notes on what was done to it."""
    return fit(images, width, height), crop_note(images, width, height)


def from_start(job: Job) -> Job:
    """Return the job with the picture of its SDVG Start as its start image."""
    if job.start is None or job.start.how != PICTURE:
        return job
    return replace(job, start=None, start_image=job.start.images)


def footage_of(start: StartValue, width: int, height: int) -> Footage:
    """Return a clip in the video's size, its sides or its top and bottom cut off."""
    images = start.images
    rows, columns = images.shape[1:3]
    part = cropped(images, width, height)[:, :, :, :3].movedim(-1, 1).expand(-1, 3, -1, -1)
    if part.shape[2:] != (height, width):
        part = comfy.utils.common_upscale(part, width, height, "lanczos", "disabled")
    alpha = " without its alpha" if shines_through(images) else ""
    note = f"The clip: {len(images)} frames at 16 a second, taken from {start.taken}, {columns}x{rows}{alpha} in {width}x{height}."
    return Footage(part, note)


def cropped(images: Tensor, width: int, height: int) -> Tensor:
    """Return the middle of images `f h w c`, cropped to the aspect ratio of `width` x `height`."""
    rows, columns = images.shape[1:3]
    # Half of what is cut off, rounded as ComfyUI's Upscale Image rounds it.
    left = max(0, round((columns - columns * ((width / height) / (columns / rows))) / 2))
    top = max(0, round((rows - rows * ((columns / rows) / (width / height))) / 2))
    return images[:, top : rows - top, left : columns - left]


def shines_through(images: Tensor) -> bool:
    """Return whether any pixel of images `f h w c` is not opaque."""
    return images.shape[-1] > 3 and bool((images[..., 3] < 1).any())


def crop_note(images: Tensor, width: int, height: int) -> tuple[str, ...]:
    """Say what is lost of the start image, if anything is, and which one of several it is."""
    count, rows, columns = images.shape[:3]
    left = cropped(images, width, height).shape
    notes = []
    if count > 1:
        notes.append(f"The start image is a batch of {count}; the video starts from its first picture.")
    if shines_through(images[:1]):
        notes.append("The start image is used without its alpha.")
    if left[1:3] != (rows, columns):
        sizes = f"from {columns} x {rows} to {left[2]} x {left[1]}"
        notes.append(
            f"The start image was cropped at its centre {sizes}, the shape of the video of {width} x {height}."
        )
    return tuple(notes)
