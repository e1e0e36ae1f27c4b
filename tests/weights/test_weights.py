"""Files of weights: what safetensors, shards and pickles give, which state dict is taken, and what is refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.weights import weight_file
from sdvg_core.weights.pickles import NO_CHOICE, Choice, choice_note
from sdvg_core.weights.weight_file import TensorInfo, WeightFile, open_weights


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(3, i + 1, generator=g) for i in range(3)}


def assert_holds(file: WeightFile, wanted: dict[str, torch.Tensor]) -> None:
    assert dict(file.info) == {n: TensorInfo(tuple(t.shape), t.dtype) for n, t in wanted.items()}
    assert sorted(file) == sorted(wanted)
    assert all(torch.equal(file[n], t) for n, t in wanted.items())


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        open_weights(path)
    message = str(error.value)
    assert "; " in message
    assert "\n" not in message
    return message


def write_raw(path: Path, header: bytes, body: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


# --- safetensors


def test_safetensors_gives_tensors_shapes_and_metadata(tmp_path):
    save_file(state(), tmp_path / "a.safetensors", metadata={"config": "{}"})
    file = open_weights(tmp_path / "a.safetensors")
    assert_holds(file, state())
    assert (file.layout, file.metadata) == ("safetensors", {"config": "{}"})


@pytest.mark.parametrize("dtype", sorted(weight_file._DTYPES.values(), key=str))
def test_every_dtype_is_known_before_it_is_read(tmp_path, dtype):
    save_file({"a": torch.zeros(2, dtype=dtype)}, tmp_path / "a.safetensors")
    file = open_weights(str(tmp_path / "a.safetensors"))
    assert file.info["a"].dtype == file["a"].dtype == dtype


@pytest.mark.parametrize("keep", [0, 4, 8, 30, -1, -8])
def test_safetensors_cut_short_is_refused(tmp_path, keep):
    save_file(state(), tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:keep])
    assert "fetch it again" in refusal(tmp_path / "a.safetensors")


def entry(start: int, end: int, shape=(1,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


HEADERS = {
    "no json": b"not json",
    "a list": b"[]",
    "no tensors": b"{}",
    "an unknown dtype": json.dumps({"a": entry(0, 1, dtype="F8_E8M0")}).encode(),
    "past the end": json.dumps({"a": entry(0, 400)}).encode(),
    "overlapping": json.dumps({"a": entry(0, 4), "b": entry(0, 4)}).encode(),
    "enormous": json.dumps({"a": entry(0, 4, shape=(2**40, 2**40))}).encode(),
    "backwards": json.dumps({"a": entry(4, 0)}).encode(),
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_header_that_misfits_its_file_is_refused(tmp_path, header):
    refusal(write_raw(tmp_path / "a.safetensors", header, b"\0" * 8))


def test_memory_that_cannot_be_mapped_is_named(tmp_path, monkeypatch):
    """Catches: *fetch it again*, 28 GB of it, where memory is short."""

    def no_room(*args, **kwargs):
        raise RuntimeError("unable to mmap 28577105943 bytes from file <a>: Cannot allocate memory (12)")

    save_file(state(), tmp_path / "a.safetensors")
    monkeypatch.setattr(weight_file, "safe_open", no_room)
    message = refusal(tmp_path / "a.safetensors")
    assert "swap" in message
    assert "fetch" not in message


LONG = 5_000_000


@pytest.mark.parametrize("text", ["x" * LONG, '{"tag": 1}' * (LONG // 10), "\U0001f600" * (LONG // 4)])
def test_header_with_long_metadata_is_read(tmp_path, text):
    """Tags of a large data set, a workflow with pictures. Catches: *fetch it again* for a whole file."""
    save_file(state(), tmp_path / "a.safetensors", {"ss_tag_frequency": text, "alpha": "16"})
    file = open_weights(tmp_path / "a.safetensors")
    assert_holds(file, state())
    assert file.metadata == {"ss_tag_frequency": "", "alpha": "16"}


# --- shards


def write_shards(folder: Path, weight_map: object) -> Path:
    save_file({"a": torch.ones(1)}, folder / "m-1.safetensors")
    save_file({"b": torch.ones(2), "unlisted": torch.ones(3)}, folder / "m-2.safetensors")
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_shards_are_one_file(tmp_path):
    index = write_shards(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    for path in (index, tmp_path):
        assert_holds(open_weights(path), {"a": torch.ones(1), "b": torch.ones(2)})
        assert open_weights(path).layout == "safetensors in 2 shards"


NO_SHARDS = (
    "../m-1.safetensors",
    "/etc/m.safetensors",
    "sub/m.safetensors",
    "..\\m-1.safetensors",
    "C:\\m.safetensors",
    "C:m-1.safetensors",
    "m-1.sft:x.sft",
    "\0.safetensors",
    "..",
    "",
    "m.safetensors.index.json",
    "m.pt",
    7,
)


@pytest.mark.parametrize("shard", NO_SHARDS)
def test_shard_elsewhere_or_of_another_kind_is_refused(tmp_path, shard):
    """Catches: an index that names itself, opened for ever."""
    message = refusal(write_shards(tmp_path, {"a": "m-1.safetensors", "b": shard}))
    assert "no safetensors shard next to it" in message


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_shards_are_one_file(tmp_path, legacy):
    """A text encoder of transformers' older releases. Catches: its index taken for no weight file."""
    write_pickle(tmp_path / "pytorch_model-00001-of-00002.bin", {"a.weight": torch.ones(1)}, legacy)
    write_pickle(tmp_path / "pytorch_model-00002-of-00002.bin", {"b.weight": torch.ones(2)}, legacy)
    weight_map = {f"{name}.weight": f"pytorch_model-0000{n}-of-00002.bin" for n, name in ((1, "a"), (2, "b"))}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    for path in (index, tmp_path):
        file = open_weights(path)
        assert_holds(file, {"a.weight": torch.ones(1), "b.weight": torch.ones(2)})
        assert file.layout == "PyTorch pickle in 2 shards"


