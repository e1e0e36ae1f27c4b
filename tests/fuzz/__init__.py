"""Fuzzing of everything that reads bytes a stranger could supply; README of the promise: SECURITY.md."""
