"""Routers by name, from the fastest to the one closest to the target, and the paper's."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import BadInput
from .router import RouterConfig

ROUTER_PRESETS: Mapping[str, RouterConfig] = {
    "paper": RouterConfig(),
    "fast": RouterConfig(policy="first", forced_blocks=1),
    "balanced": RouterConfig(policy="first", forced_blocks=2, handover=2),
    "careful": RouterConfig(policy="first", forced_blocks=4, handover=2),
}


def router_preset(name: str) -> RouterConfig:
    """Return a router by name. Raises `BadInput` if there is none of that name."""
    if name not in ROUTER_PRESETS:
        raise BadInput(f"there is no router preset {name!r:.60}; choose one of {', '.join(ROUTER_PRESETS)}")
    return ROUTER_PRESETS[name]