@pytest.mark.parametrize("shard", ["../pytorch_model-00001-of-00002.bin", "a.safetensors"])
def test_pickled_shard_elsewhere_is_refused(tmp_path, shard):
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": shard}}))
    assert "no pickle shard next to it" in refusal(index)


def test_folder_means_the_only_file_in_it(tmp_path):
    write_pickle(tmp_path / "adapter_model.bin", {"a.weight": torch.ones(1)})
    assert open_weights(tmp_path).path.name == "adapter_model.bin"


def test_safetensors_goes_before_a_pickle_of_its_name(tmp_path):
    write_pickle(tmp_path / "adapter_model.bin", {"a.weight": torch.ones(1)})
    save_file({"b.weight": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    assert open_weights(tmp_path).path.name == "adapter_model.safetensors"


NO_MAPS = [json.dumps({"weight_map": value}).encode() for value in (None, [], {}, 3, "m-1.safetensors")]


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b"[]", *NO_MAPS])
def test_index_without_a_list_of_tensors_is_refused(tmp_path, text):
    (tmp_path / "m.safetensors.index.json").write_bytes(text)
    refusal(tmp_path / "m.safetensors.index.json")


def test_missing_shard_is_named(tmp_path):
    assert "names m-3.safetensors, which is missing" in refusal(write_shards(tmp_path, {"a": "m-3.safetensors"}))
    assert "which is missing" in refusal(write_shards(tmp_path, {"a": "n" * 300 + ".safetensors"}))


def test_missing_tensor_of_a_shard_is_named(tmp_path):
    assert "m-2.safetensors lacks c" in refusal(write_shards(tmp_path, {"c": "m-2.safetensors"}))


def test_folder_without_one_file_is_refused(tmp_path):
    assert " has none, not one" in refusal(tmp_path)
    for name in ("a", "b"):
        save_file(state(), tmp_path / f"{name}.safetensors")
    assert " has a.safetensors, b.safetensors, not one" in refusal(tmp_path)


# --- neither


@pytest.mark.parametrize("name", ["a.zip", "a.txt", "a"])
def test_other_kind_of_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"hello")
    assert f"{name} is no weight file" in refusal(tmp_path / name)


def test_missing_file_is_named(tmp_path):
    assert "no weight file at" in refusal(tmp_path / "a.safetensors")


def test_gguf_is_refused_with_a_remedy(tmp_path):
    """Catches *give .safetensors* alone, of which there is none for the asking."""
    (tmp_path / "a.GGUF").write_bytes(b"GGUF")
    assert "convert" in refusal(tmp_path / "a.GGUF")


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
def test_pickle_gives_the_tensors_of_its_model(tmp_path, wrap, layout, legacy):
    file = open_weights(write_pickle(tmp_path / f"a{weight_file.PICKLES[legacy]}", wrap(state()), legacy))
    assert_holds(file, state())
    assert file.layout == layout
    assert not any(file[n].requires_grad for n in file)


BESIDE = {"step": torch.tensor(3), "initted": torch.tensor(True)}


