"""Take the pictures of README.md, the help pages and the workflows anew, in a ComfyUI and a Chromium of its own.

    ~/comfy/venv/bin/python tests/comfyui/browser/take_pictures.py FOLDER

writes canvas.png and nodes2.png into FOLDER, for docs/images; one of every node into FOLDER/nodes, for
nodes/web/docs/images; and a square of every workflow into FOLDER/workflows: those of the embedded models show a
clip and its route, the others the graph and the planned route. With `--only workflows` those alone.
Look at them before they are put there. What it needs is said in ../comfy_page.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).resolve().parent
# As published, so that the loaders show them; the pictures need nothing that is in them.
NAMES = ("self_forcing_dmd.pt", "krea-realtime-video-14b.safetensors")
# One whose route has every usual outcome, with the embedded models of this version.
SEED = 42
RENDERERS = {"canvas": False, "nodes2": True}
TITLES = {
    "sdvg_01_pocket_demo": "Pocket demo, no download",
    "sdvg_02_pocket_app": "Pocket app, no download",
    "sdvg_03_text_to_video": "Text to video",
    "sdvg_04_app": "Text to video, as an app",
    "sdvg_05_quick_preview": "Quick preview",
    "sdvg_06_paper_gate": "The paper's gate",
    "sdvg_07_continue_and_image": "From a picture, and on",
    "sdvg_08_framewise_drafter": "Frame-wise drafter",
    "sdvg_09_two_gpus": "Two GPUs",
    "sdvg_10_extend_video": "Extend a video",
    "sdvg_11_restyle_video": "Restyle a video",
    "sdvg_12_depth_to_video": "Depth to video",
    "sdvg_13_inpaint": "Inpaint",
    "sdvg_14_first_and_last_frame": "First and last frame",
    "sdvg_15_long_video": "Long video",
    "sdvg_16_finish_a_clip": "Finish a clip",
    "sdvg_17_storyboard": "Storyboard, no download",
}
# Blocks that the target makes; those of a continued clip count on, and the gate knows only its first.
TARGET_BLOCKS = {
    "05_quick_preview": (1,),
    "06_paper_gate": (1,),
    "07_continue_and_image": (1, 5),
    "08_framewise_drafter": (1,),
    "10_extend_video": (1,),
    "15_long_video": (1,),
}
BLOCKS = {"07_continue_and_image": 8, "16_finish_a_clip": 0}
UNKNOWN = "#7b8494"
BALANCED = {"policy": "balanced", "policy.target_blocks": 2, "policy.handover_steps": 2}
# Those of the embedded models: API form, what is set otherwise, frames of the clip, and what is below them.
POCKET: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str]] = {
    "sdvg_01_pocket_demo": ("pocket_demo", {}, (60,), "blue, orange: the large model, green: drafts kept"),
    "sdvg_02_pocket_app": ("pocket_demo", BALANCED, (60,), "blue: the large model, green: the small one"),
    "sdvg_17_storyboard": ("storyboard", {}, (24, 60, 96), "three shots, each with its card: edit, move, keep"),
}
FOLDER = HERE.parents[2] / "workflows"
WORKFLOWS = [path for path in sorted(FOLDER.glob("*.json")) if path.stem not in POCKET]
FOLDER_OF_LOADER = {"CLIPLoader": "text_encoders", "VAELoader": "vae", "SDVGQualityRouter": "image_reward"}
FOLDER_OF_LOADER |= {"UpscaleModelLoader": "upscale_models", "FrameInterpolationModelLoader": "frame_interpolation"}


def main(folder: Path, only: str | None) -> int:
    """Take them."""
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
    from conftest import start_comfyui

    missing = start_comfyui(gpu=False)
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


def take_workflows(base: Path, folder: Path) -> None:
    """Take those of the workflows, small enough for a list of them."""
    from comfy_page import browse
    from running_server import CHECKOUT, running_server

    folder.mkdir(parents=True, exist_ok=True)
    for path in WORKFLOWS:
        for node in json.loads(path.read_text(encoding="utf-8"))["nodes"]:
            place = base / "models" / FOLDER_OF_LOADER.get(node["type"], "diffusion_models")
            for model in node.get("properties", {}).get("models", []):
                place.mkdir(parents=True, exist_ok=True)
                (place / model["name"]).touch()
    (base / "input").mkdir()
    shutil.copy(CHECKOUT / "input" / "example.png", base / "input")
    for name in ("clip.mp4", "sound.wav"):
        (base / "input" / name).touch()
    with running_server(base) as server:
        files = [str(path) for path in WORKFLOWS]
        browse(server, base, "workflow_pictures.js", vue=True, files=files, pictures=str(base))
        for stem in POCKET:
            show_clip(server, folder / f"{stem}.jpg")
    for path in WORKFLOWS:
        show_graph(base / f"{path.stem}.png", folder / f"{path.stem}.jpg")


def show_clip(server: Any, place: Path) -> None:
    """Run a workflow of the embedded models, and picture frames of its clip."""
    from sdvg_pack.sdvg_core.report.summary import COLOURS, Outcome
    from thumbnails import frame_of, side_by_side, thumbnail, write

    name, changes, numbers, caption = POCKET[place.stem]
    prompt = json.loads((FOLDER / "api" / f"sdvg_{name}.json").read_text(encoding="utf-8"))
    prompt["2"]["inputs"] |= changes
    outputs = server.run(prompt).outputs
    [file] = outputs["5"]["images"]
    video = server.view(file)
    route = [COLOURS[Outcome[block["fate"].upper()]] for block in outputs["3"]["sdvg_route"]]
    picture = side_by_side([frame_of(video, number) for number in numbers])
    write(thumbnail(picture, TITLES[place.stem], route, caption), place)


def show_graph(picture: Path, place: Path) -> None:
    """Picture a workflow for the real models: it was not run, so its route is the planned one."""
    from sdvg_pack.sdvg_core.report.summary import COLOURS, Outcome
    from thumbnails import thumbnail, write

    name = place.stem.removeprefix("sdvg_")
    drafted = UNKNOWN if name == "06_paper_gate" else COLOURS[Outcome.DRAFTED_UNSEEN]
    numbers = range(1, BLOCKS.get(name, 9) + 1)
    route = [COLOURS[Outcome.FORCED] if n in TARGET_BLOCKS.get(name, (1, 2)) else drafted for n in numbers]
    caption = "planned: blue the large model, " + (
        "grey the gate decides" if drafted == UNKNOWN else "green the small one"
    )
    caption = caption if route else "larger, smoother, with sound: ComfyUI's own nodes"
    with Image.open(picture) as graph:
        write(thumbnail(graph, TITLES[place.stem], route, caption), place)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["workflows"])
    options = parser.parse_args()
    sys.exit(main(options.folder.resolve(), options.only))
