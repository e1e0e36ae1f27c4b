"""What a release consists of: the archive of the registry, the locked environment, the bill of materials."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from release import archive  # noqa: E402 - a script, not a package

RELEASE = ROOT / "release"
LOCKED = RELEASE / "locked-linux-x86_64-py311.txt"
# The environments of the core's tests and of those in ComfyUI.
PAIRS = {
    LOCKED: RELEASE / "sbom.cdx.json",
    RELEASE / "locked-comfyui-linux-x86_64-py311.txt": RELEASE / "sbom-comfyui.cdx.json",
}
needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the archive is made of what git tracks"
)


@needs_git
def test_the_archive_holds_what_the_nodes_need_and_nothing_that_is_ignored(tmp_path):
    archive.write_archive(tmp_path / "one.zip")
    archive.write_archive(tmp_path / "two.zip")
    assert archive.problems(tmp_path / "one.zip") == []
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    names = archive.members()
    assert not [
        name
        for name in names
        if name.startswith(("tests/", "training/", "benchmarks/", "research/", "release/", "."))
    ]
    assert {"sdvg_core/pocket/weights/manifest.json", "nodes/web/docs/SDVGRouteReport.md"} <= set(names)


@needs_git
@pytest.mark.parametrize(
    "name, added, problem",
    [
        ("sdvg_core/cli/demo.py", b"", "no node needs sdvg_core/cli/demo.py; name it in .comfyignore"),
        (
            "nodes/report.py",
            b"from ..sdvg_core.pipeline.many import x",
            "nodes/report.py needs sdvg_core/pipeline/many/x",
        ),
        ("nodes/report.py", b"import socket as s", "nodes/report.py uses socket"),
        ("nodes/host/job.py", b"def f():\n    from os.path import base64", "nodes/host/job.py uses base64"),
        ("sdvg_core/errors.py", b"eval('1')", "sdvg_core/errors.py uses eval"),
        ("nodes/web/strip.js", b"PATTERN.exec(text)", "nodes/web/strip.js has the word exec("),
        ("locales/en/main.json", b"(", "locales/en/main.json cannot be read"),
    ],
)
def test_what_the_registry_looks_for_is_found(name, added, problem):
    contents = {one: (ROOT / one).read_bytes() for one in archive.members()}
    contents[name] = contents.get(name, b"") + b"\n" + added
    assert any(one.startswith(problem) for one in archive.wrong_inside(contents))
    words = {word.decode() for content in contents.values() for word in archive.WORDS.findall(content)}
    assert set(archive.WHY) <= words, "each reason is for a word that is there"


def locked(path: Path = LOCKED) -> dict[str, tuple[str, str]]:
    lines = [line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})", line) for line in lines]
    assert all(found), "every line pins one package by its hash"
    return {match[1]: (match[2], match[3]) for match in found if match}


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.stem)
def test_the_bill_of_materials_lists_what_is_locked_each_with_a_licence(path):
    bill = json.loads(PAIRS[path].read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {one["name"]: (one["version"], one["hashes"][0]["content"]) for one in bill["components"]}
    assert listed == locked(path)
    assert all(one["licenses"][0]["expression"].strip() for one in bill["components"])


def test_the_locked_versions_are_those_of_the_constraints():
    meant = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    only_some = {"ray"}  # an extra that the development environment does not have
    wanted = {name.lower(): version for name, version in meant if name not in only_some}
    assert {name: locked()[name][0].partition("+")[0] for name in wanted} == wanted


def test_no_file_of_the_release_names_where_packages_came_from():
    for path in (*PAIRS, *PAIRS.values()):
        assert "://" not in path.read_text(encoding="utf-8")
