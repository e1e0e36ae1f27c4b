"""Shots that begin afresh, and footage between shots, run by node: what their lines mean, what an edit remakes."""

import random
from itertools import chain

import pytest
from comfy_page import PLAY, call, write_modules
from sdvg_pack.nodes.page.locks import read_locks
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.request import check_directions, read_shots, read_takes, shots_text
from sdvg_pack.sdvg_core.text.prompts import read_prompt

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


SHOWN = """({ text, blocks, before }) => {
  const board = js.readBoard({ text, blocks, directions: "", takes: "" }, before ?? 0);
  if (!board) return null;
  const starts = js.startsOf(board.shots);
  const clips = (at) => js.clipsBefore(board, at).map(({ name, span }) => [name, span]);
  return {
    starts,
    prompts: board.shots.map(({ prompt }) => prompt),
    strengths: board.shots.map(({ strength }) => strength.trim().replace(/^strength\\s+/, "")),
    cuts: starts.filter((_, i) => board.shots[i].cut),
    keys: board.shots.map((_, i) => js.keyOf(board.shots, i)),
    origins: board.shots.map(({ fresh }) => fresh?.from ?? ""),
    clips: [...starts, blocks + 1].map((_, at) => clips(at)),
  };
}"""


def shots_of(text, blocks):
    """Return what the server reads of a text, as `SHOWN` gives the cards'; None where it refuses the text."""
    try:
        prompt = read_prompt(text)
        shots = read_shots(shots_text(prompt.shots))
    except BadInput:
        return None
    prompts = {start + 1: words for start, words in prompt.entries}
    strengths = {start + 1: strength for start, strength in prompt.strengths}
    fresh = {shot.start + 1: shot for shot in shots}
    starts = [start for start in sorted({*prompts, *strengths, 1}) if start <= blocks]
    return {
        "starts": starts,
        "prompts": [prompts.get(start, "") for start in starts],
        "strengths": [strengths.get(start, "") for start in starts],
        "cuts": [start + 1 for start in prompt.cuts if 0 < start < blocks],
        "keys": [fresh[start].key if start in fresh else None for start in starts],
        "origins": [fresh[start].origin if start in fresh else "" for start in starts],
        "clips": [
            [[clip.name, clip.part] for clip in prompt.clips if clip.start == start - 1]
            for start in (*starts, blocks + 1)
        ],
    }


def is_placed(text, blocks):
    """Return whether footage stands before shots that begin afresh, and after the last block, alone."""
    prompt = read_prompt(text)
    begins = [shot.start for shot in prompt.shots]
    return all(clip.start in begins or clip.start >= blocks for clip in prompt.clips)


WORDS = ("", " ", "a sea", "16:9", "fresh", "#a", "cut", "\u3000", "a\u2028b")
HEADS = ("", " cut", " fresh #a", " fresh #b", "\tfresh  #a9 from #a", " fresh #c from #0", " fresh #A", " fresh #")
HEADS += (
    " fresh a",
    " fresh",
    " strength 0.5",
    " strength  light ",
    " cut strength 1",
    " fresh #d strength 0.3",
    " from #a",
)
CLIPS = (
    " clip #p:",
    "\tclip  #q 0.5-2 :",
    " clip #r 1.25-20.0: ",
    " clip #a:",
    " clip #s 2:",
    " clip #t: sea",
)


def random_text(draw):
    """Return a prompt whose lines are about blocks, nearly so, or words."""
    lines = [draw.choice(WORDS)]
    block = 1 if lines[0].strip() else 0
    for _ in range(draw.randrange(5)):
        block += draw.choice((1, 1, 2, 3))
        lines += [f"{block}{clip}" for clip in CLIPS if draw.random() < 0.05]
        words = draw.choice((*WORDS, "5: fog"))
        lines.append(f"{draw.choice(('', ' '))}{block}{draw.choice(HEADS)}:{draw.choice(('', ' '))}{words}")
        lines += [draw.choice(WORDS)] * draw.randrange(2)
    return draw.choice(("\n", "\r\n")).join(lines)


