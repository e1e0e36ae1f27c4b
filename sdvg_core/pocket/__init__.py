"""A complete miniature of the system: a small world, its oracle, and a model set trained on it."""
