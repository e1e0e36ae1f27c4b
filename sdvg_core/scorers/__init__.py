"""Scorers score decoded pixel frames. ImageReward is the one we ship."""

from typing import Literal

Crop = Literal["center", "squash", "tiles"]
"""The part of a frame that a scorer sees."""
