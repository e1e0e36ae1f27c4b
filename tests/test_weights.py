import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core import weights
from sdvg_core.errors import BadInput
from sdvg_core.weights import open_weights


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(3, i + 1, generator=g) for i in range(3)}


def assert_holds(file, wanted):
    assert dict(file.info) == {n: weights.TensorInfo(tuple(t.shape), t.dtype) for n, t in wanted.items()}
    assert sorted(file) == sorted(wanted)
    assert all(torch.equal(file[n], t) for n, t in wanted.items())


def refusal(path) -> str:
    with pytest.raises(BadInput) as caught:
        open_weights(path)
    message = str(caught.value)
    assert message.startswith("expected ")
    assert ", but " in message
    assert "; " in message
    assert "\n" not in message
    return message


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


def test_asking_whether_a_tensor_is_there_reads_none(tmp_path):
    save_file(state(), tmp_path / "a.safetensors")
    file = open_weights(tmp_path / "a.safetensors")
    reads: list[str] = []
    spy = weights.WeightFile(file.path, file.layout, file.info, reads.append, file.names)  # type: ignore[arg-type]
    assert "layer.0.weight" in spy
    assert "layer.9.weight" not in spy
    assert reads == []


@pytest.mark.parametrize("keep", [0, 4, 8, 30, -1, -8])
def test_a_safetensors_file_that_is_cut_short_is_refused(tmp_path, keep):
    save_file(state(), tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:keep])
    assert "fetch it again" in refusal(tmp_path / "a.safetensors")


def entry(start: int, end: int, shape=(1,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        json.dumps({"a": entry(0, 400)}).encode(),
        json.dumps({"a": entry(0, 4), "b": entry(0, 4)}).encode(),
        json.dumps({"a": entry(0, 4, shape=(2**40, 2**40))}).encode(),
        json.dumps({"a": entry(4, 0)}).encode(),
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
    ],
    ids=["no json", "a list", "past the end", "overlapping", "enormous", "backwards", "a name twice"],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, header):
    refusal(write_raw(tmp_path / "a.safetensors", header, b"\0" * 8))


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    refusal(tmp_path / "a.safetensors")


def test_a_file_without_tensors_is_refused(tmp_path):
    assert "holds none" in refusal(write_raw(tmp_path / "a.safetensors", b"{}"))


def test_an_unknown_dtype_is_named(tmp_path):
    header = json.dumps({"a": entry(0, 1, dtype="F8_E8M0")}).encode()
    message = refusal(write_raw(tmp_path / "a.safetensors", header, b"\0"))
    assert "F8_E8M0" in message or "InvalidHeaderDeserialization" in message or "unknown variant" in message


def test_too_little_memory_to_map_a_file_is_no_reason_to_fetch_it_again(tmp_path, monkeypatch):
    def no_room(*args, **kwargs):
        raise RuntimeError("unable to mmap 28577105943 bytes from file <a>: Cannot allocate memory (12)")

    save_file(state(), tmp_path / "a.safetensors")
    monkeypatch.setattr(weights, "safe_open", no_room)
    message = refusal(tmp_path / "a.safetensors")
    assert "swap" in message
    assert "fetch" not in message


# --- names


def test_renaming_keeps_the_values_and_leaves_out_what_is_renamed_to_none(tmp_path):
    save_file(state(), tmp_path / "a.safetensors")
    file = open_weights(tmp_path / "a.safetensors")
    renamed = file.renamed(lambda n: None if n == "layer.1.weight" else f"x.{n}")
    assert_holds(renamed, {f"x.{n}": t for n, t in state().items() if n != "layer.1.weight"})


def test_two_tensors_cannot_get_one_name(tmp_path):
    save_file(state(), tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match="two of them mean x"):
        open_weights(tmp_path / "a.safetensors").renamed(lambda n: "x")


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
        "../m-1.safetensors",
        "/etc/m.safetensors",
        "sub/m.safetensors",
        "..\\m-1.safetensors",
        "C:\\m.safetensors",
        "..",
        "",
        "m.safetensors.index.json",
        "m.pt",
        7,
    ],
)
def test_a_shard_outside_the_folder_or_of_another_kind_is_refused(tmp_path, shard):
    """An index that names itself would be opened for ever."""
    message = refusal(write_shards(tmp_path, {"a": "m-1.safetensors", "b": shard}))
    assert "expected safetensors shards beside m.safetensors.index.json" in message


@pytest.mark.parametrize("weight_map", [None, [], {}, 3, "m-1.safetensors"])
def test_an_index_without_a_list_of_tensors_is_refused(tmp_path, weight_map):
    refusal(write_shards(tmp_path, weight_map))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b"[]"])
def test_an_index_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "m.safetensors.index.json").write_bytes(text)
    refusal(tmp_path / "m.safetensors.index.json")


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path):
    assert "m-3.safetensors is missing" in refusal(write_shards(tmp_path, {"a": "m-3.safetensors"}))
    assert "c is not in m-2.safetensors" in refusal(write_shards(tmp_path, {"c": "m-2.safetensors"}))


def test_a_folder_with_several_files_or_none_is_refused(tmp_path):
    assert "found none" in refusal(tmp_path)
    for name in ("a", "b"):
        save_file(state(), tmp_path / f"{name}.safetensors")
    assert "found a.safetensors, b.safetensors" in refusal(tmp_path)


