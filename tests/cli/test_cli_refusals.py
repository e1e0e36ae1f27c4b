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
    "more, keyword",
    [
        (["--blocks", "0"], "give 1 to"),
        (["--fps", "1e18"], "give 0.001 to 1000"),
        (["--size", "16400x32"], "H.264 cannot take"),
        (["--size", "0x32"], "width is 0"),
        (["--size", "1x2x3"], "is no size"),
        (["--size", "wide"], "is no size"),
        (["--size", "40x32"], "use 32 or 48"),
        (["--drafter-settings", "preset=krea"], "no preset 'krea'"),
        (["--target-settings", "preset=auto"], "name one, such as custom"),
        (["--schedule", "five"], "four-step"),
        (["--policy", "anchor"], "choose from 'reward', 'first', 'at', 'stride', 'refine', 'always-target'"),
        (["--drafter-settings", "block-frames=0"], "block_frames"),
        (["--target-settings", "block-frames=1"], "do not divide the target's"),
        (["--drafter-settings", "block-frames=1", "context-frames=2"], "2 context frames are too few"),
        (["--target-settings", "recache=yes"], "cache=recompute reads no recache"),
        (["--device", "cuda:7"], "this machine has no device"),
        (["--handover", "9"], "drafts stop after 2 steps"),
        (["--stride", "2"], "which has no --stride"),
        (["--policy", "refine"], "policy refine, which has no --gate"),
        (["--cascade", "-1"], "cascade is -1.0"),
        (["--reward-dtype", "bfloat16"], "--reward-dtype: invalid choice"),
        (["--drafter-settings", "window=2", "cache=incremental"], "window"),
        (["--drafter-settings", "window=" + "9" * 12, "cache=incremental"], "give 1 to 1048576"),
        (["--drafter-settings", "window=" + "9" * 5000], "give a whole number"),
        (["--drafter-settings", "draft-steps=x"], "draft-steps is 'x'"),
        (["--target-settings", "draft-steps=1"], "draft_steps is for the drafter"),
        (["--blocks", "many"], "invalid int value"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\n\t"], "the prompt is empty"),
        (["--prompt", "x" * 20_001], "over 20000"),
        (["--prompt", "a\x1b[2J"], "control character"),
        (["--drafter", "nowhere.pt"], "there is no drafter at nowhere.pt"),
        (["--start-image", "nowhere.png"], "there is no file nowhere.png"),
        (["--start-image", "."], "it is a folder"),
        (["--continue-from", "nowhere.mp4"], "there is no file nowhere.mp4"),
    ],
    ids=lambda value: "_".join(value)[:40].strip("-") if isinstance(value, list) else "",
)
def test_bad_value_is_refused_and_nothing_written(command, tmp_path, capsys, more, keyword):
    prompt = [] if "--prompt" in more else ["--prompt", "x"]
    assert keyword in refused(capsys, override(command, *prompt, *more))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def reading(base, tmp_path) -> list[str]:
    """A command of which some file is read before it is refused."""
    return [*base, *SMALL, "--prompt", "x", "--gate", "0", "--output", str(tmp_path / "out")]


@pytest.mark.parametrize(
    ("shape", "keyword"),
    [
        ((1, 16, 3, 8, 8), "64 x 64 pixels and the video 32 x 32"),
        ((1, 4, 3, 4, 4), "1 x 4 x 3"),
        ((16, 3, 4, 4), "shape"),
    ],
    ids=str,
)
def test_latents_of_the_wrong_shape_are_refused(reading, tmp_path, capsys, shape, keyword):
    save_file({"latents": torch.zeros(shape)}, tmp_path / "z.safetensors")
    assert keyword in refused(capsys, override(reading, "--continue-from", str(tmp_path / "z.safetensors")))


@pytest.mark.parametrize(
    ("option", "role"),
    [("--drafter", "vae"), ("--vae", "target"), ("--text-encoder", "reward"), ("--reward", "vae")],
)
def test_model_on_the_wrong_option_is_refused(reading, files, capsys, option, role):
    file = getattr(files, role)
    assert file.name in refused(capsys, override(reading, option, str(file)))


def test_scorer_with_a_missing_tensor_is_refused(reading, files, tmp_path, capsys):
    """Catches: noise in place of scores, which is what the original makes of such a file."""
    weights = torch.load(files.reward, weights_only=True)
    weights.pop("mlp.layers.0.weight")
    torch.save(weights, tmp_path / "Broken.pt")
    (tmp_path / "vocab.txt").write_bytes((files.reward.parent / "vocab.txt").read_bytes())
    assert "mlp.layers.0.weight" in refused(capsys, override(reading, "--reward", str(tmp_path / "Broken.pt")))


