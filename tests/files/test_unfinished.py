"""Large files that appear once they are whole."""

import errno
import os

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.files.unfinished import unfinished_file


@pytest.fixture(params=["links", "no links"])
def disk(request, monkeypatch):
    """A disk that has links, and one that has none."""

    def refuse(*paths: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("disk")
def test_file_appears_once_it_is_whole(tmp_path):
    path = tmp_path / "model"
    with unfinished_file(path, tmp_path / ".part", 4) as file:
        file.write(b"four")
        assert not path.exists()
    assert path.read_bytes() == b"four"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.usefixtures("disk")
def test_file_that_came_meanwhile_stays(tmp_path):
    """And what was written is kept. Catches: another program's file replaced."""
    path = tmp_path / "model"
    part = tmp_path / ".part"

    def make_both() -> None:
        with unfinished_file(path, part, 4) as file:
            file.write(b"ours")
            path.write_bytes(b"theirs")

    with pytest.raises(BadInput, match="is there already"):
        make_both()
    assert path.read_bytes() == b"theirs"
    assert part.read_bytes() == b"ours"
