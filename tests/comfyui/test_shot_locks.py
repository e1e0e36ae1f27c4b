"""Locks by shot, run by node: their text, the squares that they lock, and what locks and unlocks a square."""

import json

import pytest
from comfy_page import call, run_node, write_modules
from running_server import ROOT
from sdvg_pack.nodes.page.locks import read_locks
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = pytest.mark.comfyui

A = "a" * 16
B = "b" * 16


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


TEXTS = [
    "",
    " ",
    f"5:{A}",
    f" 5:{A} ",
    f"0=5:{A}",
    f"0=5:{A}, k3f=2:{B}",
    f"k3f=2:{B},5:{A}",
    f"5:{A}, 5:{B}",
    f"k3f=2:{B}, k3f=2:{B}",
    f"0:{A}",
    f"K3F=2:{A}",
    f"#k3f=2:{A}",
    f"5:{A},",
    "of no run",
]


def test_page_and_server_read_locks_alike(modules):
    """Catches: a lock that the strip shows, and the server refuses or takes for another shot's."""
    source = "(text) => js.readLocks(text, '').map(({ key, blocks, digest }) => [key, [blocks, digest]])"
    for text, locks in zip(TEXTS, call(modules, source, TEXTS), strict=True):
        try:
            expected = read_locks(text)
        except BadInput:
            expected = {}
        assert {key: tuple(lock) for key, lock in locks} == expected, text


def test_locks_are_written_as_they_are_read(modules):
    """The first shot's has no key. Catches: a lock that is the first shot's only by its place."""
    source = "([first, text]) => js.writeLocks(js.readLocks(text, first), first)"
    cases = [
        ["#0", f"0=5:{A},k3f=2:{B}"],
        ["#0", f"k3f=2:{B}, 5:{A}"],
        ["#k3f", f"2:{B}, 0=5:{A}"],
        ["#k3f", ""],
    ]
    written = [f"5:{A}, k3f=2:{B}", f"k3f=2:{B}, 5:{A}", f"k3f=2:{B}, 0=5:{A}", ""]
    assert call(modules, source, cases) == written


# Text, blocks, those of a clip before them, and the shots that begin afresh.
SHOTS = [
    ("a sea", 9, 0, [["#0", 1, 9]]),
    ("a sea\n4: fog\n6 fresh #b: snow\n8: rain", 9, 0, [["#0", 1, 5], ["#b", 6, 4]]),
    ("a sea\n4 fresh #b: fog\n7 fresh #c from #b: snow", 9, 0, [["#0", 1, 3], ["#b", 4, 3], ["#c", 7, 3]]),
    ("1 fresh #k: a sea\n4 fresh #0: fog", 6, 0, [["#k", 1, 3], ["#0", 4, 3]]),
    ("a sea\n4 fresh #b: fog\n12 fresh #c: snow", 9, 0, [["#0", 1, 3], ["#b", 4, 6]]),
    ("a sea\n9 fresh #b: fog", 6, 5, [["#0", 1, 3], ["#b", 4, 3]]),
    ("a sea\n4 clip #b:\n4 fresh #c: fog", 6, 0, [["#0", 1, 3], ["#c", 4, 3]]),
]


def test_shots_of_a_text_count_blocks_of_the_video(modules):
    source = "(given) => js.placesIn(...given)"
    assert call(modules, source, [case[:3] for case in SHOTS]) == [shots for *_, shots in SHOTS]


FILM = [["#0", 1, 3], ["#b", 4, 4], ["#c", 8, 2]]
DIGESTS = list("abcdefghi")


def asked(lock, shots=FILM):
    """Return what is asked of a video with these shots."""
    return {"lock": lock, "blocks": sum(count for *_, count in shots), "shots": shots}


LOCKED = [
    ("", []),
    ("2:b", [1, 2]),
    ("b=2:e", [4, 5]),
    ("c=1:h, 3:c", [1, 2, 3, 8]),
    ("b=9:e", [4, 5, 6, 7]),
    ("x=2:e", []),
    ("of no run", []),
]


