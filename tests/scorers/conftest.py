"""Lets the tests import what they share with the scripts in `tests/golden`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
