"""Two options together: each has an effect, or a sentence says that one has none."""

from __future__ import annotations

import argparse
import shlex
from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import pytest

from sdvg_core.cli import main, make_parser
from sdvg_core.cli.again import files_again
from sdvg_core.cli.making import read_prompts
from sdvg_core.cli.options import chosen_route, load_options, video_request, worker_devices
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import POLICIES, At, Budget, First, Gate, Mean, Refine, Route, Stride, route_preset
from sdvg_core.videos.film import resolve_film
from tests.support.cli_runs import generate, options, options_in, override, refused, whole_help, without
from tests.support.sample_reports import of_every_reason
from tests.support.sample_reports import report as of_run

OF_ROUTE = {
    "--preset": ("fast", "careful", "hybrid"),
    "--gate": ("-0.7", "0.2"),
    "--handover": ("1", "2"),
    "--target-steps": ("1", "2"),
    "--budget": ("0.3", "0.9"),
    "--forced-blocks": ("2", "5"),
    "--aggregation": ("mean", "0.9"),
    "--bail-out": ("1", "3"),
    "--cascade": ("0", "inf"),
    "--target-at": ("3", "4"),
    "--stride": ("2", "3"),
    "--refine": ("light", "strong"),
    **{f"--policy {name}": ("",) for name in POLICIES},
}
"""Every option that says who makes a block, with two values; of the policies, one after the other."""


def parsed(text: str) -> argparse.Namespace:
    return make_parser().parse_args(override(["generate", "--prompt", "x"], *shlex.split(text)))


def route_of(text: str) -> Route | Budget:
    return video_request(parsed(text), {}).route


def written(option: str, value: str) -> str:
    return f"{option} '{value}'" if value else option


def answer(text: str) -> Route | Budget | str:
    """The route that options come to, or the sentence that refuses them."""
    try:
        return route_of(text)
    except BadInput as refusal:
        return str(refusal)


@pytest.mark.parametrize(("option", "other"), list(permutations(OF_ROUTE, 2)))
def test_no_option_of_the_route_is_ignored(option, other):
    """The kind: an option that another one makes void, such as `--policy always-target --gate 5`.

    Where two are accepted, another value of either is another route; else a sentence names one of them.
    """
    value, *changes = OF_ROUTE[option]
    for beside in OF_ROUTE[other]:
        route = answer(f"{written(option, value)} {written(other, beside)}")
        if isinstance(route, str):
            assert any(flag.split()[0] in route for flag in (option, other)), route
            assert "leave " in route, route
            continue
        for change in changes:
            changed = answer(f"{written(option, change)} {written(other, beside)}")
            assert changed != route, (option, written(other, beside))


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--gate 0.2", "--preset paper --gate 0.2"),
        ("--preset hybrid --gate -1", "--gate -1 --cascade 0.2 --handover 3"),
        ("--preset hybrid --cascade 0.5 --handover 1", "--gate -0.7 --cascade 0.5 --handover 1"),
        ("--preset hybrid --aggregation mean", "--aggregation mean --handover 3"),
        ("--preset hybrid --aggregation min", "--preset hybrid"),
        ("--preset hybrid --policy reward", "--preset hybrid"),
        ("--preset careful --forced-blocks 3", "--policy first --forced-blocks 3 --handover 2"),
        ("--preset balanced --target-at 7 3", "--policy at --target-at 3 7 --handover 3"),
        ("--target-at 5 2 5 1 --handover 3", "--preset balanced"),
        ("", "--preset balanced"),
        ("--blocks 3 --directions ..a", "--preset balanced"),
        ("--preset balanced --handover 1", "--policy at --target-at 2 5 --handover 1"),
        ("--tau -1.5", "--policy reward --gate -1.5"),
        ("--forced-blocks 2", "--policy reward --forced-blocks 2"),
        ("--stride 6 --handover 2", "--policy stride --stride 6 --handover 2"),
        ("--refine medium", "--policy refine"),
    ],
)
def test_options_override_their_preset(words, same):
    assert route_of(words) == route_of(same)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        ("--stride 3", Route(Stride(3), handover=1)),
        ("--gate -1", Route(Gate(-1.0, Mean()), handover=1)),
        ("--policy first", Route(First(1), handover=1)),
        ("--refine light", Route(Refine("light"))),
        ("--handover 0", Route(Gate(0.5, Mean()))),
    ],
)
def test_options_change_the_route_of_a_report(words, route):
    """Catches: a report's tau or rule dropped where only another number was asked for."""
    base = Route(Gate(0.5, Mean()), handover=1)
    assert chosen_route(parsed(words), base) == route