def test_page_and_server_read_lines_alike(modules):
    """Catches: a line that is one shot to the server and another, or words, to the cards."""
    draw = random.Random(69)
    texts = [random_text(draw) for _ in range(3000)]
    cases = [{"text": text, "blocks": 9} for text in texts]
    count = 0
    clips = 0
    for text, shown in zip(texts, call(modules, SHOWN, cases), strict=True):
        expected = shots_of(text, 9)
        if expected is None:  # a text without words, for example
            continue
        assert (shown is not None) == is_placed(text, 9), text
        if shown is None:
            continue
        count += 1
        clips += len([*chain.from_iterable(shown["clips"])])
        assert {name: shown[name] for name in expected} == expected, text
    assert count > 300
    assert clips > 30


# Edits that are allowed, each with the values before and after it, and what it says it remakes.
ACTS = """({ values, before, lock, edits }) => {
  let board = js.readBoard(values, before);
  const seen = [];
  edits.forEach(([name, at, ...given], n) => {
    const key = js.newKey(board, () => n / edits.length);
    const i = at % board.shots.length;
    const filled = given.map((one) => (one === "KEY" ? key : one === "OTHER" ? at % 3 : one));
    if (name === "beginFrom") filled[0] = js.keysBefore(board.shots, i)[0] ?? "";
    if (name === "moveShot") filled[0] %= board.shots.length;
    const next = js[name](board, i, ...filled);
    const locks = js.readLocks(lock, js.keyOf(board.shots, 0));
    if (!js.allowed(board, next, { before, locks }, 60)) return;
    const wasLocked = lock;
    lock = js.carriedLocks(lock, board, next);
    const [was, now] = [board, next].map((one) => js.writeBoard(one));
    const again = JSON.stringify(js.readBoard(now, before));
    if (again !== JSON.stringify(next)) throw new Error(`${name} ${i} ${filled}: ${JSON.stringify(next)} ${again}`);
    seen.push({ name, was, now, wasLocked, nowLocked: lock, ...js.changed(board, next, { locks }) });
    board = next;
  });
  return seen;
}"""


def runs_of(values, before):
    """Return the runs that a server reads: key -> (key of its origin, blocks), by what each block is made of."""
    prompt = read_prompt(values["text"])
    shots = read_shots(shots_text(prompt.shots))
    takes = read_takes(values["takes"], values["blocks"])
    runs = {}
    for block in range(before + values["blocks"]):
        shot = next(shot for shot in reversed(shots) if shot.start <= block)
        words = next(words for start, words in reversed(prompt.entries) if start <= block)
        strength = next((strength for start, strength in reversed(prompt.strengths) if start <= block), "")
        letter = (values["directions"] or "." * values["blocks"])[block - before] if block >= before else ""
        maker = (words, strength, letter, takes.get(block - before, 1), block in prompt.cuts)
        runs.setdefault(shot.key, (shot.origin, []))[1].append(maker)
    return runs


def locks_of(values, text):
    """Return how many blocks are locked, by key, as the server reads it."""
    first = next(iter(runs_of(values, 0)))
    return {key or first: blocks for key, (blocks, _) in read_locks(text).items()}


def names_of(values, before, lock=""):
    """Return the name of each block: equal names are equal latents. After locked blocks, a run goes on."""
    runs = runs_of(values, before)
    locks = locks_of(values, lock)
    names = {}
    for key, (origin, makers) in runs.items():
        locked = locks.get(key, 0)
        begin = names[origin][-1] if origin and not locked else ""
        names[key] = [
            (key, "locked", n) if n < locked else (key, begin, locked, *makers[: n + 1]) for n in range(len(makers))
        ]
    return [name for run in names.values() for name in run]


