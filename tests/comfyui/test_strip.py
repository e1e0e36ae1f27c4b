"""The strip on the sampler: what it works out by itself, run by node; and how it is used, in a page.

What the page needs is said in test_interface.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import ROOT, VERSION, Server
from sdvg_pack.sdvg_core.engine.directions import check_directions, read_takes
from test_interface import ROUTE as MADE
from test_interface import browse

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


# --- how long the video will be ----------------------------------------------------------------------------------


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


# --- what the next run makes again -------------------------------------------------------------------------------

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
        pytest.param(after(was="", fates=FATES[:4] * 2, blocks=6), None, id="nothing changed, all the router's"),
        pytest.param(after(takes="4:2"), 4, id="another take"),
        pytest.param(after(takes="6:2, 4:2, 5:3"), 4, id="the first of several takes"),
        pytest.param(after(takes="4:1"), None, id="take 1 is the plain one"),
        pytest.param(after(takes_were="3:2", takes=""), 3, id="back to the first take"),
        pytest.param(after(takes_were="3:2", takes="3:3"), 3, id="yet another take"),
        pytest.param(after(directions="t...td"), None, id="the target, which made it unasked"),
        pytest.param(after(directions="..t.td"), None, id="the target, which made it anew"),
        pytest.param(after(directions="..r.td"), None, id="the target after a draft, as it was"),
        pytest.param(after(directions=".d..td"), None, id="the drafter, which made it"),
        pytest.param(after(directions=".a..td"), None, id="the drafter and scored, as it was"),
        pytest.param(after(directions="...ttd"), 4, id="the target in place of the drafter"),
        pytest.param(after(directions="..d.td"), 4, id="the rejected draft is kept, and what follows is new"),
        pytest.param(after(directions="..a.td"), 4, id="the rejected draft is kept, scored"),
        pytest.param(after(directions="d...td"), 1, id="the drafter where the target made no draft"),
        pytest.param(after(directions="....dd"), 5, id="the drafter in place of a target without draft"),
        pytest.param(after(directions=".....d"), 5, id="the router in place of a direction"),
        pytest.param(after(directions="....t."), 6, id="the router in place of the drafter"),
        pytest.param(after(directions=""), 5, id="the router everywhere"),
        pytest.param(after(directions="..d.td", takes="6:2"), 4, id="the earlier of two changes"),
        pytest.param(after(directions="..d.td", takes="3:2"), 3, id="another take of the block that is kept"),
        pytest.param(after(fates=[*FATES[:5], "remade"], directions="....td", was="....t."), None, id="last draft"),
        pytest.param(after(blocks=8), 7, id="more blocks"),
        pytest.param(after(blocks=3), None, id="fewer blocks"),
        pytest.param(after(blocks=3, takes="4:2"), None, id="a take of a block that is gone"),
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


# --- what a square writes ----------------------------------------------------------------------------------------


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


# --- which run is shown ------------------------------------------------------------------------------------------


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


# --- in a page ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
def page(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was seen in one of the two renderers. Each has a seed of its own: neither re-uses the other's."""
    vue = request.param == "nodes 2.0"
    return browse(server, tmp_path_factory.mktemp("page"), "strip.js", vue=vue, seed=12 if vue else 11)


def of_squares(seen: dict[str, Any], name: str) -> list[Any]:
    return [square[name] for square in seen["squares"]]


def numbers(seen: dict[str, Any], name: str) -> list[int]:
    """Return which squares have a mark."""
    return [number for number, value in enumerate(of_squares(seen, name), 1) if value]


def test_squares_are_there_before_any_run(page: dict[str, Any]) -> None:
    assert of_squares(page["before"], "label") == [f"Block {number} of 9" for number in range(1, 10)]
    assert page["before"]["legend"] == "One square per block. Click one to say who makes it."
    assert (page["before"]["directions"], page["before"]["takes"], page["before"]["next"]) == ("", "", "")


