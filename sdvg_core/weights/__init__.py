"""Weight files: finding them, and reading them without running code from them."""

LARGEST_SIZE = 1 << 20
"""Longest axis of a tensor; a limit, because models are built from the sizes in a file."""
