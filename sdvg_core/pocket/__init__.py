"""A miniature of the system: a small world, its prompts, its oracle, and a model set."""

from pathlib import Path

DEFAULT_PROMPT = "a big yellow ball runs right and down from the middle over night"
POCKET = Path("pocket")
"""What stands for the embedded judge where a command takes a file."""
