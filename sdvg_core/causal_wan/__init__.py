"""Causal Wan 2.1 as a block generator: checkpoints, presets, schedules, the forward pass and its context."""