def test_models_with_different_text_widths_are_refused(reading, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.text_embedding.0.weight"] = torch.zeros(256, 96)
    save_file(weights, tmp_path / "wide.safetensors")
    assert "text channels" in refused(capsys, override(reading, "--target", str(tmp_path / "wide.safetensors")))


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
    ("error", "keyword", "code"),
    [
        (OSError(40, "Too many levels of symbolic links", "/a/" + LONG), "Too many levels of symbolic links", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"), "out of memory", 1),
        (RuntimeError("[x.cpp:117] DefaultCPUAllocator: not enough memory: " + LONG), "out of memory", 1),
        (MemoryError(), "out of memory", 1),
    ],
)
def test_fault_of_the_system_is_a_sentence(capsys, monkeypatch, error, keyword, code):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=error))
    line = refused(capsys, ["doctor"], code)
    assert keyword in line
    assert line.endswith(" (troubleshooting: Out of memory)") is (keyword == "out of memory")


def test_error_of_ours_keeps_its_trace(monkeypatch):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        main(["doctor"])


@in_turn("device, option", ["meta", "hpu", "meta:0", "nope", ""], ["--device", "--side-device"])
def test_device_without_models_is_refused(command, capsys, device, option):
    assert "; use cpu, cuda" in refused(capsys, [*command, "--prompt", "x", option, device])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
@pytest.mark.parametrize("option", ["--prompt-file", "--start-image", "--continue-from", "--restyle"])
def test_pipe_without_a_writer_is_refused(command, capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.safetensors")
    prompt = [] if option.startswith("--prompt") else ["--prompt", "x"]
    line = refused(capsys, override(command, *prompt, option, str(tmp_path / "pipe.safetensors")))
    assert "regular file" in line or "no weight file" in line


def test_long_message_is_cut_before_its_remedy():
    escapes = "\x1b" * 500
    message = str(BadInput(f"expected {LONG}, but got {escapes}; use another"))
    assert len(message) <= 400
    assert message.startswith("expected xxx")
    assert message.endswith("; use another")


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}


@pytest.mark.parametrize(
    "arguments, mistyped, nearest",
    [
        (["demo", "--sedd", "3"], "--sedd", "--seed?"),
        (["generate", "--promt", "a fox"], "--promt", "--prompt?"),
        (["generate", "--prompt", "a fox", "--tua=-1"], "--tua", "--tau?"),
    ],
)
def test_mistyped_option_is_named_with_its_nearest(capsys, arguments, mistyped, nearest):
    """Catches a missing option that is reported in place of the one that was mistyped."""
    line = refused(capsys, arguments)
    assert mistyped in line
    assert nearest in line
    assert line.endswith(f"see python -m sdvg_core {arguments[0]} --help")


def test_option_like_no_other_is_a_sentence(capsys):
    """Catches: a nearest option that is named where none is near."""
    line = refused(capsys, ["generate", "--prompt", "a fox", "--qqqqqq"])
    assert "there is no option --qqqqqq; see" in line


def test_ambiguous_abbreviation_is_refused(capsys):
    """Catches: an option taken for another one, so that the other is given twice."""
    words = ["--prompt", "a fox", "--drafter", "x.pt", "--drafter-c", "own", "--pro", "b"]
    assert "--pro may be --prompt or --prompt-file" in refused(capsys, ["generate", *words])
    assert "--see may be --seed or --seeds" in refused(capsys, ["generate", "--prompt", "a fox", "--see", "3"])


def test_an_abbreviation_of_one_option_is_taken():
    assert make_parser().parse_args(["generate", "--prompt", "a", "--drafter-c", "own"]).drafter_context == "own"


def test_removed_working_folder_is_named(tmp_path, monkeypatch, capsys):
    """Catches: advice to check a file that nobody gave."""
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    line = refused(capsys, ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT])
    assert "the folder you are in was removed" in line
    monkeypatch.chdir(tmp_path)


def test_message_names_only_an_installed_page(monkeypatch, tmp_path):
    """Catches: a reference to a file that a wheel does not have."""
    assert see("Out of memory") == " (troubleshooting: Out of memory)"
    monkeypatch.setattr(errors, "PAGE", tmp_path / "troubleshooting.md")
    assert see("Out of memory") == ""


