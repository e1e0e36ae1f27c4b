"""A copy of the pack in which a video has one more option: one field, and a widget's words in both languages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIELD = """
    grain: float = setting(0.0, least=0, most=1, help="how much film grain", widget={"step": 0.1, "optional": True})
"""
WORDS = {"en": "How much film grain.", "zh": "胶片颗粒的强度。"}


def copy_with_option(folder: Path) -> Path:
    """Return `folder`, with the packages of the pack and the words of its nodes."""
    trained = ROOT / "sdvg_core" / "pocket"

    def ignored(place: str, names: list[str]) -> set[str]:
        """Return what is not copied: what the page needs, and 25 MB of trained weights."""
        return {
            name for name in names if name in ("__pycache__", "web") or (Path(place), name) == (trained, "weights")
        }

    for name in ("sdvg_core", "nodes", "locales"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    weights = Path("sdvg_core", "pocket", "weights")
    (folder / weights).symlink_to(ROOT / weights)
    request = folder / "sdvg_core" / "settings" / "request.py"
    head, check, rest = request.read_text(encoding="utf-8").partition("\n    def __post_init__")
    request.write_text(f"{head}{FIELD}{check}{rest}", encoding="utf-8")
    for language, tooltip in WORDS.items():
        path = folder / "locales" / language / "nodeDefs.json"
        words = json.loads(path.read_text(encoding="utf-8"))
        words["SDVGSpeculativeSampler"]["inputs"]["grain"] = {"name": "grain", "tooltip": tooltip}
        path.write_text(json.dumps(words), encoding="utf-8")
    return folder
