"""The stages of a layer, compiled."""

from __future__ import annotations

from ..devices.compiling import Backend, compiled
from .forward import PLAIN, Stages


def compiled_stages(compiler: Backend | None) -> Stages:
    """Return the stages compiled, once for all layers of a model and every pass; as they are without a compiler."""
    if compiler is None:
        return PLAIN
    return Stages(
        before=compiled(PLAIN.before, compiler),
        between=compiled(PLAIN.between, compiler),
        after=compiled(PLAIN.after, compiler),
    )