def test_a_click_opens_a_menu_that_writes_the_widgets(page: dict[str, Any]) -> None:
    menu = page["menu"]
    choices = ["router decides", "target", "keep the draft"]
    radios = [["menuitemradio", name, str(name == "router decides").lower()] for name in choices]
    assert menu["opened"]["items"] == [*radios, ["menuitem", "another take (2)", None]]
    assert (menu["opened"]["focus"], menu["opened"]["expanded"]) == ("menuitemradio", "true")
    assert menu["target"]["directions"] == "..t......"
    assert menu["target"]["modified"]
    assert [checked for _, _, checked in menu["checked"]] == ["false", "true", "false", None]
    assert (menu["taken"]["directions"], menu["taken"]["takes"]) == ("..t......", "6:2")
    assert menu["another"][3:] == [["menuitem", "another take (3)", None], ["menuitem", "first take", None]]


def test_escape_gives_the_focus_back_and_a_click_elsewhere_closes(page: dict[str, Any]) -> None:
    menu = page["menu"]
    assert (menu["escaped"]["open"], menu["escaped"]["focus"]) == (0, "3")
    assert menu["escaped"]["directions"] == "..t......"
    assert menu["open"] == 0


def test_a_square_shows_what_is_asked_of_its_block(page: dict[str, Any]) -> None:
    taken = page["menu"]["taken"]
    assert (numbers(taken, "letter"), numbers(taken, "take")) == ([3], [6])
    assert of_squares(taken, "label")[2] == "Block 3 of 9 · directed: target"
    assert of_squares(taken, "label")[5] == "Block 6 of 9 · take 2"


def test_keys_do_all_that_the_mouse_does(page: dict[str, Any]) -> None:
    keys = page["keys"]
    assert keys["moved"]["focus"] == "3"
    assert (keys["written"]["directions"], keys["written"]["takes"]) == ("..d.....t", "6:2, 9:2")
    assert keys["written"]["said"] == "Block 9 of 9 · directed: target · take 2"
    assert keys["cleared"]["directions"] == ""
    assert (keys["chosen"]["directions"], keys["chosen"]["focus"]) == ("..d......", "3")
    assert (keys["first"]["takes"], keys["first"]["focus"]) == ("9:2", "6")


def test_one_square_is_reached_with_tab(page: dict[str, Any]) -> None:
    for seen in (page["before"], page["menu"]["taken"], *page["keys"].values(), page["first"]):
        assert len(numbers(seen, "reached")) == 1


def test_a_direction_and_a_take_can_be_undone_each_by_itself(page: dict[str, Any]) -> None:
    """And the focus stays on the square, though all nodes are made anew."""
    undone = page["undone"]
    assert (undone["before"]["directions"], undone["before"]["takes"]) == ("..d..d...", "9:2")
    written = [(step["directions"], step["takes"]) for step in undone["steps"]]
    assert written == [
        ("..d......", "9:2"),
        ("..d..d...", "9:2"),
        ("..d......", "9:2"),
        ("..d......", "6:2, 9:2"),
    ]
    for step in undone["steps"]:
        assert numbers(step, "letter") == [i for i, letter in enumerate(step["directions"], 1) if letter != "."]
        assert step["focus"] == "6"
    assert numbers(undone["cleared"], "letter") == numbers(undone["cleared"], "take") == []


def test_what_is_sent_fits_the_number_of_blocks_as_the_squares_do(page: dict[str, Any]) -> None:
    """And nothing is lost on the way to another number and back."""
    assert page["undone"]["sent"] == [
        [9, "..d......", "6:2, 9:2", 9],
        [4, "..d.", "", 4],
        [12, "..d.........", "6:2, 9:2", 12],
        [9, "..d......", "6:2, 9:2", 9],
    ]


def test_a_run_states_its_result(page: dict[str, Any]) -> None:
    assert of_squares(page["first"], "fate") == MADE
    speed = r"(\d+\.\dx as fast as target-only)?"
    assert re.fullmatch(rf"forced 1kept 5remade 3\d+\.\d s{speed}", page["first"]["legend"])
    assert (page["first"]["next"], numbers(page["first"], "outlined")) == ("", [])


def test_the_blocks_play_and_one_alone_plays_where_the_mouse_is(page: dict[str, Any]) -> None:
    film = page["film"]
    assert len({frame.split(":")[0] for frame in film["all"]}) >= 4
    assert {frame.split(":")[0] for frame in film["alone"]["frames"]} == {"2"}
    assert len(film["alone"]["frames"]) >= 4
    assert re.fullmatch(r"Block 2 of 9 · worst frame \d+: -?\d+\.\d\d", film["alone"]["detail"])
    assert film["pixels"]["seen"]
    assert film["pixels"]["colours"] > 50


