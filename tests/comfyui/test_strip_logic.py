"""What the strip on the sampler works out by itself, run by node: lengths, the next run, letters and takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comfy_page import HERE
from sdvg_pack.sdvg_core.engine.plan import check_directions, read_takes
from strip_modules import NEXT, call, run_node, write_modules

pytestmark = pytest.mark.comfyui

AUTHORS = dict.fromkeys(("forced", "remade", "target_unseen", "bailed_out"), "T")
AUTHORS |= dict.fromkeys(("kept", "drafted_unseen"), "D")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modules(tmp_path_factory.mktemp("modules"))


def test_the_length_is_that_of_the_frames_which_the_decoder_makes(modules: Path) -> None:
    """One latent frame is four frames of the video, and one at its beginning."""
    starts = [({}, 0, False), ({"image": True}, 1, False), ({"clip": True}, 27, True)]
    told = call(modules, "(start) => [1, 9, 100].map((n) => js.framesOf(n, start))", [s for s, *_ in starts])
    for made, (_, given_frames, added) in zip(told, starts, strict=True):
        before = 4 * (given_frames - 1) + 1 if added else 0
        assert made == [4 * (given_frames + 3 * blocks - 1) + 1 - before for blocks in (1, 9, 100)]


FATES = ["forced", "kept", "remade", "kept", "target_unseen", "drafted_unseen"]
ROUTE = "....td"


SIGNATURE: dict[str, Any] = {"all": "all", "rest": "rest", "router": "router", "wired": "wired", "prompts": []}


def after(**changes: Any) -> dict[str, Any]:
    """Return a finished run of six blocks, what is asked of the next, and what the server says of both."""
    seconds = {"T": 4, "D": 1}
    events = [
        {"fate": fate, "seconds": seconds.get(AUTHORS.get(fate, ""), 0), "decode": 0.25, "score": score}
        for fate, score in zip(changes.pop("fates", FATES), changes.pop("scores", [None] * 8), strict=False)
    ]
    made_with = {"directions": changes.pop("was", ROUTE), "takes": changes.pop("takes_were", "")}
    then = SIGNATURE | {"prompts": changes.pop("prompts_were", [])}
    now = (
        SIGNATURE
        | {"all": "other", "made": [{"run": "a", "of": 6, "prompts": []} | made_with]}
        | changes.pop("now", {})
    )
    info = {"signature": then, "before": changes.pop("before", 0), "kept": changes.pop("were_kept", "")}
    outlook = {"now": now, "loading": 0, **changes.pop("outlook", {})}
    asked = {"directions": made_with["directions"], "takes": made_with["takes"], "blocks": len(FATES), **changes}
    run = {"run": "a", **made_with, "events": events, "info": info}
    return {"run": run, "next": asked, "outlook": outlook}


LOCKED = ["given", "given", *FATES[2:]]
# What is asked of the next run, and the first block that it makes again.
AGAIN = [
    ({}, None),
    ({"takes": "4:2"}, 4),
    ({"takes_were": "3:2", "takes": ""}, 3),
    ({"directions": "t...td"}, None),  # the target made it unasked
    ({"directions": "..r.td"}, None),  # the target after a draft, as it was
    ({"directions": "...ttd"}, 4),
    ({"directions": "..d.td"}, 4),  # the rejected draft is kept, and what follows is new
    ({"directions": "....dd"}, 5),  # the drafter in place of a target without draft
    ({"directions": "..d.td", "takes": "6:2"}, 4),
    ({"fates": [*FATES[:5], "remade"], "directions": "....td", "was": "....t."}, None),
    ({"blocks": 8}, 7),
    ({"prompts_were": [[3, "p"]], "now": {"prompts": [[3, "p"], [5, "q"]]}}, 5),
    ({"prompts_were": [[3, "p"]], "now": {"prompts": [[9, "q"], [3, "p"]]}}, None),  # beyond the last block
    ({"prompts_were": [[3, "p"]], "now": {"prompts": []}, "before": 1}, 2),  # after a clip of one block
    ({"fates": FATES[:4]}, 5),  # a run that was stopped goes on
    ({"fates": ["forced", "bailed_out"], "was": "", "directions": ".d", "blocks": 2}, 2),
    ({"fates": LOCKED, "were_kept": "2:a", "kept": 2}, None),
    ({"fates": LOCKED, "were_kept": "2:a", "kept": 1}, 2),  # a lock that is given up from block 2 on
    ({"fates": LOCKED, "were_kept": "2:a", "kept": 0}, 1),
    ({"kept": 3, "takes": "2:2", "directions": "..t.td"}, None),  # of kept blocks
    ({"kept": 3, "takes": "2:2, 5:2"}, 5),
]


def test_what_the_next_run_makes_again(modules: Path) -> None:
    """Catches: nothing to remake where a lock was given up, and all after a lock where only kept blocks changed."""
    given = [after(**changes) for changes, _ in AGAIN]
    for told, one, (changes, first) in zip(call(modules, NEXT, given), given, AGAIN, strict=True):
        count = 0 if first is None else one["next"]["blocks"] - first + 1
        assert (told["from"], told["count"]) == (first, count), changes


# The tau that is asked for in place of -0.7, perhaps with letters, and the first block made again.
SCORES = [None, -0.3, -0.9, -0.6, None, None]
GATED: list[tuple[float | None, dict[str, str], int | None]] = [
    (-0.65, {}, None),  # no decision changes
    (-0.6, {}, None),  # in float32, as the gate compares
    (-0.5, {}, 4),  # a kept draft is rejected
    (-0.2, {}, 2),
    (-1.0, {}, 4),  # a rejected draft is at hand, and what follows it is new
    (-1.0, {"directions": "..t.td"}, None),
    (-0.2, {"directions": ".d..td"}, 4),
    (-0.2, {"was": ".d..td", "directions": ".d..td"}, 4),
    (-0.5, {"takes": "3:2"}, 3),
    (None, {}, None),  # a gate whose tau is not known, and has not changed
]


def test_another_tau_makes_again_what_its_first_changed_decision_changes(modules: Path) -> None:
    """Kind: what the page can work out by what it shows, it does not call everything."""
    given = [after(scores=SCORES, now={"tau": tau}, **changes) for tau, changes, _ in GATED]
    told = call(modules, NEXT, given)
    assert [one["from"] for one in told] == [first for *_, first in GATED]
    assert not any(one.get("all") or one.get("atMost") for one in told)
    # Block 4 is then the target's, and the later ones as they were, if nobody knows better.
    assert told[2]["seconds"] == pytest.approx(3 / 4 + 4 + 4 + 1)


# With a margin of 0.2: the tau that is asked for, the first block made again, and whether that is certain.
CASCADED: list[tuple[float, int | None, bool]] = [
    (-0.7, None, True),
    (-0.85, None, True),  # rejected by its first frames all the same
    (-0.92, 4, False),  # block 3's first frames reject it no more, and are not clear
    (-1.2, 4, True),  # they keep it
    (-0.55, 2, False),  # block 2 is no longer clear
    (-0.35, 2, True),  # its first frames reject it
]


def test_where_a_cascade_left_frames_unscored_another_tau_may_change_a_block(modules: Path) -> None:
    """Catches: a block called certain whose other frames are only scored then; a margin of the wrong sign."""
    scores = [None, -0.45, -0.9, 2.0, None, None]
    given = [after(scores=scores, now={"tau": tau}) for tau, *_ in CASCADED]
    for one in given:
        one["run"]["info"]["margin"] = 0.2
        for event in one["run"]["events"][1:4]:
            event["unscored"] = 8
    told = call(modules, NEXT, given)
    assert [(one["from"], not one["atMost"]) for one in told] == [(first, sure) for _, first, sure in CASCADED]


# By those who made them, or are wanted; added ones take the mean of all; None where the author made none.
SECONDS = [
    ({}, 6 / 4),  # all are decoded
    ({"now": {"all": "all"}}, 0),
    ({"takes": "4:2"}, 3 / 4 + 1 + 4 + 1),
    (
        {"takes": "4:2", "outlook": {"decoding": [0, 1, 2, 0, 1, 2, 0]}},
        1 + 4 + 1,
    ),  # the pixels of three blocks are kept
    ({"directions": "...ttd"}, 3 / 4 + 4 + 4 + 1),
    ({"blocks": 8}, 6 / 4 + 2 * 15 / 6),
    ({"fates": ["kept"] * 6, "was": "", "directions": "t....."}, None),
]


def test_how_long_the_next_run_takes(modules: Path) -> None:
    """Blocks made earlier say nothing of how long one takes."""
    given = [after(**changes) for changes, _ in [*SECONDS, SECONDS[3]]]
    for event in given[-1]["run"]["events"][:3]:
        event.update(reused=True, seconds=0, decode=0)
    expected = [seconds for _, seconds in [*SECONDS, SECONDS[3]]]
    told = [one["seconds"] for one in call(modules, NEXT, given)]
    assert told == [None if seconds is None else pytest.approx(seconds) for seconds in expected]


EARLIER = {"run": "b", "of": 6, "directions": ROUTE, "takes": "4:2", "prompts": []}
# What the server says, and what of the forecast follows: whether it is known, everything, and at most that.
OUTLOOKS = [
    ({"now": {"rest": "another seed"}}, (True, True, False)),
    ({"now": {"rest": "another seed", "made": [EARLIER]}}, (True, True, True)),  # which a run before had
    ({"now": {"router": "another tau"}}, (True, True, True)),  # it may decide all the same
    ({"outlook": {"moving": True}}, (True, True, False)),
    ({"takes": "4:2"}, (True, None, False)),
    ({"takes": "4:2", "now": {"made": [EARLIER]}}, (True, None, True)),
    ({"takes": "4:3", "now": {"made": [EARLIER]}}, (True, None, False)),
    ({"now": {"wired": "a take over a wire"}}, (None, None, None)),
    ({"outlook": {"loading": None}}, (None, None, None)),  # the server does not know the run
]


def test_the_forecast_tells_the_truth_or_nothing(modules: Path) -> None:
    """Catches a forecast made of takes and directions alone."""
    given = [after(**changes) for changes, _ in OUTLOOKS]
    source = NEXT.replace("outlook)", "{ ...outlook, loading: outlook.loading ?? undefined })")
    told = [tuple(one.get(name) for name in ("known", "all", "atMost")) for one in call(modules, source, given)]
    assert told == [expected for _, expected in OUTLOOKS]


LETTERS = [
    ("", 3, "t", "..t..."),
    ("..t...", 3, ".", ""),
    ("t", 6, "d", "t....d"),
    ("........t", 1, "d", "d....."),
]


def test_a_letter_is_written_in_its_place(modules: Path) -> None:
    """Padded or cut to the blocks of the run; and what is written, the server reads."""
    told = call(modules, "([before, number, letter]) => js.withLetter(before, 6, number, letter)", LETTERS)
    assert told == [written for *_, written in LETTERS]
    for written in told:
        check_directions(written, 6)


TAKES = [
    ("", 6, 2, "6:2"),
    ("6:2", 2, 3, "2:3, 6:2"),
    ("6:2", 6, 1, ""),
    (" 6:2;2:4 ", 4, 2, "2:4, 4:2, 6:2"),
    ("9:2, 1:1, nonsense", 3, 2, "3:2"),
]


def test_a_take_is_written_beside_the_others(modules: Path) -> None:
    """Without first takes and blocks that the run does not have; and the server reads it as the strip does."""
    told = call(modules, "([before, number, take]) => js.withTake(before, 6, number, take)", TAKES)
    assert told == [written for *_, written in TAKES]
    for written, shown in zip(told, call(modules, "(text) => [...js.takesOf(text)]", told), strict=True):
        assert {number - 1: take for number, take in shown} == read_takes(written, 6)


PAGE = (HERE / "browser" / "player.js").read_text(encoding="utf-8")


def test_pictures_on_the_screen_stay_and_others_come_back_when_they_are_seen_again(modules: Path) -> None:
    """The kind: several answers in one, of which the last is true.

    Of a film, and of a sheet beside it. Kind: a store with a limit never drops what a page shows.
    """
    program = """
    const [film, sheet] = [run("a", 9), run("b", 9)];
    see(true);
    player.show("a", 16, film);
    player.beside = sheet;
    await loadAll([...film, ...sheet]);
    await loadAll(run("c", 200));
    const shown = [there(film), there(sheet), there(run("c", 200))];
    see(false);
    await loadAll(run("d", 200));
    const hidden = there(film);
    see(true);
    await settled();
    console.log(JSON.stringify([shown, hidden, there(film)]));
    """
    assert run_node(modules, PAGE + program) == [[9, 9, 82], 0, 9]