REPORTED = LoadOptions(
    drafter=ModelOptions(preset="krea-14b", window=9),
    device="cpu",
    vae_dtype="bfloat16",
    loras=("style.safetensors:0.5",),
    lora_mode="beside",
    execution=Execution(kv_dtype="float8_e4m3fn", attention="sdpa"),
)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("", {}),
        ("--lora sharp.safetensors", {"loras": ("style.safetensors:0.5", "sharp.safetensors")}),
        ("--lora-mode merge", {"lora_mode": "merge"}),
        ("--vae-dtype float32", {"vae_dtype": "float32"}),
        ("--kv-dtype auto", {"execution": Execution(attention="sdpa")}),
        ("--drafter-settings sink=3", {"drafter": ModelOptions(preset="krea-14b", window=9, sink=3)}),
        ("--drafter-settings window=12", {"drafter": ModelOptions(preset="krea-14b", window=12)}),
        ("--target-settings window=12", {"target": ModelOptions(window=12)}),
    ],
)
def test_options_change_only_what_they_name(words, changes):
    """Of how a report's models were loaded. Catches: a LoRA of it that another one replaces, not joins."""
    load = load_options(parsed(f"--device cpu {words}"), REPORTED, embedded=False)
    assert load == replace(REPORTED, **changes)


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("", ()),
        ("--workers 1", ("cpu",)),
        ("--workers 3", ("cpu", "cpu", "cpu")),
        ("--device cpu,cpu", ("cpu", "cpu")),
        ("--device 'cpu , cpu'", ("cpu", "cpu")),
        ("--device cpu,cpu --workers 1", ("cpu",)),
        ("--device cpu,cpu --workers 3", ("cpu", "cpu", "cpu")),
        ("--ray local", ("cpu",)),
    ],
)
def test_each_worker_has_a_device(words, devices):
    """In turn. Catches: a device that was named and has no worker; prompts that are encoded on none."""
    asked = parsed(f"--seeds 1 2 {words}")
    assert worker_devices(asked, "cpu") == devices
    assert load_options(asked, REPORTED, embedded=True).device == "cpu"


OPTION_OF_PART = {
    "drafter": "--drafter",
    "target": "--target",
    "vae": "--vae",
    "text_encoder": "--text-encoder",
    "scorer": "--reward",
}


@pytest.mark.parametrize("part", OPTION_OF_PART)
def test_report_names_the_file_of_each_part(part, tmp_path):
    """Catches: a file of the usual name, taken in place of the one that was used; a remedy that is no option."""
    role = "reward" if part == "scorer" else part
    run = of_run(of_every_reason(), settings={part: {"file": "mine.safetensors"}})
    fault = f"made with the {role} mine.safetensors, which is not in"
    with pytest.raises(BadInput, match=f"{fault} .* or give another by {OPTION_OF_PART[part]}$"):
        files_again(run, tmp_path, stated=())
    assert files_again(run, tmp_path, stated=[role]) == ({}, ())
    file = tmp_path / "deeper" / "mine.safetensors"
    file.parent.mkdir()
    file.touch()
    assert files_again(run, tmp_path, stated=()) == ({role: file}, ())