def test_those_who_want_no_motion_see_the_last_frame(page: dict[str, Any]) -> None:
    """Of block 6, whose square had the focus."""
    assert page["film"]["still"] == ["6:12"]


def test_another_take_outlines_and_then_makes_that_block_and_the_later_ones(page: dict[str, Any]) -> None:
    asked, made = page["again"]["asked"], page["again"]["made"]
    assert asked["takes"] == "6:2"
    assert numbers(asked, "outlined") == [6, 7, 8, 9]
    assert re.fullmatch(r"next run: 4 blocks again, about \d+\.\d s", asked["next"])
    assert of_squares(asked, "label")[5].endswith(" · take 2 · made again by the next run")
    assert [event["reused"] for event in page["again"]["events"]] == [True] * 5 + [False] * 4
    assert [event["take"] for event in page["again"]["events"]] == [1] * 5 + [2] + [1] * 3
    assert numbers(made, "earlier") == [1, 2, 3, 4, 5]
    assert "5 of them made earlier" in made["legend"]
    assert "made earlier" in of_squares(made, "label")[4]
    assert (numbers(made, "outlined"), made["next"]) == ([], "")


def test_the_strip_never_shows_two_runs_at_once(page: dict[str, Any]) -> None:
    """What is out of order is not shown, but what the server says."""
    strays = page["strays"]
    assert strays["before"] == strays["other"] == strays["early"] == strays["lost"] == MADE
    assert strays["begun"] == ["bailed_out", *[None] * 8]


def test_the_strip_is_no_parameter_of_the_side_panel(page: dict[str, Any]) -> None:
    without, shown = page["panel"]["without"], page["panel"]["shown"]
    assert "Directions" not in without
    assert {"Width", "Directions", "Takes"} <= set(shown)
    if VERSION < (0, 27, 0):
        pytest.skip("the pages of older versions show every widget there")
    assert "route" not in {text.lower() for text in shown}


def test_with_the_film_turned_off_no_picture_is_asked_for(page: dict[str, Any]) -> None:
    assert page["off"]["on"] >= 9
    assert (page["off"]["off"], page["off"]["seen"]) == (0, False)
    assert page["off"]["onAgain"] == 9


def test_a_page_loaded_in_mid_run_shows_this_run_and_goes_on(page: dict[str, Any]) -> None:
    left = page["left"]
    assert left["queued"] == left["run"] == left["server"]["run"]
    fates = [fate for fate in of_squares(left["going"], "fate") if fate]
    on_server = [event["fate"] for event in left["server"]["events"]]
    assert fates[: len(on_server)] == on_server[: len(fates)]
    assert numbers(left["reloaded"], "fate") == list(range(1, len(numbers(left["reloaded"], "fate")) + 1))
    assert len(fates) > len(numbers(left["reloaded"], "fate")) >= 3
    assert left["reloaded"]["stop"] == {"text": "Stop and keep", "shown": True, "enabled": True}


def test_a_stopped_run_keeps_what_it_made(page: dict[str, Any], server: Server) -> None:
    """Its video has the made blocks, 9 pixel frames and then 12 each, and is on disk."""
    left = page["left"]
    assert left["stopping"]["stop"] == {"text": "stops after this block", "shown": True, "enabled": False}
    made = left["done"]["blocks"]
    assert left["done"]["stopped"]
    assert made == len(numbers(left["stopped"], "fate")) < 40
    assert left["stopped"]["legend"].endswith(f"stopped after block {made} of 40")
    assert left["stopped"]["next"].startswith(f"next run: {40 - made} more block")
    assert numbers(left["stopped"], "outlined") == list(range(made + 1, 41))
    assert left["seconds"] == pytest.approx((12 * made - 3) / 16, abs=0.1)
    assert list((server.folder / "output" / "sdvg").glob("pocket*.mp4"))


def test_the_server_says_why_nothing_is_stopped(page: dict[str, Any]) -> None:
    assert any("nothing to stop" in told for told in page["left"]["refused"])


def test_nothing_went_wrong_meanwhile(page: dict[str, Any]) -> None:
    assert page["errors"] == []
    assert page["hosts"] == []
