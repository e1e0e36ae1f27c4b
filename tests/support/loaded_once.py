"""Loaders that keep what they loaded, for tests in which the same files make one small video after another.

And a decoder that keeps what it decoded: half of a tiny run is the VAE, and most runs have blocks of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.monkeypatch import resolve
from torch import Tensor

from sdvg_core.causal_wan.checkpoint import WanCheckpoint
from sdvg_core.decoders.wan_vae import FrameCaches, WanCodec
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
    decode_once(patched)


MOST_CELLS = 64
"""Cells of a latent frame up to which its pixels are kept."""


def decode_once(patched: pytest.MonkeyPatch) -> None:
    """Let a Wan VAE decode equal latents after one state once; that it may is proved in `tests/decoders`."""
    kept: dict[Any, tuple[Tensor, FrameCaches, Any]] = {}
    decode = WanCodec.decode

    @wraps(decode)
    def once(codec: WanCodec, latents: Tensor, state: FrameCaches | None = None) -> tuple[Tensor, FrameCaches]:
        if latents.dtype != torch.float32 or latents.device.type != "cpu" or latents[0, 0, 0].numel() > MOST_CELLS:
            return decode(codec, latents, state)
        key = (id(codec), id(state), tuple(latents.shape), latents.numpy().tobytes())
        if key not in kept:
            # With codec and state, so that no later ones have their ids.
            kept[key] = (*decode(codec, latents, state), (codec, state))
        frames, after, _ = kept[key]
        with torch.inference_mode():
            return frames.clone(), after

    patched.setattr(WanCodec, "decode", once)
