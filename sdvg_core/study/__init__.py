"""The study: a protocol of configurations over prompts and seeds, and what the rows say when held side by side."""
