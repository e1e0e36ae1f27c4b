"""The ComfyUI nodes. Everything that knows ComfyUI lives under this folder; the method is in `sdvg_core`."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from ..sdvg_core.errors import BadInput
from .loaders import DrafterLoader, TargetLoader
from .page.routes import register_routes
from .pocket import PocketModels
from .prompts import Prompt, PromptScheduleNode
from .report import RouteReport
from .router import QualityRouter, register_reward_folder
from .sampler import SpeculativeSampler
from .start import StartNode


class SDVGExtension(ComfyExtension):
    """The pack's entry for ComfyUI: its nodes, and what it registers at load."""

    async def on_load(self) -> None:
        """Register the reward model folder and the page's HTTP routes, and shorten the name of our error."""
        # ComfyUI shows an error's module, here a path in custom_nodes, unless it is `builtins`.
        BadInput.__module__ = "builtins"
        register_reward_folder()
        register_routes(SpeculativeSampler.validate_inputs)

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the node classes."""
        return [
            DrafterLoader,
            TargetLoader,
            QualityRouter,
            Prompt,
            PromptScheduleNode,
            StartNode,
            SpeculativeSampler,
            RouteReport,
            PocketModels,
        ]
