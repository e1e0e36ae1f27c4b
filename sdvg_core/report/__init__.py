"""The record of a run: report, JSON, route picture, page, summary, and progress on a terminal."""