@pytest.mark.parametrize(
    ("command", "adding"),
    [
        ("generate", {"--clip", "--lora", "--target-at", "--drafter-settings", "--target-settings"}),
        ("doctor", set()),
        ("demo", set()),
    ],
)
def test_option_given_twice_is_refused(capsys, command, adding):
    """The kind: of two values one is dropped. Walks every option. Catches: the last one taken, as argparse does."""
    parser = make_parser([command])

    def message(*words: str) -> str:
        with suppress(SystemExit):
            parser.parse_args([command, *words])
        return capsys.readouterr().err

    options = options_in(whole_help(command), with_values=True)
    assert len(options) > 2
    for option in options:
        first = option[0]
        last = option[-1]
        twice = f"{first} is given twice"
        assert twice not in message(first, "1", "--", first, "2")
        assert twice not in message(first, "1", f"{last}=1")
        assert (twice in message(first, "1", last, "2")) == (first not in adding)


OF_VIDEO = [
    ("--gate -0.7 --budget 0.5", "--budget chooses the whole route"),
    ("--policy always-target --gate 5", "which has no --gate"),
    ("--preset careful --stride 3", "which has no --stride"),
    ("--gate 0 --stride 3", "--gate is of the policy reward, which has no --stride"),
    ("--preset fast --policy stride", "--policy is stride"),
    ("--aggregation mean --cascade 0.1", "--aggregation is mean"),
    ("--aggregation median", "--aggregation is 'median'"),
    ("--tae-kind taew2_1", "tae_kind (--tae-kind) has no effect"),
    ("--drafter-settings window=9 sink=3 window=6", "window is given twice"),
    ("--drafter-settings window=9 --drafter-settings window=6", "window is given twice"),
    ("--seeds 1 2 --seed=3", "--seed is given twice"),
    ("--stride 2 --blocks 3 --handover 2 --drafter-settings draft-steps=1", "hand over 1 at most"),
    ("--drafter-settings cache=fast", "there is no cache 'fast'"),
    ("--drafter-settings draft-steps=9", "drafts cannot stop after 9 of 4 steps"),
    ("--drafter-settings window=9", "cache=recompute reads no window"),
    ("--target-settings cache=incremental context-frames=6", "cache=incremental reads no context-frames"),
    ("--handover 3 --preset hybrid --drafter-settings draft-steps=1", "hand over 1 at most"),
    ("--strength medium", "strength has no effect without restyle"),
    ("--control-strength 1", "control strength has no effect without control"),
    ("--control-strength 0.5", "control strength has no effect without control"),
    ("--control-mask m.png", "control mask has no effect without control"),
    ("--control c.mp4 --control-edge 4 --blocks 2", "control edge has no effect without control mask"),
    ("--control-modules v.safetensors", "--control-modules has no effect without --control"),
    (
        "--schedule krea4 --drafter-settings schedule=1000 --target-settings schedule=1000",
        "the schedule of both has no effect",
    ),
    ("--seeds 1 2 1", "seed 1 is given twice"),
    ("--workers 2", "workers need several videos"),
    ("--device cpu,cpu --seeds 1 2 --ray local", "--ray is a cluster"),
    ("--ray=", "the address of the Ray cluster is empty"),
    ("--device cpu:1", "there is no device 'cpu:1'"),
]
"""Other pairs of which one has no effect, and a keyword of the refusal."""


@pytest.mark.parametrize(("words", "keyword"), OF_VIDEO, ids=lambda text: text[:40])
def test_options_that_exclude_each_other_are_refused(tmp_path, monkeypatch, capsys, words, keyword):
    """The kind: two things that are asked for and exclude each other, or one that is asked for twice."""
    monkeypatch.chdir(tmp_path)
    base = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT]
    assert keyword in refused(capsys, [*base, *words.split()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "held"), [(2, False), (3, True)])
def test_colour_hold_without_effect_is_noted(files, tmp_path, blocks, held):
    request = VideoRequest(blocks=blocks, colour_hold=0.5, width=32, height=32, route=Route(First(1)))
    load = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
    notes = resolve_film(request, check_models(files, load)).notes
    assert any("colour hold has no effect" in note for note in notes) != held


