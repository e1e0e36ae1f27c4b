"""SDVG for ComfyUI: speculative decoding for autoregressive video."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nodes import SDVGExtension

WEB_DIRECTORY = "./nodes/web"


async def comfy_entrypoint() -> SDVGExtension:
    """Return the extension; ComfyUI calls this once. The nodes are imported here, so that tests can do without."""
    from .nodes import SDVGExtension

    return SDVGExtension()