KINDS = [
    ["sayShot", "snow"],
    ["sayShot", ""],
    ["cutShot", True],
    ["cutShot", False],
    ["freshShot", "KEY"],
    ["freshShot", ""],
    ["beginFrom", "EARLIER"],
    ["lengthenShot", 2],
    ["lengthenShot", 4],
    ["retakeShot"],
    ["insertShot", "KEY"],
    ["insertShot"],
    ["cloneShot", "KEY"],
    ["moveShot", 0, "KEY"],
    ["moveShot", 1, "KEY"],
    ["moveShot", 3, "KEY"],
    ["removeShot"],
]
SHOTS = "sea\n4 fresh #b: fog\n5: rain\n7 fresh #c from #b: night\n9 cut: snow\n20 fresh #late from #c: dawn"


def played(modules, *, before=0, lock=""):
    draw = random.Random(7)
    values = {"text": SHOTS, "blocks": 10 - before, "directions": "." * (10 - before), "takes": "2:2"}
    values["directions"] = values["directions"][:-1] + "d"
    edits = [[[kind[0], draw.randrange(8), *kind[1:]] for kind in draw.choices(KINDS, k=8)] for _ in range(40)]
    cases = [{"values": values, "before": before, "lock": lock, "edits": acts} for acts in edits]
    return [step for steps in call(modules, ACTS, cases) for step in steps]


DIGEST = "0123456789abcdef"
LOCKS = ("", f"3:{DIGEST}", f"0=1:{DIGEST}, b=3:{DIGEST}", f"c=1:{DIGEST}, b=2:{DIGEST}", f"c=4:{DIGEST}")


@pytest.mark.parametrize(("before", "lock"), [(2, ""), *((0, lock) for lock in LOCKS)])
def test_forecast_of_an_edit_is_what_it_remakes(modules, before, lock):
    """Blocks have names by all that the server reads. Catches: a moved shot remade, a dependent one that is not."""
    steps = played(modules, before=before, lock=lock)
    assert {step["name"] for step in steps} == {name for name, *_ in KINDS}
    for step in steps:
        check_directions(step["now"]["directions"], step["now"]["blocks"])
        was = names_of(step["was"], before, step["wasLocked"])
        now = names_of(step["now"], before, step["nowLocked"])
        remade = [n for n, name in enumerate(now, 1) if name not in was]
        stretches = [range(part["from"], part["to"] + 1) for part in step["stretches"]]
        assert [block for stretch in stretches for block in stretch] == remade, step
        assert step["adds"] == set(was).issubset(now), step
        assert now[:before] == was[:before], step
        assert len({*now}) == len(now), "no two blocks share their noise"


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_locked_blocks_stay_through_every_edit(modules, lock):
    """Catches: a lock that is another shot's after a move, or outlives its own; locked blocks asked for anew."""
    moved = 0
    for step in played(modules, lock=lock):
        was = runs_of(step["was"], 0)
        now = runs_of(step["now"], 0)
        before = locks_of(step["was"], step["wasLocked"])
        after = locks_of(step["now"], step["nowLocked"])
        assert after == {key: blocks for key, blocks in before.items() if key in now}, step
        assert all(now[key][1][:blocks] == was[key][1][:blocks] for key, blocks in after.items()), step
        gone = sum(len(was[key][1]) for key in before.keys() - after.keys())
        assert not gone or step["now"]["blocks"] <= step["was"]["blocks"] - gone, step
        moved += any(list(was).index(key) != list(now).index(key) for key in after)
        assert ("0=" in step["nowLocked"]) == ("#0" in after and next(iter(now)) != "#0"), step
    assert moved


# An edit of four shots of two blocks, and the blocks that it remakes where each has its stretch of a restyled clip.
PLACED = [
    ('js.moveShot(board, 1, 2, "#n")', [[3, 6]]),
    ("js.retakeShot(board, 1)", [[3, 4]]),
    ("js.removeShot(board, 0)", [[1, 6]]),
    ("js.insertShot(board, 4, '#n')", [[9, 11]]),
    ("js.beginFrom(board, 1, '#0')", [[3, 8]]),  # three frames more, so the others begin later
]