def test_locked_squares_are_first_blocks_of_their_shots(modules):
    """Catches: a shot's lock that counts from the video's first block."""
    source = "(inputs) => [1, 2, 3, 4, 5, 6, 7, 8, 9].filter((number) => js.isLocked(number, inputs))"
    seen = call(modules, source, [asked(lock) for lock, _ in LOCKED])
    assert seen == [numbers for _, numbers in LOCKED]
    source = """(inputs) => js.squaresOf({ ...inputs, directions: "", takes: "", start: {} }, null, null)
      .filter(({ kept }) => kept).map(({ number }) => number)"""
    assert call(modules, source, [asked(lock) for lock, _ in LOCKED]) == seen


MOVED = [["#b", 1, 4], ["#0", 5, 3], ["#c", 8, 2]]
# What is asked, the square, and the locks then; None: there is nothing to lock there.
LOCKS = [
    (asked(""), 2, "2:b"),
    (asked(""), 5, "b=2:e"),
    (asked("2:b"), 9, "2:b, c=2:i"),
    (asked("b=2:e, 2:b"), 7, "b=4:g, 2:b"),
    (asked("b=2:e"), 5, None),
    (asked("of no run"), 5, "b=2:e"),
    (asked("", MOVED), 2, None),  # its square shows another shot's picture
    (asked("", MOVED), 8, "c=1:h"),
    (asked("", [["#0", 1, 9]]), 3, "3:c"),
    (asked("", [["#0", 1, 9]]), 4, None),  # the run has another shot there
]


def test_a_square_locks_its_own_shot(modules):
    """Catches: shots before it that are locked too; other locks that are lost; another shot's digest."""
    source = """([inputs, number, run]) => js.lockFor(number, inputs, run, { old: [2, 5] })"""
    run = {"of": 9, "info": {"shots": FILM}, "done": {"digests": DIGESTS}}
    seen = call(modules, source, [[inputs, number, run] for inputs, number, _ in LOCKS])
    assert [lock and lock["lock"] for lock in seen] == [lock for *_, lock in LOCKS]
    assert [lock and lock["old"] for lock in seen[:4]] == [2, 5, None, 5]
    assert seen[2]["part"] == "c=2:i"


# Locks, the square, and what is free then, with the locks that are left; None: its shot has no lock.
UNLOCKS = [
    ("3:c", 2, (2, 3, "1:a")),
    ("3:c", 1, (1, 3, "")),
    ("b=4:g, 3:c", 6, (6, 7, "b=2:e, 3:c")),
    ("b=4:g, 3:c", 4, (4, 7, "3:c")),
    ("b=2:e", 7, (4, 5, "")),
    ("b=4:x, 3:c", 6, (4, 7, "3:c")),  # of another run
    ("3:c", 6, None),
]


def test_unlocking_frees_the_end_of_its_shot(modules):
    """Catches: another shot that is unlocked too; a lock shortened to blocks of a run that it was never of."""
    source = """([inputs, number, run]) => {
      const left = js.unlockFor(number, inputs, run);
      return left && [left.from, left.to, left.lock];
    }"""
    run = {"of": 9, "info": {"shots": FILM}, "done": {"digests": DIGESTS}}
    seen = call(modules, source, [[asked(lock), number, run] for lock, number, _ in UNLOCKS])
    assert [left and tuple(left) for left in seen] == [left for *_, left in UNLOCKS]
    assert call(modules, source, [[asked("3:c"), 2, {**run, "done": None}]]) == [[1, 3, ""]]


def test_lock_of_a_moved_shot_is_shortened(modules):
    """Catches: digests looked up by the place of a shot, and not by its key."""
    source = "([inputs, number, run]) => js.unlockFor(number, inputs, run).lock"
    run = {"of": 9, "info": {"shots": FILM}, "done": {"digests": DIGESTS}}
    assert call(modules, source, [[asked("b=4:g", MOVED), 3, run]]) == ["b=2:e"]


def test_locks_of_lost_shots_can_be_given_up(modules):
    """Catches: a run that is refused for a lock that nothing on the strip gives up."""
    cases = [asked("x=2:e, 2:b"), asked("x=2:e"), asked("2:b"), asked("")]
    assert call(modules, "js.withoutStrays", cases) == ["2:b", "", None, None]


# Locks, an edit of the cards, and the locks after it.
CARRIED = [
    ("3:c, b=4:g", ["moveShot", 0, 1, "#k"], "0=3:c, b=4:g"),
    ("3:c, b=4:g", ["removeShot", 1], "3:c"),
    ("b=4:g", ["removeShot", 0], "b=4:g"),
    ("b=4:g", ["cloneShot", 1, "#k"], "b=4:g"),
    ("3:c", ["insertShot", 0, "#k"], "0=3:c"),
    ("x=1:a", ["removeShot", 1], "x=1:a"),
    ("of no run", ["moveShot", 0, 1, "#k"], "of no run"),
]


