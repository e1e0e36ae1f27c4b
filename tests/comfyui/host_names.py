"""Every name of ComfyUI that the nodes use, and whether a checkout has it.

    python tests/comfyui/host_names.py [COMFYUI]

with the Python of that checkout, by default COMFYUI_PATH. It lists the names, and with exit code 1 what is missing.
What is read of ComfyUI's objects is not in the list: the tests read it of real ones.
The names come from the code of `nodes`, of which nothing is loaded.

The package comfy-import-guard (1.3.0) does the same for `comfy.*`, from the sources of two versions. It was not
taken: it fetches ComfyUI by itself, and looks at neither `comfy_api` nor `folder_paths`.
"""

import ast
import importlib
import sys
from operator import attrgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = {"comfy", "comfy_api", "comfy_execution", "comfyui_version", "folder_paths", "server"}


def used_names():
    """Return every name of a module of ComfyUI's that the nodes use."""
    names = set()
    for file in (ROOT / "nodes").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        aliases = dict(_aliases(tree))
        names |= {*filter(None, aliases.values()), *(_dotted(node, aliases) for node in ast.walk(tree))}
    # The server's instance is there while it runs.
    return {name for name in names if name and ".instance" not in name}


def _aliases(tree):
    """Yield the names under which a file knows ComfyUI's modules and what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in HOST:
                    yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else ""
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in HOST:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node, aliases):
    """Return the full name that an expression states; empty if it is none of ComfyUI's."""
    if isinstance(node, ast.Name) and node.id in aliases:
        return aliases[node.id] or node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return ""


def missing(names):
    """Return what the ComfyUI in the path lacks, one sentence each."""
    faults = []
    for name in sorted(names):
        try:
            resolve(name)
        except (ImportError, AttributeError) as error:
            faults.append(f"{name} is not there ({error})")
    return faults


def resolve(name):
    """Return what a name stands for."""
    module, _, member = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if not module:
            raise
    return attrgetter(member)(resolve(module))


def start(checkout):
    """Put a checkout into the path, as ComfyUI is started, on the CPU."""
    from conftest import define_missing_ops

    sys.path[:] = [str(checkout), *(place for place in sys.path if Path(place or ".").resolve() != ROOT)]
    sys.argv = ["comfy", "--cpu"]
    define_missing_ops()
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd
    import utils.install_util  # noqa: F401  before ComfyUI's nodes.py puts another `utils` first in the path


def main():
    """List the names, and what is missing."""
    from conftest import find_comfyui

    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else find_comfyui()
    if checkout is None:
        raise SystemExit("name a checkout of ComfyUI")
    start(checkout)
    import comfyui_version

    names = used_names()
    faults = missing(names)
    lines = [*sorted(names), "", *faults]
    lines.append(f"ComfyUI {comfyui_version.__version__}: {len(faults)} of {len(names)} names are missing")
    sys.stdout.write("\n".join((*lines, "")))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
