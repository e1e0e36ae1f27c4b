"""The study: a protocol of configurations over prompts and seeds, and comparisons of the resulting rows."""
