"""doctor, demo, and the help of all commands, which imports nothing heavy."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sdvg_core
from sdvg_core.cli import COMMANDS, main, make_parser, racing
from sdvg_core.loading.load import load_decoder
from sdvg_core.pocket import CHOSEN, DEFAULT_PROMPT, EXAMPLE_PROMPTS, HELPED_PROMPTS, UNHELPED_PROMPTS
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import judge
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.weights.latents import load_latents
from sdvg_core.weights.model_files import KNOWN_MODELS, QUANTISED_FORMATS, converted_name
from tests.support.cli_runs import OUTPUTS, SMALL, names, options, options_in, override, refused, report, whole_help


def test_doctor_says_what_a_file_is(files, capsys):
    assert main(["doctor", str(files.drafter)]) == 0
    assert "kind         causal Wan 2.1 transformer\n" in capsys.readouterr().out
    assert main(["doctor", str(files.vae)]) == 0
    assert "Wan 2.1 VAE" in capsys.readouterr().out
    assert "no weight file at" in refused(capsys, ["doctor", "nowhere.safetensors"])


def video_with(files, target: dict[str, torch.Tensor], folder: Path) -> list[str]:
    """Write a target of other tensors; return the command for one block by it."""
    save_file(target, folder / "target.safetensors")
    words = [*options(files), *SMALL, "--prompt", "a ball", "--blocks", "1", "--output", str(folder / "out")]
    return override(words, "--target", str(folder / "target.safetensors"))


def test_tensor_outside_the_model_is_noted(files, tmp_path, capsys):
    """The target's names have a prefix. Catches: weights passed over without a word."""
    tensors = {**load_file(files.target), "first_stage.weight": torch.ones(1)}
    assert main(video_with(files, tensors, tmp_path)) == 0
    note = "Beside the transformer, target.safetensors has tensors that are not used: first_stage.weight."
    assert f"sdvg: {note}" in capsys.readouterr().err
    assert note in report(tmp_path / "out")["notes"]


def test_lora_outside_the_model_is_refused(files, tmp_path, capsys):
    """Catches: a LoRA beside the target's prefix that is passed over as any other tensor is."""
    tensors = {**load_file(files.target), "blocks.0.ffn.0.lora_A.weight": torch.ones(1)}
    assert "holds a LoRA" in refused(capsys, video_with(files, tensors, tmp_path))


def test_doctor_names_a_lora_in_a_scorer(files, tmp_path, capsys):
    scorer = torch.load(files.reward, weights_only=True)
    torch.save({**scorer, "text.lora_B.weight": torch.ones(1)}, tmp_path / "Reward.pt")
    assert main(["doctor", str(tmp_path / "Reward.pt")]) == 2
    assert "holds a LoRA" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, word",
    [
        (["{file}", "--vram", "24"], "two things"),
        (["{file}", "--models", "pocket"], "two things"),
        (["--vram", "--models", "pocket"], "two things"),
        (["--values"], "name one"),
        (["--blocks", "9"], "--blocks says what should fit; add --vram"),
        (["{file}", "--size", "640x352"], "--size says what should fit"),
        (["--vram", "24", "--weight-dtype", "int3"], "int3"),
    ],
)
def test_doctor_refuses_options_of_another_question(words, word, files, capsys):
    """Catches: an option that is taken and has no effect; a word that it does not know, in Python's error."""
    asked = [part.format(file=files.drafter) for part in words]
    assert word in refused(capsys, ["doctor", *asked])


