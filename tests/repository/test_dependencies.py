"""What is imported is declared, what is declared is imported, and each has its row in docs/dependencies.md."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from release import pages  # noqa: E402 - a script, not a package

# Distribution -> what it is imported as, where that is something else.
IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml"}
# ComfyUI's own modules, and what its server is made with, which only the nodes may import.
COMFYUI = {
    "comfy",
    "comfy_api",
    "comfy_execution",
    "comfyui_version",
    "folder_paths",
    "protocol",
    "server",
    "aiohttp",
}
OURS = {"sdvg_core", "nodes"}


NETWORK = ("socket", "ssl", "http", "urllib.request", "urllib3", "requests", "aiohttp", "httpx")
NETWORK += ("websockets", "asyncio")


def imports(*folders: str) -> set[str]:
    """Return the packages from outside that the files of folders import."""
    names = {name.partition(".")[0] for folder in folders for name in imports_of(folder)}
    return names - sys.stdlib_module_names - OURS


def imports_of(folder: str) -> Iterator[str]:
    """Yield each name that a file of a folder imports from outside, at its top or inside functions."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def declared(*extras: str) -> set[str]:
    """Return the distributions that the package itself asks for, or that some extras add."""
    tomllib = pytest.importorskip("tomllib", reason="Python has it from 3.11 on")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    lines = [line for extra in extras for line in optional[extra]] if extras else project["dependencies"]
    return {re.match(r"[\w.-]+", line)[0].lower() for line in lines} - {"sdvg"}


def import_names(distributions: set[str]) -> set[str]:
    return {IMPORTED_AS.get(name, name) for name in distributions}


def test_everything_that_the_engine_imports_is_declared_and_nothing_else():
    assert imports("sdvg_core") == import_names(declared() | declared("standalone", "fp8", "ray"))


def test_the_nodes_import_only_what_comfyui_brings():
    """What only the command line needs is not in there: ComfyUI's users do not have it."""
    assert imports("nodes") <= import_names(declared()) | COMFYUI


def test_the_page_is_the_one_that_the_release_script_writes():
    """Catches: a row, a licence or a count that is kept by hand; a table that lacks what is declared."""
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert page == pages.page()
    rows = {name.lower() for name in re.findall(r"^\| ([\w.-]+) \| [^|]+\|", page, re.MULTILINE)} - {"package"}
    assert rows == declared()
    listed = dict(re.findall(r"^- `(\w+)`: (.*)$", page, re.MULTILINE))
    assert set(listed) == {"standalone", "fp8", "research", "ray", "dev"}
    for extra, packages in listed.items():
        assert {name.lower() for name in re.findall(r"(?:^|; )([\w.-]+) \(", packages)} == declared(extra)


def test_the_package_and_the_nodes_do_without_the_study_and_the_benchmark():
    """These lie beside the package, and are not in the registry's archive."""
    assert not {"research", "benchmarks"} & imports("sdvg_core", "nodes")
    asked = import_names(declared() | declared("standalone", "research")) | {"research", "benchmarks", "filelock"}
    of_the_host = COMFYUI | {"comfy_aimdo", "cuda_malloc", "utils", "sdvg_pack"}
    assert imports("research", "benchmarks") <= asked | of_the_host


def test_no_file_of_the_core_can_connect():
    """Catches: an address that is asked somewhere else. A Ray cluster is connected to by ray itself."""
    found = list(imports_of("sdvg_core"))
    assert not [name for name in found for way in NETWORK if name == way or name.startswith(f"{way}.")]
