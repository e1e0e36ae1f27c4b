"""Profiles of hypothesis: the same cases in every run, or, by command, more of them and new ones."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("usual", deadline=None, derandomize=True, database=None)
settings.register_profile("campaign", deadline=None, max_examples=2000, database=None)
settings.load_profile("usual")