@pytest.mark.parametrize("odd", ["\x1b[31m", "\x9b2J", "\u202e", "\x07"], ids=ascii)
def test_control_characters_are_printed_escaped(odd, tmp_path):
    """Catches: a folder whose name colours, clears or turns around what a terminal shows."""
    reader, writer = os.pipe()
    process = fork(lambda: run(["doctor", "--models", f"{tmp_path}/a{odd}b"]), writer, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as printed:
        text = printed.read()
    process.join(600)
    assert odd not in text
    assert ascii(odd)[1:-1] in text


def test_each_dtype_and_setting_reaches_its_part():
    """Catches: the drafter's settings given to the target too, or one dtype to every part."""
    words = "--dtype bfloat16 --vae-dtype float16 --text-dtype float32 --drafter-settings preset=krea-14b window=9"
    options = make_parser().parse_args(["generate", *words.split()])
    load = load_options(options, LoadOptions(), embedded=False)
    assert (load.dtype, load.vae_dtype) == ("bfloat16", "float16")
    assert (load.text_dtype, load.reward_dtype) == ("float32", "auto")
    assert load.drafter == ModelOptions(preset="krea-14b", window=9)
    assert load.target == ModelOptions()


@pytest.mark.parametrize("text", ["window", "=9", "windwo=9"])
def test_unknown_setting_of_a_model_is_refused(capsys, text):
    line = refused(capsys, ["generate", "--prompt", "a", "--drafter-settings", text])
    assert "argument --drafter-settings: " in line
    assert "give NAME=VALUE of preset, cache" in line


@pytest.mark.parametrize("prompt", ["--- a fox ---", "-5"])
def test_a_prompt_may_begin_with_a_dash(capsys, tmp_path, prompt):
    asked = ["generate", "--prompt", prompt, "--models", str(tmp_path)]
    assert "needs vae, text_encoder" in refused(capsys, asked)


@pytest.mark.parametrize(
    "words, keyword",
    [
        ("--prompt-file nope", "nope cannot be read (No such file or directory)"),
        ("--prompt-file .", ". cannot be read (it is a folder)"),
        ("--prompt-file latin.txt", "latin.txt is not UTF-8 text"),
        ("--prompt-file remarks.txt", "remarks.txt is empty"),
        ("--prompt '5: x'", "the first block has no prompt"),
        ("--prompt 'x\n5: y\n3: z'", "the prompts start at blocks 1, 5, 3"),
        ("--from nope", "nope is no run report (No such file or directory)"),
        ("--from latin.txt", "latin.txt is no run report (it is not JSON)"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt", "latin.txt is a file"),
        (f"--prompt '{DEFAULT_PROMPT}' --output x/../new", "there is no x"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt/new", "latin.txt is a file"),
        (f"--prompt '{DEFAULT_PROMPT}' --output {'n' * 240}", "has 240 bytes"),
    ],
)
def test_unreadable_text_file_or_folder_is_refused(tmp_path, monkeypatch, capsys, words, keyword):
    """Catches `nope is not UTF-8 text`, `(JSONDecodeError)`, `the prompts start at blocks 5`."""
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"a caf\xe9")
    Path("remarks.txt").write_text("# a remark alone\n\n", encoding="utf-8")
    assert keyword in refused(capsys, ["generate", "--models", "pocket", *shlex.split(words)])
    assert {path.name for path in tmp_path.iterdir()} == {"latin.txt", "remarks.txt"}


@pytest.mark.parametrize("number", ["-inf", "-1e-3", "-.5", "-2."])
def test_negative_number_is_a_value(number):
    assert make_parser().parse_args(["generate", "--gate", number]).tau == float(number)


def test_doctor_tells_latents_from_weights(tmp_path, capsys):
    save_file({"latents": torch.zeros(1, 16, 3, 8, 8)}, tmp_path / "latents.safetensors")
    assert main(["doctor", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "kind         latents of a video\n" in printed
    assert "generate --continue-from\n" in printed


@pytest.mark.heavy
def test_system_python_is_told_how_to_install(tmp_path):
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
PACKAGES += ("huggingface_hub",)


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


def test_yaml_is_needed_only_where_read(tmp_path, monkeypatch, capsys):
    """Catches: folders of models that are passed over in silence."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "extra_model_paths.yaml").write_text("comfyui:\n", encoding="utf-8")
    assert "package yaml" in refused(capsys, ["doctor", "--models", str(tmp_path)])


@pytest.mark.heavy
def test_closed_pipe_ends_the_command_silently(tmp_path):
    """Catches `the system refused a file (Broken pipe)` after `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    process = fork(lambda: run(["doctor", "--vram"]), writer, str(tmp_path / "errors"))
    process.join(600)
    os.close(writer)
    assert process.exitcode == 141
    assert (tmp_path / "errors").read_text() == ""
