"""Which routing pays off: many routes over the same prompts and seeds, compared (docs/study.md)."""
