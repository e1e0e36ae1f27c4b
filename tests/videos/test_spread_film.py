"""The shots of one film on several workers: the film is bit for bit what one process makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mortal import DOOMED, GRAVE, open_mortal

from sdvg_core.files.outputs import unfinished_blocks
from sdvg_core.videos import many
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import names, options, override, refused
from tests.support.forked import TWO, fork_workers, ray_here
from tests.support.reuse_folders import Run, counted_passes, ctrl_c, decisions, made, results

KEYS = ("#0", "#b", "#c", DOOMED, "#e", "#f", "#g", "#h", "#i", "#j")
PROMPTS = ("a red ball", "a blue cube", "a storm")
TWO_BLOCKS = (0, 3)
"""Numbers of the shots of two blocks; the others have one."""
ORIGINS = {2: " from #b", 4: " from #c", 8: " from #0"}
NOTE = "Workers made its shots side by side; the seconds are theirs together."


def film() -> list[str]:
    """Return the options of a film of ten shots, three of which begin with the last frame of another."""
    lines = []
    block = 1
    for number, key in enumerate(KEYS):
        fresh = f" fresh {key}{ORIGINS.get(number, '')}" if number else ""
        lines.append(f"{block}{fresh}: {PROMPTS[number % 3]}")
        block += 2 if number in TWO_BLOCKS else 1
    return ["--prompt", "\n".join(lines), "--blocks", str(block - 1)]


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    small = ["--size", "16x16", "--schedule", "1000,500", "--seed", "2", "--tau", "0.1"]
    return [*options(files), *small, *film()]


@pytest.fixture(scope="module")
def alone(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """The film as one process makes it, and its folder."""
    folder = tmp_path_factory.mktemp("alone") / "film"
    return made(folder, base), folder


def same_film(folder: Path, run: Run, alone: tuple[Run, Path]) -> None:
    """Check that a film is the one that a single process made."""
    expected, other = alone
    assert run.latents == expected.latents
    assert (folder / "video.mp4").read_bytes() == (other / "video.mp4").read_bytes()
    assert decisions(run.report) == decisions(expected.report)
    assert results(folder) == results(other)
    assert names(folder) == names(other)
    assert [note for note in run.report["notes"] if note != NOTE] == expected.report["notes"]


def test_shots_in_any_order_make_the_same_film(base, alone, tmp_path, monkeypatch):
    """From the last one to the first, and the film of their blocks.

    Catches: a shot that begins before the one it goes on from, blocks under another shot's number, a film that
    makes them again.
    """
    order: list[str] = []
    counts: list[int] = []

    def backwards(tasks, open_worker, devices, *, ready, **_) -> Iterator[Any]:
        work = open_worker(devices[0])
        left = list(tasks)
        while left:
            task = next(task for task in reversed(left) if ready(task))
            left.remove(task)
            before = len(passes)
            result = work(task, bool)
            order.append(getattr(task, "key", "film"))
            counts.append(len(passes) - before)
            yield task, result

    monkeypatch.setattr(many, "spread", backwards)
    with counted_passes() as passes:
        run = made(tmp_path / "film", [*base, *TWO])
    same_film(tmp_path / "film", run, alone)
    assert order == ["#j", "#h", "#g", "#f", DOOMED, "#b", "#c", "#e", "#0", "#i", "film"]
    assert [name for name, count in zip(order, counts, strict=True) if count == 0] == ["film"]


def test_shots_on_workers_make_the_same_film(base, alone, tmp_path, monkeypatch):
    """Catches: files that workers take from each other, a film in a numbered folder."""
    fork_workers(monkeypatch)
    run = made(tmp_path / "film", [*base, *TWO])
    same_film(tmp_path / "film", run, alone)
    assert NOTE in run.report["notes"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_shots_over_ray_make_the_same_film(base, alone, tmp_path, monkeypatch):
    """Also if a worker is killed in a shot: Ray restarts it. Catches: a shot that is then given up."""
    ray_here(monkeypatch)
    monkeypatch.setenv(GRAVE, str(tmp_path / "grave"))
    monkeypatch.setattr(many, "open_worker", open_mortal)
    run = made(tmp_path / "film", [*base, "--ray", "local", *TWO])
    same_film(tmp_path / "film", run, alone)
    assert (tmp_path / "grave").exists(), "no worker was killed"


def test_next_call_makes_what_a_worker_lost(base, alone, tmp_path, capsys, monkeypatch):
    """A worker dies after the first block of a shot.

    Catches: a shot that is missing and not named, the shots of others lost, or made again.
    """
    fork_workers(monkeypatch)
    monkeypatch.setenv(GRAVE, str(tmp_path / "grave"))
    out = tmp_path / "film"
    with monkeypatch.context() as patched:
        patched.setattr(many, "open_worker", open_mortal)
        assert generate_to(out, [*base, *TWO]) == 1
    assert (tmp_path / "grave").exists(), "no worker was killed"
    assert f"sdvg: not made: {DOOMED}: a worker died" in capsys.readouterr().err
    assert not out.exists()
    kept = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in unfinished_blocks(out)}
    assert len(kept) == 11, "all but the second block of the shot"
    run = made(out, [*base, *TWO])
    same_film(out, run, alone)
    files = {name: out / "blocks" / name for name in kept}
    assert {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in files.items()} == kept


def test_stopped_film_goes_on(base, alone, tmp_path, capsys, monkeypatch):
    """Catches: a film of the shots that are there, in place of all; and blocks that a stop loses."""
    fork_workers(monkeypatch)
    out = tmp_path / "film"
    outcome_of = many.outcome_of

    def stop_at(record: Any) -> Any:
        monkeypatch.setattr(many, "outcome_of", outcome_of)
        ctrl_c()
        return outcome_of(record)

    monkeypatch.setattr(many, "outcome_of", stop_at)
    assert generate_to(out, [*base, *TWO]) == 130
    assert "the same command makes the rest" in capsys.readouterr().err
    assert not out.exists()
    assert 0 < len(unfinished_blocks(out)) < 12
    same_film(out, made(out, [*base, "--workers", "1"]), alone)


def test_workers_need_several_shots(base, tmp_path, capsys):
    one = override(base, "--prompt", "a red ball", "--blocks", "2")
    assert "fresh shots" in refused(capsys, [*one, "--output", str(tmp_path / "out"), *TWO])


def generate_to(folder: Path, arguments: list[str]) -> int:
    """Run `generate` into a folder; return the exit code."""
    from sdvg_core.cli import main

    return main([*arguments, "--output", str(folder)])
