"""Worker processes: every task once, whatever happens to the workers."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

import pytest
from toy_workers import Toy

from sdvg_core.errors import BadInput
from sdvg_core.workers.news import Failed, Finished, Heard, Queue
from sdvg_core.workers.processes import work_here


def finished(news):
    return sorted(n.task for n in news if isinstance(n, Finished))


def failures(news):
    return [(n.task, n.again) for n in news if isinstance(n, Failed)]


def test_two_workers_do_every_task_once_and_hold_their_models_for_all_of_them():
    tasks = [f"say {i}" for i in range(7)]
    news = list(work_here(tasks, [Toy, Toy]))
    assert finished(news) == tasks
    said = [n for n in news if isinstance(n, Heard)]
    assert Counter(n.task for n in said) == dict.fromkeys(tasks, 1)
    assert len({n.said for n in said}) <= 2, "a worker is opened once"
    assert all(n.worker in (0, 1) for n in said)


def test_no_more_workers_are_opened_than_there_are_tasks():
    news = list(work_here(["say a"], [partial(Toy, "first"), partial(Toy, "refuses")]))
    assert finished(news) == ["say a"]


def test_a_worker_that_dies_costs_its_task_a_try_elsewhere_and_the_others_nothing(tmp_path):
    tasks = ["say a", f"die once {tmp_path / 'grave'}", "say b", "say c"]
    news = list(work_here(tasks, [Toy, Toy], tries=2))
    assert finished(news) == sorted(tasks)
    [failed] = [n for n in news if isinstance(n, Failed)]
    assert (failed.task, failed.reason, failed.again) == (tasks[1], "a worker ended with code 7", True)
    [again] = [n for n in news if isinstance(n, Finished) and n.task == tasks[1]]
    assert again.worker != failed.worker


def test_a_task_that_fails_twice_is_given_up_and_the_rest_is_done():
    news = list(work_here(["refuse", "die", "say a", "say b"], [Toy, Toy], tries=2))
    assert finished(news) == ["say a", "say b"]
    assert sorted(failures(news)) == [("die", False), ("die", True), ("refuse", False), ("refuse", True)]
    assert {n.reason for n in news if isinstance(n, Failed)} == {"refuse is no task", "a worker ended with code 7"}


def test_with_one_worker_the_second_try_is_its_own(tmp_path):
    news = list(work_here([f"refuse once {tmp_path / 'once'}", "say a"], [Toy], tries=2))
    assert len(finished(news)) == 2
    assert failures(news) == [(f"refuse once {tmp_path / 'once'}", True)]


@pytest.mark.parametrize("name, why", [("refuses", "the models do not fit"), ("dies", "ended with code 9")])
def test_a_worker_that_cannot_load_its_models_ends_it_all_in_one_sentence(name, why, tmp_path):
    with pytest.raises(BadInput, match=why):
        list(work_here([f"wait {tmp_path / 'never'}"] * 2, [Toy, partial(Toy, name)]))


def test_a_worker_that_cannot_be_replaced_leaves_the_rest_to_the_others(tmp_path):
    tasks = ["die", *(f"say {i}" for i in range(5))]
    frail = partial(Toy, "frail", tmp_path / "grave")
    news = list(work_here(tasks, [frail, Toy], tries=2))
    assert finished(news) == tasks[1:]
    with pytest.raises(
        BadInput, match=r"the last one could not be \(there is no memory left for another one\); free"
    ):
        list(work_here(["die", "say a"], [partial(Toy, "frail", tmp_path / "other")], tries=2))


def test_a_wish_to_stop_ends_what_is_under_way_early_and_begins_nothing_more():
    heard: list[object] = []
    news = []
    for one in work_here(["early", "early", "say a"], [Toy, Toy], stop=lambda: len(heard) >= 2):
        news.append(one)
        if isinstance(one, Heard):
            heard.append(one)
    assert finished(news) == ["early", "early"]
    assert [n.said for n in news if isinstance(n, Heard)].count("early") == 2


def test_no_process_is_left_when_the_caller_goes_away(tmp_path):
    loop = work_here([f"wait {tmp_path / 'never'}"] * 2, [Toy, Toy])
    _, worker = next(loop).said
    assert worker != os.getpid()
    assert is_alive(worker)
    loop.close()
    assert not is_alive(worker)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_queue_gives_a_failed_task_to_another_worker_if_there_is_one():
    queue = Queue(["a", "b"], tries=2)
    task, failed = queue.take(0, frozenset({0, 1}))
    assert queue.give_back(task, failed, 0)
    assert queue.take(0, frozenset({0, 1}))[0] == "b"
    assert queue.take(0, frozenset({0, 1})) is None, "it waits for the other one"
    assert queue.take(0, frozenset({0})) == ("a", frozenset({0})), "unless there is none"
