"""Play a live session of the sampler: the drafter makes it while words come from the page.

What it leaves is a job like any other, of the recording: all its blocks are in the store, so that making its video
calls no model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import comfy.model_management as mm
import torch
from torch import Tensor

from ..sdvg_core.devices.device import device_clock
from ..sdvg_core.engine.types import hash_tensor
from ..sdvg_core.errors import BadInput
from ..sdvg_core.loading.headers import Headers
from ..sdvg_core.memory.plan import gigabytes
from ..sdvg_core.memory.sizes import image_bytes
from ..sdvg_core.settings.request import read_shots
from ..sdvg_core.settings.route import Route
from ..sdvg_core.text.prompts import PromptSchedule, prompt_lines, read_prompt
from ..sdvg_core.videos.live import LiveFilm, Recording, Steering, live_request
from .film import ReadyRun, host_engine, reuse_of
from .host.compiled import layers_of
from .host.conditioning import (
    encoder_device,
    encoder_of,
    fresh_shots,
    read_embedding,
    resolve_texts,
    strengths_of,
    with_control_of,
    with_lines,
)
from .host.encoded import ENCODED, Encoded
from .host.job import Job
from .host.loras import naming_loras
from .host.memory import refusal_of, resident
from .host.model import settle_attention
from .host.sockets import PromptEncoder, PromptEntry, RouterValue
from .page.signature import PROMPTS, UNREADABLE, prompt_node, signature
from .page.steering import SESSIONS, LiveSession, one_line
from .run import controls_of, prepare, start_of

logger = logging.getLogger(__name__)

DRAFTED = "live"
"""What stands for the router of a session: no hash of one."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What a live session left. `job`: makes its video. `values`: prompt lines, seed, takes and blocks, for a graph.

    `dropped`: such values of what was made before each *again*.
    """

    job: Job
    values: dict[str, Any]
    dropped: list[dict[str, Any]]


def play_session(wired: Job, longest: int, kept_blocks: str = "") -> Recorded:
    """Play a live session of at most `longest` blocks, until it is ended. `kept_blocks`: there may be none.

    Raises `BadInput` for one that cannot be played, before a model is loaded, and if its first block cannot be made.
    After any other fault what was made is kept.
    """
    if wired.until_block:
        raise BadInput("a live session makes no take up to a block; set until_block to 0")
    if kept_blocks.strip():
        raise BadInput("a live session begins anew, and blocks are locked; unlock them")
    prompts, _ = resolve_texts(wired.prompts)
    encoder = encoder_of(prompts)
    script = _script(prompts)
    of_graph = {"seed": wired.request.seed, "takes": wired.request.takes, "blocks": wired.request.blocks}
    ready = prepare(_longest_job(wired, script, longest), live=True, asked={**of_graph, "live_blocks": longest})
    _check_frames(ready)
    ready = replace(ready, notes=(*ready.notes, *_encoder_note(encoder)))
    film = LiveFilm(
        ready.job.request,
        script,
        ready.job.headers,
        start=start_of(ready.job),
        shot=ready.job.shot,
        controls=controls_of(ready.job),
    )
    words = _Words(encoder, ready, prompts)
    session = LiveSession(film.steering, ready.progress.live, words.understand, ready.progress.steered)
    words.encoded = session.encoded
    ended = ""
    try:
        ended = _play(ready, film, words, session)
    finally:
        ENCODED.learn(wired.request.seed, words.encoded_as)
        recording = _newest(film.steering)
        values = words.recorded(recording) if recording else {}
        dropped = [words.recorded(earlier) for earlier in film.steering.dropped]
        ready.progress.recorded(values, dropped, ended)
    assert recording is not None, "a session ends after its first block, or raises"
    return Recorded(_recorded_job(wired, recording, values, words, (*film.notes, ended)), values, dropped)


def _newest(steering: Steering) -> Recording | None:
    """Return what a session made; of one that was set back to its beginning, what it had made before."""
    return steering.recording() or next(reversed(steering.dropped), None)


def _script(prompts: Sequence[PromptEntry]) -> PromptSchedule:
    """Return the prompts as a session begins with them, and records them. The start has the strengths already."""
    return PromptSchedule(
        tuple((entry.index, one_line(entry.text)) for entry in prompts),
        cuts=tuple(entry.index for entry in prompts if entry.cut),
        shots=read_shots(fresh_shots(prompts)),
    )


def _longest_job(wired: Job, script: PromptSchedule, longest: int) -> Job:
    """Return the job of the longest run, which the drafter makes alone."""
    asked = replace(wired.request, blocks=longest, route=wired.router.route)
    request = live_request(asked, script, _headers(wired))
    assert isinstance(request.route, Route), "of a live request"
    return replace(
        wired,
        request=request,
        router=RouterValue(request.route, None),
        live=True,
        signature=None,
    )


def _headers(wired: Job) -> Headers:
    """Return the headers of the models, also of a target that was not made."""
    headers = wired.headers
    target = wired.stated_target
    if target is None:
        return headers
    preset = replace(target.preset, schedule=wired.schedules.get("target", target.preset.schedule))
    return replace(headers, models={"target": replace(target, preset=preset), **headers.models})


def _check_frames(ready: ReadyRun) -> None:
    """Raise `BadInput` if the computer's memory cannot hold the frames of the longest run."""
    film = ready.film
    needed = 2 * image_bytes(film.width, film.height, sum(run.plan.stop for run in film.runs))
    free = int(mm.get_free_memory(torch.device("cpu")))
    if needed > free:
        fault = f"{film.request.blocks} blocks take {gigabytes(needed)} of the computer's memory as frames"
        raise BadInput(f"{fault}, and {gigabytes(free)} are free; lower live_blocks, width or height")


