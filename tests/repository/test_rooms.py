"""Imports: downward between the rooms of the core, never in a circle; from outside only what is declared."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tools.release import bill

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "sdvg_core"

# From the ground up; rooms of one row do not know one another. docs/architecture.md says what each holds.
FLOORS = (
    ("root",),
    ("settings",),
    ("files", "devices", "engine"),
    ("weights",),
    ("causal_wan", "decoders", "scorers", "text"),
    ("memory", "report"),
    ("loading",),
    ("pocket",),
    ("videos",),
    ("cli",),
)
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
LOOSE = {"__init__", "__main__", "errors"}
# The root's own two doors: the command line, and the names a Python user imports.
DOORS = {"__main__", "__init__"}


def modules() -> dict[str, Path]:
    """Every module of the core by its dotted name, without `sdvg_core.`; a package is its `__init__`."""
    found = {}
    for path in CORE.rglob("*.py"):
        parts = path.relative_to(CORE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all of a file, those inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def room_of(module: str) -> str:
    return module.partition(".")[0] if (CORE / module.partition(".")[0]).is_dir() else "root"


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the core that one imports, inside functions and for types too."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    if module == "__init__":
        package = []
    for node in import_statements(path):
        named = [alias.name for alias in node.names]
        absolute = not getattr(node, "level", 0) and "sdvg_core" in (
            getattr(node, "module", None) or " ".join(named)
        )
        assert not absolute, f"{path.name}: inside the core imports are relative, or this test would not see them"
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            target = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                inner = f"{target}.{alias.name}".strip(".")
                yield inner if inner in known else target or "__init__"


@cache
def arrows() -> set[tuple[str, str]]:
    known = modules()
    return {(module, target) for module, path in known.items() for target in imports(module, path, known)}


def test_every_room_stands_on_a_floor():
    rooms = {path.name for path in CORE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(HEIGHT) - {"root"}
    assert {path.stem for path in CORE.glob("*.py")} == LOOSE, "a module belongs into a room"


def test_imports_point_downward():
    """Catches a value that lives in the file of its biggest user."""
    wrong = sorted(
        f"{module} -> {target}"
        for module, target in arrows()
        if module not in DOORS
        and room_of(module) != room_of(target)
        and HEIGHT[room_of(module)] <= HEIGHT[room_of(target)]
    )
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle():
    later: dict[str, set[str]] = {}
    for module, target in arrows():
        if module not in DOORS and target != module:
            later.setdefault(module, set()).add(target)
    while later:
        free = {module for module, targets in later.items() if not targets & set(later)}
        assert free, f"in a circle: {sorted(later)}"
        later = {module: targets for module, targets in later.items() if module not in free}


ALLOWED = {"host": ("host", "sdvg_core"), "page": ("host", "page", "sdvg_core")}
"""What the folders of the nodes import from this pack."""


@pytest.mark.parametrize("folder", ALLOWED)
def test_folders_of_nodes_import_downward(folder):
    """Catches: an adapter of ComfyUI's objects that needs a page, though an API call has none."""
    for path in (ROOT / "nodes" / folder).glob("*.py"):
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = ("", "nodes", folder)[: 4 - node.level]
                target = ".".join([*package, node.module or ""]).removeprefix(".").removeprefix("nodes.")
                assert target.startswith(ALLOWED[folder]), f"{path.name} imports {target}"


SEVERAL = {"run", "add_arguments", "logger"}
"""Names that every command has, or every file that logs."""


def test_public_name_has_one_meaning():
    """Catches: two constants, types or functions of one name, which a reader takes for each other."""
    homes: dict[str, set[Path]] = {}
    for path in (*CORE.rglob("*.py"), *(ROOT / "nodes").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in names_defined(node):
                homes.setdefault(name, set()).add(path)
    several = {name for name, paths in homes.items() if len(paths) > 1 and not name.startswith("_")}
    assert several == SEVERAL


def names_defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        yield from (part.id for part in getattr(target, "elts", [target]) if isinstance(part, ast.Name))


# Distribution -> what it is imported as, where that is something else.
IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml", "comfy-kitchen": "comfy_kitchen"}
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
    "torchaudio",
}
OURS = {"sdvg_core", "nodes"}


NETWORK = ("socket", "ssl", "http", "urllib.request", "urllib3", "requests", "aiohttp", "httpx")
NETWORK += ("websockets", "asyncio")


