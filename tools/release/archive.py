"""Make the archive that the ComfyUI registry gets, and check it.

    python3 tools/release/archive.py OUT.zip          make it from what git tracks, without what .comfyignore names
    python3 tools/release/archive.py OUT.zip --try    also install it into a clean ComfyUI and run the pocket graph

The second needs what `python3 dev.py comfyui` needs: a checkout of ComfyUI. The same files make the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md", "SECURITY.md")
NEEDED_FOLDERS = ("nodes", "sdvg_core", "workflows", "subgraphs", "locales")
# The embedded models are most of it.
LARGEST = 40_000_000
UNWANTED = [
    "subprocess",
    "eval",
    "exec",
    "urlopen",
    "requests",
    "socket",
    "ctypes",
    "pickle",
    "base64",
    "__import__",
]
"""What the registry looks for in code: no file imports or calls it."""
WORDS = re.compile(rb"subprocess|\beval\(|\bexec\(|urlopen|requests\.[a-z]|socket|ctypes|pickle|base64|__import__")
WHY = {
    "socket": "the inputs and outputs of nodes; nodes/host/sockets.py has their types",
    "pickle": "model files in that format, which torch reads with weights_only=True",
}
"""Words that the registry looks for in texts, and what they mean here; there are no others."""
PLACEHOLDER = "OWNER/REPOSITORY"
PICTURES_AND_WEIGHTS = (".png", ".jpg", ".safetensors")
EPOCH = (1980, 1, 1, 0, 0, 0)
OLDEST_PYTHON = (3, 10)
TRIAL = "tests/comfyui/test_archive.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive; say what is wrong with it, if anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", type=Path, help="file to write")
    parser.add_argument(
        "--try", dest="trial", action="store_true", help="install it into a clean ComfyUI and run it"
    )
    options = parser.parse_args(arguments)
    write_archive(options.archive)
    wrong = problems(options.archive)
    for problem in wrong:
        print(problem)
    if wrong:
        return 1
    with zipfile.ZipFile(options.archive) as archive:
        print(f"{options.archive}: {len(archive.namelist())} files, {options.archive.stat().st_size / 1e6:.1f} MB")
    if PLACEHOLDER in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        print(
            f"pyproject.toml has the placeholder {PLACEHOLDER}; write the repository's address before you publish"
        )
    if options.trial:
        return subprocess.run(
            [sys.executable, ROOT / "dev.py", "comfyui", "-m", "comfyui", TRIAL], check=False
        ).returncode
    return 0


def members(root: Path = ROOT) -> list[str]:
    """Return the files of the archive: those that git tracks and .comfyignore does not name, as paths with /."""
    tracked = _listed(root)
    left_out = set(_listed(root, "--ignored", f"--exclude-from={root / '.comfyignore'}"))
    return sorted(set(tracked) - left_out)


def write_archive(path: Path, root: Path = ROOT) -> None:
    """Write the archive; no time and no user of this machine gets into it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members(root):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, (root / name).read_bytes())


def problems(path: Path) -> list[str]:
    """Return what is wrong with an archive, a sentence each."""
    found = []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        found += [f"{name} is missing" for name in NEEDED if name not in names]
        found += [f"the folder {name} is missing" for name in NEEDED_FOLDERS if not _under(name, names)]
        found += [f"{name} leads out of the archive" for name in names if ".." in PurePosixPath(name).parts]
        found += [f"{name} is hidden" for name in names if name.startswith(".")]
        found += [f"{name} should be left out" for name in sorted(set(names) - set(members()))]
        contents = {name: archive.read(name) for name in names}
    found += wrong_inside(contents)
    if len({*versions()}) != 1:
        found.append(f"pyproject.toml, the package, CITATION.cff and CHANGELOG.md have versions {versions()}")
    if path.stat().st_size > LARGEST:
        found.append(f"it has {path.stat().st_size:,} bytes, more than {LARGEST:,}")
    return found


