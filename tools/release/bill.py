"""Write down what an environment consists of: versions, hashes, licences.

    .venv-test/bin/python -m tools.release.bill FOLDER test
    .venv-comfyui/bin/python -m tools.release.bill FOLDER comfyui

Looks at the environment that runs it, and asks pip for the hash of each package's file (for which pip needs its
registry). Writes `locked-*.txt`, which `pip install --require-hashes --no-deps -r` takes, and `sbom*.cdx.json`, a
bill of materials in CycloneDX 1.5. Neither names where the files came from.
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

from .archive import versions

OURS = ("sdvg", "pip", "setuptools", "wheel")
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
    """Write both files for the environment that runs this."""
    folder = Path(sys.argv[1])
    # Of an environment over another, the upper one's come first, and count.
    packages = {_name(package): package for package in reversed([*distributions()]) if _name(package) not in OURS}
    write_bill(folder, sys.argv[2], packages, ask_for_hashes(packages))


def write_bill(
    folder: Path, environment: str, packages: Mapping[str, Distribution], hashes: Mapping[str, str]
) -> None:
    """Write the locked list and the bill of an environment's packages, whose `hashes` are those of their files.

    `environment`: as `dev.py` calls it; the files of `test` have no name of their own.
    """
    kind = "" if environment == "test" else f"-{environment}"
    where = f"{platform.system().lower()}-{platform.machine()}-py{sys.version_info[0]}{sys.version_info[1]}"
    name = f"locked{kind}-{where}.txt"
    head = HEAD.format(command=environment, where=where, name=name)
    names = sorted(packages)
    lines = [f"{package}=={packages[package].version} --hash=sha256:{hashes[package]}" for package in names]
    (folder / name).write_text(head + "\n".join(lines) + "\n", encoding="ascii")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "sdvg", "version": versions()[0]}},
        "components": [component(package, packages[package], hashes[package]) for package in names],
    }
    (folder / f"sbom{kind}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")


def component(name: str, package: Distribution, digest: str) -> dict[str, Any]:
    """Return a package as CycloneDX describes one."""
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": [{"expression": licence_of(package)}],
    }


def licence_of(package: Distribution) -> str:
    """Return the licence that a release states, as an SPDX expression where it can be told."""
    name = _name(package)
    stated = package.metadata
    if name in TOLD_BY_FILE:
        return TOLD_BY_FILE[name]
    if "License-Expression" in stated:
        return stated["License-Expression"]
    classified = [
        line.rpartition("::")[2].strip()
        for line in stated.get_all("Classifier") or ()
        if line.startswith("License")
    ]
    plain = [licence for licence in classified if licence != "OSI Approved"]
    text = stated["License"].strip() if "License" in stated else ""
    short = text if text and len(text) < 40 and "\n" not in text else ""
    parts = [SPELLINGS.get(licence, licence) for licence in plain or [short] if licence]
    if not parts:
        raise ValueError(f"{name} states no licence; look into its wheel, and write it into TOLD_BY_FILE")
    return " AND ".join(dict.fromkeys(parts))


def ask_for_hashes(packages: Mapping[str, Distribution]) -> dict[str, str]:
    """Return the SHA-256 of each package's file, as pip would fetch it now."""
    # A local version, such as torch's +cpu, is a registry's own business; pip finds it without.
    wanted = [f"{name}=={package.version.partition('+')[0]}" for name, package in packages.items()]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    pip += ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    report = json.loads(subprocess.check_output([*pip, *wanted]))
    hashes = {}
    for entry in report["install"]:
        name = _normal(entry["metadata"]["name"])
        if entry["metadata"]["version"] != packages[name].version:
            raise ValueError(
                f"{name} is {packages[name].version} here, but pip finds {entry['metadata']['version']}"
            )
        hashes[name] = entry["download_info"]["archive_info"]["hashes"]["sha256"]
    return hashes


def _name(package: Distribution) -> str:
    return _normal(package.metadata["Name"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
