"""Weight files: reading them without running code from them, and where to look for them."""

LARGEST_SIZE = 1 << 20
"""The longest axis. A model is built from the sizes of its tensors before they are compared."""
