"""No network, seen from outside the process: native code and children count as much as Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_machine import SOCKET_CALL, WATCH, stay

# Asks the C library, which Python does not hear of, for a socket, and has a child ask for one.
INTERNET, FILE = 2, 1
ASKS = """
import ctypes, subprocess, sys
library = ctypes.CDLL(None)
family = int(sys.argv[1])
asked = [library.socket(family, 1, 0)]
child = "import ctypes, sys; sys.exit(ctypes.CDLL(None).socket(int(sys.argv[1]), 1, 0) == -1)"
asked.append(-subprocess.run([sys.executable, "-c", child, str(family)]).returncode)
sys.exit(sum(number == -1 for number in asked))
"""


def asks(family: int, folder: Path, *, watched: bool = True) -> int:
    """Return how many of two sockets, one of them a child's, were refused to code that does not ask Python."""
    (folder / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    environment = {**os.environ, "SDVG_NOTES": str(folder / "notes"), "SDVG_SOCKET_CALL": SOCKET_CALL}
    if watched:
        environment["PYTHONPATH"] = str(folder)
    return subprocess.run([sys.executable, "-c", ASKS, str(family)], env=environment, check=False).returncode


@pytest.mark.skipif(not SOCKET_CALL, reason="needs Linux on x86-64 or Arm, which can refuse sockets to a process")
def test_the_watch_leaves_native_code_and_children_no_internet_socket(tmp_path):
    """Without it, a run under a watch that refuses nothing would prove nothing."""
    refused = asks(INTERNET, tmp_path)
    if "refused\tnothing" in (tmp_path / "notes").read_text(encoding="utf-8"):
        pytest.skip("this system lets no process do without sockets")
    assert refused == 2
    assert asks(FILE, tmp_path) == 0
    assert asks(INTERNET, tmp_path, watched=False) == 0


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, which Linux has")
def test_everything_runs_where_there_is_no_network_at_all(files, tmp_path):
    """In a namespace without even a loopback, and in a locale whose I has a dot: one stay for both."""
    cut = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*cut, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this kernel lets nobody have a network of their own")
    found = stay(files, tmp_path, *cut, LC_ALL="tr_TR.UTF-8", LANG="tr_TR.UTF-8")
    assert found.done.returncode == 0, found.done.stderr
