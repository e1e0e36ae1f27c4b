"""Where to look for reward models: our folder, and the folders other packs already use for them."""

from __future__ import annotations

from pathlib import Path

import folder_paths

CATEGORY = "image_reward"
OTHER_PACKS = ("ImageReward",)
SUFFIXES = {".pt", ".pth", ".safetensors"}


def register_reward_folder() -> None:
    """Add `models/image_reward` and its relatives to ComfyUI's folders; those from a yaml stay."""
    models = Path(folder_paths.models_dir)
    paths = [str(models / name) for name in (CATEGORY, *OTHER_PACKS)]
    cache = Path.home() / ".cache" / "ImageReward"  # where the image-reward package puts its download
    if cache.is_dir():
        paths.append(str(cache))
    known = folder_paths.folder_names_and_paths.get(CATEGORY, ([], set()))[0]
    every = [*known, *(path for path in paths if path not in known)]
    folder_paths.folder_names_and_paths[CATEGORY] = (every, SUFFIXES)
    (models / CATEGORY).mkdir(parents=True, exist_ok=True)


def reward_files() -> list[str]:
    """Return the names of the reward files that exist."""
    return folder_paths.get_filename_list(CATEGORY)
