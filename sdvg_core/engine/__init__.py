"""The method: spans, noise, history, router, and the speculative loop. No models, files or devices in here."""

from .parts import Engine
from .router import RouterConfig
from .run import Run, plan_run
from .types import Condition

__all__ = ["Condition", "Engine", "RouterConfig", "Run", "plan_run"]
