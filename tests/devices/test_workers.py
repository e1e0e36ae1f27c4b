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


def test_workers_do_every_task_once():
    """A worker is opened once, and has a device of its own. Catches: a process for each task, two on one device."""
    tasks = [f"say {number}" for number in range(7)]
    results = list(spread(tasks, Toy, ["a", "b"]))
    assert sorted(task for task, _ in results) == tasks
    workers = {worker for _, worker in results}
    assert len(workers) <= 2
    assert {device for device, _ in workers} <= {"a", "b"}


def test_refused_task_stops_no_other():
    results = dict(spread(["refuse", "say a", "say b"], Toy, ["a"]))
    assert str(results["refuse"]) == "refuse is no task"
    assert results["say a"] == results["say b"], "by the same worker"


def test_task_waits_until_it_may_begin():
    """Catches: a task before the one that it waits for, and one that may never begin, waited for."""
    done: list[str] = []
    tasks = ["say later", "say never", "refuse", "say first"]
    waits = {"say later": {"say first"}, "say never": {"say a"}}
    for task, _ in spread(tasks, Toy, ["a", "b"], ready=lambda task: waits.get(task, set()) <= set(done)):
        done.append(task)
    assert sorted(done) == ["refuse", "say first", "say later"]
    assert done.index("say first") < done.index("say later")


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
    refusals = list(every_refusal())
    assert {BadInput, UnwritableFolder} < {type(refusal) for refusal in refusals}
    for refusal in refusals:
        carried = carry(refusal)
        assert type(carried) is type(refusal)
        assert str(carried) == str(refusal)
        assert vars(carried) == vars(refusal)


def test_long_refusal_keeps_its_help_when_pickled():
    """Catches: a message that is shortened once more where it arrives."""
    refusal = BadInput("a fault; a remedy", help="a line of help\n" * 100)
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)  # noqa: S301


def test_refusal_of_any_class_reaches_the_caller(tmp_path):
    """Catches: a folder that cannot be written reported as a worker that died, and all others lost with it."""
    task = f"unwritable {tmp_path}"
    results = dict(spread([task, "say a"], Toy, ["a"]))
    assert isinstance(results[task], UnwritableFolder)
    assert "no space" in str(results[task])
    assert results["say a"][0] == "a"


def test_tasks_after_the_last_worker_are_named():
    """Catches: tasks that are left out of the answer, and a call that waits for them for ever."""
    tasks = ["say a", "die", "say b", "say c"]
    results = list(spread(tasks, Toy, ["a"]))
    assert [task for task, _ in results] == tasks
    assert [str(result) for _, result in results[1:]] == [DIED] * 3


def test_worker_that_cannot_load_ends_the_call():
    """Catches: a call that goes on with fewer workers, or waits for one that never opened."""
    with pytest.raises(BadInput, match=r"^the models do not fit$"):
        list(spread(["early", "say a"], Toy, ["full", "a"]))


def test_stopping_ends_tasks_and_begins_no_other(tmp_path):
    """Two tasks end early that wait for the wish to stop, which comes once both have begun."""
    signs = [tmp_path / "first", tmp_path / "second"]
    tasks = [f"early {sign}" for sign in signs]
    results = list(spread([*tasks, "say a"], Toy, ["a", "b"], stop=lambda: all(sign.exists() for sign in signs)))
    assert sorted(task for task, _ in results) == tasks


def test_closing_the_results_ends_the_workers(tmp_path):
    results = spread(["say a", f"wait {tmp_path / 'begun'}"], Toy, ["a"])
    _, (_, process) = next(results)
    results.close()
    assert not is_alive(process)


def calling(folder: Path, tasks: list[str]) -> subprocess.Popen[str]:
    """Start a program with a worker for each task."""
    program = (
        "from toy_workers import Toy\nfrom sdvg_core.devices.workers import spread\n"
        f"if __name__ == '__main__': list(spread({tasks}, Toy, ['a'] * {len(tasks)}))\n"
    )
    (folder / "caller.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}
    command = [sys.executable, folder / "caller.py"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_workers_leave_nothing_behind_in_the_system(tmp_path):
    """Catches `leaked semaphore objects` at the end, one for every worker."""
    with calling(tmp_path, ["say a", "say b"]) as caller:
        _, errors = caller.communicate()
    assert caller.returncode == 0
    assert errors == ""


def test_killing_the_caller_ends_the_workers(tmp_path):
    """The workers of a pool wait for ever for one that is gone. Catches: a worker that does not look after it."""
    sign = tmp_path / "begun"
    with calling(tmp_path, [f"wait {sign}"]) as caller:
        wait_until(lambda: sign.exists() and sign.read_text())
        process = int(sign.read_text())
        caller.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(process))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # One that its killed parent left behind may wait as a zombie for whoever is first in this container.
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text() if Path("/proc").exists() else True