def test_restyled_shots_follow_from_their_place(modules):
    """Catches: a shot of a restyled clip that is said to stay as it is moved, and then is made of other frames."""
    edits = ", ".join(f"(board) => {edit}" for edit, _ in PLACED)
    source = f"""(i) => {{
      const text = "a\\n3 fresh #b: b\\n5 fresh #c: c\\n7 fresh #d: d";
      const board = js.readBoard({{ text, blocks: 8, directions: "", takes: "" }});
      const {{ stretches }} = js.changed(board, [{edits}][i](board), {{ isPlaced: true }});
      return stretches.map(({{ from, to }}) => [from, to]);
    }}"""
    assert call(modules, source, list(range(len(PLACED)))) == [stretches for _, stretches in PLACED]


def lines_after(modules, lines, *edits, blocks=8):
    """Return the lines of a text after edits of its cards."""
    values = {"text": "\n".join(lines), "blocks": blocks, "directions": "", "takes": ""}
    plays = call(modules, PLAY, [{"values": values, "before": 0, "edits": edits}])
    return tuple(plays[0][-1]["text"].split("\n"))


FOUR = ("a", "3 fresh #b: b", "5: c", "7 fresh #d from #b: d")
ROWS = [
    (["moveShot", 1, 0, "#n"], ("1 fresh #b: b", "3 fresh #0: a", "5: c", "7 fresh #d from #b: d")),
    (["moveShot", 0, 3, "#n"], ("1 fresh #b: b", "3: c", "5 fresh #d from #b: d", "7 fresh #0: a")),
    (["moveShot", 2, 0, "#n"], ("1 fresh #n: c", "3 fresh #0: a", "5 fresh #b: b", "7 fresh #d from #b: d")),
    (["moveShot", 3, 1, "#n"], ("a", "3 fresh #d: d", "5 fresh #b: b", "7: c")),
    (["removeShot", 0], ("1 fresh #b: b", "3: c", "5 fresh #d from #b: d")),
    (["removeShot", 1], ("a", "3 fresh #b: c", "5 fresh #d from #b: d")),
    (["removeShot", 2], ("a", "3 fresh #b: b", "5 fresh #d from #b: d")),
    (
        ["insertShot", 0, "#n"],
        ("1 fresh #n: a", "4 fresh #0: a", "6 fresh #b: b", "8: c", "10 fresh #d from #b: d"),
    ),
    (["insertShot", 1, "#n"], ("a", "3 fresh #n: a", "6 fresh #b: b", "8: c", "10 fresh #d from #b: d")),
    (["cloneShot", 0, "#n"], ("a", "3 fresh #n: a", "5 fresh #b: b", "7: c", "9 fresh #d from #b: d")),
    (["cloneShot", 2, "#n"], ("a", "3 fresh #b: b", "5: c", "7: c", "9 fresh #d from #b: d")),
    (["cloneShot", 3, "#n"], (*FOUR, "9 fresh #n from #b: d")),
    (["freshShot", 2, "#n"], ("a", "3 fresh #b: b", "5 fresh #n: c", "7 fresh #d from #b: d")),
    (["freshShot", 1, ""], ("a", "3: b", "5: c", "7 fresh #d: d")),
    (["freshShot", 0, "#n"], FOUR),
    (["cutShot", 1, True], ("a", "3 cut: b", "5: c", "7 fresh #d: d")),
    (["beginFrom", 3, "#0"], ("a", "3 fresh #b: b", "5: c", "7 fresh #d from #0: d")),
    (["beginFrom", 3, ""], ("a", "3 fresh #b: b", "5: c", "7 fresh #d: d")),
    (["sayShot", 1, ""], ("a", "5: c", "7 fresh #d: d")),
    (["splitShot", 4], ("a", "3 fresh #b: b", "4: b", "5: c", "7 fresh #d from #b: d")),
]


def test_fresh_shot_keeps_its_key_wherever_it_stands(modules):
    """Catches: a first shot that loses its noise, two shots of one key, a beginning that is gone."""
    values = {"text": "\n".join(FOUR), "blocks": 8, "directions": "", "takes": ""}
    plays = call(modules, PLAY, [{"values": values, "before": 0, "edits": [edit]} for edit, _ in ROWS])
    for (edit, lines), (_, written) in zip(ROWS, plays, strict=True):
        assert tuple(written["text"].split("\n")) == lines, edit


