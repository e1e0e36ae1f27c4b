"""Loaders that keep what they loaded, for tests in which the same files make one small video after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from _pytest.monkeypatch import resolve
from torch import Tensor

from sdvg_core.causal_wan.checkpoint import WanCheckpoint
from sdvg_core.settings.load import LoadOptions
from sdvg_core.weights.model_files import ModelFiles

LOADERS = ("headers.open_wan", "load.load_vae", "load.load_image_reward", "load.load_umt5", "load.load_wan")
OTHER_WAYS = ("loras", "fp8", "streamed", "room", "compiler")
"""Options by which weights are loaded in a way of their own: these are loaded every time."""


def version_of(path: Path | None) -> tuple[Any, ...]:
    """Return what changes with the content of a file."""
    if path is None or not path.is_file():
        return (path,)
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns, status.st_ino


def file_of(source: Any) -> Path:
    """Return the file of a path, of a checkpoint, or of the header of a VAE."""
    if isinstance(source, WanCheckpoint):
        return source.weights.path
    return source if isinstance(source, Path) else Path(source.file.path)


def load_once(patched: pytest.MonkeyPatch) -> None:
    """Let a run open and load each model, and read each prompt, once for as long as `patched` lasts."""
    kept: dict[Any, Any] = {}

    def keeping(load: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(load)
        def once(source: Any, *words: Any, **options: Any) -> Any:
            if any(options.get(name) for name in OTHER_WAYS):
                return load(source, *words, **options)
            state_dict = source.weights.state_dict if isinstance(source, WanCheckpoint) else None
            key = (load, state_dict, version_of(file_of(source)), repr((words, options)))
            if key not in kept:
                kept[key] = load(source, *words, **options)
            return kept[key]

        return once

    for name in LOADERS:
        place = f"sdvg_core.loading.{name}"
        loader: Any = resolve(place)
        patched.setattr(place, keeping(loader))
    place = "sdvg_core.videos.batch.encode_prompts"
    encode_prompts: Any = resolve(place)

    @wraps(encode_prompts)
    def read_once(files: ModelFiles, texts: Iterable[str], options: LoadOptions) -> dict[str, Tensor]:
        read = (options.text_dtype, options.device, options.side_device, options.vram)
        key = (version_of(files.text_encoder), version_of(files.tokenizer), tuple(texts), read)
        if key not in kept:
            kept[key] = encode_prompts(files, key[2], options)
        return dict(kept[key])

    patched.setattr(place, read_once)
