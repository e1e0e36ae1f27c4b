"""One prompt and seed in all configurations: the videos, and a row of numbers about each."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

import torch
from safetensors.torch import load, save
from torch import Tensor

from sdvg_core.engine.protocols import Engine, Scorer
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models
from sdvg_core.report.run_report import passes_of
from sdvg_core.report.summary import OUTCOME_LETTERS, outcome_of
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.route import Route
from sdvg_core.weights.model_files import ModelFiles

from .memo import GIGABYTE, SharedEngine
from .metrics import External, Metric, Oracle, SeamChange
from .protocol import Configuration
from .routers import seeded
from .statistics import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What the models of a study are and what they make, as values that can be sent between processes.

    `pocket`: whether the videos show the pocket world, so that its oracle can judge them. `scored`: whether every
    video is scored at the end. `colour_hold`: see `Run`.
    """

    files: ModelFiles
    load: LoadOptions
    blocks: int = 9
    width: int = 64
    height: int = 64
    pocket: bool = True
    external: External | None = None
    scored: bool = True
    colour_hold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyModels:
    """The parts of a run, and the metrics for its videos.

    `engine`: with a scorer. `width`, `height`: of the videos, in pixels. `memo_bytes`: of decoded frames and
    decoder states to cache; 0 caches nothing. `scored`: whether every video is scored at the end.
    """

    engine: Engine
    blocks: int
    width: int
    height: int
    metrics: tuple[Metric, ...] = ()
    memo_bytes: float = GIGABYTE
    scored: bool = True
    colour_hold: float = 0.0

    def run(self, condition: Condition, seed: int) -> Run:
        """Return the run that all videos of one prompt and seed have in common: blocks, noise and prompt.

        All videos get the same objects for these, so that runs can share results computed from them.
        """
        return plan_run(
            self.engine,
            Route(),
            lambda _: condition,
            blocks=self.blocks,
            seed=seed,
            width=self.width,
            height=self.height,
            colour_hold=self.colour_hold,
        )


def load_study_models(options: StudyOptions) -> StudyModels:
    """Load the models of a study.

    On a CPU every worker computes with one thread, so that rows do not depend on the number of workers.
    """
    if options.load.device == "cpu":
        torch.set_num_threads(1)
    loaded = load_models(options.files, options.load, check_models(options.files, options.load))
    oracle = Oracle() if options.pocket else None
    return StudyModels(
        engine=loaded.build(),
        blocks=options.blocks,
        width=options.width,
        height=options.height,
        metrics=tuple(metric for metric in (SeamChange(), oracle, options.external) if metric),
        scored=options.scored,
        colour_hold=options.colour_hold,
    )


def configured(run: Run, configuration: Configuration, engine: Engine) -> Run:
    """Return the run of one configuration, with its own parts. A `RandomRouter` draws per prompt and seed.

    A draft that is kept at one rate is also kept at every higher rate.
    """
    route = seeded(configuration.route, run.inputs.condition_of(0).text, run.inputs.noise.seed)
    plan = replace(run.plan, route=route)
    return replace(run, engine=engine, plan=plan, drafter_context=configuration.drafter_context)


def scorer_of(engine: Engine) -> Scorer:
    """Return the scorer of an engine. Raises `BadInput` if it has none."""
    if engine.scorer is None:
        raise BadInput("a study scores every video; give a reward model with --reward")
    return engine.scorer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptSeedJob:
    """The work left for one prompt and seed, as values that can be sent between processes.

    `embedding`: of the prompt, `(1, tokens, c)`, packed by `pack`.
    """

    prompt: str
    seed: int
    configurations: tuple[Configuration, ...]
    embedding: bytes = b""


def pack(embedding: Tensor) -> bytes:
    """Return the bytes of an embedding; a tensor would be sent as a handle to the sender's memory."""
    packed: bytes = save({"embedding": embedding.detach().cpu().contiguous()})
    return packed


def rows_of(models: StudyModels, job: PromptSeedJob) -> Iterator[Record]:
    """Yield the rows as they are made."""
    sharing = SharedEngine(models.engine, models.memo_bytes)
    condition = Condition(load(job.embedding)["embedding"], job.prompt)
    run = models.run(condition, job.seed)
    of = {"prompt": job.prompt, "seed": job.seed}
    for configuration in job.configurations:
        calls: Counter[str] = Counter()
        engine = sharing.engine(calls, configuration.draft_steps)
        row = _row(models, configured(run, configuration, engine))
        counts = {"target_calls": calls["target"], "draft_calls": calls["draft"]}
        yield {"configuration": configuration.name, **of, **row, **counts}


def _row(models: StudyModels, run: Run) -> Record:
    """Make a video, and return its numbers; None for what is not finite, or was not scored."""
    emitted = list(run.blocks())
    text = run.inputs.condition_of(0).text
    rewards = [scorer_of(models.engine).score(one.frames, text) for one in emitted] if models.scored else []
    records = [one.record for one in emitted]
    frames = torch.cat([one.frames for one in emitted], dim=1)[0].cpu()
    seams = list(accumulate(one.frames.shape[1] for one in emitted))[:-1]
    measured = [metric.measure(frames, text, seams).items() for metric in models.metrics]
    scores = [record.decision.known_scores for record in records]

    def of(many: Callable[[Sequence[float]], float]) -> list[float | None]:
        return [_finite(many(values)) if values else None for values in scores]

    return {
        "route": "".join(OUTCOME_LETTERS[outcome_of(record)] for record in records),
        "accepted": [record.decision.accepted for record in records],
        "worst_scores": of(min),
        "mean_scores": of(fmean),
        "passes": _passes(records),
        "metrics": {**_means(rewards), **{name: _finite(value) for pairs in measured for name, value in pairs}},
        "latents_sha256": digest(torch.cat([one.block.latents for one in emitted], dim=2)),
    }


def _means(rewards: Sequence[Tensor]) -> dict[str, float]:
    """Return the mean over frames and that of blocks' worst frames; nothing of videos that were not scored."""
    if not rewards:
        return {}
    return {
        "reward_mean": float(torch.cat([*rewards]).mean()),
        "reward_worst": float(torch.stack([reward.min() for reward in rewards]).mean()),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _passes(records: Sequence[BlockRecord]) -> dict[str, int]:
    """Return how many passes of each kind the video took, as if nothing were shared.

    `scores` are a draft's pixel frames.
    Only the passes of a growing cache (context policy `incremental`) depend on what was asked before: a block from
    the memo counts those of the row that made it.
    """
    scores = sum(len(record.decision.known_scores) for record in records)
    return {**passes_of(records), "scores": scores}


def digest(latents: Tensor) -> str:
    """Return a hash of latents."""
    return hashlib.sha256(latents.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
