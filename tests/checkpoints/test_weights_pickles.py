"""PyTorch pickles: the tensors they give, and everything else they are refused for."""

import os
from pathlib import Path

import pytest
import torch
from weight_files import assert_holds, refusal, state

from sdvg_core.checkpoints import pickles, weights
from sdvg_core.checkpoints.weights import open_weights

LEGACY = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def write_pickle(path: Path, content: object, legacy: bool = False) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@LEGACY
@pytest.mark.parametrize(
    "wrap, layout",
    [
        (lambda s: s, "PyTorch pickle"),
        (lambda s: {"anything": s, "step": 3, "empty": {}}, "PyTorch pickle, anything"),
        (lambda s: {n: torch.nn.Parameter(t) for n, t in s.items()}, "PyTorch pickle"),
    ],
)
def test_a_pickle_gives_the_tensors_of_the_model_in_it(tmp_path, wrap, layout, legacy):
    """Which of several state dicts: `test_state_dicts.py`."""
    file = open_weights(write_pickle(tmp_path / f"a{weights.PICKLES[legacy]}", wrap(state()), legacy))
    assert_holds(file, state())
    assert file.layout == layout
    assert not any(file[n].requires_grad for n in file)


class Runs:
    """What a hostile pickle looks like: reading it calls `function`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@LEGACY
@pytest.mark.parametrize(
    "function, arguments, name",
    [
        (os.system, ("touch ran",), "system"),
        (eval, ("open('ran', 'w')",), "eval"),
        (Path.touch, ("ran",), ""),
        (torch.nn.Linear, (2, 2), "torch.nn.modules.linear.Linear"),
    ],
)
def test_a_pickle_that_wants_to_run_code_is_refused_by_the_name_of_what_it_wants(
    tmp_path, monkeypatch, function, arguments, name, legacy
):
    monkeypatch.chdir(tmp_path)
    content = {**state(), "x": Runs(function, *arguments)}
    message = refusal(write_pickle(tmp_path / "evil.pt", content, legacy))
    assert "wants to run " in message
    assert f"{name}; use a .safetensors copy" in message
    assert not (tmp_path / "ran").exists()


@LEGACY
@pytest.mark.parametrize("keep", [0, 1, 0.2, 0.5, 0.9, -1])
def test_a_pickle_that_is_cut_short_is_refused(tmp_path, keep, legacy):
    whole = write_pickle(tmp_path / "a.pt", state(), legacy).read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    refusal(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "content",
    [
        *([torch.ones(1)], torch.ones(1), {}, {"a": 1}, {"a": {"b": {"c": torch.ones(1)}}}, {1: torch.ones(1)}),
        {"student": state(), "teacher": state()},
    ],
)
def test_a_pickle_without_named_tensors_of_one_model_is_refused(tmp_path, content):
    message = refusal(write_pickle(tmp_path / "a.pt", content))
    several = isinstance(content, dict) and "student" in content
    assert ("student, teacher" if several else "no named tensors") in message


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(3, device="meta"), torch.ones(1).expand(10**9), torch.eye(2).to_sparse()],
    ids=["meta", "endlessly repeated", "sparse"],
)
def test_a_tensor_without_values_of_its_own_is_refused(tmp_path, tensor):
    message = refusal(write_pickle(tmp_path / "a.pt", {"a": tensor}))
    assert "has no values of its own" in message


@LEGACY
def test_a_pickle_that_is_too_large_is_not_read(tmp_path, monkeypatch, legacy):
    monkeypatch.setattr(pickles, "LARGEST", 100)
    monkeypatch.setattr(torch, "load", None)
    assert "a pickle at most 1e-07" in refusal(write_pickle(tmp_path / "a.pt", state(), legacy))


def test_with_a_torch_whose_reader_could_be_tricked_no_pickle_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1"))
    monkeypatch.setattr(torch, "load", None)
    assert "torch 2.5.1 cannot read" in refusal(write_pickle(tmp_path / "a.pt", state()))
