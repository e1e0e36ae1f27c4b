"""Keep the text of the prompts out of reports, unless their author asks for it.

Reports do hold settings, seeds and the names of model files, so that a video can be made again. They also hold a
hash of every prompt: it shows whether two reports have the same prompt, and where the prompt changes.
"""

from __future__ import annotations

import hashlib
import re

MARK, DIGITS = "sha256:", 16


def hide_prompt(text: str) -> str:
    """Return the stand-in for a hidden prompt: `sha256:` and 16 digits, the same for equal prompts."""
    return MARK + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def is_hidden(prompt: str) -> bool:
    """Whether this is the stand-in for a hidden prompt."""
    return re.fullmatch(f"{MARK}[0-9a-f]{{{DIGITS}}}", prompt) is not None