def test_locks_go_with_their_shots(modules):
    """Catches: another shot's lock as the first one leaves the front; a lock of a removed shot."""
    source = """([lock, [name, ...given]]) => {
      const text = "a sea\\n4 fresh #b: fog\\n8 fresh #c: snow";
      const board = js.readBoard({ text, blocks: 9, directions: "", takes: "" });
      return js.carriedLocks(lock, board, js[name](board, ...given));
    }"""
    assert call(modules, source, [case[:2] for case in CARRIED]) == [lock for *_, lock in CARRIED]


# Locks, an edit, whether it may be made, and the blocks it remakes.
EDITS = [
    ("b=4:g", ["sayShot", 0, "rain"], True, [[1, 3]]),
    ("b=4:g", ["lengthenShot", 0, 4], True, [[4, 4]]),
    ("b=4:g", ["lengthenShot", 1, 3], False, None),
    ("b=4:g", ["freshShot", 1, ""], False, None),
    ("b=4:g", ["cutShot", 1, True], False, None),
    ("b=4:g", ["sayShot", 1, ""], False, None),
    ("b=4:g", ["removeShot", 1], True, [[4, 5]]),
    ("b=2:e", ["lengthenShot", 1, 3], True, [[7, 8]]),
    ("b=2:e", ["lengthenShot", 1, 1], False, None),
    ("c=2:i", ["sayShot", 1, "rain"], True, [[4, 7]]),  # whose last frame the third begins with
    ("", ["sayShot", 1, "rain"], True, [[4, 9]]),
    ("c=2:i", ["removeShot", 1], False, None),
    ("3:c", ["moveShot", 0, 1, "#k"], True, []),
]


def test_edits_leave_locked_blocks_alone(modules):
    """Catches: a free shot that cannot be edited since another one is locked, and a locked one that can."""
    source = """([lock, [name, ...given]]) => {
      const text = "a sea\\n4 fresh #b: fog\\n8 fresh #c from #b: snow";
      const board = js.readBoard({ text, blocks: 9, directions: "", takes: "" });
      const next = js[name](board, ...given);
      const locks = js.readLocks(lock, "#0");
      if (!js.allowed(board, next, { before: 0, locks }, 60)) return [false, null];
      return [true, js.changed(board, next, { locks }).stretches.map(({ from, to }) => [from, to])];
    }"""
    seen = call(modules, source, [case[:2] for case in EDITS])
    for (may, remade), (lock, edit, expected, blocks) in zip(seen, EDITS, strict=True):
        assert (may, remade) == (expected, blocks), (lock, edit)


# The server's answer, the locks, and what is said of the next run.
SAID = [
    ("cccssssss", "", "remakes blocks 1 to 3"),
    ("cccsscccc", "b=2:e", "remakes blocks 1 to 3, blocks 6 to 9"),
    ("mmmssssss", "b=4:g", "may remake blocks 1 to 3"),
    (None, "b=4:g", "may remake blocks 1 to 3, blocks 8 to 9"),  # of a run that the server forgot
    (None, "3:c, b=4:g, c=2:i", ""),
]


@pytest.mark.parametrize("blocks, lock, words", SAID)
def test_next_run_names_blocks_of_every_shot(modules, blocks, lock, words):
    """Catches: *remakes blocks 1 to 9* of a film in which a shot stays."""
    program = f"""
    globalThis.i18n = {{ en: {(ROOT / "locales" / "en" / "main.json").read_text(encoding="utf-8")} }};
    globalThis.app = {{ extensionManager: {{ setting: {{ get: () => "en" }} }} }};
    const {{ nextText }} = await import("./strip_sentences.js");
    const blocks = {json.dumps(blocks)};
    const forecast = blocks && {{ blocks, old: [], seconds: null }};
    const state = {{ hasRun: true, isForgotten: !blocks, bringsBack: false }};
    console.log(JSON.stringify(nextText({json.dumps(asked(lock))}, forecast, state, "")));
    """
    sentence = run_node(modules, program)
    assert sentence.endswith(words)
    assert bool(sentence) == bool(words)
