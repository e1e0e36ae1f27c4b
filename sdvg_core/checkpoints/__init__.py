"""Weight files: reading them without running code from them, and where to look for them."""

LARGEST_SIZE = 1 << 20
"""Of an axis. A model's sizes are read from its tensors, and it is built from them before they are compared."""
