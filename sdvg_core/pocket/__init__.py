"""A miniature of the system: a small world, its prompts, its oracle, and a model set."""
