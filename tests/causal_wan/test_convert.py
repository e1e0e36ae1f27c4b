"""`convert`: what it writes, how it goes on after a stop, what it refuses."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import namedtuple
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from filelock import FileLock
from quantised_files import MATRIX, Q, quantised_state
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from wan_files import NARROW, NARROW_METADATA, TINY, prefixed, random_state, save

from sdvg_core.causal_wan.checkpoint import load_wan, open_control, open_wan
from sdvg_core.causal_wan.config import control_shapes
from sdvg_core.causal_wan.presets import preset_by_name
from sdvg_core.cli import main
from sdvg_core.files import unfinished
from sdvg_core.loading import convert
from sdvg_core.weights import growing_file
from sdvg_core.weights.kitchen import FORMATS, KitchenLinear, layout_of
from sdvg_core.weights.weight_file import open_weights
from tests.support.forked import fork
from tests.support.read_only import make_read_only

pytest.importorskip("comfy_kitchen")
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def source(tmp_path) -> Path:
    return save(tmp_path / "wan.safetensors", prefixed(random_state(dtype=torch.bfloat16), "model."), {"by": "me"})


def convert_to(source: Path, form: str = "int8", *more: str) -> int:
    """Run the command, and return its exit code."""
    return main(["convert", str(source), "--format", form, *more])


def refusal(capsys, *words: str) -> str:
    """Run the command, which refuses, and return the sentence."""
    assert main(["convert", *words]) == 2
    return capsys.readouterr().err


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("form", FORMATS)
def test_converted_file_holds_all_tensors_and_metadata(form, source, tmp_path, capsys):
    """Catches: another list of layers, a lost metadata key, tensors that overlap or leave holes."""
    assert convert_to(source, form) == 0
    path = tmp_path / f"wan_{form}.safetensors"
    tensors = load_file(path)
    wanted = quantised_state(form)
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["by"] == "me"
    stated = json.loads(metadata["sdvg_source"])
    assert stated["files"] == {source.name: hashlib.sha256(source.read_bytes()).hexdigest()}
    assert open_wan(path).quantisation.label == form
    printed = capsys.readouterr().out
    assert "ffn.2" in printed
    assert re.search(rf"{path.name}: [\d.]+ MB, made in \d\d? s\n", printed)
    assert names(tmp_path) == ["wan.safetensors", path.name]


def as_pickle(folder: Path) -> Path:
    state = random_state(dtype=torch.float32)
    torch.save({"generator": {}, "generator_ema": prefixed(state, "model.")}, folder / "self_forcing_dmd.pt")
    return folder / "self_forcing_dmd.pt"


def as_shards(folder: Path) -> Path:
    state = random_state(dtype=torch.float16)
    halves = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, tensor) in enumerate(state.items()):
        halves["b.safetensors" if number % 2 else "a.safetensors"][name] = tensor
    for name, half in halves.items():
        save(folder / name, half)
    weight_map = {tensor: name for name, half in halves.items() for tensor in half}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def assert_converts(source: Path, output: Path, dtype: torch.dtype) -> None:
    """Convert a file of `random_state` in this dtype, and compare a layer of either sort."""
    assert convert_to(source) == 0
    tree = load_wan(output).tree
    assert isinstance(tree.blocks[1].ffn[2], KitchenLinear)
    plain = random_state(dtype=dtype)["patch_embedding.bias"]
    assert torch.equal(tree.patch_embedding.bias, plain.to(torch.bfloat16))


def test_pickle_is_converted(tmp_path):
    """Catches: a drafter's preset lost with its name."""
    source = as_pickle(tmp_path)
    output = tmp_path / "self_forcing_dmd_int8.safetensors"
    assert_converts(source, output, torch.float32)
    assert preset_by_name(output) == preset_by_name(source)


def test_shards_are_converted(tmp_path):
    """Catches: digests of the index alone in what the file says of its source."""
    source = as_shards(tmp_path)
    output = tmp_path / "model_int8.safetensors"
    assert_converts(source, output, torch.float16)
    files = json.loads(open_weights(output).metadata["sdvg_source"])["files"]
    assert sorted(files) == ["a.safetensors", "b.safetensors", source.name]


