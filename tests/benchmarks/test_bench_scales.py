"""The proportional scale: the published pair's shares of the work, in operations, and a short run of it."""

from collections.abc import Mapping

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.models import PROMPT, PROPORTIONAL, Models, random_models
from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.sizes import frame_tokens
from sdvg_core.plan.work import SCORE_OPERATIONS, block_operations, decode_operations

ASKED = ["--scale", "proportional"]
pytestmark = pytest.mark.heavy


def shares(request: PlanRequest, score: float) -> Mapping[str, float]:
    """Return the operations of each part of a block as shares of a target's block. `score`: of scoring a block."""
    tokens = frame_tokens(request.width, request.height)
    made = {
        role: block_operations(config, preset, request.steps_of(role), tokens)
        for role, (config, preset) in request.models.items()
    }
    parts = {"draft": made["drafter"], "decode": decode_operations(request), "score": score}
    return {part: operations / made["target"] for part, operations in parts.items()}


@pytest.fixture(scope="module")
def models() -> Models:
    return random_models(PROPORTIONAL, torch.device("cpu"))


def test_a_block_s_parts_stand_to_each_other_as_with_the_published_pair(models):
    """Catches: a model of another size; a wider VAE, whose work grows with the square of its width."""
    request = PROPORTIONAL
    with FlopCounterMode(display=False) as score, torch.inference_mode():
        models.scorer.score(torch.rand(1, 12, 3, request.height, request.width), PROMPT)
    found = shares(request, score.get_total_flops())
    wanted = shares(PlanRequest(), 4 * 3 * SCORE_OPERATIONS)
    assert found == pytest.approx(wanted, rel=0.1)
