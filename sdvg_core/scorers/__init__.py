"""Scorers score decoded pixel frames. ImageReward is the one we ship."""