def test_removed_first_shot_leaves_the_plain_key(modules):
    """The one that went on is the first shot then, as if the film had begun with it."""
    assert lines_after(modules, ("a", "3: b", "5 fresh #c: c"), ["removeShot", 0]) == ("b", "3 fresh #c: c")


def test_moving_there_and_back_restores_the_film(modules):
    edits = (["moveShot", 0, 3, "#n"], ["moveShot", 3, 0, "#m"])
    assert lines_after(modules, FOUR, *edits) == FOUR


def test_fresh_and_cut_exclude_each_other(modules):
    lines = ("a", "3 cut: b")
    assert lines_after(modules, lines, ["freshShot", 1, "#n"]) == ("a", "3 fresh #n: b")
    assert lines_after(modules, lines, ["freshShot", 1, "#n"], ["cutShot", 1, True]) == lines


# Keys and footage that do not fit together, or not yet.
UNSOUND = [
    ("a\n3 fresh #b: b\n5 fresh #b: c", 0),
    ("a\n3 fresh #0: b", 0),
    ("a\n3 fresh #B: b", 0),
    ("a\n3 fresh #b from #c: b", 0),
    ("a\n3 fresh #b from #c: b\n5 fresh #c: c", 0),
    ("1 fresh #a from #b: a\n3 fresh #b: b", 0),
    ("a\n3 cut fresh #b: b", 0),
    ("a\n20 fresh #b from #c: b", 0),
    ("a\n4 fresh #b: b", 3),  # a run continues the clip first
    ("a\n3 clip #c:\n3: b", 0),
    ("a\n3 clip #c:\n4 fresh #b: b", 0),
    ("a\n3 clip #c: words\n3 fresh #b: b", 0),
    ("a\n3 clip #c 2:\n3 fresh #b: b", 0),
    ("a\n3 clip #b:\n3 fresh #b: b", 0),
    ("a\n3 clip #0:\n3 fresh #b: b", 0),
]


def test_cards_leave_unfit_keys_to_the_text(modules):
    source = "([text, before]) => js.readBoard({ text, blocks: 8, directions: '', takes: '' }, before)"
    assert call(modules, source, UNSOUND) == [None] * len(UNSOUND)


# --- footage


FILM_WITH_CLIPS = (
    "1 clip #p:",
    "1: a",
    "3 clip #q 1.5-4.0:",
    "3 clip #r:",
    "3 fresh #b from #r: b",
    "5: c",
    "9 clip #s:",
    "12 clip #t:",
)


def test_footage_stays_in_its_place(modules):
    """Catches: a line of footage that is lost, or is words of the shot before, as another card is edited."""
    assert lines_after(modules, FILM_WITH_CLIPS, ["retakeShot", 0]) == FILM_WITH_CLIPS
    longer = lines_after(modules, FILM_WITH_CLIPS, ["lengthenShot", 0, 3])
    assert [line.split()[0] for line in longer] == ["1", "1:", "4", "4", "4", "6:", "10", "13"]
    removed = lines_after(modules, FILM_WITH_CLIPS, ["removeShot", 2])
    assert removed == (*FILM_WITH_CLIPS[:5], "5 clip #s:", "8 clip #t:")
    moved = lines_after(modules, FILM_WITH_CLIPS, ["moveShot", 1, 0, "#n"])
    assert moved[:3] == ("1 clip #q 1.5-4.0:", "1 clip #r:", "1 fresh #b from #r: b")
    assert moved[3:5] == ("3 clip #p:", "3 fresh #0: a")


