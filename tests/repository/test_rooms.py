"""The rooms of the core, and which way their imports point: downward only, and never in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "sdvg_core"

# From the ground up; rooms of one row do not know one another. docs/architecture.md says what each holds.
FLOORS = (
    ("root",),
    ("files", "devices", "engine"),
    ("checkpoints",),
    ("causal_wan", "decoders", "scorers", "text"),
    ("memory", "report"),
    ("models",),
    ("request", "pocket"),
    ("videos",),
    ("cli",),
)
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
LOOSE = {"__init__", "__main__", "errors", "settings"}
# The root's own two doors: the command line, and the names a Python user imports.
DOORS = {"__main__", "__init__"}


def modules() -> dict[str, Path]:
    """Every module of the core by its dotted name, without `sdvg_core.`; a package is its `__init__`."""
    found = {}
    for path in CORE.rglob("*.py"):
        parts = path.relative_to(CORE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def room_of(module: str) -> str:
    return module.partition(".")[0] if (CORE / module.partition(".")[0]).is_dir() else "root"


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the core that one imports, inside functions and for types too."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    if module == "__init__":
        package = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
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
