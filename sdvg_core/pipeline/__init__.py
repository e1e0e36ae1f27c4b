"""From model files to a video: loading, checking, rendering, resuming."""

from .checking import check_models
from .loading import load_models
from .options import LoadOptions, ModelOptions
from .request import VideoRequest
from .videos import make_video, make_videos

__all__ = [
    "LoadOptions",
    "ModelOptions",
    "VideoRequest",
    "check_models",
    "load_models",
    "make_video",
    "make_videos",
]