@pytest.mark.parametrize(
    ("blocks", "route", "noted"),
    [
        (16, route_preset("balanced"), True),
        (15, route_preset("balanced"), False),
        (16, Route(First(0)), False),
        (16, Route(First(5)), True),
        (16, Route(First(6)), False),
        (16, Route(At(())), True),
        (16, Route(At((2, 6))), False),
        (16, Route(Stride(6)), False),
    ],
)
def test_target_blocks_that_wear_off_are_noted(files, blocks, route, noted):
    request = VideoRequest(blocks=blocks, width=32, height=32, route=route)
    load = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
    notes = resolve_film(request, check_models(files, load)).notes
    assert any("first blocks wear off" in note for note in notes) == noted


@pytest.mark.parametrize(
    ("blocks", "at", "late"),
    [(4, (3, 5, 9), "5, 9"), (5, (3, 5), ""), (1, (2,), "2"), (3, (2, 5), "")],
)
def test_target_block_after_the_end_is_noted(files, blocks, at, late):
    """But for the preset's. Catches: a block asked for that is never made, without a word."""
    request = VideoRequest(blocks=blocks, width=32, height=32, route=Route(At(at)))
    load = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
    notes = [note for note in resolve_film(request, check_models(files, load)).notes if "target at" in note]
    assert [f"target at {late} has no effect" in note for note in notes] == [True] * bool(late)


def test_prompt_states_its_first_blocks(tmp_path):
    """The kind: one meaning in both. Catches `[first 2]` as words of the prompt."""
    (prompt,), *_ = read_prompts(parsed("--prompt '[first 2] a ball' --models ."), None)
    assert (prompt.first, prompt.texts) == (2, ("a ball",))


def test_gate_beside_stated_first_blocks_is_noted(tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text(f"[first 1] {DEFAULT_PROMPT}")
    more = ["--prompt-file", str(tmp_path / "prompts.txt"), "--blocks", "2", "--gate", "1"]
    assert main(["generate", "--models", "pocket", *more, "--output", str(tmp_path / "out")]) == 0
    assert "Without effect, as no block asks for it: --gate.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--policy always-target --drafter-settings draft-steps=3",
        "--preset fast --drafter-settings draft-steps=2 --blocks 1",
        "--preset fast --handover 2",
        "--policy first --forced-blocks 1 --target-steps 2",
        "--policy always-target --directions tt --target-steps 2",
        "--policy first --forced-blocks 0 --target-steps 5",
    ],
)
def test_option_without_effect_is_noted(tmp_path, capsys, words):
    """Catches also: a limit compared with the drafter's steps, where no block needs a target."""
    base = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT, "--blocks", "2", "--size", "16x16"]
    assert main(override(base, *words.split(), "--output", str(tmp_path / "out"))) == 0
    assert "sdvg: Without effect" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--preset balanced --handover 1", "--gate 0 --target-steps 2"])
def test_option_with_effect_is_not_noted(tmp_path, capsys, words):
    """The second one may have: the scores decide."""
    base = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT, "--blocks", "2", "--size", "16x16"]
    assert main(override(base, *words.split(), "--output", str(tmp_path / "out"))) == 0
    assert "Without effect" not in capsys.readouterr().err


def test_option_of_an_unused_part_is_noted(files, tmp_path, capsys):
    """A broken file too, which is not read. Catches: `--reward` of a route without scores, checked by nobody."""
    (tmp_path / "broken.pt").write_text("no weights")
    more = ["--reward", str(tmp_path / "broken.pt"), "--reward-dtype", "float16"]
    more += ["--policy", "first", "--forced-blocks", "0", "--blocks", "1"]
    base = [*without(options(files), "reward", "target"), "--weight-dtype", "fp8_e4m3fn"]
    assert generate(base, tmp_path / "out", "--prompt", "a ball", *more) == 0
    note = capsys.readouterr().err.partition("sdvg: Without effect, as no block asks for it: ")[2]
    flags = set(note.partition(".\n")[0].split(", "))
    assert {"--reward", "--reward-dtype", "--weight-dtype"} <= flags
