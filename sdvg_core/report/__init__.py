"""The record of a run: report, JSON, route picture, summary, and progress on a terminal."""
