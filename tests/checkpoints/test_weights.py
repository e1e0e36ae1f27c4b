"""Safetensors files and their shards: what they give, and which are refused."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from weight_files import assert_holds, refusal, state

from sdvg_core.checkpoints import weights
from sdvg_core.checkpoints.weights import open_weights


def write_raw(path: Path, header: bytes, body: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


# --- safetensors


def test_a_safetensors_file_gives_its_tensors_shapes_and_metadata(tmp_path):
    save_file(state(), tmp_path / "a.safetensors", metadata={"config": "{}"})
    file = open_weights(tmp_path / "a.safetensors")
    assert_holds(file, state())
    assert (file.layout, file.metadata) == ("safetensors", {"config": "{}"})


@pytest.mark.parametrize("dtype", sorted(weights._DTYPES.values(), key=str))
def test_every_dtype_is_known_before_it_is_read(tmp_path, dtype):
    save_file({"a": torch.zeros(2, dtype=dtype)}, tmp_path / "a.safetensors")
    file = open_weights(str(tmp_path / "a.safetensors"))
    assert file.info["a"].dtype == file["a"].dtype == dtype


@pytest.mark.parametrize("keep", [0, 4, 8, 30, -1, -8])
def test_a_safetensors_file_that_is_cut_short_is_refused(tmp_path, keep):
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
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, header):
    refusal(write_raw(tmp_path / "a.safetensors", header, b"\0" * 8))


def test_too_little_memory_to_map_a_file_is_no_reason_to_fetch_it_again(tmp_path, monkeypatch):
    def no_room(*args, **kwargs):
        raise RuntimeError("unable to mmap 28577105943 bytes from file <a>: Cannot allocate memory (12)")

    save_file(state(), tmp_path / "a.safetensors")
    monkeypatch.setattr(weights, "safe_open", no_room)
    message = refusal(tmp_path / "a.safetensors")
    assert "swap" in message
    assert "fetch" not in message


# --- shards


def write_shards(folder: Path, weight_map: object) -> Path:
    save_file({"a": torch.ones(1)}, folder / "m-1.safetensors")
    save_file({"b": torch.ones(2), "unlisted": torch.ones(3)}, folder / "m-2.safetensors")
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_shards_are_one_file_to_the_reader(tmp_path):
    index = write_shards(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    for path in (index, tmp_path):
        assert_holds(open_weights(path), {"a": torch.ones(1), "b": torch.ones(2)})
        assert open_weights(path).layout == "safetensors in 2 shards"


@pytest.mark.parametrize(
    "shard",
    [
        *(
            "../m-1.safetensors",
            "/etc/m.safetensors",
            "sub/m.safetensors",
            "..\\m-1.safetensors",
            "C:\\m.safetensors",
        ),
        *("C:m-1.safetensors", "m-1.sft:x.sft", "\0.safetensors", "..", "", "m.safetensors.index.json", "m.pt", 7),
    ],
)
def test_a_shard_outside_the_folder_or_of_another_kind_is_refused(tmp_path, shard):
    """An index that names itself would be opened for ever."""
    message = refusal(write_shards(tmp_path, {"a": "m-1.safetensors", "b": shard}))
    assert "no safetensors shard next to it" in message


NO_MAPS = [json.dumps({"weight_map": found}).encode() for found in (None, [], {}, 3, "m-1.safetensors")]


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b"[]", *NO_MAPS])
def test_an_index_that_is_no_json_object_with_a_list_of_tensors_is_refused(tmp_path, text):
    (tmp_path / "m.safetensors.index.json").write_bytes(text)
    refusal(tmp_path / "m.safetensors.index.json")


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path):
    assert "names m-3.safetensors, which is missing" in refusal(write_shards(tmp_path, {"a": "m-3.safetensors"}))
    assert "which is missing" in refusal(write_shards(tmp_path, {"a": "n" * 300 + ".safetensors"}))
    assert "m-2.safetensors lacks c, which" in refusal(write_shards(tmp_path, {"c": "m-2.safetensors"}))


def test_a_folder_with_several_files_or_none_is_refused(tmp_path):
    assert " has no .safetensors file and no index of shards; name a file" in refusal(tmp_path)
    for name in ("a", "b"):
        save_file(state(), tmp_path / f"{name}.safetensors")
    assert " has a.safetensors, b.safetensors, not one" in refusal(tmp_path)


# --- neither


@pytest.mark.parametrize("name", ["a.gguf", "a.txt", "a"])
def test_another_kind_of_file_is_refused_and_nothing_at_all(tmp_path, name):
    (tmp_path / name).write_bytes(b"hello")
    assert f"{name} is no weight file" in refusal(tmp_path / name)
    assert "no weight file at" in refusal(tmp_path / "a.safetensors")
