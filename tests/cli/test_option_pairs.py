"""Two options together: each has an effect, or a sentence says that one has none."""

from __future__ import annotations

import argparse
import shlex
from itertools import combinations

import pytest

from sdvg_core.cli import main, make_parser
from sdvg_core.cli.making import read_prompts
from sdvg_core.cli.options import chosen_route, video_request
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import POLICIES, Budget, First, Gate, Mean, Route, Stride, route_preset
from sdvg_core.videos.resolve import resolve_files
from tests.support.cli_runs import generate, options, override, refused, without

OF_ROUTE = {
    "--preset": ("fast", "careful", "hybrid"),
    "--gate": ("-0.7", "0.2"),
    "--handover": ("1", "2"),
    "--budget": ("0.3", "0.9"),
    "--forced-blocks": ("2", "5"),
    "--aggregation": ("mean", "0.9"),
    "--bail-out": ("1", "3"),
    "--cascade": ("0", "inf"),
    "--stride": ("2", "3"),
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


@pytest.mark.parametrize(("one", "two"), list(combinations(OF_ROUTE, 2)))
def test_no_option_of_the_route_is_ignored(one, two):
    """The kind: an option that another one makes void, such as `--policy always-target --gate 5`.

    Where two are accepted, another value of either is another route; else a sentence names one of them.
    """
    for ours, theirs in ((one, two), (two, one)):
        first, *others = OF_ROUTE[ours]
        for kept in OF_ROUTE[theirs]:
            came = answer(f"{written(ours, first)} {written(theirs, kept)}")
            if isinstance(came, str):
                assert any(flag.split()[0] in came for flag in (ours, theirs)), came
                assert "leave " in came, came
                continue
            changed = [answer(f"{written(ours, value)} {written(theirs, kept)}") for value in others]
            assert all(other != came for other in changed), (ours, written(theirs, kept))


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--gate 0.2", "--preset paper --gate 0.2"),
        ("--preset hybrid --gate -1", "--gate -1 --cascade 0.2 --handover 3"),
        ("--preset hybrid --cascade 0.5 --handover 1", "--gate -0.7 --cascade 0.5 --handover 1"),
        ("--preset hybrid --aggregation mean", "--aggregation mean --handover 3"),
        ("--preset hybrid --aggregation min", "--preset hybrid"),
        ("--preset hybrid --policy reward", "--preset hybrid"),
        ("--preset balanced --forced-blocks 3", "--policy first --forced-blocks 3 --handover 2"),
        ("", "--preset balanced"),
        ("--blocks 3 --directions ..a", "--preset balanced"),
        ("--preset balanced --handover 1", "--policy first --forced-blocks 2 --handover 1"),
        ("--tau -1.5", "--policy reward --gate -1.5"),
        ("--forced-blocks 2", "--policy reward --forced-blocks 2"),
    ],
)
def test_options_override_the_preset_and_balanced_is_the_default(words, same):
    assert route_of(words) == route_of(same)


def test_stride_without_a_policy_chooses_it():
    assert route_of("--stride 6 --handover 2") == Route(Stride(6), handover=2)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        ("--stride 3", Route(Stride(3), handover=1)),
        ("--gate -1", Route(Gate(-1.0, Mean()), handover=1)),
        ("--policy first", Route(First(1), handover=1)),
        ("--handover 0", Route(Gate(0.5, Mean()))),
    ],
)
def test_options_change_the_route_of_a_report(words, route):
    """Catches: a report's tau or rule dropped where only another number was asked for."""
    base = Route(Gate(0.5, Mean()), handover=1)
    assert chosen_route(parsed(words), base) == route