def _encoder_note(encoder: PromptEncoder) -> tuple[str, ...]:
    """Return a note on the memory of a text encoder that ComfyUI moves."""
    if encoder.patcher is None:
        return ()
    size = gigabytes(encoder.patcher.model_size())
    place = f"{encoder.patcher.load_device}: the text encoder takes {size} there while it reads a prompt that comes"
    return (f"{place}; if they do not fit beside it, the run's models leave and come back",)


class _Words:
    """The prompts of a session with their CONDITIONING: those that are wired, and those that come."""

    def __init__(self, encoder: PromptEncoder, ready: ReadyRun, prompts: Sequence[PromptEntry]) -> None:
        self._encoder = encoder
        self._ready = ready
        self._wired = prompts
        # A text of several lines is encoded anew, as it is recorded in one.
        self._known = {entry.text: entry.conditioning for entry in prompts if entry.text == one_line(entry.text)}
        self.understand = encoder.understand
        self.encoded_as = dict[str, Encoded]()  # by text
        self.encoded: Callable[[float], None] = lambda seconds: None

    def conditioning(self, text: str) -> Sequence[Any]:
        """Return a prompt's CONDITIONING. A new one is encoded, and the run's models are loaded again after that."""
        if text not in self._known:
            began = time.perf_counter()
            self._known[text] = self._encoder.encode(text)
            self._ready.memory.load()
            self.encoded(time.perf_counter() - began)
        return self._known[text]

    def embedding(self, text: str) -> Tensor:
        """Return a prompt's embedding `(1, tokens, channels)`, float32 on the CPU."""
        channels = self._ready.job.main.model.diffusion_model.text_dim
        conditioning = self.conditioning(text)
        embedding = read_embedding(conditioning, channels)
        self.encoded_as[text] = Encoded(hash_tensor(embedding), encoder_device(conditioning))
        return embedding

    def recorded(self, recording: Recording) -> dict[str, Any]:
        """Return a recording as the values of a graph."""
        return _values(recording, self._wired, self._ready.given)


def _play(ready: ReadyRun, film: LiveFilm, words: _Words, session: LiveSession) -> str:
    """Play a session; return a sentence if it ended and nobody asked for that, else nothing.

    Raises an interrupt, and any fault before the first block is made.
    """
    progress = ready.progress
    run = progress.live.begin["run"]
    SESSIONS[run] = session
    progress.show("\n".join(ready.notes))
    try:
        with resident(ready.memory), naming_loras(ready.job.api_prompt, ready.job.node_id):
            _play_blocks(ready, film, words, session)
        return session.why
    except mm.InterruptProcessingException:
        raise
    except Exception as error:
        if not _newest(film.steering):
            raise
        logger.exception("SDVG: a fault ended a live session")
        fault = refusal_of(ready.memory) if mm.is_oom(error) else error
        return f"A fault ended the session, and what was made is kept: {fault}."
    finally:
        del SESSIONS[run]


