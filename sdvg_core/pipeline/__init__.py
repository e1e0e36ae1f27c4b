"""From files to a video: loading, checking, rendering, resuming."""
