"""What came of a call on hostile input: a result, or a refusal that has to be one good sentence."""

from __future__ import annotations

import re
from collections.abc import Callable

from sdvg_core.errors import BadInput

LONGEST_SENTENCE = 400
# A refusal says the fault, and after a semicolon what to do.
REFUSAL = re.compile(r"\w+ .*; \w+ ", re.DOTALL)


def answer(call: Callable[[], object]) -> object:
    """Return the result of a call, or the `BadInput` that it raises."""
    try:
        return call()
    except BadInput as refusal:
        return refusal


def spoken_badly(sentence: str) -> str:
    """Return what is wrong with the sentence of a refusal, or nothing."""
    if not REFUSAL.search(sentence):
        return f"a refusal without fault or remedy: {sentence!r:.300}"
    if not all(c.isprintable() or c == "\n" for c in sentence):
        return f"a refusal with characters that are no text: {sentence!r:.300}"
    return f"a refusal of {len(sentence)} characters" if len(sentence) > LONGEST_SENTENCE else ""
