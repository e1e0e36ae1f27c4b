"""The comparison of a GPU's video with a CPU's, made on a CPU: it sees differences, and says what cannot be run."""

import json

import pytest
import torch

from benchmarks.measure import compare
from benchmarks.same_on_gpu import main
from sdvg_core.devices import execution as compiling


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


@pytest.mark.heavy
def test_a_real_run_tells_what_is_alike_and_what_could_not_be_run(capsys, monkeypatch):
    """The reference is made with other layers of the VAE; latents are the same until a picture is encoded."""

    def failing(work):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compiled", failing)
    assert main(["cpu", "--blocks", "2", "--variants", "plain", "compiled", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["variants"]
    assert found["plain"]["blocks_alike"] == 2
    assert found["plain"]["latents"] == 0
    assert found["plain"]["scores"] < 1e-2
    assert "compiling failed (no compiler)" in found["compiled"]["failed"]