def test_doctor_says_what_a_folder_lacks(tmp_path, files, capsys):
    """A drafter and a VAE are there, the target is cut short, and there is no scorer."""
    drafter = tmp_path / "diffusion_models" / "chunkwise" / "causal_forcing.pt"
    vae = tmp_path / "vae" / "wan_2.1_vae.safetensors"
    (krea,) = (model for model in KNOWN_MODELS if model.name == "Krea Realtime")
    for path, content in (
        (drafter, files.drafter.read_bytes()),
        (vae, files.vae.read_bytes()),
        (tmp_path / "diffusion_models" / krea.files[0], b"cut short"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "MISSING: get ImageReward.pt (1.79 GB) into image_reward/ from zai-org/ImageReward" in printed
    assert "MISSING: get vocab.txt (0.2 MB) into image_reward/ from google-bert/" in printed
    assert "UNUSABLE" in printed
    assert f"drafter        found {drafter} (generator) (preset causal-forcing)" in printed
    assert f"vae            found {vae}\n" in printed


def test_doctor_names_a_smaller_file_to_get(tmp_path, capsys):
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    fp8 = "krea-realtime-video-14b-fp8-e4m3fn.safetensors (14.3 GB) from 6chan/krea-realtime-video-fp8"
    printed = capsys.readouterr().out
    assert f"; for a smaller card {fp8}" in printed
    assert "doctor --fetch" in printed


@pytest.mark.parametrize("form", ["", *QUANTISED_FORMATS])
def test_doctor_names_the_smaller_file_beside(form, files, tmp_path, capsys):
    """Catches: the command for a file that is there, or a file that is not."""
    folder = tmp_path / "diffusion_models"
    folder.mkdir()
    target = folder / "krea-realtime-video-14b.safetensors"
    shutil.copy(files.target, target)
    smaller = converted_name(target, form).name
    if form:
        (folder / smaller).touch()
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if f"found {target}" in line]
    assert (f"{smaller} beside it" in line) == bool(form)
    assert (f"convert {target.name}" in line) != bool(form)


@pytest.mark.usefixtures("short_race")
def test_demo_shows_the_nearest_prompt(tmp_path, capsys):
    """With every word that it knows. Catches: one default for all prompts."""
    words = ["--prompt", "a small white ring sings over grass", "--blocks", "1"]
    nearest = "a small white ring drifts right from the left over grass"
    assert main(["demo", *words, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert f"shown instead: {nearest}." in printed.err
    assert f"1 block of '{nearest}'" in printed.out


def test_generate_shows_the_nearest_prompt(tmp_path, capsys):
    """Of the embedded models. Catches: another prompt than was asked for, without a word."""
    words = ["--models", "pocket", "--prompt", "a small white ring sings over grass", "--blocks", "1"]
    assert main(["generate", *words, "--size", "16x16", "--output", str(tmp_path / "out")]) == 0
    assert "a small white ring drifts right from the left over grass" in capsys.readouterr().err


def test_demo_lists_its_prompts_by_number(tmp_path, monkeypatch, capsys):
    """Those that help first. Catches: counts of another list. By number: `test_nothing_is_lost.py`."""
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--list"]) == 0
    printed = capsys.readouterr().out
    listed = re.findall(r"^  (\d)  (.+)$", printed, re.MULTILINE)
    assert listed == [(str(number), prompt) for number, prompt in enumerate(EXAMPLE_PROMPTS, 1)]
    helped, _, unhelped = printed.partition("as well")
    assert all(prompt in helped for prompt in HELPED_PROMPTS)
    assert all(prompt in unhelped for prompt in UNHELPED_PROMPTS)
    counts = CHOSEN["counts"]
    assert f"{counts['helps']} of {counts['prompts']} prompts" in helped
    assert f"{counts['does not help']} of {counts['prompts']} prompts" in unhelped
    assert names(tmp_path) == []


@pytest.mark.parametrize("prompt", ["", "  ", "0", "7", "-1", "99"])
def test_demo_refuses_a_prompt_not_listed(tmp_path, monkeypatch, capsys, prompt):
    """Catches a red ball, the prompt nearest to `0`."""
    monkeypatch.chdir(tmp_path)
    fault = f"there is no prompt {prompt}; choose 1 to 6" if prompt.strip() else "the prompt is empty; write one"
    assert fault in refused(capsys, ["demo", f"--prompt={prompt}"])
    assert names(tmp_path) == []


@pytest.mark.heavy
def test_demo_races_both_models_against_each(tmp_path, monkeypatch, capsys):
    """As a newcomer would: the advised preset, and a table of three at the end.

    Catches: a list of prompts that was measured with other models, or in another way than the demo makes them.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    folder = tmp_path / "out" / "demo" / "001"
    assert {*OUTPUTS, "comparison.mp4"} == set(names(folder))
    printed = capsys.readouterr()
    device, first, _, heads, *lanes, _, blocks, last = printed.out.splitlines()
    assert device.startswith("device: cpu (")
    assert "will make 9 blocks" in first
    assert "redicted" not in printed.out
    assert blocks == "Large model, by rule: 1 to 2, 5; small model, not checked: 3 to 4, 6 to 9."
    columns = ["cost", "likeness", "last block", "at its place", "last block", "seconds"]
    assert re.split("  +", heads.strip()) == columns
    form = r"(.*?)  +(\d+)%  +([\d.]+) dB  +([\d.]+) dB  +(\d+)%  +(\d+)%  +([\d.]+)"
    small, both, large = (re.fullmatch(form, line).groups() for line in lanes)
    assert [small[0], large[0]] == ["Small model alone", "Large model alone"]
    assert both[0] == "Both: 3 of 9 blocks by the large one"
    assert int(small[1]) < int(both[1]) < int(large[1]) == 100
    measured = CHOSEN["helps"][0]
    for lane, name in ((small, "small"), (both, "both"), (large, "large")):
        assert float(lane[2]) == pytest.approx(measured[name]["dB"], abs=0.06)
        assert int(lane[5]) == round(100 * measured[name]["at_its_place"])
    assert float(small[3]) < float(both[3])
    assert int(small[4]) < int(both[4]) <= int(large[4]) <= 100
    assert float(both[6]) == pytest.approx(report(folder)["totals"]["seconds"]["total"], abs=0.01)
    assert last.startswith(f"Look at {Path('out', 'demo', '001')}: comparison.mp4 shows the race")
    assert "block 9/9" in printed.err
    made = report(folder)
    assert (made["settings"]["route"]["policy"]["blocks"], made["totals"]["forced"]) == ([2, 5], 3)


@pytest.mark.usefixtures("short_race")
def test_racing_videos_equal_those_made_alone(tmp_path, monkeypatch):
    """Bit for bit, though their blocks are made in turn. Catches: a context or decoder state that two share.

    And a last block that is judged with frames of another one.
    """
    raced = {}
    figures = []
    costs = []
    pictures = racing.race_frames

    def look(lanes, prompt, fps):
        raced.update({lane.title.partition(":")[0]: lane.frames for lane in lanes})
        figures.extend(lane.figures for lane in lanes)
        costs.extend(lane.costs for lane in lanes)
        return pictures(lanes, prompt, fps)

    monkeypatch.setattr(racing, "race_frames", look)
    few = ["--blocks", "2", "--seed", "5"]
    assert main(["demo", *few, "--preset", "fast", "--output", str(tmp_path / "demo")]) == 0
    codec = load_decoder(trained_set().vae, pocket_options())
    of = ["generate", "--models", "pocket", "--vae", str(pocket_fast_vae()), "--prompt", DEFAULT_PROMPT, *few]
    routes = {
        "Small model alone": ["--policy", "first", "--forced-blocks", "0"],
        "Both": ["--preset", "fast"],
        "Large model alone": ["--policy", "always-target"],
    }
    for title, words in routes.items():
        out = tmp_path / title
        assert main([*of, *words, "--output", str(out)]) == 0
        frames = codec.decode(load_latents(out / "latents.safetensors").latents)[0][0]
        assert torch.equal(frames, raced[title])
    assert report(tmp_path / "demo")["notes"] == report(tmp_path / "Both")["notes"]
    scene = parse(DEFAULT_PROMPT)
    last_blocks = [float(judge(frames, scene).quality[9:].mean()) for frames in raced.values()]
    assert [row["last_block_quality"] for row in figures] == last_blocks
    (_, small), (first, both), (half, large) = costs
    assert small < both < large == 1
    assert small < first == half < both


def test_doctor_reads_weights_by_their_endings(files, tmp_path, capsys):
    """The kind: what one command takes and another refuses."""
    for name in ("T.SAFETENSORS", "t.sft"):
        shutil.copy(files.target, tmp_path / name)
        assert main(["doctor", str(tmp_path / name)]) == 0
        assert "kind         causal Wan 2.1 transformer" in capsys.readouterr().out
    for name in ("report.json", "clip.mp4"):
        (tmp_path / name).write_text("{}")
        assert f"{name} is no weight file; give .safetensors" in refused(capsys, ["doctor", str(tmp_path / name)])


HEAVY = ("torch", "diffusers", "transformers", "matplotlib", "PIL", "numpy", "av", "safetensors", "einops")
MOST_OPTIONS = 93
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]
ASKED = [
    ["--version"],
    ["--help"],
    ["generate", "--help-all"],
    *([name, "--help"] for name in NAMES),
    ["doctor", "--vram", "many"],
]
PROGRAM = f"""
import sys
from sdvg_core.__main__ import run
for words in {ASKED!r}:
    try:
        run(words)
    except SystemExit as end:
        loaded = [name for name in {HEAVY!r} if name in sys.modules]
        print("ended", words, end.code, loaded, file=sys.stderr)
"""


def test_help_version_and_bad_usage_import_nothing_heavy():
    """Catches a parser that takes a word from a room that does the work; it cost 2 seconds."""
    here = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=here)
    ended = [line for line in done.stderr.splitlines() if line.startswith("ended")]
    assert ended == [f"ended {words} {2 if 'many' in words else 0} []" for words in ASKED]


@pytest.mark.parametrize("name", NAMES)
def test_help_names_no_option_its_command_lacks(name):
    """Catches --restyle in the help of the demo."""
    text = whole_help(name)
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)
    assert set(named) - {flag for flags in options_in(text) for flag in flags} == set()


@pytest.mark.parametrize("name", NAMES)
def test_each_option_has_words(name):
    """Catches: an option of which the help shows the name alone."""
    entries = re.split(r"^  (?=-)", whole_help(name), flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if not re.search(r"\s{2,}\S", entry.partition("\n\n")[0])] == []


def help_of_generate(capsys: pytest.CaptureFixture[str], word: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["generate", word])
    return capsys.readouterr().out


def test_short_help_shows_twelve_options(capsys):
    """And `--help-all`, which shows the rest too. Catches: an option that neither shows."""
    short = re.findall(r"^  (--[a-z-]+)", help_of_generate(capsys, "--help"), re.MULTILINE)
    whole = re.findall(r"^  (--[a-z-]+)", help_of_generate(capsys, "--help-all"), re.MULTILINE)
    assert len(short) == 13
    assert short[-1] == "--help-all"
    assert {*short, "--tokenizer", "--budget", "--private"} < set(whole)


def test_examples_in_the_help_can_be_parsed(capsys):
    lines = help_of_generate(capsys, "--help").splitlines()
    examples = [line for line in lines if line.startswith("  python -m sdvg_core generate")]
    assert len(examples) == 4
    for line in examples:
        assert make_parser().parse_args(shlex.split(line)[3:])


def test_commands_have_few_options():
    """A new one takes the place of one that nobody would miss."""
    shown = [flags for name in NAMES for flags in options_in(whole_help(name))]
    assert len([flags for flags in shown if not flags[-1].startswith("--help")]) <= MOST_OPTIONS
