"""What the command line refuses: one sentence of at most 400 characters, exit code 2, nothing written, no wait."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

import sdvg_core
from sdvg_core import errors
from sdvg_core.__main__ import run
from sdvg_core.cli import doctor, main, make_parser
from sdvg_core.cli.options import load_options
from sdvg_core.errors import BadInput, see
from sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.videos import batch, maker
from tests.support.cli_runs import SMALL, override, refused
from tests.support.forked import fork
from tests.support.thinned import in_turn

LONG = "x" * 300
PATHS = (
    *("--models", "--drafter", "--target", "--vae", "--text-encoder", "--reward", "--vocabulary"),
    *("--tokenizer", "--output", "--reuse", "--continue-from", "--start-image", "--prompt-file"),
)


@pytest.fixture
def command(base, tmp_path, monkeypatch) -> list[str]:
    for room, reader in ((batch, "encode_prompts"), (maker, "load_models")):
        monkeypatch.delattr(room, reader)  # no weight is read before everything else has been judged
    return [*base, *SMALL, "--tau", "0", "--output", str(tmp_path / "out")]


# --- values


@pytest.mark.parametrize(
    "more, part",
    [
        (["--blocks", "0"], "give 1 to"),
        (["--fps", "1e18"], "give 0.001 to 1000"),
        (["--size", "16400x32"], "H.264 cannot take"),
        (["--size", "0x32"], "width is 0; give 16 or more"),
        (["--size", "1x2x3"], "is no size; give landscape, portrait, square or 640x352"),
        (["--size", "wide"], "is no size; give landscape, portrait, square or 640x352"),
        (["--size", "40x32"], "width 40 is no multiple of 16; use 32 or 48"),
        (["--drafter-settings", "preset=krea"], "no preset 'krea'; choose among"),
        (["--target-settings", "preset=auto"], "name one, such as custom"),
        (["--schedule", "five"], "four-step"),
        (["--policy", "anchor"], "choose from 'reward', 'first', 'stride', 'always-target'"),
        (["--drafter-settings", "block-frames=0"], "block_frames"),
        (["--target-settings", "block-frames=1"], "do not divide the target's (3 and 1 latent frames)"),
        (
            ["--drafter-settings", "block-frames=1", "--drafter-settings", "context-frames=2"],
            "2 context frames are too few",
        ),
        (["--target-settings", "recache=yes"], "cache=recompute reads no recache"),
        (["--device", "cuda:7"], "this machine has no device"),
        (["--handover", "9"], "handover is 9, but drafts stop after 2 steps"),
        (["--stride", "2"], "--gate is of the policy reward, which has no --stride; leave one of them out"),
        (["--cascade", "-1"], "cascade is -1.0; give 0 or more"),
        (["--reward-dtype", "bfloat16"], "--reward-dtype: invalid choice"),
        (["--drafter-settings", "window=2", "--drafter-settings", "cache=incremental"], "window"),
        (
            ["--drafter-settings", "window=" + "9" * 25, "--drafter-settings", "cache=incremental"],
            "give 1 to 1048576",
        ),
        (["--drafter-settings", "window=" + "9" * 5000], "; give a whole number"),
        (["--drafter-settings", "draft-steps=x"], "draft-steps is 'x'; give a whole number"),
        (
            ["--target-settings", "draft-steps=1"],
            "draft_steps is for the drafter; leave it out of the target's settings",
        ),
        (["--blocks", "many"], "invalid int value"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\n\t"], "the prompt is empty"),
        (["--prompt", "x" * 20_001], "over 20000"),
        (["--prompt", "a\x1b[2J"], "control character"),
        (["--drafter", "nowhere.pt"], "there is no drafter at nowhere.pt; check the path"),
        (["--start-image", "nowhere.png"], "there is no file nowhere.png; check the path"),
        (["--start-image", "."], "cannot be read as a picture (it is a folder); use a PNG or JPEG"),
        (["--continue-from", "nowhere.mp4"], "there is no file nowhere.mp4; check the path"),
    ],
    ids=lambda value: "_".join(value)[:40].strip("-") if isinstance(value, list) else "",
)
def test_bad_values_are_refused_in_one_sentence_and_nothing_is_written(command, tmp_path, capsys, more, part):
    prompt = [] if "--prompt" in more else ["--prompt", "x"]
    assert part in refused(capsys, override(command, *prompt, *more))
    assert not (tmp_path / "out").exists()


def test_latents_of_the_wrong_shape_are_refused(base, tmp_path, capsys):
    for shape, part in (
        ((1, 16, 3, 8, 8), "1 x 16 x 3 x 8 x 8"),
        ((1, 4, 3, 4, 4), "1 x 4 x 3"),
        ((16, 3, 4, 4), "shape"),
    ):
        save_file({"latents": torch.zeros(shape)}, tmp_path / "z.safetensors")
        more = ["--prompt", "x", "--output", str(tmp_path / "out")]
        more += ["--continue-from", str(tmp_path / "z.safetensors")]
        assert part in refused(capsys, override([*base, *SMALL], *more))


def test_parts_of_another_kind_are_refused(base, files, tmp_path, capsys):
    """A model on the wrong option, or a reward with a tensor missing, which the original loads and scores noise."""
    for role, wrong in (
        ("drafter", files.vae),
        ("vae", files.target),
        ("text-encoder", files.reward),
        ("reward", files.vae),
    ):
        more = [f"--{role}", str(wrong), "--gate", "0", "--prompt", "x", "--output", str(tmp_path / "out")]
        assert wrong.name in refused(capsys, override([*base, *SMALL], *more))
    weights = torch.load(files.reward, weights_only=True)
    weights.pop("mlp.layers.0.weight")
    torch.save(weights, tmp_path / "Broken.pt")
    (tmp_path / "vocab.txt").write_bytes((files.reward.parent / "vocab.txt").read_bytes())
    more = ["--reward", str(tmp_path / "Broken.pt"), *more[2:]]
    assert "mlp.layers.0.weight" in refused(capsys, override([*base, *SMALL], *more))


def test_models_with_different_text_widths_are_refused(base, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.text_embedding.0.weight"] = torch.zeros(256, 96)
    save_file(weights, tmp_path / "wide.safetensors")
    more = ["--target", str(tmp_path / "wide.safetensors"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "text channels and the target" in refused(capsys, override([*base, *SMALL], *more))


@pytest.mark.parametrize("arguments", [[], ["generate"], ["dance"]], ids=" ".join)
def test_bad_usage_is_one_sentence(capsys, arguments):
    assert "see python -m sdvg_core" in refused(capsys, arguments)


# --- paths, devices, and what the system refuses


@in_turn("option, name", PATHS, [LONG, f"a/{LONG}.safetensors", "a/" * 2100, "a\0b"])
def test_a_path_that_no_system_has_is_refused(command, capsys, option, name):
    prompt = [] if option == "--prompt-file" else ["--prompt", "x"]
    assert "too long or has a NUL byte" in refused(capsys, override(command, *prompt, option, name))


@pytest.mark.parametrize(
    "arguments",
    [["doctor", LONG], ["doctor", "--models", LONG], ["demo", "--output", LONG]],
    ids=lambda arguments: arguments[0],
)
def test_every_command_refuses_such_a_path(capsys, arguments):
    assert "too long or has a NUL byte" in refused(capsys, arguments)


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OSError(40, "Too many levels of symbolic links", "/a/" + LONG), "Too many levels of symbolic links", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"), "out of memory", 1),
        (RuntimeError("[x.cpp:117] DefaultCPUAllocator: not enough memory: " + LONG), "out of memory", 1),
        (MemoryError(), "out of memory", 1),
    ],
)
def test_what_the_system_refuses_is_a_refused(capsys, monkeypatch, error, said, code):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=error))
    line = refused(capsys, ["doctor"], code)
    assert said in line
    assert line.endswith(" (troubleshooting: Out of memory)") is (said == "out of memory")


def test_any_other_mistake_of_ours_keeps_its_trace(monkeypatch):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        main(["doctor"])


@in_turn("device, option", ["meta", "hpu", "meta:0", "nope", ""], ["--device", "--side-device"])
def test_a_device_that_cannot_run_a_model_is_refused(command, capsys, device, option):
    assert "; use cpu, cuda" in refused(capsys, [*command, "--prompt", "x", option, device])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
@pytest.mark.parametrize("option", ["--prompt-file", "--start-image", "--continue-from"])
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(command, capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.safetensors")
    prompt = [] if option.startswith("--prompt") else ["--prompt", "x"]
    line = refused(capsys, override(command, *prompt, option, str(tmp_path / "pipe.safetensors")))
    assert "regular file" in line or "no weight file" in line


def test_a_message_is_never_longer_than_400_characters_and_keeps_what_to_do():
    escapes = "\x1b" * 500
    message = str(BadInput(f"expected {LONG}, but got {escapes}; use another"))
    assert len(message) <= 400
    assert message.startswith("expected xxx")
    assert message.endswith("; use another")


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["demo", "--sedd", "3"], "there is no option --sedd (did you mean --seed?)"),
        (["generate", "--promt", "a fox"], "there is no option --promt (did you mean --prompt?)"),
        (["generate", "--prompt", "a fox", "--tua=-1"], "there is no option --tua (did you mean --tau?)"),
    ],
)
def test_a_mistyped_option_is_named_with_the_one_that_was_meant_and_the_help_of_its_command(
    capsys, arguments, said
):
    """Catches a missing option that is reported in place of the one that was mistyped."""
    line = refused(capsys, arguments)
    assert said in line
    assert line.endswith(f"see python -m sdvg_core {arguments[0]} --help")


def test_an_abbreviation_of_several_options_is_refused(capsys):
    """Catches: an option taken for another one, so that the other is given twice."""
    line = refused(
        capsys, ["generate", "--prompt", "a fox", "--drafter", "x.pt", "--drafter-c", "own", "--pro", "b"]
    )
    assert "--pro may be --prompt or --prompt-file" in line


def test_an_abbreviation_of_one_option_is_taken():
    assert make_parser().parse_args(["generate", "--prompt", "a", "--drafter-c", "own"]).drafter_context == "own"


def test_a_working_folder_that_was_removed_is_named(tmp_path, monkeypatch, capsys):
    """Catches: advice to check a file that nobody gave."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    line = refused(capsys, ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT])
    assert "the folder you are in was removed; go to another one" in line
    monkeypatch.chdir(tmp_path)


