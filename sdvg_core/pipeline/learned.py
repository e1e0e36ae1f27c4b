"""How many first blocks the target makes in each of many videos: stated by its prompt, by a budget, or learned.

A learned route gives more blocks to the prompts that gain more from the target. What a prompt gains is predicted by
a ridge regression on its text embedding, which `study --learn` fits; docs/study.md has the formulas.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..checkpoints.weights import SAFETENSORS, check_complete, open_weights, shape_of
from ..errors import BadInput
from ..plan.budget import afford
from ..report.record_json import take
from .headers import Headers
from .latents import read_metadata
from .request import ResolvedRequest, VideoRequest, cost_request

Array = npt.NDArray[np.float64]
ADVICE = "give a file that study --learn wrote"
LARGEST_NUMBER, LEAST_DEVIATION, MOST_LENGTH = 1e6, 1e-8, 4096
HASH, DIGEST, METRIC = map(re.compile, ("[0-9a-f]{16}", "[0-9a-f]{64}", "[a-z_]{1,40}"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GainModel:
    """What prompts gain from the target, learned from a study.

    `mean`, `deviation`, `weights`: `(c,)`, of the prompts' mean embeddings. `bias`: the mean gain, target-only less
    anchor-only, in units of `metric`. `shape`: `(blocks,)`, the share of a gain that the first m blocks bring, from
    0 for one block. `prices`: `(k, 2)`, further blocks on average, and the price of each at which prompts take that
    many. `measured`: gains of the study's prompts, by `prompt_hash`. `models`: fingerprints of files, by role.
    `gain`: over the same number of blocks for all, on unseen prompts; with the ends of its 95 % interval.
    """

    name: str
    mean: Array
    deviation: Array
    weights: Array
    bias: float
    shape: Array
    prices: Array
    measured: Mapping[str, float]
    models: Mapping[str, str]
    metric: str
    gain: Sequence[float]

    def gain_of(self, text: str, embedding: Tensor) -> float:
        """Return what a prompt gains: its own value if it was measured, else by its embedding `(1, t, c)`."""
        own = self.measured.get(prompt_hash(text))
        if own is not None:
            return own
        if embedding.shape[-1] != len(self.mean):
            width = f"{len(self.mean)} channels, but these have {embedding.shape[-1]}"
            raise BadInput(f"{self.name} takes embeddings of {width}; {ADVICE} of this text encoder")
        return self.bias + float((pooled(embedding) - self.mean) / self.deviation @ self.weights)

    def blocks_for(self, gain: float, price: float, blocks: int) -> int:
        """Return the smallest m with the largest G' s(m) - p (m - 1), for a video of `blocks` blocks.

        If the video's length is not the study's, m counts as the same share of the video.
        """
        further = np.linspace(0, len(self.shape) - 1, blocks)
        brings = np.interp(further, np.arange(len(self.shape)), self.shape)
        return 1 + int((gain * brings - price * further).argmax())  # the first of equal ones

    def choose(self, gains: Sequence[float], mean: float, blocks: int, *, together: bool) -> list[int]:
        """Return how many first blocks each prompt gets, `mean` on average.

        `together`: at most that over these prompts; else over prompts like the study's, each prompt by itself.
        """
        if together:
            price = self.price_for(gains, mean, blocks)
        else:
            further = (mean - 1) * (len(self.shape) - 1) / max(blocks - 1, 1)
            price = float(np.interp(further, *self.prices.T))
        return [self.blocks_for(gain, price, blocks) for gain in gains]

    def price_for(self, gains: Sequence[float], mean: float, blocks: int) -> float:
        """Return the lowest price at which the prompts take at most `mean` blocks on average."""

        def within(price: float) -> bool:
            return sum(self.blocks_for(gain, price, blocks) for gain in gains) <= mean * len(gains)

        low, high = 0.0, max(gains, default=0.0) * float(np.diff(self.shape).max()) + 1.0
        for _ in range(64):
            middle = (low + high) / 2
            low, high = (low, middle) if within(middle) else (middle, high)
        return high

    def notes(self, models: Mapping[str, str | None], blocks: int) -> tuple[str, ...]:
        """Return what a user should know. `models`: fingerprints by role, None where they cannot be known.

        Raises `BadInput` for other models than the study's.
        """
        other = [role for role, digest in models.items() if digest and digest != self.models.get(role)]
        if other:
            what = other[0].replace("_", " ")
            raise BadInput(f"{self.name} was learned with another {what}; {ADVICE} with this one")
        value, low, high = self.gain
        found = []
        if unknown := ", ".join(role.replace("_", " ") for role, digest in models.items() if not digest):
            found.append(f"Whether {self.name} was learned with this {unknown} is not known.")
        if low <= 0:
            interval = f"{value:+.2f} [{low:+.2f}, {high:+.2f}] of {self.metric} on prompts it had not seen"
            found.append(f"{self.name} is not recommended, because it may gain nothing: {interval}.")
        if blocks != len(self.shape):
            found.append(f"{self.name} was learned on videos of {len(self.shape)} blocks; this one has {blocks}.")
        return tuple(found)


def prompt_hash(text: str) -> str:
    """Return the name of a measured prompt, which reveals nothing of it."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def pooled(embedding: Tensor) -> Array:
    """Return the mean of an embedding `(1, t, c)` over the prompt's real tokens: after its end, rows are zero."""
    rows = embedding[0].double().cpu().numpy()
    real = rows[(rows != 0).any(axis=1)]
    mean: Array = (real if len(real) else rows).mean(axis=0)
    return mean


