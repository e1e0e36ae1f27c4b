"""What the strip on the sampler works out by itself, run by node: lengths, the next run, letters and takes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import ROOT
from sdvg_pack.sdvg_core.engine.directions import check_directions, read_takes

pytestmark = pytest.mark.comfyui

PURE = ("directions.js", "fates.js", "length.js", "next_run.js", "run_log.js")
AUTHORS = {
    "forced": "T",
    "remade": "T",
    "target_unseen": "T",
    "bailed_out": "T",
    "kept": "D",
    "drafted_unseen": "D",
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules, that node takes for ES modules."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    folder = tmp_path_factory.mktemp("modules")
    for name in PURE:
        shutil.copy(ROOT / "nodes" / "web" / name, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="ascii")
    return folder


def call(modules: Path, source: str, argument: Any) -> Any:
    """Run JavaScript with `given` and all that the modules export; returns what it says with `tell`."""
    names = ("directions.js", "length.js", "next_run.js", "run_log.js")
    imports = "".join(f'import * as m{i} from "./{name}";\n' for i, name in enumerate(names))
    everything = ", ".join(f"...m{i}" for i in range(len(names)))
    program = f"{imports}const js = {{{everything}}};\nconst given = {json.dumps(argument)};\n"
    program += f"const tell = (value) => console.log(JSON.stringify(value));\n{source}\n"
    (modules / "program.js").write_text(program, encoding="utf-8")
    done = subprocess.run(
        ["node", "program.js"], cwd=modules, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("start", "given_frames", "added"),
    [({}, 0, False), ({"image": True}, 1, False), ({"clip": True}, 27, True)],
    ids=["nothing", "image", "clip"],
)
def test_the_length_is_that_of_the_frames_which_the_decoder_makes(
    modules: Path, start: dict[str, bool], given_frames: int, added: bool
) -> None:
    """One latent frame is four frames of the video, and one at its beginning."""
    told = call(modules, "tell([1, 9, 100].map((blocks) => js.framesOf(blocks, given)))", start)
    pixels = [4 * (given_frames + 3 * blocks - 1) + 1 for blocks in (1, 9, 100)]
    before = 4 * (given_frames - 1) + 1 if added else 0
    assert told == [count - before for count in pixels]


FATES = ["forced", "kept", "remade", "kept", "target_unseen", "drafted_unseen"]
ROUTE = "....td"


def after(**changes: Any) -> dict[str, Any]:
    """Return a finished run of six blocks, and what is asked of the next."""
    events = [{"fate": fate, "seconds": 4 if AUTHORS[fate] == "T" else 1} for fate in changes.pop("fates", FATES)]
    made_with = {"directions": changes.pop("was", ROUTE), "takes": changes.pop("takes_were", "")}
    asked = {"directions": made_with["directions"], "takes": made_with["takes"], "blocks": len(FATES), **changes}
    return {"run": {**made_with, "events": events}, "next": asked}


@pytest.mark.parametrize(
    ("given", "first"),
    [
        pytest.param(after(), None, id="nothing changed"),
        pytest.param(after(takes="4:2"), 4, id="another take"),
        pytest.param(after(takes="6:2, 4:2, 5:3"), 4, id="the first of several takes"),
        pytest.param(after(takes_were="3:2", takes=""), 3, id="back to the first take"),
        pytest.param(after(directions="t...td"), None, id="the target, which made it unasked"),
        pytest.param(after(directions="..r.td"), None, id="the target after a draft, as it was"),
        pytest.param(after(directions="...ttd"), 4, id="the target in place of the drafter"),
        pytest.param(after(directions="..d.td"), 4, id="the rejected draft is kept, and what follows is new"),
        pytest.param(after(directions="d...td"), 1, id="the drafter where the target made no draft"),
        pytest.param(after(directions="....dd"), 5, id="the drafter in place of a target without draft"),
        pytest.param(after(directions=".....d"), 5, id="the router in place of a direction"),
        pytest.param(after(directions=""), 5, id="the router everywhere"),
        pytest.param(after(directions="..d.td", takes="6:2"), 4, id="the earlier of two changes"),
        pytest.param(after(fates=[*FATES[:5], "remade"], directions="....td", was="....t."), None, id="last draft"),
        pytest.param(after(blocks=8), 7, id="more blocks"),
        pytest.param(after(blocks=3), None, id="fewer blocks"),
        pytest.param(after(fates=FATES[:4]), 5, id="a run that was stopped goes on"),
        pytest.param(after(fates=["forced", "bailed_out"], was="", directions=".d", blocks=2), 2, id="bailed out"),
    ],
)
def test_what_the_next_run_makes_again(modules: Path, given: dict[str, Any], first: int | None) -> None:
    told = call(modules, "tell(js.nextRun(given.run, given.next))", given)
    blocks = given["next"]["blocks"]
    assert (told["from"], told["count"]) == (first, 0 if first is None else blocks - first + 1)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param(after(), 0, id="nothing"),
        pytest.param(after(takes="4:2"), 1 + 4 + 1, id="by those who made them"),
        pytest.param(after(directions="...ttd"), 4 + 4 + 1, id="by those who are wanted"),
        pytest.param(after(blocks=8), 2 * 15 / 6, id="added ones take the mean of all"),
        pytest.param(after(fates=["kept"] * 6, was="", directions="t....."), None, id="the target made none"),
        pytest.param(after(fates=["remade"] * 6, was="", directions="dddddd"), None, id="the drafter made none"),
    ],
)
def test_how_long_the_next_run_takes(modules: Path, given: dict[str, Any], seconds: float | None) -> None:
    told = call(modules, "tell(js.nextRun(given.run, given.next).seconds)", given)
    assert told == (None if seconds is None else pytest.approx(seconds))


def test_blocks_made_earlier_say_nothing_of_how_long_one_takes(modules: Path) -> None:
    given = after(takes="4:2")
    for event in given["run"]["events"][:3]:
        event.update(reused=True, seconds=0)
    assert call(modules, "tell(js.nextRun(given.run, given.next).seconds)", given) == pytest.approx(1 + 4 + 1)


@pytest.mark.parametrize(
    ("before", "number", "letter", "written"),
    [
        ("", 3, "t", "..t..."),
        ("..t...", 3, ".", ""),
        ("..t...", 3, "d", "..d..."),
        ("t", 6, "d", "t....d"),
        ("........t", 1, "d", "d....."),
        ("........t", 1, ".", ""),
    ],
)
def test_a_letter_is_written_in_its_place(
    modules: Path, before: str, number: int, letter: str, written: str
) -> None:
    """Padded or cut to the blocks of the run; and what is written, the server reads."""
    assert (
        call(modules, "tell(js.withLetter(given[0], 6, given[1], given[2]))", [before, number, letter]) == written
    )
    check_directions(written, 6)


@pytest.mark.parametrize(
    ("before", "number", "take", "written"),
    [
        ("", 6, 2, "6:2"),
        ("6:2", 2, 3, "2:3, 6:2"),
        ("6:2", 6, 3, "6:3"),
        ("6:2", 6, 1, ""),
        (" 6:2;2:4 ", 4, 2, "2:4, 4:2, 6:2"),
        ("9:2, 1:1, nonsense", 3, 2, "3:2"),
    ],
)
def test_a_take_is_written_beside_the_others(
    modules: Path, before: str, number: int, take: int, written: str
) -> None:
    """Without first takes and blocks that the run does not have; and the server reads it as the strip does."""
    assert call(modules, "tell(js.withTake(given[0], 6, given[1], given[2]))", [before, number, take]) == written
    shown = call(modules, "tell([...js.takesOf(given)])", written)
    assert {number - 1: take for number, take in shown} == read_takes(written, 6)


@pytest.mark.parametrize(
    ("directions", "takes", "sent"),
    [
        ("", "", ["", ""]),
        ("t.", "6:2", ["t.....", "6:2"]),
        ("......t", "7:2, 2:3", ["", "2:3"]),
        ("ttttttt", "7:2", ["tttttt", ""]),
        ("x", "2:3, 9:x", ["x.....", "2:3, 9:x"]),
    ],
)
def test_what_is_sent_is_for_the_blocks_of_the_run(
    modules: Path, directions: str, takes: str, sent: list[str]
) -> None:
    """What the server would object to anyway, it is to see."""
    told = call(modules, "tell([js.fitDirections(given[0], 6), js.fitTakes(given[1], 6)])", [directions, takes])
    assert told == sent


def test_a_block_is_next_or_known_or_lost(modules: Path) -> None:
    source = """
    const log = new js.RunLog({ run: "a", of: 5 }, [{ run: "a", number: 1 }, { run: "a", number: 2 }]);
    tell(given.map(([run, number]) => log.place({ run, number })));
    """
    events = [["a", 3], ["a", 2], ["a", 4], ["b", 3], ["b", 1]]
    assert call(modules, source, events) == ["next", "known", "lost", "lost", "lost"]


def test_of_several_runs_in_one_output_the_last_is_shown(modules: Path) -> None:
    """A list on an input makes the sampler run once for each of its values, and ComfyUI joins what they output."""
    source = """
    const log = js.RunLog.fromOutput(given, { run: "b", of: 2 });
    tell([log.run, log.of, log.events.map(({ run, number }) => `${run}${number}`)]);
    """
    events = [{"run": run, "number": number, "of": 2} for run in "ab" for number in (1, 2)]
    assert call(modules, source, events) == ["b", 2, ["b1", "b2"]]


@pytest.mark.parametrize(
    ("shown", "told", "yields"),
    [
        ("a going 2", "a going 3", True),
        ("a going 3", "a going 2", False),
        ("a going 3", "a done 3", True),
        ("a done 3", "a going 3", False),
        ("a done 3", "b going 0", True),
        ("a going 3", "b done 3", True),
        ("a done 3", "b done 3", False),
    ],
)
def test_which_of_two_accounts_of_a_node_is_shown(modules: Path, shown: str, told: str, yields: bool) -> None:
    """An older account of one run never replaces a newer one, nor another finished run what is shown."""
    source = """
    const logs = given.map((text) => text.split(" ")).map(([run, state, count]) =>
      new js.RunLog({ run }, Array.from({ length: Number(count) }), state === "done" ? {} : null));
    tell(logs[0].yieldsTo(logs[1]));
    """
    assert call(modules, source, [shown, told]) is yields
