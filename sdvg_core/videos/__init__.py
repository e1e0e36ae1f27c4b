"""Make videos: one, many, or a stream of blocks; the Python API."""
