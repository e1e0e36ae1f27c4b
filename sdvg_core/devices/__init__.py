"""Where a run computes: devices, their clocks and dtypes, compiling for them, and what reports say about them."""
