"""SDVG for ComfyUI: speculative decoding for autoregressive video."""

WEB_DIRECTORY = "./nodes/web"


async def comfy_entrypoint():  # type: ignore[no-untyped-def]
    """Return the extension; ComfyUI calls this once. The nodes are imported here, so that tests can do without."""
    from .nodes import SDVGExtension

    return SDVGExtension()
