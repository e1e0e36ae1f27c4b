"""Take the pictures of README.md, the help pages and the workflows anew, in a ComfyUI and a Chromium of its own.

    ~/comfy/venv/bin/python tests/comfyui/browser/take_pictures.py FOLDER

writes canvas.png and nodes2.png into FOLDER, for docs/images; one of every node into FOLDER/nodes, for
nodes/web/docs/images; and one of every workflow into FOLDER/workflows. With `--only workflows` those alone. Look at
them before they are put there. What it needs is said in ../test_interface.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
# As published, so that the loaders show them; the pictures need nothing that is in them.
NAMES = ("self_forcing_dmd.pt", "krea-realtime-video-14b.safetensors")
# One whose route has every usual fate, with the embedded models of this version.
SEED = 42
RENDERERS = {"canvas": False, "nodes2": True}
# The demo's picture is its route, which shows more of it than its nodes.
WORKFLOWS = [path for path in sorted((HERE.parents[2] / "workflows").glob("*.json")) if "pocket" not in path.stem]
WIDTH, QUALITY = 960, 88
FOLDER_OF_LOADER = {"CLIPLoader": "text_encoders", "VAELoader": "vae", "SDVGQualityRouter": "image_reward"}


def main(folder: Path, only: str | None) -> int:
    """Take them."""
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
    from conftest import start_comfyui

    missing = start_comfyui()
    if missing:
        sys.exit(missing)
    (folder / "nodes").mkdir(parents=True, exist_ok=True)
    for name, vue in RENDERERS.items() if only is None else ():
        with tempfile.TemporaryDirectory() as base:
            take(Path(base), folder, name, vue)
    with tempfile.TemporaryDirectory() as base:
        take_workflows(Path(base), folder / "workflows")
    return 0


def take(base: Path, folder: Path, name: str, vue: bool) -> None:
    """Take those of one renderer. From the cache of another the sampler would show neither a frame nor a line."""
    from running_server import running_server
    from test_interface import browse

    models = base / "models" / "diffusion_models"
    models.mkdir(parents=True)
    for file in NAMES:
        (models / file).touch()
    options = {"vue": vue, "seed": SEED, "script": "", "overview": str(folder / f"{name}.png")}
    if vue:
        options["nodes"] = str(folder / "nodes")
    with running_server(base) as server:
        browse(server, base, "pictures.js", **options)


def take_workflows(base: Path, folder: Path) -> None:
    """Take those of the workflows, small enough for a list of them."""
    from running_server import CHECKOUT, running_server
    from test_interface import browse

    folder.mkdir(parents=True, exist_ok=True)
    for path in WORKFLOWS:
        for node in json.loads(path.read_text(encoding="utf-8"))["nodes"]:
            place = base / "models" / FOLDER_OF_LOADER.get(node["type"], "diffusion_models")
            for model in node.get("properties", {}).get("models", []):
                place.mkdir(parents=True, exist_ok=True)
                (place / model["name"]).touch()
    (base / "input").mkdir()
    shutil.copy(CHECKOUT / "input" / "example.png", base / "input")
    with running_server(base) as server:
        files = [str(path) for path in WORKFLOWS]
        browse(server, base, "workflow_pictures.js", vue=True, files=files, pictures=str(base))
    for path in WORKFLOWS:
        with Image.open(base / f"{path.stem}.png") as picture:
            size = (WIDTH, round(picture.height * WIDTH / picture.width))
            small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
            small.save(folder / f"{path.stem}.jpg", quality=QUALITY, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["workflows"])
    options = parser.parse_args()
    sys.exit(main(options.folder.resolve(), options.only))
