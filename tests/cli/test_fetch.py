"""`doctor --fetch` against a hub on this machine: whole files or none, and never one in place of another."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sdvg_core.__main__ import run
from sdvg_core.cli import doctor
from sdvg_core.files import unfinished
from sdvg_core.weights.model_files import KNOWN_FILES
from tests.support.cli_runs import refused
from tests.support.fake_hub import COMMIT, SMALL_ETAG, FakeHub, running
from tests.support.forked import CAN_FORK, fork

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="each command needs a fresh huggingface_hub")
CHUNK = 10 << 20
"""Bytes that huggingface_hub writes at once."""
LARGE = os.urandom(1024) * (5 * CHUNK // 2048)
DRAFTER = "gdhe17/Self-Forcing"
DRAFTER_PATH = "checkpoints/self_forcing_dmd.pt"
GOAL = "diffusion_models/self_forcing_dmd.pt"
STORED = f"{DRAFTER}/{DRAFTER_PATH}"
Usage = namedtuple("Usage", "total used free")


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def drop_library() -> dict[str, Any]:
    """Let the next import of huggingface_hub read the environment; return the modules that were there."""
    users = ("sdvg_core.cli.fetching", "sdvg_core.cli.hub")
    names = [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub" or name in users]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("user") / "home"


@pytest.fixture(scope="module")
def servers(home) -> Iterator[FakeHub]:
    """Run a hub, and import huggingface_hub as a process that asks it does: here once for all commands."""
    kept = drop_library()
    with running(FakeHub(files={})) as hub, pytest.MonkeyPatch.context() as patched:
        for name, value in environment_of(hub, home).items():
            patched.setenv(name, value)
        import_library()
        yield hub
    drop_library()
    sys.modules.update(kept)


def environment_of(hub: FakeHub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_TOKEN": "hf_secret"}


def import_library() -> None:
    if other := os.environ.get("SDVG_HUGGINGFACE_HUB"):
        sys.path.insert(0, other)
    import_module("sdvg_core.cli.fetching")


@pytest.fixture
def hub(servers) -> FakeHub:
    files: dict[str, dict[str, bytes]] = {}
    for number, known in enumerate(doctor.FETCHABLE.values()):
        files.setdefault(known.repository, {})[known.path] = f"{number} {known.role}".encode()
    new = FakeHub(files, {DRAFTER: "apache-2.0"}, address=servers.address, store=servers.store)
    vars(servers).update(vars(new))
    return servers


@pytest.fixture
def fetch(hub, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Return what runs `doctor --fetch` on the models in tmp_path, and returns exit code, output and errors."""

    def fetch(*words: str, typed: str | None = None, **environment: str) -> tuple[int, str, str]:
        process, streams = start(hub, tmp_path, words, typed, environment)
        process.join(600)
        return process.exitcode, *(stream.read_text(encoding="utf-8") for stream in streams)

    return fetch


def start(hub: FakeHub, tmp_path: Path, words: tuple[str, ...], typed: str | None, more: dict[str, str]) -> Any:
    """Start the command; return its process and the files of its output and errors."""
    arguments = ["doctor", "--fetch", *words, "--models", str(tmp_path / "models")]

    def program() -> int:
        sys.stdin = io.StringIO() if typed is None else Terminal(typed)
        time.sleep = lambda seconds: None  # between the library's own attempts
        os.environ.update(more)
        if more:
            drop_library()
        return run(arguments)

    streams = [tmp_path / name for name in ("output", "errors")]
    for stream in streams:
        stream.write_bytes(b"")
    return fork(program, *map(str, streams)), streams


def fetched(tmp_path: Path) -> dict[str, bytes]:
    """Return all files of the folder of models."""
    models = tmp_path / "models"
    files = (path for path in models.rglob("*") if path.is_file())
    return {str(path.relative_to(models)): path.read_bytes() for path in files}


def test_usual_files_arrive_where_comfyui_looks(hub, fetch, home, tmp_path):
    """Catches: a file in another folder, a revision that moves in between, a note left beside it or at home."""
    code, output, errors = fetch("--yes")
    assert (code, errors) == (0, "")
    usual = [known for known in KNOWN_FILES if known.role in doctor.USUAL_ROLES]
    contents = {f"{known.folder}/{known.names[0]}": hub.files[known.repository][known.path] for known in usual}
    assert fetched(tmp_path) == contents
    assert not home.exists()
    gets = [path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path]
    assert len(gets) == len(usual)
    assert all(f"/resolve/{COMMIT}/" in path for path in gets)
    for known in usual:
        assert f"{known.repository}, {known.path}, " in output
        assert f"licence: {known.licence or 'not read'}" in output
    assert output.count("its card says apache-2.0 today") == 1
    assert output.count("its card: not read") == len(usual) - 1


def test_named_roles_are_fetched_alone(fetch, tmp_path):
    """Catches: a role's other spelling, one asked for twice, and a file without a SHA-256."""
    code, output, _ = fetch("vocabulary", "target-control", "vocabulary", "--yes")
    control = "diffusion_models/Wan2_1-VACE_module_14B_bf16.safetensors"
    assert (code, sorted(fetched(tmp_path))) == (0, [control, "image_reward/vocab.txt"])
    assert "no SHA-256" in output


