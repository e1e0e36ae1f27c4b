"""Where a run computes: devices, their clocks and dtypes, what compiles there, and what a report says of them."""
