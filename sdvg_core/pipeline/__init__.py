"""From model files to a video: loading, checking, rendering, resuming."""

from .loading import check_models, load_models
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
