"""Weight files: reading them without running code from them, and where to look for them."""
