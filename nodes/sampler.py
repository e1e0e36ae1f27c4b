"""SDVG Speculative AR Sampler: the node that makes the video."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from comfy_api.latest import io
from comfy_execution.utils import get_executing_context

from ..sdvg_core.causal_wan.schedule import SCHEDULES
from ..sdvg_core.decoders import StatedKind
from ..sdvg_core.devices.execution import AUTO, Execution, KvDtype
from ..sdvg_core.engine.outside import note_on
from ..sdvg_core.engine.plan import check_directions, check_size, read_takes
from ..sdvg_core.engine.store import GIGABYTE
from ..sdvg_core.errors import BadInput
from ..sdvg_core.pipeline.request import NO_MODEL, TWO_STARTS
from .host.forecast import signature
from .host.job import Job
from .host.kept import check_kept, find_kept
from .host.progress import output_of
from .host.run import run_job
from .known import LEAVES_OUTPUT, NOT_WIRED, known_inputs_only, node_schema, workflow_id
from .sockets import PromptEntry, Prompts, Report, Router, Start, router_of
from .values import check_values

PRESET_SCHEDULE, BOTH = "preset", "as for both"
STEP = 16  # of width and height in pixels


class SpeculativeSampler(io.ComfyNode):
    """Drafts each block, routes it by its worst frame, and regenerates rejected blocks with the target."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGSpeculativeSampler",
            display_name="SDVG Speculative AR Sampler",
            description="Generates a video block by block: the drafter drafts, the router accepts or rejects, the "
            "target regenerates.",
            search_aliases=["speculative decoding", "autoregressive video", "Self-Forcing", "Krea Realtime"],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            **LEAVES_OUTPUT,
            inputs=[
                io.Model.Input(
                    "drafter",
                    optional=True,
                    tooltip="The small model, from the Drafter Loader or any loader. Not needed if the target makes "
                    "every block.",
                ),
                io.Model.Input(
                    "target",
                    optional=True,
                    tooltip="The large model, with a loader of its own. Not needed if every draft is kept. The drafter's "
                    "MODEL serves too, with another schedule.",
                ),
                io.Conditioning.Input(
                    "positive",
                    tooltip="The prompt, from SDVG Prompt, which also hands its text to the scorer. No negative one, no CFG: see the help.",
                ),
                io.Vae.Input(
                    "vae",
                    tooltip="The VAE of Wan 2.1, which makes the video's pixels. A TAEHV is faster and rougher, for "
                    "everything.",
                ),
                Router.Input("router", tooltip="From the Quality Router."),
                # Not optional, which would move it behind the others and shift the values of saved workflows.
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    advanced=True,
                    tooltip="Leave it empty after SDVG Prompt. For another text encoder: the same prompt as text, for the "
                    "scorer, which reads its first 35 tokens.",
                ),
                io.Int.Input(
                    "width", default=832, min=16, max=4096, step=STEP, tooltip="In pixels, a multiple of 16."
                ),
                io.Int.Input(
                    "height", default=480, min=16, max=4096, step=STEP, tooltip="In pixels, a multiple of 16."
                ),
                io.Int.Input(
                    "blocks",
                    default=9,
                    min=1,
                    max=4096,
                    tooltip="Nine blocks of three latent frames are 105 frames, 6.6 s at 16 frames per second: the "
                    "first block has 9, every other one 12. With 'continue_from', the length that is added.",
                ),
                io.Int.Input(
                    "seed",
                    default=42,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=io.ControlAfterGenerate.fixed,
                    tooltip="The same seed gives the same video; another tau changes it only from the first block "
                    "that is decided differently.",
                ),
                io.Combo.Input(
                    "schedule",
                    options=[PRESET_SCHEDULE, *SCHEDULES],
                    default=PRESET_SCHEDULE,
                    advanced=True,
                    tooltip="Denoising steps of both models. 'preset' runs each as it was trained; leave it there unless you "
                    "compare. 'reference5' adds the pass at timestep 0 that the authors' code runs; 'krea4' is "
                    "Krea's own choice for speed, which also ends at 0; 'raw4' is unshifted: 1000, 750, 500, 250, as "
                    "Scope runs such models.",
                ),
                io.Combo.Input(
                    "drafter_context",
                    options=["committed", "own"],
                    default="committed",
                    advanced=True,
                    tooltip="Which blocks the drafter continues from: the committed ones (as in the authors' code), or "
                    "its own drafts (as the paper's text has it). Choose 'own' only to compare.",
                ),
                io.Boolean.Input(
                    "overlap",
                    default=False,
                    advanced=True,
                    optional=True,
                    tooltip="Has no effect any more: blocks are made one after the other. The video is the same.",
                ),
                io.Combo.Input(
                    "kv_dtype",
                    options=list(get_args(KvDtype)),
                    default=AUTO,
                    advanced=True,
                    optional=True,
                    tooltip="How keys and values are stored. Leave 'auto' unless memory is short: 'float8_e4m3fn' takes half of bfloat16's memory and "
                    "rounds: blocks of the embedded models differ by 3 to 4 % on average, and drafts near "
                    "tau may be decided differently.",
                ),
                io.Latent.Input(
                    "continue_from",
                    optional=True,
                    tooltip="A clip to make longer: a sampler's latent, of this width and height. The video then has "
                    "its frames and the new ones.",
                ),
                io.Image.Input(
                    "start_image", optional=True, tooltip="A picture to start from; it becomes the first frame."
                ),
                Start.Input(
                    "start",
                    optional=True,
                    tooltip="From SDVG Start: a first picture, or a clip to extend or restyle. 'blocks' then counts the "
                    "new ones.",
                ),
                Prompts.Input("prompt_schedule", optional=True, tooltip="Prompts for later blocks."),
                io.String.Input(
                    "directions",
                    default="",
                    optional=True,
                    tooltip="One letter per block, or nothing: . the router decides, t the target makes it, d the draft is "
                    "kept; a and r score the draft, then keep or reject it. The menu of a square on the strip writes it.",
                ),
                io.String.Input(
                    "takes",
                    default="",
                    optional=True,
                    tooltip="Other noise for single blocks, such as 6:2, 8:3 (block 6 take 2, block 8 take 3). Only those "
                    "blocks and the ones after them change.",
                ),
                *(_schedule_input(role) for role in ("drafter", "target")),
                io.Float.Input(
                    "reuse_gb",
                    default=4.0,
                    min=0.0,
                    max=256.0,
                    step=0.5,
                    advanced=True,
                    optional=True,
                    tooltip="Host memory for finished blocks and their pixels, so that the next run makes and decodes only "
                    "what changed. The oldest runs go first. 0: keep nothing.",
                ),
                io.Vae.Input(
                    "judge_vae",
                    optional=True,
                    tooltip="A fast decoder (taew2_1, lighttaew2_1, lightvaew2_1) for the scores and the preview. The video "
                    "keeps the pixels of 'vae', decoded after the verdict. A tau belongs to a decoder.",
                ),
                io.Combo.Input(
                    "tae_kind",
                    options=list(get_args(StatedKind)),
                    default=AUTO,
                    advanced=True,
                    optional=True,
                    tooltip="Which latents a TAEHV takes: choose the name of its file, as the wire of a loader does not tell. "
                    "'auto' is for other decoders, and for the judge of Pocket Models, whose wire does tell.",
                ),
                io.String.Input(
                    "kept_blocks",
                    default="",
                    advanced=True,
                    optional=True,
                    tooltip="Blocks at the beginning that stay as they are while the rest changes: how many, and the digest "
                    "of their latents. 'Keep blocks' on the strip writes it; empty: none.",
                ),
                io.Int.Input(
                    "until_block",
                    default=0,
                    min=0,
                    max=4096,
                    advanced=True,
                    optional=True,
                    tooltip="Make the video only up to this block, as it would be in the whole one. 0: all blocks.",
                ),
                io.Float.Input(
                    "colour_hold",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    advanced=True,
                    optional=True,
                    tooltip="For long clips: pull each block's colours back towards those its scene began with. 0: not at "
                    "all, 1: all the way.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="frames", tooltip="The video's frames, for Create Video at 16 per second."
                ),
                io.Latent.Output(display_name="latent", tooltip="The same clip as latents, for 'continue_from'."),
                Report.Output(display_name="report", tooltip="What was decided and why, for the Route Report."),
            ],
        )

    @classmethod
    def validate_inputs(
        cls,
        drafter=NOT_WIRED,
        target=NOT_WIRED,
        continue_from=NOT_WIRED,
        start_image=NOT_WIRED,
        start=NOT_WIRED,
        width=None,
        height=None,
        blocks=None,
        directions=None,
        takes=None,
        kept_blocks=None,
    ) -> bool:
        """Raise `BadInput` for what is known before anything is loaded. What comes over a wire is None here."""
        if drafter is target is NOT_WIRED:
            raise BadInput(NO_MODEL)
        if sum(one is not NOT_WIRED for one in (continue_from, start_image, start)) > 1:
            raise BadInput(TWO_STARTS)
        given = {"width": width, "height": height, "blocks": blocks, "directions": directions, "takes": takes}
        given = {name: value for name, value in given.items() if value is not None}
        directions = plain(directions)
        check_values([one for one in cls.define_schema().inputs if one.id in given], given)
        check_size(width or STEP, height or STEP, STEP)
        if blocks is not None:
            check_directions(directions or "", blocks)
            read_takes(takes or "", blocks)
        if kept := find_kept(kept_blocks or ""):
            check_kept(kept, blocks, width, height)
        return True

    @classmethod
    @known_inputs_only
    def execute(
        cls,
        positive,
        prompt,
        schedule,
        overlap=False,
        kv_dtype=AUTO,
        prompt_schedule=(),
        drafter_schedule=BOTH,
        target_schedule=BOTH,
        reuse_gb=2.0,
        kept_blocks="",
        **inputs,
    ) -> io.NodeOutput:
        """Make the video. The other inputs have the names of a job's fields."""
        context = get_executing_context()
        inputs["directions"] = plain(inputs.get("directions"))
        router = inputs["router"] = router_of(inputs["router"])
        own = () if router.config.part is None else (note_on("router", router.config.part),)
        job = Job(
            **inputs,
            prompts=(PromptEntry(0, positive, prompt), *prompt_schedule),
            schedules={
                role: _schedule(schedule if own == BOTH else own)
                for role, own in (("drafter", drafter_schedule), ("target", target_schedule))
            },
            reuse_bytes=int(reuse_gb * GIGABYTE),
            execution=Execution(kv_dtype=kv_dtype),
            notes=(*own, *((OVERLAP_GONE,) if overlap else ())),
            node_id=cls.hidden.unique_id,
            workflow_id=workflow_id(cls.hidden.extra_pnginfo),
            prompt_id=context.prompt_id if context else None,
            signature=signature(cls.hidden.prompt, cls.hidden.unique_id),
        )
        frames, latent, report, live = run_job(job, kept_blocks)
        if live.stop_asked:
            _stops[job.node_id] += 1
        return io.NodeOutput(frames, latent, report, ui=output_of(live, report.blocks))

    @classmethod
    def fingerprint_inputs(cls, **inputs) -> int:
        """Return a number that a stopped run changes, so that the next queue goes on instead of taking its result."""
        return _stops[cls.hidden.unique_id]


OVERLAP_GONE = "Overlap has no effect any more: blocks are made one after the other. The video is the same."
_stops: Counter[str | None] = Counter()
"""How often the run of each node was stopped before its last block."""


def plain(directions: str | None) -> str:
    """Return directions without blanks and in small letters, as people type them in an API prompt."""
    return "".join((directions or "").split()).lower()


def _schedule(name: str) -> str | None:
    return None if name == PRESET_SCHEDULE else name


def _schedule_input(role: str) -> io.Combo.Input:
    return io.Combo.Input(
        f"{role}_schedule",
        options=[BOTH, PRESET_SCHEDULE, *SCHEDULES],
        default=BOTH,
        advanced=True,
        optional=True,
        tooltip=f"Denoising steps of the {role} alone. '{BOTH}': as 'schedule' says.",
    )
