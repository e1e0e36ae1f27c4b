"""Compare a judge with the full VAE: the same drafts, decoded and scored by both.

The drafts are those of the anchor-only video. A tau belongs to a decoder; here is what it becomes under the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run
from sdvg_core.errors import BadInput

from .equipment import scorer_of
from .statistics import Array, Bootstrap, Interval, as_told, in_words, spearman, too_few
from .store import Record

Counts = npt.NDArray[np.int64]
SCORES = ("worst_score", "judge_worst_score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How a judge's scores of drafts compare with those of the full VAE, by each draft's worst frame.

    `shift`: the judge's score minus the full VAE's, on average. `spread`: the standard deviation of that.
    `rank_correlation`: over all drafts. `changed`: the share of drafts decided differently at `tau`; `judge_tau`:
    the judge's tau that keeps the same share of drafts, and `changed_there` the share decided differently with it.
    Intervals are those that other prompts of the same kind would have given.
    """

    tau: float
    shift: Interval
    spread: float
    rank_correlation: Interval
    changed: Interval
    judge_tau: Interval
    changed_there: Interval
    drafts: int
    prompts: int

    def __str__(self) -> str:
        few, told = too_few(self.prompts), {name: in_words(getattr(self, name), self.prompts) for name in FIGURES}
        return (
            f"{self.drafts} drafts of {self.prompts} prompts, by their worst frame: the judge's score minus the "
            f"full VAE's is {told['shift']} (standard deviation {self.spread:.2g}), their rank correlation "
            f"{told['rank_correlation']}. At tau {self.tau:g} the judge decides a share of {told['changed']} "
            f"differently. Its tau that keeps as many drafts is {told['judge_tau']}, where it decides "
            f"{told['changed_there']} differently." + (f" {few}." if few else "")
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        figures = {name: getattr(self, name) for name in FIGURES}
        return {**asdict(self), **as_told(figures, self.prompts)}


def measure_judge(run: Run) -> Iterator[Record]:
    """Yield for every block but the first the scores of its draft as the full VAE and as the judge show it."""
    scorer, text = scorer_of(run.engine), run.condition_of(0).gate_text
    for emitted in replace(run, router=RouterConfig(policy="anchor-only")).blocks():
        if emitted.block.span.index == 0:
            continue
        shown = {"": emitted.frames, "judge_": emitted.preview}
        scores = {name: scorer.score(frames, text) for name, frames in shown.items()}
        yield {
            "block": emitted.block.span.index,
            **{f"{name}worst_score": float(of.min()) for name, of in scores.items()},
            **{f"{name}mean_score": float(of.mean()) for name, of in scores.items()},
        }


def compare_judge(records: Sequence[Record], prompts: Sequence[str], tau: float) -> Judged:
    """Return how a judge compares with the full VAE. Raises `BadInput` if there are no finite scores to compare."""
    finite = [r for r in records if all(math.isfinite(r[name]) for name in SCORES)]
    by_prompt = [np.array([[r[name] for name in SCORES] for r in finite if r["prompt"] == p]) for p in prompts]
    by_prompt = [scores for scores in by_prompt if len(scores)]
    if not by_prompt:
        raise BadInput("there are no drafts to compare the judge by; ask for at least two blocks")
    bootstrap, everything = Bootstrap(len(by_prompt)), np.concatenate(by_prompt)

    def figure(name: str) -> Interval:
        def statistic(times: Counts) -> float:
            drawn = [np.repeat(scores, n, axis=0) for scores, n in zip(by_prompt, times, strict=True) if n]
            return FIGURES[name](np.concatenate(drawn), tau)

        found = bootstrap.per_draw(statistic)
        return found or Interval(FIGURES[name](everything, tau), math.nan, math.nan)

    return Judged(
        tau=tau,
        spread=float(np.std(everything[:, 1] - everything[:, 0])),
        drafts=len(everything),
        prompts=len(by_prompt),
        **{name: figure(name) for name in FIGURES},
    )


def _shift(scores: Array, tau: float) -> float:
    return float((scores[:, 1] - scores[:, 0]).mean())


def _rank_correlation(scores: Array, tau: float) -> float:
    return spearman(scores[:, 0], scores[:, 1])


def _changed(scores: Array, tau: float) -> float:
    return float(((scores[:, 1] >= tau) != (scores[:, 0] >= tau)).mean())


def _judge_tau(scores: Array, tau: float) -> float:
    """The score of the last draft that the judge keeps if it keeps as many as the full VAE does at `tau`."""
    full, judge = scores[:, 0], np.sort(scores[:, 1])
    kept = int((full >= tau).sum())
    return float(judge[-kept]) if kept else float(np.nextafter(judge[-1], np.inf))


def _changed_there(scores: Array, tau: float) -> float:
    return float(((scores[:, 1] >= _judge_tau(scores, tau)) != (scores[:, 0] >= tau)).mean())


FIGURES: Mapping[str, Callable[[Array, float], float]] = {
    "shift": _shift,
    "rank_correlation": _rank_correlation,
    "changed": _changed,
    "judge_tau": _judge_tau,
    "changed_there": _changed_there,
}
"""Each figure of drafts with the scores `(drafts, 2)`, by the full VAE and by the judge."""
