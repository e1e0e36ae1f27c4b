"""Write down what a development environment consists of: versions, hashes, licences.

    .venv-test/bin/python tools/release/bill.py
    .venv-comfyui/bin/python tools/release/bill.py comfyui

Looks at the environment that runs it, asks pip for the hash of each package's file (for which pip needs its
registry), and writes beside this file: `locked-*.txt`, which `pip install --require-hashes --no-deps -r` takes, and
`sbom.cdx.json`, a bill of materials in CycloneDX 1.5. Neither names where the files came from.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = ("sdvg", "pip", "setuptools", "wheel")
SBOM = "sbom{kind}.cdx.json"
# What the metadata of a release does not say, from the licence file inside its wheel.
TOLD_BY_FILE = {"comfy-aimdo": "GPL-3.0-only", "comfyui-frontend-package": "NOASSERTION"}
# Licences as older metadata spells them.
SPELLINGS = {
    "Apache 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "PSFL": "PSF-2.0",
}
HEAD = """\
# Every package of the environment of `python3 dev.py {command}`, with the hash of its file. Made by
# tools/release/bill.py on {where}; other systems have other files. torch is the CPU build that PyTorch publishes.
#     pip install --require-hashes --no-deps -r {name}
"""


def main() -> None:
    """Write both files. An argument names the environment, if it is not that of the core's tests."""
    kind = f"{sys.argv[1]}-" if sys.argv[1:] else ""
    # Of an environment over another, the upper one's come first, and count.
    found = {_name(one): one for one in reversed([*distributions()]) if _name(one) not in OURS}
    hashes = ask_for_hashes(found)
    where = f"{platform.system().lower()}-{platform.machine()}-py{sys.version_info[0]}{sys.version_info[1]}"
    name = f"locked-{kind}{where}.txt"
    lines = [f"{package}=={found[package].version} --hash=sha256:{hashes[package]}" for package in sorted(found)]
    (HERE / name).write_text(
        HEAD.format(command=sys.argv[1] if kind else "test", where=where, name=name) + "\n".join(lines) + "\n",
        encoding="ascii",
    )
    components = [component(package, found[package], hashes[package]) for package in sorted(found)]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "sdvg", "version": _version_of_ours()}},
        "components": components,
    }
    (HERE / SBOM.format(kind=f"-{sys.argv[1]}" if kind else "")).write_text(
        json.dumps(bill, indent=1) + "\n", encoding="utf-8"
    )


def component(package: str, found: Distribution, digest: str) -> dict[str, Any]:
    """Return a package as CycloneDX describes one."""
    return {
        "type": "library",
        "name": package,
        "version": found.version,
        "purl": f"pkg:pypi/{package}@{found.version}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": [{"expression": licence_of(found)}],
    }


def licence_of(found: Distribution) -> str:
    """Return the licence that a release states, as an SPDX expression where it can be told."""
    name, stated = _name(found), found.metadata
    if name in TOLD_BY_FILE:
        return TOLD_BY_FILE[name]
    expression = stated.get("License-Expression")
    if expression:
        return str(expression)
    classified = [
        line.rpartition("::")[2].strip()
        for line in stated.get_all("Classifier") or ()
        if line.startswith("License")
    ]
    plain = [one for one in classified if one != "OSI Approved"]
    text = str(stated.get("License") or "").strip()
    short = text if text and len(text) < 40 and "\n" not in text else ""
    parts = [SPELLINGS.get(one, one) for one in plain or [short] if one]
    if not parts:
        raise ValueError(f"{name} states no licence; look into its wheel, and write it into TOLD_BY_FILE")
    return " AND ".join(dict.fromkeys(parts))


def ask_for_hashes(found: Mapping[str, Distribution]) -> dict[str, str]:
    """Return the SHA-256 of each package's file, as pip would fetch it now."""
    # A local version, such as torch's +cpu, is a registry's own business; pip finds it without.
    wanted = [f"{name}=={one.version.partition('+')[0]}" for name, one in found.items()]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    pip += ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    report = json.loads(subprocess.check_output([*pip, *wanted]))
    hashes = {}
    for entry in report["install"]:
        name = _normal(entry["metadata"]["name"])
        if entry["metadata"]["version"] != found[name].version:
            raise ValueError(f"{name} is {found[name].version} here, but pip finds {entry['metadata']['version']}")
        hashes[name] = entry["download_info"]["archive_info"]["hashes"]["sha256"]
    return hashes


def _version_of_ours() -> str:
    text = (HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    assert found is not None
    return found[1]


def _name(found: Distribution) -> str:
    return _normal(found.metadata["Name"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
