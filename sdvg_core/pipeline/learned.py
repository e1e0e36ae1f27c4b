"""How many first blocks the target makes of each of many videos: as its prompt states, or as a budget allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import BadInput
from ..plan.budget import afford
from ..text.prompts import PromptSchedule
from .headers import Headers
from .request import ResolvedRequest, VideoRequest, cost_request


def route_prompts(
    request: VideoRequest, prompts: Sequence[PromptSchedule], headers: Headers, resolved: ResolvedRequest
) -> list[tuple[VideoRequest, str]]:
    """Return the request of each prompt's video, and a note on its route, perhaps empty.

    A budget is spent over all of them: those that state their first blocks take them, the others share the rest.
    `resolved`: what the request comes to. Raises `BadInput` for more first blocks than a video has.
    """
    stated = [prompt.first for prompt in prompts]
    if not any(stated):
        return [(request, "")] * len(prompts)
    first, router, of = resolved.plan.spans[0].index, request.router, ""
    mean, handover = 0.0, resolved.plan.router.handover
    if request.budget is not None:
        cost = replace(cost_request(headers, resolved.width, resolved.height, request.blocks), given_blocks=first)
        mean, handover = afford(request.budget, router, cost, stated)
        of = f"Of a budget of {request.budget:g} over {len(prompts)} prompts: "
    found = []
    for m in stated:
        if m > request.blocks:
            raise BadInput(f"a prompt states {m} first blocks, but the video has {request.blocks}; state fewer")
        if not m and request.budget is None:
            found.append((request, ""))
            continue
        blocks = m or int(mean)
        route = replace(router, policy="first", forced_blocks=first + blocks, handover=handover)
        note = f"{of}the target makes the first {blocks} of {request.blocks} blocks." if of else ""
        found.append((replace(request, router=route, budget=None), note))
    return found