def test_a_page_that_is_not_installed_is_not_named(monkeypatch, tmp_path):
    """Catches: a reference to a file that a wheel does not have."""
    assert see("Out of memory") == " (troubleshooting: Out of memory)"
    monkeypatch.setattr(errors, "PAGE", tmp_path / "troubleshooting.md")
    assert see("Out of memory") == ""


@pytest.mark.parametrize("odd", ["\x1b[31m", "\x9b2J", "\u202e", "\x07"], ids=ascii)
def test_a_name_with_control_characters_is_printed_escaped(odd, tmp_path):
    """Catches: a folder whose name colours, clears or turns around what a terminal shows."""
    reader, writer = os.pipe()
    process = fork(lambda: run(["doctor", "--models", f"{tmp_path}/a{odd}b"]), writer, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as printed:
        text = printed.read()
    process.join(600)
    assert odd not in text
    assert ascii(odd)[1:-1] in text


def test_a_dtype_may_be_of_a_part_and_a_preset_of_one_model():
    words = "--dtype bfloat16 --vae-dtype float16 --text-dtype float32 --drafter-settings preset=krea-14b window=9"
    options = make_parser().parse_args(["generate", *words.split()])
    load = load_options(options, LoadOptions(), embedded=False)
    dtypes = load.dtype, load.vae_dtype, load.text_dtype, load.reward_dtype
    assert dtypes == ("bfloat16", "float16", "float32", "auto")
    assert load.drafter == ModelOptions(preset="krea-14b", window=9)
    assert load.target == ModelOptions()


@pytest.mark.parametrize("text", ["window", "=9", "windwo=9"])
def test_a_models_setting_that_there_is_not_is_refused_with_those_there_are(capsys, text):
    line = refused(capsys, ["generate", "--prompt", "a", "--drafter-settings", text])
    assert "argument --drafter-settings: " in line
    assert "give NAME=VALUE of preset, cache" in line


@pytest.mark.parametrize("prompt", ["--- a fox ---", "-5"])
def test_a_prompt_may_begin_with_a_dash(capsys, tmp_path, prompt):
    asked = ["generate", "--prompt", prompt, "--models", str(tmp_path)]
    assert "needs vae, text_encoder" in refused(capsys, asked)


@pytest.mark.parametrize(
    "words, said",
    [
        ("--prompt-file nope", "the prompt file nope cannot be read (No such file or directory); check the path"),
        ("--prompt-file .", "the prompt file . cannot be read (it is a folder); give a text file"),
        ("--prompt-file latin.txt", "the prompt file latin.txt is not UTF-8 text; save it as UTF-8"),
        ("--prompt '5: x'", "the first block has no prompt; write one before that of block 5, or as block 1"),
        ("--prompt 'x\n5: y\n3: z'", "the prompts start at blocks 1, 5, 3; sort them, and give each block one"),
        ("--from nope", "nope is no run report (No such file or directory); give the report.json of a run"),
        ("--from latin.txt", "latin.txt is no run report (it is not JSON); give the report.json of a run"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt --resume", "latin.txt is a file; name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output x/../new", "(there is no x); name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt/new", "(latin.txt is a file); name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output {'n' * 240}", "n... has 240 bytes; give it one of at most 239"),
    ],
)
def test_a_file_or_a_line_that_cannot_be_read_is_told_with_what_to_do(tmp_path, monkeypatch, capsys, words, said):
    """Catches `nope is not UTF-8 text`, `(JSONDecodeError)`, `the prompts start at blocks 5`."""
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"a caf\xe9")
    lines = refused(capsys, ["generate", "--models", "pocket", *shlex.split(words)])
    assert said in lines
    assert [path.name for path in tmp_path.iterdir()] == ["latin.txt"]


@pytest.mark.parametrize("number", ["-inf", "-1e-3", "-.5", "-2."])
def test_a_number_below_zero_is_a_value_and_no_option(number):
    assert make_parser().parse_args(["generate", "--gate", number]).tau == float(number)


def test_the_latents_of_a_video_are_told_from_weights(tmp_path, capsys):
    save_file({"latents": torch.zeros(1, 16, 3, 8, 8)}, tmp_path / "latents.safetensors")
    assert main(["doctor", str(tmp_path)]) == 2
    told = capsys.readouterr().out
    assert "kind         latents of a video\n" in told
    assert "reason       these are no weights; give them to generate --continue-from\n" in told


@pytest.mark.heavy
def test_without_the_packages_there_is_a_sentence_that_says_how_to_get_them(tmp_path):
    """Catches a traceback for whoever calls it with the Python of the system."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    command = [sys.executable, "-m", "sdvg_core", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "package torch" in line
    assert "python3 dev.py run" in line


BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
from sdvg_core.__main__ import run

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(name, name=name)

for name in [name for name in sys.modules if name.partition(".")[0] in {packages}]:
    raise SystemExit(f"{{name}} is imported before a command needs it")
sys.meta_path.insert(0, Missing())
sys.exit(run({arguments}))
"""
PACKAGES = ("torch", "transformers", "safetensors", "einops", "numpy", "PIL", "av", "filelock", "tqdm", "yaml")


@pytest.mark.parametrize("arguments", [["--version"], ["demo", "--list"], ["generate", "--help-all"]], ids=" ".join)
def test_a_command_without_models_needs_no_package(arguments):
    """Catches: a package imported by all commands, whose lack is a traceback even for `--version`."""
    program = BLOCKED.format(packages=PACKAGES, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", [*PACKAGES, "ftfy.fixes"])
def test_any_package_that_lacks_is_a_sentence(capsys, monkeypatch, package):
    """Catches: a traceback for a package that nobody thought of."""
    monkeypatch.setattr(doctor, "run", Mock(side_effect=ModuleNotFoundError(package, name=package)))
    assert f"package {package}" in refused(capsys, ["doctor"])


def test_the_lack_of_yaml_is_said_where_it_is_read(tmp_path, monkeypatch, capsys):
    """Catches: folders of models that are passed over in silence."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "extra_model_paths.yaml").write_text("comfyui:\n", encoding="utf-8")
    assert "package yaml" in refused(capsys, ["doctor", "--models", str(tmp_path)])


@pytest.mark.heavy
def test_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path):
    """Catches `the system refused a file (Broken pipe)` after `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    process = fork(lambda: run(["doctor", "--vram"]), writer, str(tmp_path / "said"))
    process.join(600)
    os.close(writer)
    assert (process.exitcode, (tmp_path / "said").read_text()) == (141, "")
