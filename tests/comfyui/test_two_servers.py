"""`queue` over two real servers, of which one is stopped and started again meanwhile: every video there, once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import av
import pytest
from running_server import ROOT, Restartable, Server, restartable_server
from sdvg_pack.sdvg_core.cli import main
from sdvg_pack.sdvg_core.pocket.world import SHAPES
from sdvg_pack.sdvg_core.report.run_report import hide_prompt, read_report

pytestmark = pytest.mark.comfyui

WAYS = ("right from the left", "left from the right", "down from the top", "up from the bottom")
PROMPTS = [
    f"a {size} {colour} {shape} drifts {way} over {ground}"
    for size, colour, shape, way, ground in product(
        ("big", "small"), ("red", "blue"), SHAPES, WAYS, ("sand", "grass")
    )
]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    with restartable_server(tmp_path_factory.mktemp("mortal")) as running:
        yield running


@pytest.mark.parametrize("count, blocks", [(6, 2), pytest.param(50, 1, marks=pytest.mark.exhaustive)])
def test_every_video_is_there_once_though_a_server_is_killed_meanwhile(
    count: int, blocks: int, mortal: Restartable, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    workflow["3"]["inputs"]["blocks"] = blocks
    (tmp_path / "workflow.json").write_text(json.dumps(workflow), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS[:count]), encoding="utf-8")
    out = tmp_path / "out"
    words = ["queue", "--workflow", str(tmp_path / "workflow.json"), "--prompt-file", str(tmp_path / "prompts.txt")]
    servers = [word for port in (mortal.port, server.port) for word in ("--server", f"http://127.0.0.1:{port}")]

    seed = str(count)  # of their own, for a server remembers what it made for another test
    trouble = Trouble(mortal, out)
    with trouble:
        code = main([*words, *servers, "--output", str(out), "--seeds", seed])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert trouble.killed, "no server was killed"
    assert f"http://127.0.0.1:{mortal.port} is away" in said.err
    # Six videos may be made before it is back.
    assert count == 6 or f"http://127.0.0.1:{mortal.port} is there again" in said.err
    rows = [json.loads(line) for line in (out / "videos.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["number"], row["state"], row["blocks"]) for row in rows] == [
        (number, "finished", blocks) for number in range(1, count + 1)
    ]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [row["folder"] for row in rows]
    for row, prompt in zip(rows, PROMPTS, strict=False):
        report = read_report(out / row["folder"] / "report.json")
        assert {block.prompt for block in report.blocks} == {hide_prompt(prompt)}
        assert report.settings["seed"] == count
        assert pixel_frames(out / row["folder"] / "video.mp4") == report.pixel_frames
        assert [line.count(f"video {row['folder']} finished") for line in said.err.splitlines()].count(1) == 1


class Trouble:
    """Kills a server as soon as a video is there while it has one of its own, and starts it again."""

    def __init__(self, server: Restartable, out: Path) -> None:
        self.killed = False
        self._server, self._out, self._over = server, out, threading.Event()
        self._thread = threading.Thread(target=self._make)

    def _make(self) -> None:
        while not self._over.is_set():
            if list(self._out.glob("*/video.mp4")) and self._server.is_running_one():
                self._server.kill()
                self.killed = True
                self._server.start()
                return
            time.sleep(0.02)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()


def pixel_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))
