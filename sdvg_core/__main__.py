"""`python -m sdvg_core`."""

import sys

from .cli import main

sys.exit(main())
