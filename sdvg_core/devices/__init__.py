"""Devices, dtypes, clocks, compilation, streamed layers and worker processes."""
