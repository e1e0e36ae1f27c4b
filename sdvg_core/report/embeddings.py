"""Which prompts were encoded to other bits than in an earlier run, although their words are the same.

The words encoded on another device, in another dtype or by another text encoder have other bits, and then no block
of the earlier run serves from there on. A report has a digest of each prompt's embedding, so that this can be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..engine.types import Condition
from .run_report import DIGITS, RunReport, hide_prompt, is_hidden

EMBEDDINGS = "embeddings"
"""Setting of a report: the first digits of an embedding's hash, by the hash of its prompt."""


def embedding_digests(conditions: Iterable[Condition]) -> dict[str, str]:
    """Return the setting `EMBEDDINGS`; of several embeddings of one text, the first."""
    digests: dict[str, str] = {}
    for condition in conditions:
        name = hide_prompt(condition.text)
        if name not in digests:
            digests[name] = condition.digest[:DIGITS]
    return digests


def encoded_otherwise(then: RunReport, now: RunReport) -> tuple[int, ...]:
    """Return the numbers of the blocks of `now` at which prompts begin that `then` has with another embedding."""
    before = _digests_of(then)
    after = _digests_of(now)
    differing = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    numbers = []
    for record in now.blocks:
        name = record.prompt if is_hidden(record.prompt) else hide_prompt(record.prompt)
        if name in differing:
            differing.remove(name)
            numbers.append(now.number_of(record))
    return tuple(numbers)


def other_embedding(numbers: Sequence[int], than: str) -> str:
    """Return the words of a note, such as `The prompt from block 3 on has another embedding than then`."""
    if len(numbers) == 1:
        return f"The prompt from block {numbers[0]} on has another embedding than {than}"
    named = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    return f"The prompts from blocks {named} on have another embedding than {than}"


def _digests_of(report: RunReport) -> Mapping[str, object]:
    """Return the setting of a report, which may be from before there was one, or not by us."""
    digests = report.settings.get(EMBEDDINGS)
    return digests if isinstance(digests, Mapping) else {}
