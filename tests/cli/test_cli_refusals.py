"""What the command line refuses: one sentence, exit code 2, and nothing written."""

import pytest
import torch
from cli_runs import SMALL, refused
from safetensors.torch import load_file, save_file

from sdvg_core.cli import main
from sdvg_core.pipeline import batch, videos


@pytest.mark.parametrize(
    "more, part",
    [
        (["--tau", "nan"], "NaN"),
        (["--blocks", "0"], "give 1 to"),
        (["--width", "40"], "width 40 is no multiple of 16; use 32 or 48"),
        (["--height", "8"], "height 8 is no multiple of 16; use 16"),
        (["--drafter-settings", "preset=krea"], "no preset 'krea'; choose among"),
        (["--target-settings", "preset=auto"], "name one, such as custom"),
        (["--schedule", "five"], "four-step"),
        (["--policy", "scripted"], "--script"),
        (["--policy", "scripted", "--script", "ra"], "the script ends before block 9"),
        (["--policy", "scripted", "--script", "raax"], "letters besides a, r, d, t"),
        (["--seed", "-1"], "is not a whole number from 0"),
        (["--drafter-settings", "block-frames=0"], "block_frames"),
        (["--target-settings", "block-frames=1"], "do not divide the target's (3 and 1 latent frames)"),
        (
            ["--drafter-settings", "block-frames=1", "--drafter-settings", "context-frames=2"],
            "2 context frames are too few",
        ),
        (["--target-settings", "first-schedule=five"], "four-step"),
        (["--target-settings", "recache=yes"], "recompute keeps no window"),
        (["--device", "cuda:7"], "this machine has no device"),
        (["--handover", "9"], "handover is 9 of 2"),
        (["--budget", "0.5", "--policy", "reward"], "--budget chooses who makes which block"),
        (["--policy", "reward", "--forced-blocks", "-1"], "forced_blocks is -1; give 0 or more"),
        (["--dtype", "text=float16"], "bfloat16 or float32"),
        (["--dtype", "reward=bfloat16"], "float"),
        (["--drafter-settings", "window=2", "--drafter-settings", "cache=incremental"], "window"),
        (["--drafter", "nowhere.pt"], "there is no such file or folder"),
        (["--start-image", "nowhere.png"], "cannot be read as a picture"),
        (["--continue-from", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
    ids=lambda value: "_".join(value).strip("-") if isinstance(value, list) else "",
)
def test_bad_values_are_refused_in_one_sentence_and_nothing_is_written(
    base, tmp_path, capsys, monkeypatch, more, part
):
    arguments = [*base, *SMALL, "--output", str(tmp_path / "out"), "--prompt", "x", *more]
    for room, reader in ((batch, "encode_prompts"), (videos, "load_models")):
        monkeypatch.delattr(room, reader)  # no weight is read before everything else has been judged
    assert part in refused(capsys, arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prompt", ["", "\n\t"])
def test_an_empty_prompt_is_refused(base, tmp_path, capsys, prompt):
    assert "prompt" in refused(capsys, [*base, "--output", str(tmp_path / "out"), "--prompt", prompt])


def test_prompts_that_are_no_text_are_refused(base, tmp_path, capsys):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in refused(
        capsys, [*base, "--output", str(tmp_path / "o"), "--prompt-file", str(tmp_path / "p.txt")]
    )


def test_latents_of_the_wrong_shape_are_refused(base, tmp_path, capsys):
    for shape, part in (
        ((1, 16, 3, 8, 8), "1 x 16 x 3 x 8 x 8"),
        ((1, 4, 3, 4, 4), "1 x 4 x 3"),
        ((16, 3, 4, 4), "shape"),
    ):
        save_file({"latents": torch.zeros(shape)}, tmp_path / "z.safetensors")
        more = ["--prompt", "x", "--output", str(tmp_path / "out")]
        more += ["--continue-from", str(tmp_path / "z.safetensors")]
        assert part in refused(capsys, [*base, *SMALL, *more])


def test_parts_of_another_kind_are_refused(base, files, tmp_path, capsys):
    """A model on the wrong option, or a reward with a tensor missing, which the original loads and scores noise."""
    for role, wrong in (
        ("drafter", files.vae),
        ("vae", files.target),
        ("text-encoder", files.reward),
        ("reward", files.vae),
    ):
        more = [f"--{role}", str(wrong), "--gate", "0", "--prompt", "x", "--output", str(tmp_path / "out")]
        assert wrong.name in refused(capsys, [*base, *SMALL, *more])
    weights = torch.load(files.reward, weights_only=True)
    weights.pop("mlp.layers.0.weight")
    torch.save(weights, tmp_path / "Broken.pt")
    (tmp_path / "vocab.txt").write_bytes((files.reward.parent / "vocab.txt").read_bytes())
    more = ["--reward", str(tmp_path / "Broken.pt"), *more[2:]]
    assert "mlp.layers.0.weight" in refused(capsys, [*base, *SMALL, *more])


def test_models_with_different_text_widths_are_refused(base, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.text_embedding.0.weight"] = torch.zeros(256, 96)
    save_file(weights, tmp_path / "wide.safetensors")
    more = ["--target", str(tmp_path / "wide.safetensors"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "text channels and the target" in refused(capsys, [*base, *SMALL, *more])


def test_missing_models_are_named_with_their_source(tmp_path, capsys):
    line = refused(
        capsys, ["generate", "--prompt", "x", "--models", str(tmp_path), "--output", str(tmp_path / "o")]
    )
    assert line.startswith("sdvg: a run with balanced needs drafter, ")
    assert "self_forcing_dmd.pt" in line
    assert "gdhe17/Self-Forcing" in line


def test_bad_usage_is_one_sentence_with_exit_code_2(capsys):
    for arguments in ([], ["generate"], ["generate", "--prompt", "x", "--blocks", "many"], ["dance"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
