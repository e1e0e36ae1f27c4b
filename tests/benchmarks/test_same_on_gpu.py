"""How far a GPU's video is from a CPU's."""

import pytest
import torch

from benchmarks.same_on_gpu import compare


def video(latents: float = 0.0, accepted: str = "raa", scores: float = 0.0) -> dict:
    made = torch.ones(1, 16, 9, 2, 2)
    made[:, :, 3:6] += latents
    judged = [None, [1.0, 2.0 + scores], [3.0, 4.0]]
    return {"latents": made, "accepted": [letter == "a" for letter in accepted], "scores": judged}


def test_the_greatest_differences_are_found():
    found = compare(video(), video(latents=-0.25, scores=0.5))
    assert (found["blocks_alike"], found["latents"], found["scores"]) == (3, 0.25, 0.5)
    assert found["latents_relative"] == pytest.approx(0.25 / 3**0.5)
    assert compare(video(), video())["latents"] == 0.0
