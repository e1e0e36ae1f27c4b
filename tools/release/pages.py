"""Write docs/dependencies.md: from pyproject.toml and the bills of materials in this folder.

    python3 tools/release/bill.py, then python3 tools/release/pages.py

tools/release/portability.md is written by tests/campaigns/portability.py, which runs what it reports.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
WHAT_FOR = {
    "torch": "tensors",
    "transformers": "the classes of UMT5 and BLIP",
    "safetensors": "reading weights, writing latents",
    "einops": "readable changes of layout",
    "numpy": "pictures to and from tensors",
    "Pillow": "the picture of the route, start images, previews",
    "av": "the mp4, and clips that are read; before 16 a damaged clip ends the process",
    "filelock": "keeps two runs apart; comes with torch",
    "tqdm": "the progress bar in the terminal",
    "tokenizers": "text into tokens, for BERT",
    "sentencepiece": "the tokenizer of UMT5",
    "pyyaml": "ComfyUI's extra_model_paths.yaml; comes with transformers",
    "diffusers": "the layers of the Wan VAE",
    "ftfy": "cleans prompts as Wan 2.1's own code does",
    "torchao": "products in fp8 on a GPU",
    "comfy-kitchen": "files in int8 and 4 bits",
    "matplotlib": "plots",
    "scipy": "correlations",
    "ray": "videos and studies over many machines",
    "jsonschema": "the schema of reports",
    "mypy": "types",
    "pytest": "the tests",
    "pytest-xdist": "on several cores",
    "ruff": "lint and format",
    "types-tqdm": "types of tqdm",
}
EXTRAS = ("standalone", "fp8", "quantised", "research", "ray", "dev")
NOT_INSTALLED = {"comfy-kitchen": "Apache-2.0", "ray": "Apache-2.0", "torchao": "BSD-3-Clause"}
"""Licences, as their releases state them, of what the development environment does not have."""


def page() -> str:
    """Return the page."""
    text = (HERE / "dependencies.md").read_text(encoding="utf-8")
    text = text.replace("[table]", table()).replace("[extras]", extras())
    for name in ("sbom", "sbom-comfyui"):
        licences = Counter(_licences(name).values())
        most = ", ".join(f"{count} {licence}" for licence, count in licences.most_common(3))
        text = text.replace(f"[{name} packages]", str(licences.total())).replace(f"[{name} licences]", most)
    return text


def table() -> str:
    """Return a table of the packages that the core declares."""
    lines = ["| package | licence | what for |", "|---|---|---|"]
    lines += [f"| {name} | {_licence(name)} | {WHAT_FOR[name]} |" for name in declared()]
    return "\n".join(lines)


def extras() -> str:
    """Return a list of the extras, each with its packages."""
    return "\n".join(f"- `{extra}`: {'; '.join(map(_added, declared(extra)))}" for extra in EXTRAS)


def _added(name: str) -> str:
    return f"{name} ({_licence(name)}), {WHAT_FOR[name]}"


def _licence(name: str) -> str:
    return NOT_INSTALLED.get(name) or _licences("sbom")[name.lower()]


def declared(extra: str = "") -> list[str]:
    """Return the packages that pyproject.toml names, without ourselves."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [listed] = re.findall(rf"^{extra or 'dependencies'} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    return [name for name in re.findall(r'"([\w-]+)', listed) if name != "sdvg"]


def _licences(name: str) -> dict[str, str]:
    bill = json.loads((HERE / f"{name}.cdx.json").read_text(encoding="utf-8"))
    return {one["name"]: one["licenses"][0]["expression"] for one in bill["components"]}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