def packages(*folders: str) -> set[str]:
    """Return the packages from outside that the files of folders import."""
    names = {name.partition(".")[0] for folder in folders for name in imports_of(folder)}
    return names - sys.stdlib_module_names - OURS


def imports_of(folder: str) -> Iterator[str]:
    """Yield each name that a file of a folder packages from outside, at its top or inside functions."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in import_statements(path):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif not node.level:
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


def test_core_imports_what_is_declared():
    assert packages("sdvg_core") == import_names(declared() | declared("standalone", "fp8", "quantised", "ray"))


def test_settings_import_no_package_from_outside():
    """Catches: a policy or an option that needs torch, so that `--help` waits seconds for it."""
    assert packages("sdvg_core/settings") == set()


def test_the_nodes_import_only_what_comfyui_brings():
    """What only the command line needs is not in there: ComfyUI's users do not have it."""
    assert packages("nodes") <= import_names(declared()) | COMFYUI


def test_dependencies_page_lists_what_is_declared():
    """Catches: a package without a row; a row of one that is no longer declared."""
    table, extras = dependencies_page()
    assert set(table) == declared()
    assert set(extras) == {"standalone", "fp8", "quantised", "research", "ray", "dev"}
    for extra, licences in extras.items():
        assert set(licences) == declared(extra)


def test_dependencies_page_states_licences_of_releases():
    """Catches: a licence that a newer release has changed. Compares the developed versions that are installed."""
    table, extras = dependencies_page()
    licences = {name: licence for part in (table, *extras.values()) for name, licence in part.items()}
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", constraints, re.MULTILINE))
    installed = {package.name.lower(): package for package in distributions()}
    compared = [
        name for name in licences if name in installed and installed[name].version.startswith(pinned.get(name, "-"))
    ]
    assert {name: bill.licence_of(installed[name]) for name in compared} == {
        name: licences[name] for name in compared
    }


def dependencies_page() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the licence of each package in the page's table, and of each extra's packages."""
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| ([^|]+) \|", page, re.MULTILINE)
    table = {name.lower(): licence for name, licence in rows[1:]}
    extras = {}
    for extra, line in re.findall(r"^- `(\w+)`: (.*)$", page, re.MULTILINE):
        packages = re.findall(r"(?:^|; )([\w.-]+) \(([^)]+)\)", line)
        extras[extra] = {name.lower(): licence for name, licence in packages}
    return table, extras


def test_nothing_imports_a_test_file():
    """Catches: a helper that lies in a test, and drags it along."""
    imported = [name for folder in ("tests", "lab", "tools") for name in imports_of(folder)]
    assert not [name for name in imported if re.search(r"(^|\.)test_\w+(\.|$)", name)]


def test_study_and_benchmark_are_tested_in_their_place():
    """Catches: a test of the product that needs `lab`, and with it a circle through tests/support."""
    others = {
        "tests/gpu": "steps of the benchmark, on a card",
        "tests/repository": "documents name its commands",
    }
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert {folder for folder in folders if "lab" in packages(folder)} == {"tests/lab", *others}


def test_package_and_nodes_import_no_lab():
    """These lie next to the package, and are not in the registry's archive."""
    assert "lab" not in packages("sdvg_core", "nodes")
    asked = import_names(declared() | declared("standalone", "research")) | {"lab", "tests", "filelock"}
    of_the_host = COMFYUI | {"comfy_aimdo", "cuda_malloc", "utils", "sdvg_pack"}
    assert packages("lab/research", "lab/benchmarks") <= asked | of_the_host


def test_only_fetching_asks_the_hub():
    """Catches: a look for a newer file, a tokenizer or a download in any other command, or in a node."""
    use = re.compile(r"(?:from|import) huggingface_hub|import_module\(.*huggingface_hub")
    asking = [path for path in CORE.rglob("*.py") if use.search(path.read_text(encoding="utf-8"))]
    assert asking == [CORE / "cli" / "hub.py"]
    assert "huggingface_hub" not in packages("nodes")
    users = sorted((target, module) for module, target in arrows() if target in ("cli.hub", "cli.fetching"))
    assert users == [("cli.fetching", "cli.doctor"), ("cli.hub", "cli.fetching")]


def test_no_file_of_the_core_can_connect():
    """Catches: an address that is asked somewhere else. A Ray cluster is connected to by ray itself."""
    found = list(imports_of("sdvg_core"))
    assert not [name for name in found for way in NETWORK if name == way or name.startswith(f"{way}.")]