def test_requests_state_token_to_the_hub_alone(hub, fetch):
    """Catches: a token sent to another server, and what else is installed here stated to any."""
    assert fetch("drafter", "--yes")[0] == 0
    for method, path, heads in hub.requests:
        heads = {name.lower(): value for name, value in heads.items()}
        assert heads.get("authorization") == (None if method == "STORE" else "Bearer hf_secret"), path
        assert "torch" not in heads["user-agent"]


@pytest.fixture
def large(hub) -> bytes:
    """Make the drafter larger than what the library writes at once."""
    hub.files[DRAFTER][DRAFTER_PATH] = LARGE
    return LARGE


def cut_after(hub: FakeHub, size: int) -> None:
    """Break the next download off after `size` bytes, and all that the library tries again."""
    hub.cuts[:] = [size, *[0] * 9]


def test_cut_download_goes_on_where_it_was(hub, fetch, large, tmp_path):
    """Catches: gigabytes fetched again after the connection broke."""
    cut_after(hub, CHUNK + 1000)
    code, _, errors = fetch("drafter", "--yes")
    assert (code, GOAL in fetched(tmp_path)) == (2, False)
    assert "same command" in errors.splitlines()[-1]
    hub.cuts.clear()
    hub.requests.clear()
    assert fetch("drafter", "--yes")[0] == 0
    (heads,) = hub.downloads(STORED)
    start = int(re.fullmatch(r"bytes=(\d+)-", heads.get("Range") or heads["range"])[1])
    assert start >= CHUNK
    assert fetched(tmp_path) == {GOAL: large}


@pytest.mark.heavy
def test_download_without_ranges_begins_anew(hub, fetch, large, tmp_path):
    """Catches: a beginning before another beginning, from a server that knows no ranges."""
    cut_after(hub, CHUNK + 1000)
    assert fetch("drafter", "--yes")[0] == 2
    hub.cuts.clear()
    hub.ranges = False
    codes = [fetch("drafter", "--yes")[0] for _ in range(2)]  # older libraries notice it at the end
    assert codes[-1] == 0
    assert fetched(tmp_path) == {GOAL: large}


@pytest.mark.heavy
def test_changed_file_is_not_a_mixture(hub, fetch, large, tmp_path):
    """Catches: the end of a new version behind the beginning of an old one."""
    cut_after(hub, CHUNK + 1000)
    assert fetch("drafter", "--yes")[0] == 2
    hub.cuts.clear()
    hub.files[DRAFTER][DRAFTER_PATH] = large[::-1]
    assert fetch("drafter", "--yes")[0] == 0
    assert fetched(tmp_path)[GOAL] == large[::-1]


def test_interrupted_download_stays_hidden_and_goes_on(hub, fetch, large, tmp_path):
    """Catches: Ctrl-C that leaves half a file under its name, or nothing."""
    hub.stalled = threading.Event()
    hub.cuts[:] = [CHUNK + 1000]
    process, (_, errors) = start(hub, tmp_path, ("drafter", "--yes"), None, {})
    models = tmp_path / "models"
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size >= CHUNK for path in models.rglob("*.unfinished")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    process.join(600)
    hub.stalled.set()
    text = errors.read_text(encoding="utf-8")
    assert (process.exitcode, "is kept" in text) == (130, True), text
    assert [Path(name).name.startswith(".") for name in fetched(tmp_path)] == [True]
    assert fetch("drafter", "--yes")[0] == 0
    assert fetched(tmp_path) == {GOAL: large}


def test_file_without_a_checksum_begins_anew(hub, fetch, tmp_path):
    """Catches: a file of two halves, of which nothing tells whether they belong together."""
    [vocabulary] = [known for known in KNOWN_FILES if known.role == "vocabulary"]
    content = hub.files[vocabulary.repository][vocabulary.path]
    version = hashlib.sha256(SMALL_ETAG.encode()).hexdigest()[:16]
    half = tmp_path / "models" / vocabulary.folder / f".vocab.txt.{version}.unfinished"
    half.parent.mkdir(parents=True)
    half.write_bytes(content[::-1][:4])
    code, _, errors = fetch("vocabulary", "--yes")
    assert (code, errors) == (0, "")
    assert fetched(tmp_path) == {f"{vocabulary.folder}/vocab.txt": content}


def test_wrong_content_is_thrown_away(hub, fetch, tmp_path):
    """Catches: a damaged file under a name that ComfyUI loads, and a beginning that never becomes right."""
    hub.hashes[DRAFTER_PATH] = "0" * 64
    code, _, errors = fetch("drafter", "--yes")
    assert (code, fetched(tmp_path)) == (2, {})
    assert "SHA-256" in errors


@pytest.mark.parametrize("status", [401, 403])
def test_gated_repository_names_the_way_in(hub, fetch, tmp_path, status):
    hub.gated = {DRAFTER: status}
    code, _, errors = fetch("drafter", "--yes")
    assert (code, fetched(tmp_path)) == (2, {})
    assert f"{hub.address}/{DRAFTER}, run hf auth login" in errors


