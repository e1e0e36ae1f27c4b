"""The embedded miniature: a small world, its prompts, and trained models."""

import json
from pathlib import Path

DEMO_PROMPTS = Path(__file__).with_name("demo_prompts.json")
"""The demo's prompts, with what was measured; lab/training/demo_prompts.py chooses them, and says how."""
CHOSEN = json.loads(DEMO_PROMPTS.read_text(encoding="utf-8"))
HELPED_PROMPTS = tuple(row["prompt"] for row in CHOSEN["helps"])
"""The small model alone loses the moving thing, both models keep it; of all such, the median gain comes first."""
UNHELPED_PROMPTS = tuple(row["prompt"] for row in CHOSEN["does not help"])
"""The small model alone keeps it as well."""
EXAMPLE_PROMPTS = (*HELPED_PROMPTS, *UNHELPED_PROMPTS)
DEFAULT_PROMPT = EXAMPLE_PROMPTS[0]
POCKET = Path("pocket")
"""Name of the embedded models where a folder of models is expected."""
