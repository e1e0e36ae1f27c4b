"""One run of the sampler node: its inputs, and its start image or clip in the video's size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.utils
from comfy.model_patcher import ModelPatcher
from comfy.sd import VAE
from torch import Tensor

from ...sdvg_core.causal_wan.checkpoint import WanHeader
from ...sdvg_core.engine.plan import Lead, Roles
from ...sdvg_core.errors import BadInput, count
from ...sdvg_core.files.footage import Footage
from ...sdvg_core.loading.headers import Headers
from ...sdvg_core.settings.context import Preset
from ...sdvg_core.settings.execution import AUTO, Execution
from ...sdvg_core.settings.load import StatedKind
from ...sdvg_core.settings.request import TWO_STARTS, Shot, VideoRequest, strength_of
from ...sdvg_core.videos.resolve import WHOLE
from ...sdvg_core.videos.start import LockedBlocks
from .conditioning import strengths_of
from .model import CONTROL, config_of, origin_of, preset_of
from .sockets import PICTURE, RESTYLE, ClipValue, PromptEntry, RouterValue, StartValue
from .vae import header_of


@dataclass(frozen=True, slots=True, eq=False)
class KeptBlocks:
    """The first `blocks` blocks of a run of `width` x `height` pixels.

    `latents`: normalised, `b c t h w`. `lead`: their latent frames that no model made. `given_frames`: number of
    latent frames before the blocks. `clip`: hash of the clip whose pixels the video shows for those, or empty.
    """

    blocks: int
    digest: str
    latents: Tensor
    width: int
    height: int
    lead: Lead
    given_frames: int
    clip: str

    @property
    def locked(self) -> LockedBlocks:
        """The blocks as the core begins with them."""
        return LockedBlocks(self.blocks, self.latents.float(), self.lead, self.given_frames, self.clip)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One run of the sampler node.

    `drafter`, `target`: MODELs; None if not wired in or not needed. `stated_target`: header of the target that was not
    made, as a live session needs none. `tae_kind`: the kind of latents of a TAEHV.
    `request`: from the widgets, without router and start. `schedules`: by role, if they differ from the preset's.
    `draft_steps`: number of drafting steps; 0 for the preset's. `reuse_bytes`: host memory for results that later
    runs can re-use. `notes`: on inputs without effect. `execution`: only `kv_dtype`; ComfyUI decides the rest.
    `shot`: the last one of the LATENT that it continues. `start_sound`: AUDIO of its clip. `clips`: by name, those wired in to show between shots. `locks`: by shot, its first blocks, of an earlier run. `until_block`: the last block to make, from 1; 0 for all. `live`: whether it is a live session, or makes the video of one. `controlled`: whether the conditioning has a control. `makes_blocks`: False if it only
    shows locked ones. `api_prompt`: the prompt in API form; `prompt_id`, `signature`: of it, for the page.
    """

    drafter: ModelPatcher | None = None
    target: ModelPatcher | None = None
    stated_target: WanHeader | None = None
    vae: VAE
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
    shot: Shot = WHOLE
    start_image: Tensor | None = None
    start: StartValue | None = None
    start_sound: Mapping[str, Any] | None = None
    clips: Mapping[str, ClipValue] = field(default_factory=dict)
    locks: Mapping[str, KeptBlocks] = field(default_factory=dict)
    until_block: int = 0
    live: bool = False
    controlled: bool = False
    makes_blocks: bool = True
    node_id: str | None = None
    workflow_id: str | None = None
    api_prompt: Any = None
    prompt_id: str | None = None
    signature: dict[str, Any] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, which the widgets always state."""
        width = self.request.width
        height = self.request.height
        assert width is not None
        assert height is not None
        return width, height

    @property
    def kept_count(self) -> int:
        """The number of locked blocks."""
        return sum(lock.blocks for lock in self.locks.values())

    @property
    def models(self) -> dict[str, ModelPatcher]:
        """The MODELs by role, the target first."""
        wired = {"target": self.target, "drafter": self.drafter}
        return {role: patcher for role, patcher in wired.items() if patcher is not None}

    @property
    def models_used(self) -> dict[str, ModelPatcher]:
        """The MODELs that make blocks, by role; the others only say what a block is like, and are not loaded."""
        return self.models if self.makes_blocks else {}

    @property
    def presets(self) -> dict[str, Preset]:
        """The presets of the MODELs, with the schedules and draft steps of the node."""
        presets = {role: preset_of(patcher) for role, patcher in self.models.items()}
        changed = {role: replace(p, schedule=self.schedules.get(role, p.schedule)) for role, p in presets.items()}
        if self.draft_steps and "drafter" in changed:
            changed["drafter"] = replace(changed["drafter"], draft_steps=self.draft_steps)
        return changed

    @property
    def headers(self) -> Headers:
        """The headers of its models, without their weights."""
        presets = self.presets
        controls = self.controls
        return Headers(
            models={
                role: WanHeader(
                    name=role,
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
    def strength(self) -> str:
        """The strengths of restyling. Raises `BadInput` for those of prompt lines if no clip is restyled."""
        usual = self.start.strength if self.start else ""
        return strength_of(usual, strengths_of(self.prompts), restyles=self.restyles)

    @property
    def continues(self) -> bool:
        """True if it continues a clip, given as latents or frames."""
        extends = self.start is not None and self.start.how not in (PICTURE, RESTYLE)
        return self.continue_from is not None or extends

    @property
    def controls(self) -> dict[str, ModelPatcher]:
        """The VACE MODELs attached to the models, by role, if the run has a control."""
        if not self.controlled:
            return {}
        attached = {role: patcher.get_attachment(CONTROL) for role, patcher in self.models.items()}
        return {role: control for role, control in attached.items() if control is not None}

    @property
    def main(self) -> ModelPatcher:
        """The first MODEL, for properties that both share."""
        return next(iter(self.models.values()))

    def restrict_to(self, needed: Roles) -> Job:
        """Return the job without the models that its run does not need."""
        return replace(
            self,
            drafter=self.drafter if "drafter" in needed else None,
            target=self.target if "target" in needed else None,
            router=self.router if self.makes_blocks and "scorer" in needed else replace(self.router, scorer=None),
        )


# --- start image and clip


def fit(images: Tensor, width: int, height: int) -> Tensor:
    """Return the first image of `f h w c` as `1 1 c h w`, cropped at its centre and scaled to `width` x `height`."""
    image = cropped_images(images[:1], width, height)[..., :3].movedim(-1, 1).expand(-1, 3, -1, -1)
    scaled: Tensor = comfy.utils.common_upscale(image, width, height, "lanczos", "disabled")
    return scaled[:, None]


def start_picture(images: Tensor, width: int, height: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return a start image in the video's size, `1 1 c h w`, and notes on crop and alpha."""
    return fit(images, width, height), crop_note(images, width, height)


