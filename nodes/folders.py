"""Where to look for reward models: our folder, and the folders other packs already use for them."""

from __future__ import annotations

import logging
from pathlib import Path

import folder_paths

logger = logging.getLogger(__name__)

CATEGORY, LEARNED = "image_reward", "sdvg_routes"
OTHER_PACKS = ("ImageReward",)
SUFFIXES = {".pt", ".pth", ".safetensors"}


def register_reward_folder() -> None:
    """Add `models/image_reward`, its relatives and that of learned routes to ComfyUI's; those from a yaml stay.

    A folder that cannot be made or read is left out: ComfyUI drops a pack whose loading fails.
    """
    models = Path(folder_paths.models_dir)
    paths = [*(str(models / name) for name in (CATEGORY, *OTHER_PACKS)), *_download_folder()]
    known = folder_paths.folder_names_and_paths.get(CATEGORY, ([], set()))[0]
    every = [*known, *(path for path in paths if path not in known)]
    folder_paths.folder_names_and_paths[CATEGORY] = (every, SUFFIXES)
    folder_paths.add_model_folder_path(LEARNED, str(models / LEARNED))
    try:
        (models / CATEGORY).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("SDVG: the folder for reward models cannot be made: %s", error)


def _download_folder() -> list[str]:
    """Return where the image-reward package puts its download, if there is such a folder."""
    try:
        cache = Path.home() / ".cache" / "ImageReward"
        return [str(cache)] if cache.is_dir() else []
    except (RuntimeError, OSError):  # a user without a home, or with another user's
        return []


def reward_files() -> list[str]:
    """Return the names of the reward files that exist."""
    return folder_paths.get_filename_list(CATEGORY)
