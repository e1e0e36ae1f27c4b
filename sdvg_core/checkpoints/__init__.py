"""Weight files: reading them without running code from them, and where to look for them."""

LARGEST_SIZE = 1 << 20
"""The longest axis. A model's sizes are read from its tensors; it is built from them before they are compared."""
