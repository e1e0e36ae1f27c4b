"""Assemble the report of a run, with the same settings and notes from the command line and the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, Protocol

from ..engine.protocols import Scorer
from ..engine.records import BlockRecord
from ..engine.routing import context_of_drafts
from ..engine.run import Run
from ..engine.types import Condition
from ..errors import count
from ..settings.context import Preset
from ..settings.execution import Execution
from ..settings.fields import as_json
from ..settings.request import FIRST_KEY
from .embeddings import EMBEDDINGS, embedding_digests
from .joins import ShotJoin
from .run_report import RunReport
from .summary import ranges

NO_FRAMES: Mapping[str, int] = MappingProxyType({})
FP8_NOTE = "Keys and values were kept in float8_e4m3fn: latents differ from those of a run that keeps them whole."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedModel:
    """A model as a report's settings have it, from the command line and from ComfyUI.

    `dictionary`: the key in its file; None without one. `dtype`: of computing. `bytes`: of its weights.
    `loras_and_patches`: number of changes to weights. `loras`: names and strengths of those that we merged.
    """

    file: str | None
    dictionary: str | None
    size: str
    preset: Preset
    dtype: str
    kv_dtype: str
    attention: str
    quantisation: str | None
    bytes: int
    loras_and_patches: int
    loras: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, with the preset's settings in place of the preset."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | self.preset.settings | {"loras": list(self.loras)}


class ReportedScorer(Scorer, Protocol):
    """A scorer with notes on prompts."""

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return warnings about the scores under this prompt."""


def assemble_report(
    runs: Sequence[Run],
    records: Sequence[BlockRecord],
    parts: Mapping[str, Any],
    *,
    fps: float,
    versions: Mapping[str, str],
    notes: tuple[str, ...],
    request: Mapping[str, Any],
    load: Mapping[str, Any],
    kept: Mapping[str, Any] | None = None,
    numbers: Sequence[int] = (),
    given: int = 0,
    clips: Sequence[Mapping[str, Any]] = (),
    frames: Mapping[str, int] = NO_FRAMES,
    joins: Sequence[ShotJoin] = (),
) -> RunReport:
    """Return the report of the runs of a film. `parts`: settings of their models and devices, as JSON values.

    `request`, `load`: what was asked, as JSON values with files by name. `kept`: `blocks` and
    `digest` of the blocks kept from an earlier run. `numbers`: of the blocks to make in the film, from 1, if others
    than the first are kept, or left out. `given`: number of blocks of the clip that is continued. `clips`: those
    shown as they are, with `name` and `before_block`. `frames`: number of pixel frames of each shot and clip, by
    name. `joins`: of every shot and clip that was shown, in order, but for the first.
    """
    run = runs[0]
    scorer = dict(run.engine.scorer.describe()) if run.engine.scorer else {"name": "none"}
    scorer.pop("notes", None)
    spans = [span for each in runs for span in each.plan.spans]
    cuts = list(chain.from_iterable(map(_cuts, runs, _firsts(runs))))
    shots = _shots(runs, clips)
    shown = _in_order(shots, clips, frames)
    for part, join in zip(shown[1:], joins, strict=False):
        part["join"] = join.as_dict()
    return RunReport(
        request=request,
        load=load,
        settings={
            **parts,
            "scorer": scorer,
            "route": as_json(run.plan.route),
            EMBEDDINGS: embedding_digests(chain.from_iterable(map(_conditions, runs))),
            "seed": run.inputs.noise.seed,
            "blocks": len(spans),
            "width": run.inputs.noise.width * run.engine.codec.spatial_stride,
            "height": run.inputs.noise.height * run.engine.codec.spatial_stride,
            "takes": {str(place + 1): span.take for place, span in enumerate(spans) if span.take > 1},
            **({"cuts": cuts} if cuts else {}),
            **({"shots": shots} if shots else {}),
            **({"clips": [part for part in shown if "before_block" in part]} if clips else {}),
            "drafter_context": context_of_drafts(run.plan.route, run.drafter_context),
            "latent_frames_given": run.plan.lead.frames,
            **({"blocks_given": given} if given else {}),
            **({"kept": dict(kept)} if kept else {}),
            **({"block_numbers": list(numbers)} if numbers else {}),
        },
        versions=versions,
        blocks=tuple(records),
        fps=fps,
        notes=(*_route_notes(len(spans), records, kept, numbers), *notes, *_join_notes(shown, joins)),
    )


def _firsts(runs: Sequence[Run]) -> list[int]:
    """Return the block of the film with which each run begins, from 0, those of a clip that is continued too."""
    spans = [(*run.plan.clip, *run.plan.spans) for run in runs]  # of a run that is locked whole, none is new
    lengths = [of_run[-1].index + 1 for of_run in spans]
    return [0, *accumulate(lengths[:-1])]