def wrong_inside(contents: Mapping[str, bytes]) -> list[str]:
    """Return what is wrong with the files of an archive, a sentence each."""
    found = [problem for name, content in contents.items() for problem in _unreadable(name, content)]
    if found:
        return found
    sources = {name: ast.parse(content) for name, content in contents.items() if name.endswith(".py")}
    found += [f"no node needs {name}; name it in .comfyignore" for name in sorted(set(sources) - needed(sources))]
    for name, tree in sources.items():
        ours = [path for path in _imports(name, tree) if path.partition("/")[0] in NEEDED_FOLDERS]
        found += [f"{name} needs {path}" for path in ours if not {*_files(path)[:4]} & {*sources}]
    found += [f"{name} uses {what}" for name, tree in sources.items() for what in unwanted(tree)]
    for name, content in contents.items():
        words = set() if name.endswith(PICTURES_AND_WEIGHTS) else {word.decode() for word in WORDS.findall(content)}
        found += [f"{name} has the word {word}" for word in sorted(words - set(WHY))]
    return found


def needed(sources: Mapping[str, ast.Module]) -> set[str]:
    """Return the files whose code runs if the pack's `__init__.py` and all functions it can reach do."""
    seen = set[str]()
    waiting = ["__init__.py"]
    while waiting:
        name = waiting.pop()
        if name in sources and name not in seen:
            seen.add(name)
            waiting += [file for path in _imports(name, sources[name]) for file in _files(path)]
    return seen


def unwanted(tree: ast.Module) -> list[str]:
    """Return which of `UNWANTED` a file imports, or calls by its bare name."""
    called = [one.func.id for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
    imported = [part for path in _imports("", tree) for part in path.split("/")]
    return [name for name in UNWANTED if name in (*called, *imported)]


def _imports(name: str, tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports, as paths: `a/b` for `from a import b`, from the pack's folder on."""
    for one in ast.iter_child_nodes(tree):
        if isinstance(one, ast.If) and isinstance(one.test, ast.Name) and one.test.id == "TYPE_CHECKING":
            continue
        if isinstance(one, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in one.names)
        if isinstance(one, ast.ImportFrom):
            folder = PurePosixPath(name, *[".."] * one.level) if one.level else PurePosixPath()
            parts = [*_resolved(folder), *(one.module or "").split(".")]
            yield from ("/".join(filter(None, (*parts, alias.name))) for alias in one.names)
        yield from _imports(name, one)


def _resolved(path: PurePosixPath) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return parts


def _files(path: str) -> list[str]:
    """Return the files that importing a path runs, if they exist: its own, then those of the folders around it."""
    folders = (PurePosixPath(path), *PurePosixPath(path).parents)
    return [name for folder in folders for name in (f"{folder}.py", str(folder / "__init__.py"))]


def versions(root: Path = ROOT) -> list[str]:
    """Return the version that each place states: package, nodes, citation, changelog. It follows semver.org."""
    stated = {
        "pyproject.toml": r'^version = "(.+)"',
        "sdvg_core/__init__.py": r'^__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)",
        "CHANGELOG.md": r"^## (\d+\.\d+\.\d+)",
    }
    found = [re.search(form, (root / name).read_text("utf-8"), re.MULTILINE) for name, form in stated.items()]
    return [one[1] if one else "none" for one in found]


def _unreadable(name: str, content: bytes) -> list[str]:
    try:
        if name.endswith(".py"):
            ast.parse(content, name, feature_version=OLDEST_PYTHON)
        elif name.endswith(".json"):
            json.loads(content)
    except (SyntaxError, ValueError) as error:
        return [f"{name} cannot be read: {error}"]
    return []


def _under(folder: str, names: Sequence[str]) -> bool:
    return any(name.startswith(f"{folder}/") for name in names)


def _listed(root: Path, *options: str) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", *options]
    return [name for name in subprocess.check_output(command, text=True).split("\0") if name]


if __name__ == "__main__":
    sys.exit(main())