def _play_blocks(ready: ReadyRun, film: LiveFilm, words: _Words, session: LiveSession) -> None:
    """Make the blocks of a session, and show each as it comes, with what is recorded if that is new.

    So a page has the recording, though the server should be gone.
    """
    job = ready.job
    progress = ready.progress
    settle_attention(job.main.load_device)
    layers = layers_of(job)
    reuse = reuse_of(job, layers)
    assert reuse is not None, "a live session keeps its blocks"
    progress.begin()
    session.show()

    def waits() -> bool:
        mm.throw_exception_if_processing_interrupted()
        return session.waits()

    newest = 0
    known: dict[str, Any] = {}
    clock = device_clock(*ready.memory.devices)
    with closing(film.play(host_engine(ready, layers), words.embedding, reuse, clock, wait=waits)) as parts:
        for number, part in parts:
            ready.memory.prioritise()
            if (record := part.shown.record) is None:
                continue
            if number <= newest:
                progress.live.set_back(number)
            newest = number
            live = {"words": record.prompt, "edition": progress.live.edition}
            recording = film.steering.recording()
            values = words.recorded(recording) if recording else known  # it may be set back to its beginning
            recorded = {name: value for name, value in values.items() if name != "blocks"}
            if recorded != known:
                live["recorded"] = known = recorded
            progress.block(number, record, part.frames, **live, join=film.steering.join(ready.given + number - 1))


def _values(recording: Recording, prompts: Sequence[PromptEntry], given: int) -> dict[str, Any]:
    """Return a recording as the values of a graph. `prompts`: those that were wired, with strengths of restyling."""
    request = recording.request
    stop = given + request.blocks
    strengths = tuple(pair for pair in strengths_of(prompts) if pair[0] < stop)
    return {
        "text": prompt_lines(replace(recording.prompt, strengths=strengths)).rstrip("\n"),
        "seed": request.seed,
        "takes": request.takes,
        "blocks": request.blocks,
    }


def _recorded_job(
    wired: Job, recording: Recording, values: dict[str, Any], words: _Words, notes: Sequence[str]
) -> Job:
    """Return the job that makes the video of a recording, as the graph would with `values`."""
    request = recording.request
    assert isinstance(request.route, Route), "of a live request"
    lines = read_prompt(values["text"])
    first = wired.prompts[0].conditioning
    conditioning = with_lines(lines, lambda text: with_control_of(words.conditioning(text), ()))
    api_prompt = _recorded_prompt(wired, values)
    return replace(
        wired,
        request=replace(
            wired.request,
            **{name: values[name] for name in ("blocks", "takes")},
            directions="",
            block_length=request.block_length,
        ),
        router=RouterValue(request.route, None),
        prompts=(PromptEntry(0, with_control_of(conditioning, first), ""),),
        live=True,
        notes=(*wired.notes, *filter(None, notes)),
        api_prompt=api_prompt,
        signature=_recorded_signature(api_prompt, wired.node_id),
    )


def _recorded_signature(api_prompt: Any, node_id: str | None) -> dict[str, Any] | None:
    """Return what identifies the settings of a recording: of no router that is wired, as the drafter made all blocks."""
    known = signature(api_prompt, node_id)
    return known and {**known, "router": DRAFTED, "tau": None}


def _recorded_prompt(wired: Job, values: dict[str, Any]) -> Any:
    """Return the prompt in API form that makes the recording; what is not known stays as it is."""
    prompt = deepcopy(wired.api_prompt)
    try:
        inputs = prompt[wired.node_id]["inputs"]
        encodes = prompt[prompt_node(prompt, inputs["positive"])]
        encodes["inputs"][PROMPTS[encodes["class_type"]]] = values["text"]
        inputs |= {**{name: values[name] for name in ("seed", "takes", "blocks")}, "live": False}
    except UNREADABLE:
        return None
    return prompt