def _conditions(run: Run) -> Iterator[Condition]:
    """Yield the condition of every new block of a run."""
    return map(run.inputs.condition_of, run.plan.new_indices)


def _cuts(run: Run, first: int) -> list[int]:
    """Return the numbers of the blocks of a run that begin a scene. `first`: the film's block where it begins."""
    indices = run.plan.new_indices
    numbers = range(max(indices.start, 1), indices.stop + 1)
    conditions = [(number, run.inputs.condition_of(number - 1)) for number in numbers]
    pairs = pairwise(conditions)
    return [first + number for (_, before), (number, after) in pairs if after.cut and after is not before]


def _shots(runs: Sequence[Run], clips: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the shots of a film; nothing for one run without a key or clips. A budget gives each its own route."""
    if len(runs) == 1 and not runs[0].inputs.noise.shot and not clips:
        return []
    routes = [as_json(run.plan.route) for run in runs]
    shots: list[dict[str, Any]] = []
    for run, first, route in zip(runs, _firsts(runs), routes, strict=True):
        shot: dict[str, Any] = {"key": run.inputs.noise.shot or FIRST_KEY, "first_block": first + 1}
        if route != routes[0]:
            shot["route"] = route
        shots.append(shot)
    return shots


def _in_order(
    shots: Sequence[dict[str, Any]], clips: Sequence[Mapping[str, Any]], frames: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the shots, and copies of the clips, in the order in which they are shown, with their frames."""
    parts = [*(dict(clip) for clip in clips), *shots]
    parts.sort(key=lambda part: part.get("first_block") or part["before_block"])
    at = 0
    for part in parts:
        if length := frames.get(_name(part)):
            part |= {"first_frame": at, "frames": length}
            at += length
    return parts


def _name(part: Mapping[str, Any]) -> str:
    """Return the name of a shot or a clip of a report."""
    return str(part.get("key") or part["name"])


def _join_notes(shown: Sequence[Mapping[str, Any]], joins: Sequence[ShotJoin]) -> Iterator[str]:
    if joins:
        names = map(_name, shown[1:])
        steps = [f"to {name} {join}" for name, join in zip(names, joins, strict=False)]
        yield f"Steps at the joins, in levels of 255: {'; '.join(steps)}."


def _route_notes(
    blocks: int, records: Sequence[BlockRecord], kept: Mapping[str, Any] | None, numbers: Sequence[int]
) -> Iterator[str]:
    before = kept["blocks"] if kept else 0
    numbers = numbers or range(before + 1, before + blocks + 1)
    if kept:
        locked = [number for number in range(1, before + blocks + 1) if number not in numbers]
        yield f"{_were(locked)} locked: taken from an earlier run, latents {kept['digest']}."
    if len(records) < blocks:
        last = numbers[len(records) - 1] if records else numbers[0] - 1
        yield f"Stopped after block {last} of {max(numbers[-1], before + blocks)}, as asked."
    if reused := [number for number, record in zip(numbers, records, strict=False) if record.reused]:
        whose = "their" if len(reused) > 1 else "its"
        yield f"{_were(reused)} made before and used again; {whose} seconds do not count."
    drafts = [record.draft for record in records if record.draft]
    taken = sum(not draft.denoising_passes for draft in drafts)
    if taken and len(reused) < len(records):
        yield f"Drafts that an earlier run made: {taken} of {len(drafts)}."
    unscored = [record.decision.frame_scores.count(None) for record in records if record.decision.accepted]
    if frames := sum(unscored):
        blocks = len(unscored) - unscored.count(0)
        by_first = f"The cascade kept {count(blocks, 'draft')} by the frames scored first"
        yield f"{by_first}: {count(frames, 'frame')} were not scored, and may be weaker, or no number."


def _were(numbers: Sequence[int]) -> str:
    return f"Blocks {ranges(numbers)} were" if len(numbers) > 1 else f"Block {numbers[0]} was"


def notes_on(
    execution: Execution,
    scorer: ReportedScorer | None,
    texts: Iterable[str],
    kernel_notes: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return notes on the scorer, the kernels, fp8 keys and values, and the prompts `texts`."""
    of_scorer = scorer.describe()["notes"] if scorer else ()
    of_prompts = [scorer.prompt_notes(text) for text in dict.fromkeys(texts)] if scorer else []
    return (*of_scorer, *kernel_notes, *((FP8_NOTE,) if execution.kv_fp8 else ()), *chain.from_iterable(of_prompts))
