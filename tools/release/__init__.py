"""What makes a release; `python3 -m tools.release FOLDER` makes all of it."""
