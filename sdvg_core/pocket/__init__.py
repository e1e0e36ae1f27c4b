"""A miniature of the system: a small world, its prompts, its oracle, and a model set."""

from pathlib import Path

DEFAULT_PROMPT = "a big yellow ball runs right and down from the middle over night"
EXAMPLES = (
    DEFAULT_PROMPT,
    "a big white ball runs right and down from the middle over dusk",
    "a big orange box runs up from the middle over sea",
    "a big blue ball crawls up from the middle over grass",
    "a big purple ball drifts down from the right over snow",
    "a big green diamond crawls left from the bottom right over sand",
)
"""Prompts that suit this pair: one big thing alone. Small rings and two things are hard for it."""
POCKET = Path("pocket")
"""Stands for the embedded models where a command takes a folder of models."""