@LEGACY
@pytest.mark.parametrize(
    "content, taken",
    [
        ({**BESIDE, "anything": state()}, "anything"),
        ({**BESIDE, "anything": state(), "optimizer": {"lr": torch.ones(1)}}, "anything"),
        ({"anything": state(), "optimizer": {"lr": torch.ones(1)}}, "anything"),
        ({**BESIDE, **state(), "anything": {"b.weight": torch.ones(1)}}, ""),
        ({**BESIDE, "optimizer": {"lr": torch.ones(1)}}, ""),
        ({**BESIDE, "student": state(), "teacher": state()}, ""),
    ],
)
def test_tensors_beside_a_state_dict_are_no_model(tmp_path, content, taken, legacy):
    """Catches: `step` and `initted` taken for the model."""
    file = open_weights(write_pickle(tmp_path / f"a{weight_file.PICKLES[legacy]}", content, legacy))
    assert file.state_dict == taken
    wanted = content[taken] if taken else {name: t for name, t in content.items() if isinstance(t, torch.Tensor)}
    assert_holds(file, wanted)


class Runs:
    """An object of a hostile pickle: to read it calls `function`."""

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
def test_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, function, arguments, name, legacy):
    """By the name of what it wants. Catches: a file that appears, as the code ran."""
    monkeypatch.chdir(tmp_path)
    content = {**state(), "x": Runs(function, *arguments)}
    message = refusal(write_pickle(tmp_path / "evil.pt", content, legacy))
    assert "wants to run " in message
    assert f"{name}; use a .safetensors copy" in message
    assert not (tmp_path / "ran").exists()


@LEGACY
@pytest.mark.parametrize("keep", [0, 1, 0.2, 0.5, 0.9, -1])
def test_pickle_cut_short_is_refused(tmp_path, keep, legacy):
    whole = write_pickle(tmp_path / "a.pt", state(), legacy).read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    refusal(tmp_path / "a.pt")


NAMELESS = (
    [torch.ones(1)],
    torch.ones(1),
    {},
    {"a": 1},
    {"a": {"b": {"c": torch.ones(1)}}},
    {1: torch.ones(1)},
)


@pytest.mark.parametrize("content", NAMELESS)
def test_pickle_without_named_tensors_is_refused(tmp_path, content):
    assert "no named tensors" in refusal(write_pickle(tmp_path / "a.pt", content))


def test_pickle_of_several_models_is_refused(tmp_path):
    content = {"student": state(), "teacher": state()}
    assert "student, teacher" in refusal(write_pickle(tmp_path / "a.pt", content))


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(3, device="meta"), torch.ones(1).expand(10**9), torch.eye(2).to_sparse()],
    ids=["meta", "endlessly repeated", "sparse"],
)
def test_tensor_without_own_values_is_refused(tmp_path, tensor):
    message = refusal(write_pickle(tmp_path / "a.pt", {"a": tensor}))
    assert "has no values of its own" in message


def test_older_torch_reads_no_pickle(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1"))
    monkeypatch.setattr(torch, "load", None)
    assert "torch 2.5.1 cannot read" in refusal(write_pickle(tmp_path / "a.pt", state()))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5676000000\n"
PAGES = {
    "page": b"<!DOCTYPE html>\n<html class=''><head></head></html>",
    "upper case": b"\n<!doctype HTML>",
    "no doctype": b"\xef\xbb\xbf<html lang='en'>",
    "markup of a store": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    "error": b'{"error":"Access to model x is restricted\\n"}',
    "errors": b'{ "errors" : [{"message": "gone"}]}',
    "pointer": POINTER,
}


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "m.safetensors.index.json"])
@pytest.mark.parametrize("content", PAGES.values(), ids=PAGES)
def test_web_page_or_pointer_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    assert "a web page, a server's error or a pointer of Git LFS; download the file itself" in message


