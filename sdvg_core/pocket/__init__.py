"""The embedded model set, small enough to try everything on any machine."""
