"""docs/embedding.md: its programs run; the example server streams blocks to a browser."""

import re
from pathlib import Path

import pytest

import sdvg_core

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
ONE_CALL, TEN_LINES, STEERED = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_one_call_makes_a_video(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(ONE_CALL, "embedding", "exec"), names)  # noqa: S102
    assert names["folder"] == Path("out")
    assert len(names["report"].blocks) == 3
    assert (tmp_path / "out" / "video.mp4").is_file()


def test_the_ten_lines_give_blocks(capsys):
    assert len([line for line in TEN_LINES.splitlines() if line]) <= 10
    exec(compile(TEN_LINES, "embedding", "exec"), {})  # noqa: S102
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("(9, 64, 64, 3) block 1/4: made by the large model")
    assert all(line.startswith(f"(12, 64, 64, 3) block {n}/4: ") for n, line in enumerate(lines[1:], 2))


def test_steered_video_is_made_again():
    names = {}
    exec(compile(STEERED, "embedding", "exec"), names)  # noqa: S102
    assert [block.number for block in names["whole"]] == [1, 2, 3, 4, 5, 6]
    assert names["whole"][3].record.prompt.startswith("a big blue ball")
    assert names["whole"][-1].frames.equal(names["block"].frames)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RouterConfig", "sdvg_core.RouterConfig is now Route; see"),
        ("Rout", "sdvg_core has no Rout; it offers At,"),
    ],
)
def test_unknown_name_is_a_sentence(name, words):
    """An earlier version's name, and one that never was."""
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(sdvg_core, name)