def test_layout_of_diffusers_is_converted(tmp_path):
    """Catches: names that ComfyUI does not read, and layers that their names hide from the quantiser."""
    twin = WanTransformer3DModel(
        num_attention_heads=TINY.num_heads,
        attention_head_dim=TINY.dim // TINY.num_heads,
        text_dim=TINY.text_dim,
        ffn_dim=TINY.ffn_dim,
        num_layers=TINY.num_layers,
    )
    source = save(tmp_path / "diffusers.safetensors", twin.state_dict())
    assert convert_to(source) == 0
    output = tmp_path / "diffusers_int8.safetensors"
    assert load_file(output).keys() == quantised_state("int8").keys()
    plain = load_wan(source).tree.state_dict()
    stored = load_file(output)
    assert torch.equal(stored["blocks.1.modulation"], plain["blocks.1.modulation"].bfloat16())
    assert set(open_wan(output).quantisation.layers) == {name for name in plain if MATRIX.fullmatch(name)}


def test_control_module_is_converted(tmp_path):
    g = torch.Generator().manual_seed(0)
    state = {name: torch.randn(shape, generator=g) for name, shape in control_shapes(TINY, 2).items()}
    assert convert_to(save(tmp_path / "vace.safetensors", state), "w4a8") == 0
    checkpoint = open_control(open_weights(tmp_path / "vace_w4a8.safetensors"), TINY, "target")
    assert set(checkpoint.quantisation.layers) == {n for n in state if MATRIX.search(n)}


