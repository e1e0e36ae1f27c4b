"""The embedded miniature: a small world, its prompts, and trained models."""

from pathlib import Path

DEFAULT_PROMPT = "a big yellow ball runs right and down from the middle over night"
EXAMPLE_PROMPTS = (
    DEFAULT_PROMPT,
    "a big white ball runs right and down from the middle over dusk",
    "a big orange box runs up from the middle over sea",
    "a big blue ball crawls up from the middle over grass",
    "a big purple ball drifts down from the right over snow",
    "a big green diamond crawls left from the bottom right over sand",
)
"""Prompts that the models do well: one big thing. Small rings and two things are hard for them."""
POCKET = Path("pocket")
"""Name of the embedded models where a folder of models is expected."""
