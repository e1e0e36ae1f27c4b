"""The ComfyUI nodes. Everything that knows ComfyUI lives under this folder; the method is in `sdvg_core`."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from ..sdvg_core.errors import BadInput
from .loaders import DrafterLoader, TargetLoader
from .pocket import PocketModels
from .prompts import Prompt, PromptSchedule
from .report import RouteReport
from .router import QualityRouter, register_reward_folder
from .routes import register_routes
from .sampler import SpeculativeSampler
from .start import StartNode


class SDVGExtension(ComfyExtension):
    """What ComfyUI asks a pack for."""

    async def on_load(self) -> None:
        """Make the folder of reward models known, the addresses that our page asks, and our errors by a short name."""
        # ComfyUI shows a class with its module, which of ours is a path in custom_nodes, unless it is built in.
        BadInput.__module__ = "builtins"
        register_reward_folder()
        register_routes()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the nodes."""
        return [
            DrafterLoader,
            TargetLoader,
            QualityRouter,
            Prompt,
            PromptSchedule,
            StartNode,
            SpeculativeSampler,
            RouteReport,
            PocketModels,
        ]
