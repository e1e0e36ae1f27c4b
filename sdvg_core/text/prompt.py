"""Clean a prompt as in Wan 2.1's training: repaired characters, no HTML entities, single spaces."""

from __future__ import annotations

import html

from ..errors import BadInput


def clean_prompt(prompt: str) -> str:
    """Return the prompt as the tokenizer must see it.

    Raises `BadInput` if nothing is left, or if the prompt needs ftfy and ftfy is not installed.
    """
    text = html.unescape(html.unescape(_repair(prompt)))
    text = " ".join(text.split())
    if not text:
        raise BadInput("the prompt is empty; describe what the video should show")
    return text


def _repair(text: str) -> str:
    # What ftfy repairs is mojibake, look-alike characters and control codes; plain ASCII text has none of them.
    if text.isascii() and all(c.isprintable() or c.isspace() for c in text):
        return text
    try:
        import ftfy
    except ImportError as error:
        raise BadInput(
            "a prompt beyond plain ASCII needs the ftfy package, but it is not installed; "
            "pip install ftfy, or write the prompt in ASCII"
        ) from error
    return str(ftfy.fix_text(text))