def test_shard_that_is_a_pointer_is_named(tmp_path):
    index = {"weight_map": {"a": "shard.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "shard.safetensors").write_bytes(POINTER)
    assert "shard.safetensors is no checkpoint" in refusal(tmp_path / "m.safetensors.index.json")


def test_doctor_names_a_web_page(tmp_path, capsys):
    (tmp_path / "wan_2.1_vae.safetensors").write_bytes(b"<!DOCTYPE html>")
    assert main(["doctor", str(tmp_path / "wan_2.1_vae.safetensors")]) == 2
    assert "a web page" in capsys.readouterr().err


def test_doctor_names_an_unusable_vocabulary(tmp_path, capsys):
    (tmp_path / "image_reward").mkdir()
    (tmp_path / "image_reward" / "vocab.txt").write_bytes(b"<!DOCTYPE html>")
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert "UNUSABLE" in report
    assert "vocab.txt is no vocabulary" in report


# --- which state dict

EMA = "generator_ema"
RAW = "generator"
SEEDS = {EMA: 1, RAW: 2, "state_dict": 3, "critic": 4}


def write(path: Path, *names: str, legacy: bool = False) -> Path:
    content = {name: state(SEEDS[name]) for name in names}
    torch.save({**content, "step": 3}, path, _use_new_zipfile_serialization=not legacy)
    return path


@LEGACY
@pytest.mark.parametrize(
    "names, choice, taken",
    [
        ((RAW, EMA, "critic"), NO_CHOICE, EMA),
        ((RAW, EMA, "critic"), Choice("ema"), EMA),
        ((RAW, EMA, "critic"), Choice("raw"), RAW),
        ((RAW, EMA), Choice(likely="raw"), RAW),
        ((RAW, EMA), Choice(likely="ema"), EMA),
        ((RAW, EMA), Choice("ema", likely="raw"), EMA),
        ((EMA,), Choice(likely="raw"), EMA),
        ((RAW,), NO_CHOICE, RAW),
        (("state_dict",), Choice(likely="raw"), "state_dict"),
    ],
)
def test_chosen_state_dict_is_the_one_read(tmp_path, names, choice, taken, legacy):
    """Catches the raw weights under the name of the averaged ones."""
    file = open_weights(write(tmp_path / "a.pt", *names, legacy=legacy), choice)
    assert file.state_dict == taken
    assert file.layout == f"PyTorch pickle, {taken}"
    assert sorted(file.state_dicts) == sorted(names)
    assert_holds(file, state(SEEDS[taken]))


def test_renamed_file_keeps_its_state_dicts(tmp_path):
    file = open_weights(write(tmp_path / "a.pt", RAW, EMA))
    renamed = file.renamed(lambda name: f"x.{name}")
    assert renamed.state_dict == file.state_dict == EMA
    assert sorted(renamed.state_dicts) == [RAW, EMA]


@pytest.mark.parametrize(
    "content, choice, holds, advice",
    [
        ({EMA: state()}, Choice("raw"), EMA, "ema"),
        ({RAW: state(), "critic": state()}, Choice("ema"), "critic, generator", "raw"),
        ({"x" * 3000: state(), "y\n\x1b": state()}, Choice("ema"), "x" * 40 + ", y \\x1b", "auto"),
        (state(), Choice("ema"), "one set of weights without a name", "auto"),
    ],
)
def test_missing_state_dict_is_refused_with_the_others(
    tmp_path: Path, content: dict[str, Any], choice: Choice, holds: str, advice: str
):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(BadInput) as refusal:
        open_weights(tmp_path / "a.pt", choice)
    message = str(refusal.value)
    assert message.startswith("a.pt has no generator")
    assert message.endswith(f", but {holds}; choose {advice}")
    assert len(message) <= 400


@pytest.mark.parametrize("weights", ["ema", "raw"])
def test_choice_of_safetensors_is_refused(tmp_path, weights):
    save_file(state(), tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match=r"one set of weights without a name; choose auto"):
        open_weights(tmp_path / "a.safetensors", Choice(weights))


@pytest.mark.parametrize("likely", ["auto", "ema", "raw"])
def test_likely_choice_of_safetensors_is_ignored(tmp_path, likely):
    """A preset's is only likely, and holds for pickles."""
    save_file(state(), tmp_path / "a.safetensors")
    assert open_weights(tmp_path / "a.safetensors", Choice(likely=likely)).state_dict == ""


@pytest.mark.parametrize(
    "taken, dicts, choice, words",
    [
        (EMA, (RAW, EMA, "critic"), NO_CHOICE, "a.pt holds two sets of weights, generator_ema and generator"),
        (EMA, (EMA,), Choice(likely="raw"), "The preset is for raw weights, but a.pt holds no generator"),
        (RAW, (RAW, EMA), Choice("raw", likely="ema"), None),
        (RAW, (RAW, EMA), Choice(likely="raw"), None),
        (EMA, (EMA, "critic"), NO_CHOICE, None),
        ("state_dict", ("state_dict",), Choice(likely="ema"), None),
        ("", (), Choice(likely="ema"), None),
    ],
)
def test_only_unstated_choices_are_noted(taken, dicts, choice, words):
    note = choice_note("a.pt", taken, dicts, choice)
    assert note is None if words is None else note.startswith(words)


def test_file_without_tensors_is_refused(tmp_path):
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(BadInput, match="holds no tensors"):
        open_weights(tmp_path / "empty.safetensors", NO_CHOICE)