def test_measure_prints_both_formats_and_writes_nothing(source, tmp_path, capsys):
    assert main(["convert", str(source), "--measure"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert float(rows["all"][0]) < 0.02 < float(rows["all"][1]) < 0.09
    assert names(tmp_path) == ["wan.safetensors"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_worst_layers_come_first():
    """Ten of twelve. Catches: the best ones listed as the worst, or a mean of errors that are not of one size."""
    errors = convert.Errors({f"blocks.{number}.ffn.0.weight": (number**2, 100.0) for number in range(12)})
    assert errors.worst == [(f"blocks.{number}.ffn.0", number / 10) for number in range(11, 1, -1)]
    errors.squares["blocks.0.ffn.2.weight"] = (494.0, 1300.0)
    assert errors.by_kind == pytest.approx({"ffn.0": (506 / 1200) ** 0.5, "ffn.2": 0.38**0.5, "all": 0.4**0.5})


def test_bar_counts_the_whole_source(source, monkeypatch):
    """After a stop too. Catches: a bar that ends early, or without the time left."""
    numbers = sum(tensor.numel() for tensor in load_file(source).values())
    with monkeypatch.context() as patched:
        patched.setattr(growing_file.os, "fsync", interrupted_at(3))
        assert convert_to(source) == 130
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert convert_to(source) == 0
    last = terminal.getvalue().rsplit("\r", 1)[-1]
    total = tqdm.format_sizeof(numbers)
    assert "100%" in last
    assert f"{total}/{total}" in last
    assert "<00:00" in last


# --- stopped, and twice


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("calls", [0, 1, 7])
def test_stopped_conversion_resumes_to_the_same_bytes(form, calls, source, tmp_path, monkeypatch, capsys):
    """Catches: half a file under its name, what is done made again, a tensor twice, errors of the rest alone."""
    assert convert_to(source, form, "--output", str(tmp_path / "whole.safetensors")) == 0
    errors = capsys.readouterr().out.splitlines()[:-1]
    honest = convert.quantise
    first_run = []
    second_run = []

    def stopping(*inputs):
        if len(first_run) == calls:
            raise KeyboardInterrupt
        first_run.append(inputs[1])
        return honest(*inputs)

    def noting(*inputs):
        second_run.append(inputs[1])
        return honest(*inputs)

    with monkeypatch.context() as patched:
        patched.setattr(convert, "quantise", stopping)
        assert convert_to(source, form, "--output", str(tmp_path / "b.safetensors")) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert names(tmp_path) == [".b.safetensors.unfinished", "wan.safetensors", "whole.safetensors"]
    part = tmp_path / ".b.safetensors.unfinished"
    part.write_bytes(part.read_bytes() + b"half a tensor")
    monkeypatch.setattr(convert, "quantise", noting)
    assert convert_to(source, form, "--output", str(tmp_path / "b.safetensors")) == 0
    assert first_run + second_run == [name for name in open_wan(source).weights if MATRIX.fullmatch(name)]
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert capsys.readouterr().out.splitlines()[:-1] == errors
    assert not part.exists()


def test_killed_conversion_leaves_nothing_under_the_name(source, tmp_path, monkeypatch):
    """Killed without a chance to clean up, at the end of the third weight."""
    honest = convert.quantise
    calls = []

    def killed(*inputs):
        calls.append(inputs)
        if len(calls) == 3:
            os.kill(os.getpid(), 9)
        return honest(*inputs)

    layout_of(FORMATS["int8"])
    monkeypatch.setattr(convert, "quantise", killed)
    process = fork(lambda: convert_to(source), os.devnull, os.devnull)
    process.join()
    assert process.exitcode == -9
    assert not (tmp_path / "wan_int8.safetensors").exists()
    monkeypatch.setattr(convert, "quantise", honest)
    assert convert_to(source) == 0
    assert set(names(tmp_path)) - {".wan_int8.safetensors.lock"} == {"wan.safetensors", "wan_int8.safetensors"}


def test_changed_source_begins_again(source, tmp_path, monkeypatch):
    """Catches a file of two models."""
    with monkeypatch.context() as patched:
        patched.setattr(growing_file.os, "fsync", interrupted_at(3))
        assert convert_to(source) == 130
    other = random_state(seed=1, dtype=torch.bfloat16)
    save(source, prefixed(other, "model."), {"by": "me"})
    assert convert_to(source) == 0
    tensors = load_file(tmp_path / "wan_int8.safetensors")
    assert torch.equal(tensors["patch_embedding.weight"], other["patch_embedding.weight"])


def interrupted_at(number: int):
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == number:
            raise KeyboardInterrupt

    return fsync


def test_same_command_twice_is_refused(source, tmp_path, capsys):
    assert convert_to(source) == 0
    before = (tmp_path / "wan_int8.safetensors").read_bytes()
    assert "is there already" in refusal(capsys, str(source), "--format", "int8")
    assert (tmp_path / "wan_int8.safetensors").read_bytes() == before


def test_file_that_appears_meanwhile_is_kept(source, tmp_path, monkeypatch, capsys):
    """Catches a rename over it."""
    output = tmp_path / "wan_int8.safetensors"
    honest = convert.quantise

    def appear(*inputs):
        output.write_text("the user's")
        return honest(*inputs)

    with monkeypatch.context() as patched:
        patched.setattr(convert, "quantise", appear)
        assert "is there already" in refusal(capsys, str(source), "--format", "int8")
    assert output.read_text() == "the user's"


def test_file_that_another_program_makes_is_refused(source, tmp_path, capsys):
    """Catches: two programs that write into one part."""
    with FileLock(tmp_path / ".wan_int8.safetensors.lock"):
        before = names(tmp_path)
        assert "another program is making" in refusal(capsys, str(source), "--format", "int8")
        assert names(tmp_path) == before
    assert convert_to(source) == 0


# --- refused


def lora(folder: Path) -> Path:
    save_file({"diffusion_model.blocks.0.ffn.0.lora_A.weight": torch.ones(4, 128)}, folder / "lora.safetensors")
    return folder / "lora.safetensors"


def truncated(folder: Path) -> Path:
    path = save(folder / "cut.safetensors", random_state(dtype=torch.bfloat16))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def not_finite(folder: Path) -> Path:
    state = random_state(dtype=torch.bfloat16)
    state[Q][3, 4] = torch.inf
    return save(folder / "inf.safetensors", state)


def fp8(folder: Path) -> Path:
    state = {n: t.to(torch.float8_e4m3fn) if t.ndim == 2 else t for n, t in random_state().items()}
    return save(folder / "fp8.safetensors", state)


def odd(folder: Path) -> Path:
    return save(folder / "odd.safetensors", random_state(NARROW, dtype=torch.bfloat16), NARROW_METADATA)


def foreign(folder: Path) -> Path:
    return save(folder / "vae.safetensors", {"decoder.middle.0.residual.0.gamma": torch.ones(3)})


SOURCES = {
    lora: "holds a LoRA",
    truncated: "fetch it again",
    not_finite: "NaN or infinity",
    fp8: "quantised already (fp8 plain)",
    lambda folder: save(folder / "q.safetensors", quantised_state("int8")): "quantised already (int8)",
    odd: "does not divide",
    foreign: "no Wan 2.1 transformer",
    lambda folder: folder / "none.safetensors": "no weight file",
}


@pytest.mark.parametrize(("make", "word"), SOURCES.items(), ids=range(len(SOURCES)))
def test_source_that_cannot_be_converted_is_refused(make, word, tmp_path, capsys):
    path = make(tmp_path)
    before = set(names(tmp_path))
    assert word in refusal(capsys, str(path), "--format", "int8")
    assert not [name for name in names(tmp_path) if name.endswith("_int8.safetensors") and name not in before]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ([], "--format"),
        (["--measure", "--format", "int8"], "leave --format out"),
        (["--measure", "--output", "a.safetensors"], "leave --output out"),
        (["--format", "int8", "--output", "a.pt"], "end in .safetensors"),
        (["--format", "int4"], "invalid choice"),
        (["--format", "int8", "--device", "cuda:77"], "cuda"),
    ],
)
def test_contradicting_options_are_refused(words, word, source, capsys):
    with pytest.raises(SystemExit) if word == "invalid choice" else nullcontext():
        assert word in refusal(capsys, str(source), *words)


def test_too_little_room_is_refused_before_writing(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda path: Usage(10, 10, 1000))
    assert "GB free" in refusal(capsys, str(source), "--format", "int8")
    assert names(tmp_path) == ["wan.safetensors"]


def test_conversion_completes_after_a_full_disk(source, tmp_path, monkeypatch, capsys):
    """Catches: a traceback, and half a file under the name that was asked for."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(growing_file.os, "fsync", full)
        assert "is full" in refusal(capsys, str(source), "--format", "int8")
    assert not (tmp_path / "wan_int8.safetensors").exists()
    assert convert_to(source) == 0


def test_read_only_folder_is_refused(source, tmp_path, monkeypatch, capsys):
    make_read_only(tmp_path, monkeypatch)
    assert "cannot write" in refusal(capsys, str(source), "--format", "int8")


def test_read_only_source_is_converted_elsewhere(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    source.chmod(0o444)
    assert convert_to(source, "int8", "--output", str(tmp_path / "elsewhere" / "a.safetensors")) == 0


# --- memory

CHILD = """
import sys, threading, time, torch
from pathlib import Path
from types import SimpleNamespace
from sdvg_core.weights.kitchen import FORMATS, quantise
from sdvg_core.loading.convert import Conversion, Errors, Source

name = "blocks.0.ffn.2.weight"
form = FORMATS[sys.argv[1]]
quantise(torch.randn(64, 256), name, form)
weight = torch.randn(1536, 8960).bfloat16()
info = SimpleNamespace(shape=weight.shape)
file = type("File", (dict,), {"info": {name: info}})({name: weight})

def anonymous():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = most = anonymous()
def watch():
    global most
    while True:
        most = max(most, anonymous())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
source = Source(checkpoint=SimpleNamespace(weights=file), path=Path("a"))
Conversion(source=source, form=form, device=torch.device("cpu"))._measured(name, Errors())
print(most - before)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("form", ["int8", pytest.param("w4a8", marks=pytest.mark.exhaustive)])
def test_memory_stays_below_four_times_the_largest_tensor(form):
    """The largest of the 1.3B, 55 MB in float32. Catches float32 of a whole weight, and kitchen's own pieces."""
    command = [sys.executable, "-c", CHILD, form]
    grown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert 0 < int(grown.stdout) < 4 * 4 * 8960 * 1536
