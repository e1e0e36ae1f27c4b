"""What a page is told of runs each second: no more than is new, and with it all that there is."""

import json
import random

import pytest
from comfy_page import call, write_modules
from sdvg_pack.nodes.page.live import LiveRun, LiveRuns
from sdvg_pack.nodes.page.routes import runs_since

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


def begin(runs, name, **more):
    """Begin a run of one of two nodes."""
    run = LiveRun({"run": name, "node": "5", "workflow": "w", "of": 80, "note": "n" * 500, **more})
    runs.begin(run)
    return run


def block(run, number):
    run.add({"run": run.begin["run"], "number": number, "edition": run.edition, "text": "x" * 300})


def some_change(runs, chance):
    """Change a run as a session does."""
    run = chance.choice(runs.now())
    made = len(run.events)
    act = chance.choice(["block"] * 5 + ["state", "back", "end", "begin"])
    if act == "begin":
        begin(runs, f"{chance.random():.9f}", until=chance.choice([0, 0, 3]))
    elif act == "block":
        block(run, made + 1)
    elif act == "state":
        run.tell({"held": chance.random() < 0.5})
    elif act == "back" and made:
        run.set_back(chance.randint(1, made))
    elif act == "end":
        run.end({"blocks": made})


# All that the page has after each of the answers; it then changes what it has, as events come to it.
HEARD = """(answers) => {
  const account = new js.Account();
  return answers.map((answer) => {
    const all = account.take(answer);
    const told = structuredClone(all);
    for (const { events } of all) events.splice(0);
    return told;
  });
}"""


def test_page_has_all_that_the_server_has(modules):
    """After any changes, of which it asks now and then. Catches: blocks from before *again*, and lost states."""
    cases = []
    wholes = []
    for seed in range(20):
        chance = random.Random(seed)
        runs = LiveRuns()
        begin(runs, "first")
        answers = []
        for _ in range(40):
            for _ in range(chance.randint(0, 4)):
                some_change(runs, chance)
            newest = answers[-1]["newest"] if answers else 0
            answers.append(json.loads(json.dumps(runs_since(str(newest), runs))))
            wholes.append(json.loads(json.dumps(runs_since(None, runs)["runs"])))
        cases.append(answers)
    found = [after for case in call(modules, HEARD, cases) for after in case]
    for told, whole in zip(found, wholes, strict=True):
        assert [{"state": None, **run} for run in told] == whole


def test_late_answer_changes_nothing(modules):
    """Catches: an older answer that comes last, and takes blocks away until the next."""
    runs = LiveRuns()
    run = begin(runs, "first")
    block(run, 1)
    first = runs_since("0", runs)
    block(run, 2)
    late = runs_since(str(first["newest"]), runs)
    block(run, 3)
    newest = runs_since(str(first["newest"]), runs)
    *_, last = call(modules, HEARD, [[first, newest, late]])[0]
    assert [event["number"] for event in last[0]["events"]] == [1, 2, 3]


def test_server_started_again_is_heard_whole(modules):
    """Also one whose clock was set back. Catches: a page that waits for changes with numbers that never come."""
    before, after = LiveRuns(), LiveRuns()
    block(begin(before, "before"), 1)
    block(begin(after, "after"), 1)
    first = runs_since("0", before)
    again = runs_since(str(first["newest"] + 10**6), after)
    assert again["after"] == 0
    ((_, last),) = call(modules, HEARD, [[first, again]])
    assert [run["run"] for run in last] == ["after"]


def test_answer_grows_with_the_news_alone():
    """Catches: 80 blocks and their words, sent each second to every tab."""
    runs = LiveRuns()
    run = begin(runs, "first")
    for number in range(1, 81):
        block(run, number)
    newest = runs_since("0", runs)["newest"]
    quiet = runs_since(str(newest), runs)
    assert quiet["runs"] == []
    block(run, 81)
    [told] = runs_since(str(newest), runs)["runs"]
    assert [event["number"] for event in told["events"]] == [81]
    assert told["same"] == 80
    assert "note" not in told


@pytest.mark.parametrize("after", ["", "x", "-1", "9" * 40, "1.5"])
def test_junk_is_answered_with_everything(after):
    runs = LiveRuns()
    begin(runs, "first")
    assert [run["run"] for run in runs_since(after, runs)["runs"]] == ["first"]
