"""From models and requests to files: one video, many videos, or a stream of blocks."""
