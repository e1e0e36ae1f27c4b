"""Choose the model files of a run: those that the user names, and the rest from a folder of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadInput, MissingModel, see
from ..pocket import POCKET
from ..pocket.trained_set import trained_set
from ..settings.request import VideoRequest
from ..weights.model_files import CONTROL_FILES, KNOWN_FILES, KnownFile, ModelFiles, find_models, misplaced

EVERY_RUN = ("vae", "text_encoder")


def files_in(models: Path) -> Mapping[str, Path | None]:
    """Return the file of every role in a folder of models, or None; for `POCKET`, the embedded ones."""
    if models != POCKET:
        return find_models(models)
    embedded = trained_set()
    return {known.role: getattr(embedded, known.role) for known in KNOWN_FILES}


def choose_files(
    models: Path,
    request: VideoRequest | None,
    named: Mapping[str, Path | None],
    *,
    tokenizer: Path | None = None,
    control_modules: Sequence[Path] = (),
) -> ModelFiles:
    """Return the files of a video; without a request, of a run that needs every model.

    `named`: files by role that replace those in `models`. Raises `BadInput`, with the source to download from, for
    a missing file that every run needs; `naming_source` does that for the others.
    """
    usual = files_in(models)
    paths = {known.role: named.get(known.role) or usual[known.role] for known in KNOWN_FILES}
    needed = EVERY_RUN if request else (*EVERY_RUN, "drafter", "target", "reward")
    missing = {known.role: known for known in KNOWN_FILES if known.role in needed and not paths[known.role]}
    if request and not (paths["drafter"] or paths["target"]):
        missing["a drafter or target"] = KNOWN_FILES[0]
    if missing:
        *roles, last = missing
        fault = f"the run needs {', '.join(roles)} and {last}" if roles else f"the run needs {last}"
        rest = ", see doctor for the rest" if roles else ""
        raise BadInput(_get(fault, next(iter(missing.values())), models, rest))
    for role, path in paths.items():
        if path is not None and not path.exists():
            raise BadInput(f"there is no {role} at {path}; check the path")
    controlled = request is not None and request.control is not None
    if control_modules and not controlled:
        raise BadInput("--control-modules has no effect without --control; add a clip, or leave them out")
    controls = tuple(control_modules)
    if controlled and not controls:
        controls = tuple(path for path in find_models(models, CONTROL_FILES).values() if path)
    files = {role: path for role, path in paths.items() if path is not None}
    return ModelFiles(**files, tokenizer=tokenizer, controls=controls)


@contextmanager
def naming_source(models: Path) -> Iterator[None]:
    """Turn a `MissingModel` error into one with the source to download from. `models`: the folder searched."""
    try:
        yield
    except MissingModel as error:
        role = "reward" if error.role == "scorer" else error.role
        known = next(known for known in KNOWN_FILES if known.role == role)
        raise BadInput(_get(error.fault, known, models, f", {error.way_out}")) from error


def _get(fault: str, known: KnownFile, models: Path, way_out: str = "") -> str:
    get = misplaced(models, known) or f"get {known.names[0]} from {known.source}"
    cure = f"{get}{way_out}, or try --models pocket" + see("Models are not found")
    return f"{fault}, but none was given or found in {show_folder(models)}; {cure}"


def show_folder(folder: Path) -> str:
    """Return a folder's name, with a remark if it does not exist."""
    return f"{folder}" if folder == POCKET or folder.is_dir() else f"{folder} (no such folder)"