def with_parts_of_start(job: Job) -> Job:
    """Return the job with the clips of an SDVG Start in `clips`, and its picture in `start_image`.

    Raises `BadInput` if the video then has two starts.
    """
    start = job.start
    if start is None:
        return job
    job = replace(job, clips={f"#{name}": clip for name, clip in start.clips.items()})
    if not len(start.images):
        return replace(job, start=None)
    if job.continue_from is not None or job.start_image is not None:
        raise BadInput(TWO_STARTS)
    if start.how == PICTURE:
        return replace(job, start=None, start_image=start.images)
    request = replace(job.request, context_blocks=start.context_blocks or None)
    return replace(job, start_sound=start.sound, request=request)


def footage_of(start: StartValue | ClipValue, width: int, height: int) -> Footage:
    """Return a clip cropped at its centre and scaled to `width` x `height`, `f 3 h w`, with a note."""
    images = start.images
    rows, columns = images.shape[1:3]
    part = cropped_images(images, width, height)[:, :, :, :3].movedim(-1, 1).expand(-1, 3, -1, -1)
    if part.shape[2:] != (height, width):
        part = comfy.utils.common_upscale(part, width, height, "lanczos", "disabled")
    alpha = " without alpha" if shines_through(images) else ""
    taken = (
        f"{start.taken} became {len(images)} at 16/s" if start.taken else f"{count(len(images), 'frame')} at 16/s"
    )
    shape = "cropped" if columns * height != rows * width else "scaled"
    size = f"; {shape} to {width}x{height}" if (columns, rows) != (width, height) else ""
    return Footage(part, f"Your clip: {taken}{alpha}{size}.")


def cropped_images(images: Tensor, width: int, height: int) -> Tensor:
    """Return images `f h w c` cropped at their centre to the aspect ratio of `width` x `height`, in float32."""
    rows, columns = images.shape[1:3]
    # Margins are rounded like those of ComfyUI's Upscale Image.
    left = max(0, round((columns - columns * ((width / height) / (columns / rows))) / 2))
    top = max(0, round((rows - rows * ((columns / rows) / (width / height))) / 2))
    # ComfyUI's lanczos rounds half precision twice, and cannot read bfloat16.
    return images[:, top : rows - top, left : columns - left].float()


def shines_through(images: Tensor) -> bool:
    """True if any pixel of images `f h w c` is not opaque."""
    return images.shape[-1] > 3 and bool((images[..., 3] < 1).any())


def crop_note(images: Tensor, width: int, height: int) -> tuple[str, ...]:
    """Return notes on the start image: the first of a batch, without alpha, cropped."""
    count, rows, columns = images.shape[:3]
    crop = cropped_images(images, width, height).shape
    notes = []
    if count > 1:
        notes.append(f"The start image is a batch of {count} pictures; the video starts from the first.")
    if shines_through(images[:1]):
        notes.append("The start image's alpha has no effect.")
    if crop[1:3] != (rows, columns):
        notes.append(
            f"The start image was cropped at its centre from {columns}x{rows} to {crop[2]}x{crop[1]}, the video's shape."
        )
    return tuple(notes)
