"""SDVG Speculative AR Sampler: the node that makes the video.

Most widgets are fields of `VideoRequest`, so that nodes, command line and Python take the same settings.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from comfy_api.latest import io
from comfy_execution.utils import get_executing_context

from ..sdvg_core.engine.outside import outside_note
from ..sdvg_core.engine.plan import check_size
from ..sdvg_core.engine.reuse import GIGABYTE
from ..sdvg_core.errors import BadInput
from ..sdvg_core.settings.execution import AUTO, Execution, KvDtype
from ..sdvg_core.settings.fields import settings_of
from ..sdvg_core.settings.load import LoadOptions
from ..sdvg_core.settings.request import NO_MODEL, STEP, TWO_STARTS, VideoRequest, check_directions, read_takes
from ..sdvg_core.settings.route import Custom, Route
from ..sdvg_core.settings.schedules import SCHEDULES
from ..sdvg_core.videos.live import DEFAULT_LONGEST
from .host.job import Job
from .host.sockets import PromptEntry, PromptsSocket, ReportSocket, RouterSocket, StartSocket, router_of
from .live import play_session
from .loaders import stated_target
from .page.kept import check_kept, find_locks
from .page.progress import output_of
from .page.signature import signature
from .page.steering import PACE
from .run import run_job
from .schema import NOT_WIRED, check_values, known_inputs_only, node_schema, widget, workflow_id

PRESET_SCHEDULE = "preset"
BOTH = "as for both"
REUSE_GB = 4.0
PLACED = ("width", "height", "blocks", "seed", "drafter_context", "directions", "takes", "colour_hold")
"""Fields of a request placed by hand below. The others come last: saved workflows store values in widget order."""
OF_REQUEST = [name for name, known in settings_of(VideoRequest).items() if known.widget is not None]
"""Fields of a request that have a widget."""


class SpeculativeSampler(io.ComfyNode):
    """Drafts each block, routes it by its weakest frame, and regenerates rejected blocks with the target."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        schedules = [PRESET_SCHEDULE, *SCHEDULES]
        return node_schema(
            node_id="SDVGSpeculativeSampler",
            search_aliases=["speculative decoding", "autoregressive video", "Self-Forcing", "Krea Realtime"],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            has_intermediate_output=True,  # sends `ui` also when ComfyUI takes the node's result from its cache
            inputs=[
                io.Model.Input("drafter", optional=True),
                io.Model.Input("target", optional=True, lazy=True),
                io.Conditioning.Input("positive"),
                io.Vae.Input("vae"),
                RouterSocket.Input("router"),
                # Not optional: ComfyUI would place it after the required inputs.
                io.String.Input("prompt", default="", multiline=True, advanced=True),
                widget(VideoRequest, "width"),
                widget(VideoRequest, "height"),
                widget(VideoRequest, "blocks"),
                widget(VideoRequest, "seed", control_after_generate=io.ControlAfterGenerate.fixed),
                io.Combo.Input("schedule", options=schedules, default=PRESET_SCHEDULE, advanced=True),
                widget(VideoRequest, "drafter_context"),
                widget(Execution, "kv_dtype"),
                io.Latent.Input("continue_from", optional=True),
                io.Image.Input("start_image", optional=True),
                StartSocket.Input("start", optional=True),
                PromptsSocket.Input("prompt_schedule", optional=True),
                widget(VideoRequest, "directions", advanced=True),
                widget(VideoRequest, "takes", advanced=True),
                *(
                    io.Combo.Input(name, options=[BOTH, *schedules], default=BOTH, advanced=True, optional=True)
                    for name in ("drafter_schedule", "target_schedule")
                ),
                io.Float.Input(
                    "reuse_gb", default=REUSE_GB, min=0.0, max=256.0, step=0.5, advanced=True, optional=True
                ),
                widget(LoadOptions, "tae_kind", advanced=True, optional=True),
                io.String.Input("kept_blocks", default="", advanced=True, optional=True),
                io.Int.Input("until_block", default=0, min=0, max=4096, advanced=True, optional=True),
                widget(VideoRequest, "colour_hold"),
                io.Int.Input("draft_steps", default=0, min=0, max=64, advanced=True, optional=True),
                # nodes/web/live_pace.js offers PACE as settings of the page.
                io.Boolean.Input(
                    "live", default=False, advanced=True, optional=True, extra_dict={"sdvg_pace": PACE}
                ),
                io.Int.Input("live_blocks", default=DEFAULT_LONGEST, min=1, max=4096, advanced=True, optional=True),
                *(widget(VideoRequest, name) for name in OF_REQUEST if name not in PLACED),
            ],
            outputs=[
                io.Image.Output(display_name="frames"),
                io.Latent.Output(display_name="latent"),
                ReportSocket.Output(display_name="report"),
                io.Image.Output(display_name="new_frames"),
                io.Audio.Output(display_name="audio"),
            ],
        )

    @classmethod
    def validate_inputs(
        cls,
        drafter: object = NOT_WIRED,
        target: object = NOT_WIRED,
        continue_from: object = NOT_WIRED,
        start_image: object = NOT_WIRED,
        width: int | None = None,
        height: int | None = None,
        blocks: int | None = None,
        directions: str | None = None,
        takes: str | None = None,
        kept_blocks: str | None = None,
    ) -> bool:
        """Raise `BadInput` for mistakes visible before anything is loaded. Values that come over a wire are None here."""
        if drafter is target is NOT_WIRED:
            raise BadInput(NO_MODEL)
        if NOT_WIRED not in (continue_from, start_image):
            raise BadInput(TWO_STARTS)
        values = {"width": width, "height": height, "blocks": blocks, "directions": directions, "takes": takes}
        values = {name: value for name, value in values.items() if value is not None}
        directions = plain(directions)
        check_values([field for field in cls.define_schema().inputs if field.id in values], values)
        check_size(width or STEP, height or STEP, STEP)
        if blocks is not None:
            check_directions(directions or "", blocks)
            read_takes(takes or "", blocks)
        for lock in find_locks(kept_blocks or "").values():
            check_kept(lock, blocks, width, height)
        return True

    @classmethod
    def check_lazy_status(cls, target: object = NOT_WIRED, live: object = False, **inputs: object) -> list[str]:
        """Return the inputs that are still to be made: the target, unless a live session needs only its header.

        ComfyUI passes None for a target that is wired and not made.
        """
        needed = target is None and not (live and stated_target(cls.hidden.prompt, cls.hidden.unique_id))
        return ["target"] if needed else []

    @classmethod
    @known_inputs_only
    def execute(
        cls,
        positive: Sequence[Any],
        prompt: str,
        schedule: str,
        kv_dtype: KvDtype = AUTO,
        prompt_schedule: tuple[PromptEntry, ...] = (),
        drafter_schedule: str = BOTH,
        target_schedule: str = BOTH,
        reuse_gb: float = REUSE_GB,
        kept_blocks: str = "",
        live: bool = False,
        live_blocks: int = DEFAULT_LONGEST,
        **inputs: Any,
    ) -> io.NodeOutput:
        """Make the video. `inputs`: fields of `VideoRequest` and `Job` by their names."""
        context = get_executing_context()
        asked = {name: inputs.pop(name) for name in OF_REQUEST if name in inputs}
        asked["directions"] = plain(asked.get("directions"))
        router = inputs["router"] = router_of(inputs["router"])
        policy = router.route.policy if isinstance(router.route, Route) else None
        notes = (outside_note("router", policy.router),) if isinstance(policy, Custom) else ()
        schedules = {"drafter": drafter_schedule, "target": target_schedule}
        if schedule != PRESET_SCHEDULE and BOTH not in schedules.values():
            raise BadInput("schedule has no effect, as each model has its own; set it to preset")
        schedules = {role: schedule if name == BOTH else name for role, name in schedules.items()}
        job = Job(
            **inputs,
            request=VideoRequest(**asked),
            prompts=(PromptEntry(0, positive, prompt), *prompt_schedule),
            schedules={role: name for role, name in schedules.items() if name != PRESET_SCHEDULE},
            reuse_bytes=int(reuse_gb * GIGABYTE),
            execution=Execution(kv_dtype=kv_dtype),
            notes=notes,
            node_id=cls.hidden.unique_id,
            workflow_id=workflow_id(cls.hidden.extra_pnginfo),
            api_prompt=cls.hidden.prompt,
            prompt_id=context.prompt_id if context else None,
            signature=signature(cls.hidden.prompt, cls.hidden.unique_id),
        )
        if live and job.target is None:
            job = replace(job, stated_target=stated_target(job.api_prompt, job.node_id))
        recorded = play_session(job, live_blocks, kept_blocks) if live else None
        frames, latent, report, run, sound = run_job(recorded.job if recorded else job, kept_blocks)
        if run.stop_asked:
            _stops[job.node_id] += 1
        recording = {"sdvg_recording": [recorded.values], "sdvg_dropped": recorded.dropped} if recorded else {}
        return io.NodeOutput(
            frames, latent, report, frames[run.clip_frames :], sound, ui={**output_of(run), **recording}
        )

    @classmethod
    def fingerprint_inputs(cls, live: object = False, **inputs: object) -> int:
        """Return a number that changes when a run is stopped, so that ComfyUI does not re-use its partial result.

        For a live session it is a new one each time.
        """
        return -next(_sessions) if live else _stops[cls.hidden.unique_id]


_stops: Counter[str | None] = Counter()
"""Number of stopped runs, by node id."""
_sessions = itertools.count(1)
"""Numbers of queued live sessions."""


def plain(directions: str | None) -> str:
    """Return directions in lower case without blanks."""
    return "".join((directions or "").split()).lower()
