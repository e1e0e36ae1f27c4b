"""Compiles the stages of a layer."""

from __future__ import annotations

from ..devices.compiling import Backend, compiled
from .forward import PLAIN, Stages


def compiled_stages(compiler: Backend | None) -> Stages:
    """Return the stages, compiled once for all layers and passes of a model; without a compiler, uncompiled."""
    if compiler is None:
        return PLAIN
    return Stages(
        before=compiled(PLAIN.before, compiler),
        between=compiled(PLAIN.between, compiler),
        after=compiled(PLAIN.after, compiler),
    )