@pytest.mark.parametrize(
    ("command", "adding"),
    [("generate", {"--lora", "--drafter-settings", "--target-settings"}), ("doctor", set()), ("demo", set())],
)
def test_an_option_given_twice_is_refused_unless_it_adds_or_says_the_same(capsys, command, adding):
    """The kind: of two values one is dropped. Walks every option. Catches: the last one taken, as argparse does."""
    (commands,) = [action for action in make_parser([command])._actions if isinstance(action.choices, dict)]
    parser = commands.choices[command]
    for action in parser._actions:
        if not action.option_strings or action.nargs == 0:
            continue
        first, last = action.option_strings[0], action.option_strings[-1]
        parser._check_names([first, "1", "--", first, "2"])
        parser._check_names([first, "1", f"{last}=1"])
        if first in adding:
            parser._check_names([first, "1", last, "2"])
            continue
        with pytest.raises(SystemExit):
            parser._check_names([first, "1", last, "2"])
        refusal = f"{first} is given twice, with other values; leave one of them out; see"
        assert refusal in capsys.readouterr().err


OF_VIDEO = [
    ("--gate -0.7 --budget 0.5", "--budget chooses the whole route; leave it or --gate out"),
    ("--policy always-target --gate 5", "of the policy always-target, which has no --gate; leave one of them out"),
    ("--preset careful --stride 3", "--preset careful is of the policy first, which has no --stride; leave one"),
    ("--preset fast --policy stride", "--preset fast is of the policy first, and --policy is stride; leave one"),
    (
        "--aggregation mean --cascade 0.1",
        "--cascade rejects by the weakest frame, and --aggregation is mean; leave",
    ),
    ("--aggregation median", "--aggregation is 'median'; give min, mean, or a quantile such as 0.1"),
    ("--tae-kind taew2_1", "is no TAEHV, so tae_kind (--tae-kind) has no effect; leave it out"),
    ("--drafter-settings window=9 sink=3 window=6", "window is given twice, with other values; leave one out"),
    ("--drafter-settings window=9 --drafter-settings window=6", "window is given twice, with other values; leave"),
    ("--seeds 1 2 --seed=3", "--seed is given twice, with other values; leave one of them out"),
    (
        "--stride 2 --blocks 3 --handover 2 --drafter-settings draft-steps=1",
        "handover is 2, but drafts stop after 1 step; hand over 1 at most",
    ),
    ("--drafter-settings cache=fast", "there is no cache 'fast'; choose recompute, incremental"),
    ("--drafter-settings draft-steps=9", "drafts cannot stop after 9 of 4 steps; give 1 to 4"),
    ("--drafter-settings window=9", "cache=recompute reads no window; leave it out, or choose cache=incremental"),
    (
        "--target-settings cache=incremental context-frames=6",
        "cache=incremental reads no context-frames; leave it out, or choose cache=recompute",
    ),
    (
        "--handover 3 --preset hybrid --drafter-settings draft-steps=1",
        "handover is 3, and the schedules and the drafts' steps allow 1; hand over 1 at most",
    ),
    ("--strength medium", "strength has no effect without restyle; add it, or leave strength out"),
    ("--control-strength 1", "control strength has no effect without control; add it, or leave"),
    ("--control-strength 0.5", "control strength has no effect without control; add it, or leave"),
    ("--control-mask m.png", "control mask has no effect without control; add it, or leave"),
    ("--control c.mp4 --control-edge 4 --blocks 2", "control edge has no effect without control mask; add it, or"),
    ("--control-modules v.safetensors", "--control-modules has no effect without --control; add a clip, or leave"),
    (
        "--schedule krea4 --drafter-settings schedule=1000 --target-settings schedule=1000",
        "the schedule of both has no effect, as each model has its own; leave it out",
    ),
    ("--resume --overwrite", "--overwrite: not allowed with argument --resume"),
    ("--seeds 1 2 1", "seed 1 is given twice and makes one video twice; leave one out"),
    ("--workers 2", "workers need several videos; add --prompt-file FILE or --seeds, or leave the workers out"),
    ("--device cpu,cpu --seeds 1 2 --ray local", "--device names several of this machine, and --ray is a cluster"),
    ("--ray=", "the address of the Ray cluster is empty; give it, or local, or leave --ray out"),
    ("--device cpu:1", "there is no device 'cpu:1'; use cpu, cuda, or one of several such as cuda:1"),
]
"""Other pairs of which one has no effect, and what is said."""