def test_footage_is_moved_renamed_and_cut(modules):
    """Catches: a shot that loses its beginning with the clip's name, a clip before a shot that goes on."""
    to_end = lines_after(modules, FILM_WITH_CLIPS, ["moveClip", 1, 1, 1])
    assert to_end[2:] == ("3 clip #q 1.5-4.0:", "3 fresh #b: b", "5: c", "9 clip #r:", "9 clip #s:", "12 clip #t:")
    back = lines_after(modules, FILM_WITH_CLIPS, ["moveClip", 1, 1, -1], ["moveClip", 1, 0, -1])
    assert back[:4] == ("1 clip #p:", "1 clip #r:", "1: a", "3 clip #q 1.5-4.0:")
    assert lines_after(modules, FILM_WITH_CLIPS, ["moveClip", 0, 0, -1]) == FILM_WITH_CLIPS
    named = lines_after(modules, FILM_WITH_CLIPS, ["editClip", 1, 1, {"name": "#z", "span": "0-2"}])
    assert named[3:5] == ("3 clip #z 0-2:", "3 fresh #b from #z: b")
    assert lines_after(modules, FILM_WITH_CLIPS, ["setClips", 1, []])[2] == "3 fresh #b: b"


def test_added_clip_is_one_that_start_has(modules):
    """Catches: a clip with the name of another, or before a shot that goes on."""
    lines = ("a", "3 clip #clip1:", "3 fresh #b: b", "5: c", "7 clip #clip3:")
    assert lines_after(modules, lines, ["addClip", 1], blocks=6)[1:3] == ("3 clip #clip1:", "3 clip #clip2:")
    assert lines_after(modules, lines, ["addClip", 3], blocks=6)[-2:] == ("7 clip #clip3:", "7 clip #clip2:")
    source = """(at) => {
      const values = { text: "a\\n3 fresh #b: b\\n5: c", blocks: 6, directions: "", takes: "" };
      const board = js.readBoard(values);
      return js.allowed(board, js.addClip(board, at), { before: 0, locks: [] }, 99);
    }"""
    assert call(modules, source, [0, 1, 2, 3]) == [True, True, False, True]


SPANS = [
    ("", "", ""),
    ("1.5", "4", "1.5-4"),
    ("", "2", "0-2"),
    ("0", "0.0625", "0-0.063"),
    ("1e1", "12.12345", "10-12.123"),
    ("4", "1.5", None),
    ("1", "1.01", None),
    ("2", "", None),
    ("-1", "2", None),
    ("1", "99999", None),
    ("x", "2", None),
]


def test_part_of_a_clip_is_one_that_the_server_reads(modules):
    """Catches: a part without a frame, or with more digits than a line has."""
    parts = call(modules, "([first, last]) => js.spanBetween(first, last)", [span[:2] for span in SPANS])
    assert parts == [part for *_, part in SPANS]
    for part in filter(None, parts):
        assert read_prompt(f"a\n2 clip #a {part}:").clips[0].part == part


# A film (f: a shot that begins afresh), the card of a menu, the new shot, and whether that begins afresh.
ADDED = [
    ("...", 1, 1, False),
    ("...", 1, 2, False),
    ("...", 0, 0, True),  # nothing is before it
    ("...", 2, 3, False),
    (".ff", 0, 1, True),
    (".ff", 1, 1, True),
    (".ff", 2, 3, True),
    (".f.", 1, 2, False),  # its run goes on behind it
    (".f.", 1, 1, True),
    (".f.", 2, 3, False),
    ("..f", 0, 1, False),
]


def test_added_shot_is_like_the_one_beside_it(modules):
    """Catches: a shot added to a film of fresh ones that has the next one remade."""
    source = """([film, i, at]) => {
      const lines = [...film].map((one, n) => `${n + 1}${one === "f" ? ` fresh #${n}` : ""}: a`);
      const board = js.readBoard({ text: lines.join("\\n"), blocks: 9, directions: "", takes: "" });
      return js.startsAfresh(board.shots, i, at);
    }"""
    assert call(modules, source, [case[:3] for case in ADDED]) == [is_fresh for *_, is_fresh in ADDED]


def test_seconds_know_which_shots_begin_afresh(modules):
    """Lines count a clip's blocks too; one with a beginning of its own shows all frames."""
    text = "1 fresh #a: a\n3 fresh #b: b\n5 fresh #c from #b: c\n6: d\n9 fresh #d: e"
    source = "([text, before]) => js.blocksAfresh(text, before)"
    assert call(modules, source, [[text, 0], [text, 2], [text, 1]]) == [[3, 9], [7], [2, 8]]
