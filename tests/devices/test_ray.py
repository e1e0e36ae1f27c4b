"""Workers on Ray: what they return arrives, and a cluster of this machine is seen by nobody else."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from toy_ray import ToyRay
from toy_workers import Toy

from sdvg_core.devices.workers import spread
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import UnwritableFolder

TOKEN = "RAY_AUTH_TOKEN"
MODE = "RAY_AUTH_MODE"


@pytest.fixture
def ray(monkeypatch) -> ToyRay:
    toy = ToyRay()
    monkeypatch.setitem(sys.modules, "ray", toy)
    for name in (TOKEN, MODE, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "")  # so that what is set below goes with this test
        monkeypatch.delenv(name)
    return toy


def test_refusal_of_any_class_returns_from_ray(ray, tmp_path):
    """Catches: an error that Ray can carry away and not bring back."""
    task = f"unwritable {tmp_path}"
    results = dict(spread([task, "say a"], Toy, ["cpu"], ray="auto"))
    assert isinstance(results[task], UnwritableFolder)
    assert results["say a"][0] == "cpu"


def test_local_cluster_gets_its_own_token(ray):
    """Catches: ports on every address of the machine, and a token in a file of the home folder."""
    list(spread(["say a"], Toy, ["cpu"], ray="local"))
    assert ray.environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert MODE not in ray.environment, "it is on by default, and the user may set it"
    assert len(ray.environment[TOKEN]) == 64


def test_cluster_elsewhere_keeps_its_settings(ray):
    """Catches: a token of ours where the cluster has one already."""
    list(spread(["say a"], Toy, ["cpu"], ray="auto"))
    assert not {TOKEN, MODE, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"} & ray.environment.keys()


def test_token_of_the_user_is_kept(ray, monkeypatch):
    monkeypatch.setenv(TOKEN, "a" * 64)
    list(spread(["say a"], Toy, ["cpu"], ray="local"))
    assert ray.environment[TOKEN] == "a" * 64


def test_local_cluster_open_to_others_is_refused(ray):
    """Catches: a Ray that was imported before, or does not know the setting, and listens everywhere."""
    ray.address_info["node_ip_address"] = "192.0.2.2"
    with pytest.raises(BadInput, match="192\\.0\\.2\\.2"):
        list(spread(["say a"], Toy, ["cpu"], ray="local"))
    assert ray.ended


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not Path("/proc/net").is_dir(), reason="needs /proc/net")
def test_real_ray_listens_on_this_machine_alone(tmp_path, monkeypatch):
    """Catches: a name of Ray's setting that a later version does not know any more."""
    if getattr(find_spec("ray"), "origin", None) is None:  # a folder of this name is no package
        pytest.skip("ray is an optional extra")  # imported before, it would listen on all addresses
    monkeypatch.setenv("HOME", str(tmp_path))
    before = listening()
    done = spread(["say a", "say b"], Toy, ["cpu"], ray="local")
    next(done)
    during = listening() - before
    done.close()
    assert len(during) > 3
    assert {address for address in during if not address.startswith(LOOPBACK)} == set()
    assert list(tmp_path.iterdir()) == []


LOOPBACK = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
"""127.0.0.1, the same as an address of six words, and ::1, as in /proc/net."""


def listening() -> set[str]:
    """Return the addresses with ports on which anything listens here."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    return {line[1] for line in lines if line[3] == "0A"}
