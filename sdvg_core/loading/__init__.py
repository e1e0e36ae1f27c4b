"""The models of a run: options, headers, loading, cache keys, and inspection of files."""
