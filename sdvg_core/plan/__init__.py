"""Whether a run fits on a device, how, and how long a block then takes: predicted from sizes, before loading.

`plan(vram, request)` returns a `Plan`, `plan_text(plan)` the text to show. Nothing here touches a device.
"""

from .budget import Spending, spend
from .choose import Plan, plan
from .request import PlanRequest
from .text import plan_text

__all__ = ["Plan", "PlanRequest", "Spending", "plan", "plan_text", "spend"]