# --- pickles

LEGACY = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def write_pickle(path: Path, content: object, legacy: bool = False) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@LEGACY
@pytest.mark.parametrize(
    "wrap, layout",
    [
        (lambda s: s, "PyTorch pickle"),
        (
            lambda s: {"generator": state(9), "generator_ema": s, "critic": state(8)},
            "PyTorch pickle, generator_ema",
        ),
        (lambda s: {"generator": s, "critic": state(8)}, "PyTorch pickle, generator"),
        (lambda s: {"state_dict": s, "step": torch.tensor(3)}, "PyTorch pickle, state_dict"),
        (lambda s: {"anything": s, "step": 3, "empty": {}}, "PyTorch pickle, anything"),
        (lambda s: {n: torch.nn.Parameter(t) for n, t in s.items()}, "PyTorch pickle"),
    ],
)
def test_a_pickle_gives_the_tensors_of_the_model_in_it(tmp_path, wrap, layout, legacy):
    file = open_weights(write_pickle(tmp_path / "a.pt", wrap(state()), legacy))
    assert_holds(file, state())
    assert file.layout == layout
    assert not any(file[n].requires_grad for n in file)


@pytest.mark.parametrize("suffix", weights.PICKLES)
def test_every_usual_extension_is_read(tmp_path, suffix):
    assert_holds(open_weights(write_pickle(tmp_path / f"a{suffix}", state())), state())


class Runs:
    """What a hostile pickle looks like: reading it calls `function`."""

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
    ],
)
def test_a_pickle_that_wants_to_run_code_is_refused_by_the_name_of_what_it_wants(
    tmp_path, monkeypatch, function, arguments, name, legacy
):
    monkeypatch.chdir(tmp_path)
    content = {**state(), "x": Runs(function, *arguments)}
    message = refusal(write_pickle(tmp_path / "evil.pt", content, legacy))
    assert "it wants to run " in message
    assert f"{name}; use a .safetensors copy" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_plain_pickle_is_refused_without_running_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"x": Runs(os.system, "touch ran")}))
    message = refusal(tmp_path / "evil.pt")
    assert "was refused" in message
    assert "In PyTorch" not in message
    assert not (tmp_path / "ran").exists()


@LEGACY
def test_a_pickled_module_is_refused_by_its_class(tmp_path, legacy):
    message = refusal(write_pickle(tmp_path / "a.pt", {"net": torch.nn.Linear(2, 2)}, legacy))
    assert "torch.nn.modules.linear.Linear" in message


@LEGACY
@pytest.mark.parametrize("keep", [0, 1, 0.2, 0.5, 0.9, -1])
def test_a_pickle_that_is_cut_short_is_refused(tmp_path, keep, legacy):
    whole = write_pickle(tmp_path / "a.pt", state(), legacy).read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    refusal(tmp_path / "a.pt")


@LEGACY
def test_a_damaged_pickle_is_refused_and_never_a_traceback(tmp_path, legacy):
    """Catches an exception of a kind that was not thought of: a damaged pickle has many."""
    whole = write_pickle(tmp_path / "a.pt", state(), legacy).read_bytes()
    for place in range(0, min(len(whole), 700), 3):
        (tmp_path / "a.pt").write_bytes(whole[:place] + b"\xff\x00" + whole[place + 2 :])
        try:
            open_weights(tmp_path / "a.pt")
        except BadInput:
            continue


@pytest.mark.parametrize(
    "content",
    [[torch.ones(1)], torch.ones(1), {}, {"a": 1}, {"a": {"b": {"c": torch.ones(1)}}}, {1: torch.ones(1)}],
)
def test_a_pickle_without_named_tensors_is_refused(tmp_path, content):
    assert "expected named tensors" in refusal(write_pickle(tmp_path / "a.pt", content))


def test_several_models_under_unknown_names_are_refused(tmp_path):
    message = refusal(write_pickle(tmp_path / "a.pt", {"student": state(), "teacher": state()}))
    assert "student, teacher" in message


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(3, device="meta"), torch.ones(1).expand(10**9)],
    ids=["meta", "endlessly repeated"],
)
def test_a_tensor_without_values_of_its_own_is_refused(tmp_path, tensor):
    message = refusal(write_pickle(tmp_path / "a.pt", {"a": tensor}))
    assert "a has none of its own" in message


def test_a_sparse_tensor_is_refused_by_what_would_rebuild_it(tmp_path):
    message = refusal(write_pickle(tmp_path / "a.pt", {"a": torch.eye(2).to_sparse()}))
    assert "it wants to run torch._utils._rebuild_sparse_tensor" in message


def test_a_tensor_that_is_part_of_another_is_read_as_that_part(tmp_path):
    whole = torch.arange(6.0)
    file = open_weights(write_pickle(tmp_path / "a.pt", {"whole": whole, "part": whole[2:4]}))
    assert torch.equal(file["part"], whole[2:4])


# --- neither


@pytest.mark.parametrize("name", ["a.gguf", "a.txt", "a"])
def test_another_kind_of_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"hello")
    assert f"{name} is none of them" in refusal(tmp_path / name)


def test_a_path_with_nothing_at_it_is_refused(tmp_path):
    assert "there is nothing at" in refusal(tmp_path / "a.safetensors")
