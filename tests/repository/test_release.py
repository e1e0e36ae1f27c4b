"""What a release consists of, what pip install brings, and what dev.py does for a newcomer."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops, ImageSequence, ImageStat

from sdvg_core.files.video import write_mp4
from tools.release import archive, bill, covers, race

ROOT = Path(__file__).resolve().parents[2]

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the archive is made of what git tracks"
)


@needs_git
def test_archive_holds_what_the_nodes_need(tmp_path):
    """Catches: files that are ignored."""
    archive.write_archive(tmp_path / "whole.zip")
    assert archive.problems(tmp_path / "whole.zip") == []
    names = archive.members()
    assert not [name for name in names if name.startswith(("tests/", "lab/", "tools/", "."))]
    assert {"sdvg_core/pocket/weights/manifest.json", "nodes/web/docs/SDVGRouteReport.md"} <= set(names)
    assert "sdvg_core/pocket/demo_prompts.json" in names


@needs_git
def test_archive_is_the_same_every_time(tmp_path, monkeypatch):
    """Catches: a time or an order that gets into it. Without the weights, which take seconds."""
    names = [name for name in archive.members() if name.endswith((".py", ".json"))]
    monkeypatch.setattr(archive, "members", lambda root: names)
    for name in ("first.zip", "second.zip"):
        archive.write_archive(tmp_path / name)
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()


@needs_git
def test_check_finds_what_the_registry_forbids():
    added = {
        "sdvg_core/cli/demo.py": b"",
        "nodes/report.py": b"from ..sdvg_core.videos.many import x\nimport socket as s",
        "nodes/host/job.py": b"def f():\n    from os.path import base64",
        "sdvg_core/errors.py": b"eval('1')",
        "nodes/web/strip.js": b"PATTERN.exec(text)",
    }
    contents = {name: (ROOT / name).read_bytes() for name in archive.members()}
    changed = {name: contents.get(name, b"") + b"\n" + text for name, text in added.items()}
    problems = archive.wrong_inside(contents | changed)
    for problem in (
        "no node needs sdvg_core/cli/demo.py; name it in .comfyignore",
        "nodes/report.py needs sdvg_core/videos/many/x",
        "nodes/report.py uses socket",
        "nodes/host/job.py uses base64",
        "sdvg_core/errors.py uses eval",
        "nodes/web/strip.js has the word exec(",
    ):
        assert any(line.startswith(problem) for line in problems), problem


@needs_git
def test_each_exception_of_the_check_is_needed():
    """Catches: a word of the registry's list that is excused, and no longer in any file."""
    texts = [name for name in archive.members() if not name.endswith(archive.PICTURES_AND_WEIGHTS)]
    contents = [(ROOT / name).read_bytes() for name in texts]
    words = {word.decode() for content in contents for word in archive.WORDS.findall(content)}
    assert set(archive.WHY) <= words


def test_check_finds_an_unreadable_file():
    (problem,) = archive.wrong_inside({"locales/en/main.json": b"("})
    assert problem.startswith("locales/en/main.json cannot be read")


def test_version_is_read_from_each_file(tmp_path):
    for number, name in enumerate(("pyproject.toml", "sdvg_core/__init__.py", "CITATION.cff", "CHANGELOG.md")):
        text = (ROOT / name).read_text(encoding="utf-8").replace(archive.versions()[0], f"0.{number}.9", 1)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert archive.versions(tmp_path) == ["0.0.9", "0.1.9", "0.2.9", "0.3.9"]


def test_registry_gets_what_it_specifies():
    tomllib = pytest.importorskip("tomllib", reason="Python has it from 3.11 on")
    meant = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = meant["project"]
    comfy = meant["tool"]["comfy"]
    kinds = {classifier.partition(" ::")[0] for classifier in project["classifiers"]}
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert kinds == {"Operating System", "Environment"}
    repository = project["urls"]["Repository"]
    for name, shape in (("Icon", (400, 400)), ("Banner", (1260, 540))):
        before, _, path = comfy[name].partition("/raw/main/")
        width, height = re.search(r'<svg [^>]*width="(\d+)" height="(\d+)"', (ROOT / path).read_text()).groups()
        assert (before, int(width), int(height)) == (repository, *shape)


@needs_git
def test_package_holds_what_code_reads():
    """Catches: a file beside the code that git tracks and a wheel does not have."""
    tomllib = pytest.importorskip("tomllib", reason="Python has it from 3.11 on")
    meant = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = meant["tool"]["setuptools"]["package-data"]["sdvg_core"]
    packed = {path for pattern in patterns for path in (ROOT / "sdvg_core").glob(pattern)}
    tracked = subprocess.check_output(["git", "-C", ROOT, "ls-files", "sdvg_core"], text=True).split()
    assert [name for name in tracked if not name.endswith(".py") and ROOT / name not in packed] == []


@needs_git
def test_repository_address_is_in_one_file():
    """To publish, put the address into pyproject.toml: a name and a repository in place of OWNER/REPOSITORY."""
    listed = subprocess.check_output(["git", "-C", ROOT, "grep", "-lI", archive.PLACEHOLDER], text=True)
    checks = {"tools/release/archive.py", "tests/repository/test_release.py"}
    assert set(listed.split()) - checks <= {"pyproject.toml"}


