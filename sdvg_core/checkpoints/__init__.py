"""Files of weights: what they hold, read without running code from them, and where they are looked for."""
