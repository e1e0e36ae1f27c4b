"""What determines a video, and the results of each of its parts, as text: known before a model is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..checkpoints.lora import split_strength
from ..checkpoints.model_files import ModelFiles
from ..devices.device import arithmetic_on, check_device
from ..engine.keys import Identities
from ..engine.outside import identity_of
from ..scorers.tokenizer import find_vocabulary
from ..text.prompts import PromptSchedule
from .headers import WanHeader
from .options import LoadOptions
from .request import VideoRequest

Identity = Mapping[str, str]
MOST_TOLD = 3
CLIPS = ("continue_from", "start_image", "restyle", "control", "control_mask")
"""Fields of a request that are files, known by their contents."""

# A larger file would take seconds, so only evenly spread pieces of it are hashed: other training changes every one
# of them. Other changes to a transformer or a scorer are found once it is loaded (`checkpoints.weights`).
WHOLE, AT_ONCE = 1 << 29, 1 << 22
PIECES, PIECE_BYTES = 64, 1 << 16


def identify(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompt: PromptSchedule,
    gate_prompt: str | None = None,
) -> Identity:
    """Return everything that determines a video's bits, by name. Equal identities make the same video."""
    models = {f.name.replace("_", " "): getattr(files, f.name) for f in fields(files)}
    clips = {name: getattr(request, name) for name in CLIPS}
    part = request.router.part
    asked = asdict(replace(request, router=replace(request.router, part=None)))
    asked["router"]["part"] = None if part is None else identity_of(part)
    del asked["router"]["route_start"]  # follows from the clip
    models |= {f"control module {path.name}": path for path in models.pop("controls")}
    texts = {f"prompt from block {start + 1}": text for start, text in prompt.entries}
    texts |= {f"cut at block {start + 1}": "yes" for start in prompt.cuts}
    here, side = check_device(load.device), load.side
    aside = {f"side {name}": value for name, value in arithmetic_on(side).items()} if side != here else {}
    gate = {} if gate_prompt is None else {"gate prompt": gate_prompt}
    settings = asdict(load.resolved())
    del settings["vram"]  # changes no bit
    execution = settings.pop("execution")
    loras = {f"LoRA {text}": named(split_strength(text)[0]) for text in settings.pop("loras")}
    return {
        **texts,
        **gate,
        **_flat({**asked, **{name: named(path) for name, path in clips.items()}}),
        **{role: named(path) for role, path in models.items()},
        **_flat(settings | execution),
        **loras,
        **arithmetic_on(here),
        **aside,
    }


def differences(then: Identity, now: Identity) -> str:
    """Return what differs, for people to read: `seed (then 42, now 43), tau (...)`."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    told = [f"{name} (then {_short(then.get(name))}, now {_short(now.get(name))})" for name in names[:MOST_TOLD]]
    return ", ".join(told) + (f" and {len(names) - MOST_TOLD} more" if names[MOST_TOLD:] else "")


def digest_of(identity: Identity) -> str:
    """Return a hash of an identity, which reveals nothing of it."""
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        flat |= _flat(value, f"{words} ") if isinstance(value, Mapping) else {words: str(value)}
    return flat


def _short(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= 40 else text[:37] + "..."


# --- of the parts, for the keys of re-use


def identify_parts(files: ModelFiles, load: LoadOptions, models: Mapping[str, WanHeader]) -> Identities:
    """Return what the results of each part depend on: its file, its settings, and the device's arithmetic.

    `models`: by role, those the run has.
    """
    execution = load.resolved().execution
    here, side = arithmetic_on(check_device(load.device)), arithmetic_on(load.side)

    def model(role: str) -> str:
        path: Path | None = getattr(files, role)
        if path is None or role not in models:
            return ""
        header = models[role]
        assert header.found is not None, "a host names its models itself"
        identity = repr((header.found.weights.state_dict, header.preset.identity))
        changed: list[Any] = [(fingerprint(lora.file.path), lora.strength) for lora in header.loras]
        if control := header.control:
            changed.append((fingerprint(control.weights.path), "control"))
        kernels = (execution.attention, execution.kv_dtype, execution.compile)
        rounded = (load.weight_dtype,) if role == "target" and load.weight_dtype != "default" else ()
        return repr((fingerprint(path), identity, load.dtype, kernels, here, *changed, *rounded))

    of_codec = (load.vae_dtype, execution.vae_layers, execution.compile, load.tae_kind)
    scorer = ""
    if files.reward:
        read = fingerprint(files.reward), fingerprint(find_vocabulary(files.reward, files.vocabulary))
        scorer = repr((*read, (load.reward_dtype, load.crop), side))
    return Identities(
        drafter=model("drafter"),
        target=model("target"),
        codec=repr((fingerprint(files.vae), *of_codec, side)),
        scorer=scorer,
    )


# --- of a file, without its folders


def fingerprint(path: Path) -> str:
    """Return a hash of a file; for an index or a folder, of all files in that folder."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return _of_file(path)
    folder = path if path.is_dir() else path.parent
    parts = sorted(f"{inner.name} {_of_file(inner)}" for inner in folder.iterdir() if inner.is_file())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    there = path.stat()
    return _of_contents(path, there.st_size, there.st_mtime_ns, there.st_ino)


@lru_cache(maxsize=256)
def _of_contents(path: Path, size: int, *written: int) -> str:
    """Return the hash of a file; it is taken again only if the file was `written` since."""
    piece, step = (AT_ONCE, AT_ONCE) if size <= WHOLE else (PIECE_BYTES, size // PIECES)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(piece))
    return digest.hexdigest()


def named(path: Path | None) -> str:
    """Return a file's name with the beginning of its fingerprint."""
    if path is None:
        return "none"
    return f"{path.name} {fingerprint(path)[:12] if path.exists() else 'missing'}"
