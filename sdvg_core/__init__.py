"""SDVG: speculative decoding for autoregressive video. The core, without ComfyUI.

Source: arXiv 2604.17397. Start reading at `engine/speculate.py`; docs/architecture.md shows the rooms.
The public names are imported on first use, so that `import sdvg_core` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.protocols import BlockGenerator as BlockGenerator
    from .engine.protocols import Router as Router
    from .engine.protocols import Scorer as Scorer
    from .engine.protocols import VideoCodec as VideoCodec
    from .engine.types import Generated as Generated
    from .errors import BadInput as BadInput
    from .pocket.trained_set import pocket_fast_vae as pocket_fast_vae
    from .pocket.trained_set import pocket_options as pocket_options
    from .pocket.trained_set import trained_set as trained_set
    from .report.run_report import RunReport as RunReport
    from .report.run_report import read_report as read_report
    from .settings.execution import Execution as Execution
    from .settings.load import LoadOptions as LoadOptions
    from .settings.load import ModelOptions as ModelOptions
    from .settings.request import ClipFile as ClipFile
    from .settings.request import VideoRequest as VideoRequest
    from .settings.route import At as At
    from .settings.route import Budget as Budget
    from .settings.route import Custom as Custom
    from .settings.route import First as First
    from .settings.route import Gate as Gate
    from .settings.route import Mean as Mean
    from .settings.route import Quantile as Quantile
    from .settings.route import Refine as Refine
    from .settings.route import Route as Route
    from .settings.route import Stride as Stride
    from .settings.route import TargetOnly as TargetOnly
    from .settings.route import WorstFrame as WorstFrame
    from .settings.route import route_preset as route_preset
    from .videos.api import make as make
    from .videos.stream import Busy as Busy
    from .videos.stream import Stream as Stream
    from .videos.stream import StreamBlock as StreamBlock
    from .videos.stream import StreamClip as StreamClip
    from .videos.stream import Streamer as Streamer
    from .weights.model_files import ModelFiles as ModelFiles

__version__ = "0.1.0"

_NAMES = {
    "weights.model_files": ("ModelFiles",),
    "engine.protocols": ("BlockGenerator", "Router", "Scorer", "VideoCodec"),
    "engine.types": ("Generated",),
    "errors": ("BadInput",),
    "pocket.trained_set": ("pocket_fast_vae", "pocket_options", "trained_set"),
    "report.run_report": ("RunReport", "read_report"),
    "settings.execution": ("Execution",),
    "settings.load": ("LoadOptions", "ModelOptions"),
    "settings.request": ("ClipFile", "VideoRequest"),
    "settings.route": (
        *("At", "Budget", "Custom", "First", "Gate", "Mean", "Quantile", "Refine", "Route", "Stride", "TargetOnly"),
        *("WorstFrame", "route_preset"),
    ),
    "videos.api": ("make",),
    "videos.stream": ("Busy", "Stream", "StreamBlock", "StreamClip", "Streamer"),
}
_RENAMED = {"RouterConfig": "Route", "router_preset": "route_preset"}
"""Names of earlier versions -> those of this one."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name in _RENAMED:
        raise AttributeError(f"sdvg_core.{name} is now {_RENAMED[name]}; see docs/embedding.md")
    if name not in _HOMES:
        raise AttributeError(f"sdvg_core has no {name}; it offers {', '.join(__all__)}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    """List the public names, which are not imported yet."""
    return [*__all__, "__version__"]
