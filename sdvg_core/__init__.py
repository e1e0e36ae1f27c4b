"""SDVG: speculative decoding for autoregressive video. The core; it knows nothing of ComfyUI.

Source: arXiv 2604.17397. Start reading at `engine/speculate.py`; docs/architecture.md shows the rooms.
The names below are what a Python user needs to make a video; they load on first use, so the import is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints.model_files import ModelFiles
    from .cli.generate import make
    from .devices.execution import Execution
    from .engine.protocols import BlockGenerator, Router, Scorer, VideoCodec
    from .engine.router import RouterConfig, router_preset
    from .engine.types import Generated
    from .errors import BadInput
    from .pipeline.options import LoadOptions, ModelOptions
    from .pipeline.request import VideoRequest
    from .pipeline.stream import Busy, Stream, StreamedBlock, Streamer
    from .pipeline.videos import make_video
    from .pocket.trained_set import pocket_judge, pocket_options, trained_set
    from .report.run_report import RunReport, read_report

__version__ = "0.1.0"

_HOMES = {
    "BadInput": "errors",
    "BlockGenerator": "engine.protocols",
    "Busy": "pipeline.stream",
    "Execution": "devices.execution",
    "Generated": "engine.types",
    "LoadOptions": "pipeline.options",
    "ModelFiles": "checkpoints.model_files",
    "ModelOptions": "pipeline.options",
    "Router": "engine.protocols",
    "RouterConfig": "engine.router",
    "RunReport": "report.run_report",
    "Scorer": "engine.protocols",
    "Stream": "pipeline.stream",
    "StreamedBlock": "pipeline.stream",
    "Streamer": "pipeline.stream",
    "VideoCodec": "engine.protocols",
    "VideoRequest": "pipeline.request",
    "make": "cli.generate",
    "make_video": "pipeline.videos",
    "pocket_judge": "pocket.trained_set",
    "pocket_options": "pocket.trained_set",
    "read_report": "report.run_report",
    "router_preset": "engine.router",
    "trained_set": "pocket.trained_set",
}
__all__ = [
    "BadInput",
    "BlockGenerator",
    "Busy",
    "Execution",
    "Generated",
    "LoadOptions",
    "ModelFiles",
    "ModelOptions",
    "Router",
    "RouterConfig",
    "RunReport",
    "Scorer",
    "Stream",
    "StreamedBlock",
    "Streamer",
    "VideoCodec",
    "VideoRequest",
    "make",
    "make_video",
    "pocket_judge",
    "pocket_options",
    "read_report",
    "router_preset",
    "trained_set",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"sdvg_core has no {name}; it offers {', '.join(__all__)}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
