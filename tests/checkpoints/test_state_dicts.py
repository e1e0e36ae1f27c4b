"""Which state dict of a training checkpoint is taken, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weight_files import assert_holds, state

from sdvg_core.checkpoints.pickles import UNSTATED, Choice, note_on
from sdvg_core.checkpoints.weights import open_weights
from sdvg_core.errors import BadInput

EMA, RAW = "generator_ema", "generator"
SEEDS = {EMA: 1, RAW: 2, "state_dict": 3, "critic": 4}


def write(path: Path, *names: str, legacy: bool = False) -> Path:
    content = {name: state(SEEDS[name]) for name in names}
    torch.save({**content, "step": 3}, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "names, choice, taken",
    [
        ((RAW, EMA, "critic"), UNSTATED, EMA),
        ((RAW, EMA, "critic"), Choice("ema"), EMA),
        ((RAW, EMA, "critic"), Choice("raw"), RAW),
        ((RAW, EMA), Choice(likely="raw"), RAW),
        ((RAW, EMA), Choice(likely="ema"), EMA),
        ((RAW, EMA), Choice("ema", likely="raw"), EMA),
        ((EMA,), Choice(likely="raw"), EMA),
        ((RAW,), UNSTATED, RAW),
        (("state_dict",), Choice(likely="raw"), "state_dict"),
    ],
)
def test_the_state_dict_that_is_named_is_the_one_whose_tensors_are_read(tmp_path, names, choice, taken, legacy):
    """Catches the raw weights under the name of the averaged ones."""
    file = open_weights(write(tmp_path / "a.pt", *names, legacy=legacy), choice)
    assert file.state_dict == taken
    assert file.layout == f"PyTorch pickle, {taken}"
    assert sorted(file.state_dicts) == sorted(names)
    assert_holds(file, state(SEEDS[taken]))
    renamed = file.renamed(lambda name: f"x.{name}")
    assert (renamed.state_dict, renamed.state_dicts) == (file.state_dict, file.state_dicts)


@pytest.mark.parametrize(
    "content, choice, holds, advice",
    [
        ({EMA: state()}, Choice("raw"), EMA, "ema"),
        ({RAW: state(), "critic": state()}, Choice("ema"), "critic, generator", "raw"),
        ({"x" * 3000: state(), "y\n\x1b": state()}, Choice("ema"), "x" * 40 + ", y \\x1b", "auto"),
        (state(), Choice("ema"), "one set of weights without a name", "auto"),
    ],
)
def test_a_state_dict_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, content: dict[str, Any], choice: Choice, holds: str, advice: str
):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(BadInput) as refused:
        open_weights(tmp_path / "a.pt", choice)
    message = str(refused.value)
    assert message.startswith("a.pt has no generator")
    assert message.endswith(f", but {holds}; choose {advice}")
    assert len(message) <= 400


@pytest.mark.parametrize("weights", ["ema", "raw"])
def test_a_file_that_can_hold_no_state_dicts_is_refused_too(tmp_path, weights):
    save_file(state(), tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match=r"one set of weights without a name; choose auto"):
        open_weights(tmp_path / "a.safetensors", Choice(weights))
    for likely in ("auto", "ema", "raw"):
        assert open_weights(tmp_path / "a.safetensors", Choice(likely=likely)).state_dict == ""


@pytest.mark.parametrize("words", [("EMA", "auto"), ("auto", "average"), (None, "auto"), ("", "auto")])
def test_other_words_are_refused_with_those_there_are(words):
    with pytest.raises(BadInput, match=r"(choose one of auto, ema, raw|give auto or ema or raw)"):
        Choice(*words)


@pytest.mark.parametrize(
    "taken, there, choice, words",
    [
        (EMA, (RAW, EMA, "critic"), UNSTATED, "a.pt holds two sets of weights, generator_ema and generator"),
        (EMA, (EMA,), Choice(likely="raw"), "The preset is for raw weights, but a.pt holds no generator"),
        (RAW, (RAW, EMA), Choice("raw", likely="ema"), None),
        (RAW, (RAW, EMA), Choice(likely="raw"), None),
        (EMA, (EMA, "critic"), UNSTATED, None),
        ("state_dict", ("state_dict",), Choice(likely="ema"), None),
        ("", (), Choice(likely="ema"), None),
    ],
)
def test_a_choice_that_nobody_stated_is_told_and_nothing_else(taken, there, choice, words):
    note = note_on("a.pt", taken, there, choice)
    assert note is None if words is None else note.startswith(words)
