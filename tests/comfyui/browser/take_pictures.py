"""Take the pictures of README.md and the help pages anew, in a ComfyUI and a Chromium of its own.

    ~/comfy/venv/bin/python tests/comfyui/browser/take_pictures.py FOLDER

writes canvas.png and nodes2.png into FOLDER, for docs/images, and one of every node into FOLDER/nodes, for
nodes/web/docs/images. Look at them before they are put there. What it needs is said in ../comfy_page.py; those of
the workflows are drawn by tools/release/covers.py, README's race by tools/release/race.py.
"""

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# As published, so that the loaders show them; the pictures need nothing that is in them.
NAMES = ("self_forcing_dmd.pt", "krea-realtime-video-14b.safetensors")
# One whose route has every usual outcome, with the embedded models of this version.
SEED = 42
RENDERERS = {"canvas": False, "nodes2": True}


def main(folder):
    """Take them."""
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
    from conftest import start_comfyui

    missing = start_comfyui(gpu=False)
    if missing:
        sys.exit(missing)
    (folder / "nodes").mkdir(parents=True, exist_ok=True)
    for name, vue in RENDERERS.items():
        with tempfile.TemporaryDirectory() as base:
            take(Path(base), folder, name, vue)
    return 0


def take(base, folder, name, vue):
    """Take those of one renderer. From the cache of another the sampler would show neither a frame nor a line."""
    from comfy_page import browse
    from running_server import running_server

    models = base / "models" / "diffusion_models"
    models.mkdir(parents=True)
    for file in NAMES:
        (models / file).touch()
    options = {"vue": vue, "seed": SEED, "script": "", "overview": str(folder / f"{name}.png")}
    if vue:
        options["nodes"] = str(folder / "nodes")
    with running_server(base) as server:
        browse(server, base, "pictures.js", **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    sys.exit(main(options.folder.resolve()))
