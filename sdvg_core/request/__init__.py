"""The request for one video, its start and control, and how models resolve it."""
