"""What of a run stays with its author: the text of the prompts, unless they ask for it in the report.

Settings, seeds and the names of model files are written, because they let a video be made again. So is a hash of
every prompt: it tells whether two reports are of one prompt, and where the prompt changes.
"""

from __future__ import annotations

import hashlib
import re

MARK, DIGITS = "sha256:", 16


def hide_prompt(text: str) -> str:
    """Return what stands for a prompt whose text is left out: `sha256:` and 16 digits; equal prompts share one."""
    return MARK + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def is_hidden(prompt: str) -> bool:
    """Whether this stands for a prompt whose text was left out."""
    return re.fullmatch(f"{MARK}[0-9a-f]{{{DIGITS}}}", prompt) is not None
