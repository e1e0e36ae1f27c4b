"""Tasks over worker processes: each with one result, whatever happens to the workers."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from toy_workers import Toy

import sdvg_core
from sdvg_core.devices.workers import DIED, spread
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import UnwritableFolder


def test_two_workers_do_every_task_once_with_what_they_hold():
    tasks = [f"say {i}" for i in range(7)]
    done = list(spread(tasks, Toy, ["a", "b"]))
    assert sorted(task for task, _ in done) == tasks
    assert len({who for _, who in done}) <= 2, "a worker is opened once, and has a device of its own"
    assert {name for _, (name, _) in done} <= {"a", "b"}


def test_a_task_that_is_refused_costs_the_others_nothing():
    done = dict(spread(["refuse", "say a", "say b"], Toy, ["a"]))
    assert str(done.pop("refuse")) == "refuse is no task"
    assert sorted(done) == ["say a", "say b"]
    assert len(set(done.values())) == 1


def every_refusal() -> Iterator[BadInput]:
    """Yield an error of each class of ours, with a text for every parameter."""
    for module in pkgutil.walk_packages(sdvg_core.__path__, "sdvg_core."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    classes = [BadInput]
    for kind in classes:
        classes += kind.__subclasses__()
        yield kind(*(f"<{name}>" for name in inspect.signature(kind).parameters))


@pytest.mark.parametrize("carry", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])  # noqa: S301
def test_every_refusal_survives_a_pickle(carry):
    """Catches: an error whose class takes other arguments than it keeps, which no other process can read."""
    kinds = set()
    for refusal in every_refusal():
        again = carry(refusal)
        assert type(again) is type(refusal)
        assert str(again) == str(refusal)
        assert vars(again) == vars(refusal)
        kinds.add(type(refusal))
    assert {BadInput, UnwritableFolder} < kinds


def test_a_long_refusal_keeps_its_help_in_a_pickle():
    """Catches: a message that is shortened once more where it arrives."""
    refusal = BadInput("a fault; a remedy", help="a line of help\n" * 100)
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)  # noqa: S301


def test_a_refusal_of_another_class_reaches_the_caller(tmp_path):
    """Catches: a folder that cannot be written reported as a worker that died, and all others lost with it."""
    task = f"unwritable {tmp_path}"
    results = dict(spread([task, "say a"], Toy, ["a"]))
    assert isinstance(results[task], UnwritableFolder)
    assert "(no space); name another folder" in str(results[task])
    assert results["say a"][0] == "a"


def test_every_task_that_the_last_worker_leaves_is_named():
    """Catches: tasks that are left out of the answer, and a call that waits for them for ever."""
    done = list(spread(["say a", "die", "say b", "say c"], Toy, ["a"]))
    assert [task for task, _ in done] == ["say a", "die", "say b", "say c"]
    assert [str(made) for _, made in done[1:]] == [DIED] * 3


def test_a_worker_that_cannot_load_its_models_ends_it_all_in_one_sentence():
    with pytest.raises(BadInput, match=r"^the models do not fit$"):
        list(spread(["early", "say a"], Toy, ["full", "a"]))


def test_a_wish_to_stop_ends_what_is_under_way_early_and_begins_nothing_more(tmp_path):
    begun = [tmp_path / "one", tmp_path / "two"]
    tasks = [f"early {file}" for file in begun]
    done = list(spread([*tasks, "say a"], Toy, ["a", "b"], stop=lambda: all(file.exists() for file in begun)))
    assert sorted(task for task, _ in done) == tasks


def test_no_process_is_left_when_the_caller_goes_away(tmp_path):
    done = spread(["say a", f"wait {tmp_path / 'never'}"], Toy, ["a"])
    _, (_, worker) = next(done)
    done.close()
    assert not is_alive(worker)


def calling(folder: Path, tasks: list[str]) -> subprocess.Popen[str]:
    """Start a program with a worker for each task."""
    program = (
        "from toy_workers import Toy\nfrom sdvg_core.devices.workers import spread\n"
        f"if __name__ == '__main__': list(spread({tasks}, Toy, ['a'] * {len(tasks)}))\n"
    )
    (folder / "caller.py").write_text(program, encoding="utf-8")
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}
    return subprocess.Popen([sys.executable, folder / "caller.py"], env=here, stderr=subprocess.PIPE, text=True)


def test_workers_leave_nothing_behind_in_the_system(tmp_path):
    """Catches `leaked semaphore objects` at the end, one for every worker."""
    with calling(tmp_path, ["say a", "say b"]) as caller:
        _, errors = caller.communicate()
    assert (caller.returncode, errors) == (0, "")


def test_no_process_is_left_when_the_caller_is_killed(tmp_path):
    """The workers of a pool wait for ever for one that is gone. Catches: a worker that does not look after it."""
    with calling(tmp_path, [f"wait {tmp_path / 'there'}"]) as caller:
        wait_for(lambda: (tmp_path / "there").exists() and (tmp_path / "there").read_text())
        worker = int((tmp_path / "there").read_text())
        caller.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(worker))


def wait_for(something: Callable[[], object]) -> None:
    until = time.monotonic() + 600
    while not something():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # One that its killed parent left behind may wait as a zombie for whoever is first in this container.
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text() if Path("/proc").exists() else True