def open_learned(path: Path) -> GainModel:
    """Read a learned route, which anybody may have written: raises `BadInput` unless every value is sound."""
    if path.suffix not in SAFETENSORS:
        raise BadInput(f"{path.name} is no learned route; {ADVICE}, which ends in {SAFETENSORS[0]}")
    file = open_weights(path)
    what = ("learned route", ADVICE)
    dims = {"mean": 1, "shape": 1, "prices": 2}
    (width,), (length,), (rows, _) = (shape_of(file, name, n, *what) for name, n in dims.items())
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(("mean", "deviation", "weights"), (width,))
    wanted |= {"shape": (length,), "prices": (rows, 2)}
    check_complete(file, wanted, *what)
    values: dict[str, Any] = {name: file[name].double().numpy() for name in wanted}
    told, number = read_metadata(file), (int, float)
    kinds = {"measured": (dict,), "models": (dict,), "metric": (str,), "gain": (list,), "bias": number}
    of = {name: take(told, name, kind, path.name) for name, kind in kinds.items()}
    numbers = [of["bias"], *of["gain"], *of["measured"].values()]
    sound = (
        2 <= length <= max(length, rows) <= MOST_LENGTH
        and all((np.abs(value) <= LARGEST_NUMBER).all() for value in values.values())
        and (values["deviation"] >= LEAST_DEVIATION).all()
        and values["shape"][0] == 0
        and (values["prices"] >= 0).all()
        and (np.diff(values["prices"][:, 0]) >= 0).all()
        and all(type(one) in number and abs(one) <= LARGEST_NUMBER for one in numbers)
        and len(of["gain"]) == 3
        and of["gain"][1] <= of["gain"][0] <= of["gain"][2]
        and all(map(HASH.fullmatch, of["measured"]))
        and all(type(value) is str and DIGEST.fullmatch(value) for value in of["models"].values())
        and METRIC.fullmatch(of["metric"])
    )
    if not sound:
        raise BadInput(f"{path.name} has values that no learned route has; {ADVICE}")
    return GainModel(name=path.name, **values, **of)


def route_prompts(
    stated: Sequence[int],
    headers: Headers,
    resolved: ResolvedRequest,
    learned: GainModel | None,
    gains: Sequence[float],
) -> list[tuple[VideoRequest, str]]:
    """Return the request of each prompt's video, and a note on its route, perhaps empty.

    All share one budget: prompts that state their first blocks get them, the others share the rest.
    `stated`: by prompt, how many; 0 for none. `resolved`: the request of all, resolved. `gains`: of the prompts
    that state none, if the route is learned. Raises `BadInput` for more first blocks than a video has.
    """
    request = resolved.request
    if max(stated) > request.blocks:
        stating = f"a prompt states {max(stated)} first blocks, but the video has {request.blocks}"
        raise BadInput(f"{stating}; state fewer")
    router, index, spent, by = resolved.plan.router, resolved.plan.spans[0].index, "", ""
    given = router.place(index)
    mean, handover, every = float(router.forced_blocks), router.handover, given + request.blocks
    if request.budget is not None:
        cost = replace(cost_request(headers, resolved.width, resolved.height, request.blocks), given_blocks=index)
        share, handover = afford(request.budget, router, cost, stated)
        mean, spent = given + share, f"of a budget of {request.budget:g} over {len(stated)} prompts, "
    left = [int(mean)] * stated.count(0)
    if learned:
        if router.policy != "first":
            raise BadInput(f"the policy {router.policy} takes no learned route; choose first, or a budget")
        together = bool(spent) and len(gains) > 1
        left, by = learned.choose(gains, mean, every, together=together), f"by {learned.name}, "
    found, chosen = [], iter(left)
    for m in stated:
        if not (m or learned or spent):
            found.append((request, ""))
            continue
        first, why = (given + m, "as its prompt states, ") if m else (next(chosen), by)
        route = replace(request.router, policy="first", forced_blocks=first, handover=handover)
        note = f"{spent}{why}the target makes the first {first} of {every} blocks."
        found.append((replace(request, router=route, budget=None), note[0].upper() + note[1:]))
    return found
