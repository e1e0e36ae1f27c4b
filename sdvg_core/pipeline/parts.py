"""What the results of a run's parts depend on, as text, for the keys of re-use."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints.model_files import ModelFiles
from ..devices.device import arithmetic_on, check_device
from ..engine.keys import Identities
from ..scorers.tokenizer import find_vocabulary
from .fingerprint import fingerprint
from .options import LoadOptions


def identify_parts(files: ModelFiles, load: LoadOptions, drafter: str | None, target: str | None) -> Identities:
    """Return what the results of each part depend on: its file, its settings, and the device's arithmetic.

    `drafter`, `target`: what is taken from the file and how it is run, as text; None if the run has no such model.
    """
    execution = load.settled().execution
    here, side = arithmetic_on(check_device(load.device)), arithmetic_on(load.side)

    def model(path: Path | None, run_as: str | None) -> str:
        if path is None or run_as is None:
            return ""
        kernels = (execution.attention, execution.kv_dtype, execution.compile)
        return _text(fingerprint(path), run_as, load.dtype, kernels, here)

    def decoder(path: Path | None) -> str:
        if path is None:
            return ""
        settings = (load.vae_dtype, execution.vae_layers, execution.compile, load.tae_kind)
        return _text(fingerprint(path), *settings, side)

    return Identities(
        drafter=model(files.drafter, drafter),
        target=model(files.target, target),
        codec=decoder(files.vae),
        judge=decoder(files.judge_vae),
        scorer=_text(
            fingerprint(files.reward),
            fingerprint(find_vocabulary(files.reward, files.vocabulary)),
            (load.reward_dtype, load.crop),
            side,
        )
        if files.reward
        else "",
    )


def _text(*parts: object) -> str:
    return repr(parts)