def test_missing_repository_or_file_is_a_sentence(hub, fetch):
    hub.files = {DRAFTER: {}}
    for role in ("drafter", "vae"):
        code, _, errors = fetch(role, "--yes")
        assert (code, len(errors.splitlines())) == (2, 1), errors
        assert "Traceback" not in errors


def test_too_little_room_is_refused_first(hub, fetch, tmp_path, monkeypatch):
    """Catches: files that fit one by one, and not together."""
    drafter, vae = (len(hub.files[known.repository][known.path]) for known in (KNOWN_FILES[0], KNOWN_FILES[2]))
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda path: Usage(0, 0, drafter + vae - 1))
    code, _, errors = fetch("drafter", "vae", "--yes")
    assert (code, fetched(tmp_path), hub.downloads(STORED)) == (2, {}, [])
    assert "are needed" in errors
    assert fetch("drafter", "--yes")[0] == 0


def test_error_of_the_disk_is_not_the_network(fetch, large):
    """Catches: a full disk for which somebody checks the proxy."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK + 1, hard))
    try:
        code, _, errors = fetch("drafter", "--yes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert "cannot write" in errors


@pytest.mark.parametrize("pages", [("HEAD", "GET", "STORE"), ("STORE",)], ids=["first", "later"])
def test_page_of_a_proxy_is_no_file(hub, fetch, tmp_path, pages):
    """Catches: a login page saved as a model."""
    hub.pages = pages
    code, _, errors = fetch("drafter", "--yes")
    assert (code, GOAL in fetched(tmp_path)) == (2, False)
    assert "proxy" in errors
    hub.pages = ()
    fetch("drafter", "--yes")
    assert fetch("drafter", "--yes")[0] == 0
    assert fetched(tmp_path) == {GOAL: hub.files[DRAFTER][DRAFTER_PATH]}


@pytest.mark.parametrize("name", [GOAL, "unet/longlive_base.pt", "other/self_forcing_dmd.pt"])
def test_model_that_is_there_is_left_alone(hub, fetch, tmp_path, name):
    """Catches: a file replaced, or fetched a second time, under whatever name and in whichever folder it is."""
    model = tmp_path / "models" / name
    model.parent.mkdir(parents=True)
    model.write_bytes(b"mine")
    code, output, _ = fetch("drafter", "--yes")
    assert (code, fetched(tmp_path), hub.requests) == (0, {name: b"mine"}, [])
    assert str(model) in output


def test_what_has_the_name_is_not_replaced(hub, fetch, tmp_path):
    """Catches: a link whose drive is away, replaced by the download."""
    goal = tmp_path / "models" / GOAL
    goal.parent.mkdir(parents=True)
    goal.symlink_to(tmp_path / "away")
    code, _, errors = fetch("drafter", "--yes")
    assert (code, goal.is_symlink(), hub.downloads(STORED)) == (2, True, [])
    assert "there already" in errors


def test_offline_machine_asks_nobody(hub, fetch, tmp_path):
    code, _, errors = fetch("--yes", HF_HUB_OFFLINE="1")
    assert (code, fetched(tmp_path), hub.requests) == (2, {}, [])
    assert "HF_HUB_OFFLINE" in errors


def test_hub_that_does_not_answer_is_a_sentence(fetch):
    """Catches: advice that leaves out the variable which names another hub."""
    code, _, errors = fetch("drafter", "--yes", HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, len(errors.splitlines())) == (2, 1), errors
    assert "check connection, proxy and HF_ENDPOINT" in errors


@pytest.mark.parametrize(("typed", "files"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("", 0)])
def test_question_is_answered_before_anything_is_fetched(fetch, tmp_path, typed, files):
    """Catches: silence taken for consent."""
    code, output, _ = fetch("drafter", typed=typed)
    assert (code, len(fetched(tmp_path))) == (0, files)
    assert output.index("licence") < output.index("[y/N]")


def test_without_terminal_consent_is_an_option(hub, fetch, tmp_path):
    """Catches: a script that waits for ever, or fetches what nobody agreed to."""
    code, output, errors = fetch("drafter")
    assert (code, fetched(tmp_path), hub.downloads(STORED)) == (2, {}, [])
    assert "licence" in output
    assert "--yes" in errors


def test_base_folder_gets_files_into_its_models(fetch, tmp_path):
    (tmp_path / "models" / "models").mkdir(parents=True)
    assert fetch("drafter", "--yes")[0] == 0
    assert list(fetched(tmp_path)) == [f"models/{GOAL}"]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--fetch", "tokenizer"], "no file is known for 'tokenizer'"),
        (["--fetch", "--vram"], "two things"),
        (["--fetch", "--models", "pocket"], "embedded"),
        (["--yes"], "add that"),
    ],
)
def test_fetch_that_makes_no_sense_is_refused(words, word, capsys):
    assert word in refused(capsys, ["doctor", *words])
