"""How live sessions encoded their prompts, so that a run which encodes one to other bits says so.

A recording has words, not embeddings. The same words encoded on another device, in another dtype or by another text
encoder have other bits, and then no block of the session serves from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...sdvg_core.engine.types import hash_text
from ...sdvg_core.report.embeddings import other_embedding
from ...sdvg_core.text.prompts import Conditions
from .conditioning import encoder_device
from .sockets import PromptEntry

MOST_SEEDS = 256
REMEDY = "Load the text encoder of the session, on the same device and in the same dtype, to use its blocks."


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as it was encoded: a hash of its embedding, and the device of its encoder; empty if nobody knows."""

    embedding: str
    device: str


class EncodedPrompts:
    """The prompts of live sessions as they were encoded, by seed; of several with one seed, as the newest did."""

    def __init__(self) -> None:
        self._by_seed: OrderedDict[int, dict[str, Encoded]] = OrderedDict()

    def learn(self, seed: int, prompts: Mapping[str, Encoded]) -> None:
        """Remember how a session encoded its prompts, by text."""
        known = {hash_text(text): encoded for text, encoded in prompts.items()}
        self._by_seed[seed] = {**self._by_seed.pop(seed, {}), **known}
        while len(self._by_seed) > MOST_SEEDS:
            self._by_seed.popitem(last=False)

    def notes(
        self, seed: int, prompts: Sequence[PromptEntry], conditions: Conditions, blocks: int
    ) -> tuple[str, ...]:
        """Return a note on the prompts of a run that a session with its seed encoded to other bits.

        `conditions`: of `prompts`, in their order. `blocks`: how many the film has, with those of a clip before it.
        """
        known = self._by_seed.get(seed, {})
        numbers = []
        moves = dict[str, None]()
        for entry, (_, condition) in zip(prompts, conditions.entries, strict=True):
            then = known.get(hash_text(entry.text))
            if entry.index >= blocks or then is None or then.embedding == condition.digest:
                continue
            numbers.append(entry.index + 1)
            now = encoder_device(entry.conditioning)
            if then.device and now and then.device != now:
                moves[f" (on {then.device} then, on {now} now)"] = None
        if not numbers:
            return ()
        fault = f"{other_embedding(numbers, 'in the live session with this seed')}{''.join(moves)}"
        return (f"{fault}, so block {numbers[0]} and those that follow from it are made anew. {REMEDY}",)


ENCODED = EncodedPrompts()
"""Of all live sessions of this server."""
