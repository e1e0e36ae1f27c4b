"""Scorers of decoded pixel frames; ImageReward is the built-in one."""
