"""From model files to a video: loading, checking, rendering, resuming."""
