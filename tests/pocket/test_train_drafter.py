"""The drafter's program for a GPU: a recorded step is the step, and a stopped run goes on."""

import json
from types import SimpleNamespace

import pytest
import torch
from tiny import random_tree

from sdvg_core.causal_wan.config import WanConfig
from training import gpu_clips, train_drafter
from training.measure_pair import ROUTES
from training.on_gpu import Gradients
from training.shipped import load_model
from training.train_drafter import Trainer, first_losses, later_losses, main

SIZES = WanConfig(dim=128, ffn_dim=64, num_layers=3, num_heads=1, text_dim=16)


@pytest.fixture
def tree():
    return random_tree(0, SIZES).requires_grad_()


def replaying(work):
    """Record as a CUDA graph does: the result has one place, which each replay fills anew."""
    result = work()
    return result, lambda: result.copy_(work())


def batches(count: int) -> list[tuple[torch.Tensor, ...]]:
    draw = torch.Generator().manual_seed(4)
    made = []
    for _ in range(count):
        context, label = torch.randn(2, 3, 16, 3, 8, 8, generator=draw)
        heard = torch.randn(3, 7, 16, generator=draw), torch.ones(3, 7, dtype=torch.bool)
        made.append((*heard, context, label))
    return made


def test_a_recorded_step_gives_the_losses_and_gradients_of_one_that_is_not(tree):
    """Catches: gradients added up from step to step, those of two kinds of step apart, a batch that is not read."""
    steps = {
        "later": Gradients(tree, lambda *batch: later_losses(tree, batch)),
        "first": Gradients(tree, lambda *batch: first_losses(tree, tree, batch)),
    }
    inputs = {"later": batches(3), "first": [batch[:2] for batch in batches(3)]}
    order = [(kind, number) for number in range(3) for kind in ("later", "first")]

    def made() -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        results = []
        for kind, number in order:
            torch.manual_seed(number)
            losses = steps[kind](inputs[kind][number]).clone()
            results.append((losses, [weight.grad.clone() for weight in tree.parameters()]))
        return results

    plain = made()
    for kind, step in steps.items():
        step.record(inputs[kind][0], replaying)
    for (losses, gradients), (expected, wanted) in zip(made(), plain, strict=True):
        assert torch.equal(losses, expected)
        assert len(losses) == 3
        assert all(torch.equal(one, other) for one, other in zip(gradients, wanted, strict=True))
    assert not torch.equal(plain[0][0], plain[2][0])


@pytest.mark.heavy
def test_a_run_that_was_stopped_goes_on_where_the_fall_of_its_rate_was(tmp_path, monkeypatch):
    """A clock that goes on by a second a look ends it, once in training and once in measuring."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(train_drafter, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    for name, value in {"CHECKED": 1, "LOOKED": 6, "SAVED": 4, "RESERVED": 5, "MEASURED": 1}.items():
        monkeypatch.setattr(train_drafter, name, value)
    routes = {"anchor": ROUTES["anchor"]}
    monkeypatch.setattr(train_drafter, "ROUTES", routes)
    for name, value in {"RECOGNISED": 9.0, "LOST": 9.0, "ROUTES": routes}.items():
        monkeypatch.setattr(gpu_clips, name, value)
    sizes = "--batch 4 --clips 2 --own 1 --held-back 2 --prompts 3 --device cpu"
    command = [str(tmp_path), *sizes.split()]
    look = Trainer._look
    with monkeypatch.context() as stopping:

        def stopped(trainer: Trainer, shown: object) -> None:
            if trainer.passed > 0.4:
                raise KeyboardInterrupt
            look(trainer, shown)

        stopping.setattr(Trainer, "_look", stopped)
        with pytest.raises(KeyboardInterrupt):
            main([*command, "--seconds", "50"])
    assert load_model(tmp_path / "drafter.safetensors").dim == 128
    main([*command, "--seconds", "30"])
    main([*command, "--seconds", "30"])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    begun = [line for line in lines if line.get("stage") == "data is there"]
    assert [begun[0]["step"], begun[0]["passed"]] == [0, 0]
    assert 0 < begun[1]["passed"] < 1
    assert begun[1]["step"] > 0
    lots = [line for line in lines if "recognised" in line]
    assert lots
    assert all(line["recognised"] == 1 for line in lots), "all contexts count here"
    shown = [line for line in lines if "error_alone" in line and "passed" in line]
    assert shown[-1]["passed"] == 1
    assert {"made", "true", "own", "first"} <= {name for line in shown for name in line}
    assert lines[-1]["prompts"] == 3
    assert {"anchor before", "anchor after", "anchor change"} <= set(lines[-1])
    after = (tmp_path / "after.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["anchor"]) for line in after] == [9, 9, 9]