def test_bill_lists_what_is_locked(tmp_path):
    """Catches: a package in one file alone; a licence or a hash that is left out; the address of a registry."""
    packages = {name: distribution(name) for name in ("numpy", "pytest", "torch")}
    hashes = dict(zip(packages, ("a" * 64, "b" * 64, "c" * 64), strict=True))
    bill.write_bill(tmp_path, "comfyui", packages, hashes)
    [listed] = tmp_path.glob("locked-comfyui-*.txt")
    sbom = json.loads((tmp_path / "sbom-comfyui.cdx.json").read_text(encoding="utf-8"))
    lines = [line for line in listed.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    assert lines == [f"{name}=={packages[name].version} --hash=sha256:{hashes[name]}" for name in packages]
    assert [(part["name"], part["version"]) for part in sbom["components"]] == [
        (name, package.version) for name, package in packages.items()
    ]
    assert [part["hashes"][0]["content"] for part in sbom["components"]] == [*hashes.values()]
    assert all(part["licenses"][0]["expression"] for part in sbom["components"])
    assert not any("://" in path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def test_template_covers_can_be_drawn_again(tmp_path, monkeypatch):
    """Catches: a new template without one. Those that need no model are drawn here."""
    assert {f"sdvg_{name}" for name in covers.COVERS} == {path.stem for path in (ROOT / "workflows").glob("*.json")}
    monkeypatch.setattr(covers, "Streamer", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["covers", str(tmp_path), "12_depth_to_video", "16_finish_a_clip"])
    covers.main()
    for file in tmp_path.glob("*.jpg"):
        with Image.open(file) as drawn, Image.open(ROOT / "workflows" / file.name) as shipped:
            difference = ImageStat.Stat(ImageChops.difference(drawn, shipped)).mean
        assert max(difference) < 1, "in levels of 255; another libjpeg rounds otherwise"


def test_race_ends_on_its_last_frame(tmp_path, monkeypatch):
    """Catches: the result dropped with other frames, or gone before it is read; a race that is shown once."""
    monkeypatch.setattr(race, "EVERY", 4)
    frames = torch.linspace(0, 1, 10)[:, None, None, None].expand(10, 3, 32, 48)
    write_mp4(tmp_path / "race.mp4", frames, fps=16)
    race.write_picture(tmp_path / "race.mp4", tmp_path / "race.webp")
    with Image.open(tmp_path / "race.webp") as picture:
        assert (picture.size, picture.n_frames, picture.info["loop"]) == ((36, 24), 4, 0)
        shown = [
            (max(ImageStat.Stat(frame).mean), frame.info["duration"]) for frame in ImageSequence.Iterator(picture)
        ]
    assert [round(9 * level / 255) for level, _ in shown] == [0, 4, 8, 9]
    assert [duration for _, duration in shown] == [250, 250, 250, 4000]


def test_readme_begins_with_the_race():
    """Catches: another picture before it, and one that takes long to load."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = ROOT / re.search(r"!\[[^\]]*\]\(([^)]+)\)", readme)[1]
    assert picture.name == "race.webp"
    assert picture.stat().st_size < 300_000


@pytest.mark.heavy
@pytest.mark.skipif(
    shutil.which("git") is None or os.name == "nt", reason="copies what git tracks; the paths are POSIX"
)
def test_installed_command_makes_the_demo(tmp_path):
    """Catches a file that the package leaves out. The environment's other packages are those of this one."""
    source = tmp_path / "source"
    for name in subprocess.check_output(["git", "-C", ROOT, "ls-files", "sdvg_core"], text=True).split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    # After what is installed here, and without the .pth files in there: the editable package is not seen.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        words = [environment / "bin" / command[0], *command[1:]]
        return subprocess.check_output(words, cwd=tmp_path, env=clean, text=True)

    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", str(source)]
    run("python", "-m", "pip", "install", *quiet)
    shutil.rmtree(source)
    module = run("python", "-c", "import sdvg_core; print(sdvg_core.__file__)")
    assert Path(module.strip()).parent == packages / "sdvg_core", sys.path
    run("sdvg", "demo", "--blocks", "2", "--output", "made")
    assert {"video.mp4", "report.json"} <= {path.name for path in (tmp_path / "made").iterdir()}


@pytest.fixture
def dev() -> Any:
    return runpy.run_path(str(ROOT / "dev.py"))


@pytest.fixture
def asked(dev, monkeypatch) -> list[list[str]]:
    """What would be run, with no environment made."""
    commands: list[list[str]] = []

    def record(python: str, *arguments: str) -> int:
        commands.append(list(arguments))
        return 3

    space = dev["main"].__globals__
    monkeypatch.setitem(space, "environment", lambda name, install, *recipe: name)
    monkeypatch.setitem(space, "run", record)
    return commands


@pytest.mark.parametrize(
    "given, passed",
    [
        (["run", "doctor", "--vram", "24"], ["doctor", "--vram", "24"]),
        (["run", "--version"], ["--version"]),
        (["run"], ["--help"]),
        (["demo", "--blocks", "3"], ["demo", "--blocks", "3"]),
    ],
)
def test_dev_passes_options_and_exit_code_on(dev, asked, given, passed):
    assert dev["main"](given) == 3
    assert asked == [["-m", "sdvg_core", *passed]]


@pytest.mark.parametrize("command", ["test", "comfyui", "originals"])
def test_help_of_the_tests_installs_nothing(dev, asked, capsys, command):
    """Catches: two GB of packages for pytest's own help, which names none of our commands."""
    assert dev["main"]([command, "--help"]) == 0
    assert asked == []
    assert f"python3 dev.py {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command, package", [("study", "lab.research"), ("bench", "lab.benchmarks")])
def test_dev_finds_lab_from_any_folder(dev, asked, monkeypatch, command, package):
    """They are not installed with the package. Catches: `dev.py study` or `bench` from another folder."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert dev["main"]([command, "--json"]) == 3
    assert asked == [["-m", package, "--json"]]
    assert os.environ["PYTHONPATH"] == os.pathsep.join((str(ROOT), "elsewhere"))