@pytest.mark.parametrize(("words", "sentence"), OF_VIDEO, ids=lambda text: text[:40])
def test_of_two_other_options_none_is_ignored_without_a_word(tmp_path, monkeypatch, capsys, words, sentence):
    """The kind: two things that are asked for and exclude each other, or one that is asked for twice."""
    monkeypatch.chdir(tmp_path)
    base = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT]
    assert sentence in refused(capsys, [*base, *words.split()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "held"), [(2, False), (3, True)])
def test_a_colour_hold_that_no_block_is_pulled_by_is_told(files, tmp_path, blocks, held):
    request = VideoRequest(blocks=blocks, colour_hold=0.5, width=32, height=32, route=Route(First(1)))
    load = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
    notes = resolve_files(request, check_models(files, load)).notes
    assert any("colour hold has no effect" in note for note in notes) != held


@pytest.mark.parametrize(
    ("blocks", "route", "told"),
    [
        (16, route_preset("balanced"), True),
        (15, route_preset("balanced"), False),
        (16, Route(First(0)), False),
        (16, Route(First(5)), False),
        (16, Route(Stride(6)), False),
    ],
)
def test_a_long_video_of_few_first_blocks_names_the_stride(files, blocks, route, told):
    request = VideoRequest(blocks=blocks, width=32, height=32, route=route)
    load = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
    notes = resolve_files(request, check_models(files, load)).notes
    assert any("every sixth block" in note for note in notes) == told


def test_first_blocks_are_stated_in_a_prompt_as_in_a_file(tmp_path):
    """The kind: one meaning in both. Catches `[first 2]` as words of the prompt."""
    (prompt,), _ = read_prompts(parsed("--prompt '[first 2] a ball' --models ."), None)
    assert (prompt.first, prompt.texts) == (2, ("a ball",))


def test_the_gate_of_prompts_that_state_their_first_blocks_is_told(tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text(f"[first 1] {DEFAULT_PROMPT}")
    more = ["--prompt-file", str(tmp_path / "prompts.txt"), "--blocks", "2", "--gate", "1"]
    assert main(["generate", "--models", "pocket", *more, "--output", str(tmp_path / "out")]) == 0
    assert "Without effect, as no block asks for it: --gate.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--policy always-target --drafter-settings draft-steps=3",
            "Without effect, as no block asks for it",
        ),
        (
            "--preset fast --drafter-settings draft-steps=2 --blocks 1",
            "Without effect, as no block asks for it",
        ),
    ],
)
def test_of_two_options_that_are_taken_the_one_without_effect_is_told(tmp_path, capsys, words, said):
    base = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT, "--blocks", "2", "--size", "16x16"]
    assert main(override(base, *words.split(), "--output", str(tmp_path / "out"))) == 0
    assert f"sdvg: {said}" in capsys.readouterr().err


def test_an_option_of_a_part_that_no_block_asks_for_is_told(files, tmp_path, capsys):
    """A broken file too, which is not read. Catches: `--reward` of a route without scores, checked by nobody."""
    (tmp_path / "broken.pt").write_text("no weights")
    more = ["--reward", str(tmp_path / "broken.pt"), "--reward-dtype", "float16"]
    more += ["--policy", "first", "--forced-blocks", "0", "--blocks", "1"]
    base = [*without(options(files), "reward", "target"), "--weight-dtype", "fp8_e4m3fn"]
    assert generate(base, tmp_path / "out", "--prompt", "a ball", *more) == 0
    told = capsys.readouterr().err.partition("sdvg: Without effect, as no block asks for it: ")[2]
    flags = set(told.partition(".\n")[0].split(", "))
    assert {"--reward", "--reward-dtype", "--weight-dtype"} <= flags
