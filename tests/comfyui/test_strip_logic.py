"""What the strip on the sampler works out by itself, run by node: lengths, the next run, letters, takes."""

import json

import pytest
from comfy_page import HERE, call, run_node, write_modules
from running_server import ROOT
from sdvg_pack.sdvg_core.settings.request import read_takes

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


# Blocks at which later shots begin with nothing before them, and the frames of nine blocks.
AFRESH = [([], 105), ([4], 102), ([2, 9], 99), ([9], 102), ([10], 105)]


def test_every_beginning_shows_three_frames_fewer(modules):
    """Catches: a film of fresh shots whose seconds are those of one long run."""
    frames = call(modules, "(afresh) => js.framesOf(9, { afresh })", [blocks for blocks, _ in AFRESH])
    assert frames == [count for _, count in AFRESH]
    assert call(modules, "(n) => js.secondOf(n, { afresh: [4] })", [4, 5]) == [33 / 16, 42 / 16]


def test_length_counts_the_frames_that_are_decoded(modules):
    """One latent frame is four frames of the video, and one at its beginning."""
    starts = [({}, 0, False), ({"image": True}, 1, False), ({"clip": True}, 27, True)]
    lengths = call(modules, "(start) => [1, 9, 100].map((n) => js.framesOf(n, start))", [s for s, *_ in starts])
    for frames, (_, given_frames, added) in zip(lengths, starts, strict=True):
        before = 4 * (given_frames - 1) + 1 if added else 0
        assert frames == [4 * (given_frames + 3 * blocks - 1) + 1 - before for blocks in (1, 9, 100)]


def test_frames_follow_the_length_of_a_block(modules):
    """Catches: seconds that are three times too many where the drafter makes blocks of one latent frame."""
    starts = [{"blockLength": 1}, {"blockLength": 1, "image": True}, {"blockLength": 1, "afresh": [4]}]
    assert call(modules, "(start) => js.framesOf(9, start)", starts) == [4 * 9 - 3, 4 * 9 + 1, 4 * 9 - 6]


# A start, and the seconds at which the first two blocks begin.
BEGINNINGS = [
    ({}, [0, 9 / 16]),
    ({"image": True}, [0, 13 / 16]),
    ({"clip": True, "clipSeconds": None}, [0, 12 / 16]),
    ({"clip": True, "clipSeconds": 2.5}, [2.5, 2.5 + 12 / 16]),
]


def test_blocks_begin_where_the_clip_ends(modules):
    """Catches: blocks of an extended clip that begin at 0.0 s."""
    seconds = call(
        modules, "(start) => [1, 2].map((n) => js.secondOf(n, start))", [start for start, _ in BEGINNINGS]
    )
    assert seconds == [times for _, times in BEGINNINGS]


def whole(blocks):
    """Return the only shot of a video."""
    return ["#0", 1, blocks]


# until_block, blocks and lock of a run, and whether the server refuses it.
UNTIL = [
    (0, 9, "", False),
    (9, 9, "", False),
    (10, 9, "", True),
    (3, 9, "3:c", True),
    (4, 9, "3:c", False),
    (0, 3, "3:c", False),
]


def test_until_block_is_one_that_is_made(modules):
    """Catches: a run that is refused for its last block, without a word before."""
    cases = [
        {"until": until, "blocks": blocks, "lock": lock, "shots": [whole(blocks)]}
        for until, blocks, lock, _ in UNTIL
    ]
    assert call(modules, "js.isUntilWrong", cases) == [is_wrong for *_, is_wrong in UNTIL]


SPEEDS = [(1.4, "1.4x as fast"), (1.02, "about as fast"), (0.97, "about as fast"), (0.6, "slower")]


@pytest.mark.parametrize(("times", "words"), SPEEDS)
def test_speed_is_told_in_words(modules, times, words):
    """Catches: *1.0x as fast as the large model alone*."""
    program = f"""
    globalThis.i18n = {{ en: {(ROOT / "locales" / "en" / "main.json").read_text(encoding="utf-8")} }};
    globalThis.app = {{ extensionManager: {{ setting: {{ get: () => "en" }} }} }};
    const {{ summaryOf }} = await import("./strip_sentences.js");
    const done = {{ speed_up: {times}, seconds: 1 }};
    console.log(JSON.stringify(summaryOf({{ events: [], of: 9, info: {{}}, done }})));
    """
    assert any(line.startswith(words) for line in run_node(modules, program))


# What the server says of each block of the next run, and the stretches that it makes.
FORECASTS = [("sss", []), ("scc", [(2, 3)]), ("ccc", [(1, 3)]), ("scsmm", [(2, 2), (4, 5)]), ("mss", [(1, 1)])]


def test_next_run_makes_the_stretches_that_change(modules):
    """Catches: a shot that stays, behind one that is remade, said to be remade too."""
    stretches = call(modules, "(blocks) => js.madeNext({ blocks })", [blocks for blocks, _ in FORECASTS])
    assert stretches == [[{"from": first, "to": last} for first, last in parts] for _, parts in FORECASTS]


LENGTHS = [(7.3, "about 7.3 s"), (119, "about 119 s"), (150, "about 3 min"), (7100, "about 118 min")]
LENGTHS += [(7199, "about 2 h 0 min"), (52906, "about 14 h 42 min")]


@pytest.mark.parametrize(("seconds", "words"), LENGTHS)
def test_long_runs_are_told_in_hours(modules, seconds, words):
    """Catches: *about 52906 s*."""
    program = f"""
    globalThis.i18n = {{ en: {(ROOT / "locales" / "en" / "main.json").read_text(encoding="utf-8")} }};
    globalThis.app = {{ extensionManager: {{ setting: {{ get: () => "en" }} }} }};
    const {{ nextText }} = await import("./strip_sentences.js");
    const forecast = {{ blocks: "ssc", seconds: {seconds} }};
    const inputs = {{ blocks: 3, lock: "", until: 0, start: {{}}, shots: {json.dumps([whole(3)])} }};
    console.log(JSON.stringify(nextText(inputs, forecast, {{ hasRun: true }}, "")));
    """
    assert run_node(modules, program).endswith(f", {words}")


NEXT = [
    ({"lock": "9:a"}, {"hasRun": False}, "", "shows the locked blocks 1 to 9"),
    ({"lock": "3:a"}, {"hasRun": False}, "", ""),
    ({"lock": "9:a"}, {"hasRun": True}, "", ""),
    ({"until": 12}, {}, "", "until_block is 12"),
    ({"until": 12}, {}, "the locked blocks have 64 x 64", "the locked blocks have 64 x 64"),
    ({"lock": "3:a", "start": {"restyle": True}}, {}, "", "cannot be locked"),
    ({}, {"hasRun": True, "bringsBack": True}, "", "press Run to see"),
]


@pytest.mark.parametrize("inputs, state, refusal, words", NEXT, ids=str)
def test_next_run_is_named_or_its_refusal(modules, inputs, state, refusal, words):
    """Catches: an empty box over a film locked whole, after a restart; a run that is promised, and then refused."""
    inputs = {"blocks": 9, "lock": "", "until": 0, "start": {}, "shots": [whole(9)], **inputs}
    program = f"""
    globalThis.i18n = {{ en: {(ROOT / "locales" / "en" / "main.json").read_text(encoding="utf-8")} }};
    globalThis.app = {{ extensionManager: {{ setting: {{ get: () => "en" }} }} }};
    const {{ nextText, refusalText }} = await import("./strip_sentences.js");
    const inputs = {json.dumps(inputs)};
    const refusal = refusalText(inputs, {json.dumps(refusal)});
    console.log(JSON.stringify(nextText(inputs, null, {json.dumps(state)}, refusal)));
    """
    sentence = run_node(modules, program)
    assert words in sentence
    assert bool(words) == bool(sentence)


# Blocks of the next run, the old ones, whether the run shown has another seed; whether another film is back.
BACK = [
    ("sss", [], False, False),
    ("sss", [], True, True),
    ("sss", [2, 3], False, True),
    ("ssc", [2, 3], True, False),
    ("ssm", [], True, False),
]


def test_film_of_an_earlier_run_is_named(modules):
    """Catches: *nothing to remake* beside a film of other settings, as after a step that is undone."""
    source = """([blocks, old, other]) => {
      const run = { info: { signature: { rest: other ? "b" : "a" } } };
      return js.bringsBack({ blocks, old }, run, { rest: "a" });
    }"""
    assert call(modules, source, [case[:3] for case in BACK]) == [brings_back for *_, brings_back in BACK]


# Runs, oldest first, as [blocks made, whether it broke off]; and which of them is shown.
SHOWN = [
    ([[3, False], [0, True]], 0),
    ([[3, False], [1, True]], 1),
    ([[3, False], [0, False]], 1),
    ([[3, True], [0, True], [0, True]], 0),
    ([[0, True]], 0),
]


def test_run_without_a_block_hides_no_film(modules):
    """Catches: an empty strip after a run that was interrupted before its first block."""
    source = """(all) => {
      const runs = all.map(([made, ended], at) => ({ at, events: Array(made).fill({}), ended }));
      return js.shownOf(runs, () => true).at;
    }"""
    assert call(modules, source, [runs for runs, _ in SHOWN]) == [at for _, at in SHOWN]


# --- takes


SIGNED = {"rest": "r", "router": "g", "tau": 0, "prompts": []}
# What a run that made take 2 of block 4 was asked for beside what is asked now, and whether it is one to compare.
ALIKE = [
    ({}, True),
    ({"directions": "..d"}, False),
    ({"directions": ".....d"}, True),
    ({"directions": "...."}, True),
    ({"takes": "3:2, 4:2"}, False),
    ({"kept": "2:c"}, False),
    ({"signature": {**SIGNED, "rest": "another seed"}}, False),
    ({"signature": {**SIGNED, "tau": 1}}, False),
    ({"signature": None}, False),
]


@pytest.mark.parametrize("shown", ["", "..d"])
def test_takes_compare_with_what_is_asked(modules, shown):
    """Catches: takes compared with the run that is shown, though they are made of what is asked now."""
    source = """([shown, now, { signature, directions, takes, kept }]) => {
      const film = { run: "f", directions: shown, takes: "", events: [1, 2, 3, 4], info: {} };
      const other = { directions, takes, events: [{ number: 4 }], info: { signature, kept, until: 4 } };
      return js.takesKnown(4, film, [other], now).map(([take]) => take);
    }"""
    now = {"signature": SIGNED, "directions": "", "takes": "4:9", "kept": "", "shots": [whole(9)]}
    cases = [[shown, now, {**now, "takes": "4:2", **change}] for change, _ in ALIKE]
    assert call(modules, source, cases) == [[1, 2] if is_alike else [1] for _, is_alike in ALIKE]


# How the run that made take 1 of blocks 1 to 4 ended, and whether it is over.
ENDINGS = [
    ({"done": {}}, True),
    ({"done": {"stopped": True}}, True),
    ({"done": {"failed": True}}, True),
    ({"done": None, "ended": True}, True),
    ({"done": None}, False),
]


def test_takes_of_a_broken_run_stay_known(modules):
    """Catches: a take that is gone once another run is shown, as its own was interrupted after that block."""
    source = f"""(ending) => {{
      const asked = {{ directions: "", takes: "4:2" }};
      const info = {{ run: "a", signature: {json.dumps(SIGNED)}, directions: "", takes: "" }};
      const broken = {{ ...js.newRun(info, [1, 2, 3, 4].map((number) => ({{ number }}))), ...ending }};
      const shown = js.newRun({{ ...info, ...asked, run: "b" }}, [1, 2, 3, 4].map((number) => ({{ number }})));
      const now = {{ ...asked, signature: info.signature, kept: "", shots: [["#0", 1, 9]] }};
      const known = (number) => js.takesKnown(number, shown, js.earlierOf([broken, shown], shown), now);
      return [4, 5].map((number) => known(number).map(([take]) => take));
    }}"""
    takes = call(modules, source, [ending for ending, _ in ENDINGS])
    assert takes == [[[1, 2] if is_over else [2], []] for _, is_over in ENDINGS]


# --- words


I18N = {
    "en": {"sdvg": {"plain": "a {name}", "some": {"one": "{count} block", "many": "{count} blocks"}, "only": "o"}},
    "zh": {"sdvg": {"plain": "{name} 个", "some": {"one": "{count} 块", "many": "{count} 块"}}},
}
# The page's language, what the server told, a text and its values; and what the page says.
SPOKEN = [
    ("en", I18N, "plain", {"name": "b"}, "a b"),
    ("en", I18N, "some", {"count": 1}, "1 block"),
    ("en", I18N, "some", {"count": 2}, "2 blocks"),
    ("zh", I18N, "plain", {"name": "b"}, "b 个"),
    ("zh-TW", I18N, "plain", {"name": "b"}, "b 个"),
    ("fr", I18N, "plain", {"name": "b"}, "a b"),
    ("zh", I18N, "only", {}, "o"),
    ("zh", {"en": I18N["en"]}, "plain", {"name": "$&"}, "a $&"),
    ("zh", {}, "plain", {}, "plain"),
    ("zh", None, "plain", {}, "plain"),
]


@pytest.mark.parametrize(("language", "words", "key", "values", "spoken"), SPOKEN)
def test_text_is_in_the_page_language(modules, language, words, key, values, spoken):
    """Catches: a language without its words, 1 blocks, an answer of the server that is missing."""
    program = f"""
    globalThis.i18n = {json.dumps(words)};
    globalThis.app = {{ extensionManager: {{ setting: {{ get: () => {json.dumps(language)} }} }} }};
    const {{ text }} = await import("./words.js");
    console.log(JSON.stringify(text({json.dumps(key)}, {json.dumps(values)})));
    """
    assert run_node(modules, program) == spoken


# --- the queue, which other packs wrap too


WRAPPED = """
const seen = [];
const { api } = await import("../../scripts/api.js");
const wrap = (name) => {
  const inner = api.queuePrompt;
  api.queuePrompt = async function (...sent) {
    seen.push([name, this === api, sent]);
    return inner.apply(this, sent);
  };
};
globalThis.sessionStorage = { getItem: () => null, setItem: () => {} };
const refusal = Object.assign(new Error("refused"), { response: { node_errors: { 3: {} } } });
api.queuePrompt = async (number) => {
  if (number < 0) throw refusal;
  return { prompt_id: "p", node_errors: {}, number };
};
wrap("before");
const { onQueue } = await import("./frontend.js");
wrap("after");
const told = [];
onQueue((refused) => told.push(refused));
const answer = await api.queuePrompt(1, "prompt", "options");
const error = await api.queuePrompt(-1).catch((caught) => caught);
console.log(JSON.stringify([seen, answer, error === refusal, told]));
"""


def test_other_wrappers_of_the_queue_work(modules):
    """Catches: a result, an error, an argument or `this` that is lost between the wrappers of two packs."""
    seen, answer, is_same, refusals = run_node(modules, WRAPPED)
    sent = [[1, "prompt", "options"], [1, "prompt", "options"], [-1], [-1]]
    assert seen == [[name, True, of] for name, of in zip(["after", "before"] * 2, sent, strict=True)]
    assert answer == {"prompt_id": "p", "node_errors": {}, "number": 1}
    assert is_same
    assert refusals == [None, {}, None, {"3": {}}]


# --- the runs of one node that the page knows of, by name: in capitals one that goes on


LOG = """(name) => {
  const lower = name.toLowerCase();
  return js.newRun({ run: lower }, [], name === lower ? {} : null);
};
const names = (logs) => logs.map((log) => (js.isGoing(log) ? log.run.toUpperCase() : log.run)).join("")"""
# What the page knows, what the server tells, oldest first, and what the page knows then.
ANSWERS = [
    ("", "abc", "abc"),
    ("abc", "abc", "abc"),
    ("c", "abc", "abc"),  # the newest one's output was kept by the page
    ("ba", "ab", "ba"),  # what came from the cache last is shown
    ("b", "acd", "bacd"),
    ("B", "a", "aB"),  # it began after the server answered
    ("aB", "ab", "ab"),
    ("ab", "aB", "ab"),  # an answer that was late
    ("ab", "abC", "abC"),
]


def test_runs_the_server_tells_of_take_their_place(modules):
    """Catches: an older run in front of a newer one, which the strip then shows."""
    source = f"([known, told]) => names(js.mergeRuns([...known].map(log), [...told].map(log)));\nconst log = {LOG}"
    assert call(modules, source, [case[:2] for case in ANSWERS]) == [merged for *_, merged in ANSWERS]


def test_a_strip_shows_its_newest_own_run(modules):
    """Catches: another tab's run, newer than the strip's own, that leaves the strip without a film."""
    source = f"""([known, own]) => {{
      const shown = js.shownOf([...known].map(log), ({{ run }}) => own.includes(run));
      return [shown?.run ?? "", names(js.earlierOf([...known].map(log), shown))];
    }};
    const log = {LOG}"""
    cases = [["abcd", "ac"], ["abcd", ""], ["abC", "abc"], ["", "a"]]
    assert call(modules, source, cases) == [["c", "abd"], ["", "abcd"], ["c", "ab"], ["", ""]]


def test_a_run_shown_again_is_the_newest(modules):
    source = f"([known, name]) => names(js.withNewest([...known].map(log), log(name)));\nconst log = {LOG}"
    assert call(modules, source, [["ab", "C"], ["abc", "a"], ["", "a"]]) == ["abC", "bca", "a"]
    many = f"""(count) => js.withNewest(Array.from({{ length: count }}, (_, i) => log(`x${{i}}`)), log("y")).length;
    const log = {LOG}"""
    assert call(modules, many, [3, 500]) == [4, 32]


# A node's height, what it needs, its growth for a part of 152, whether that opens; then height and growth.
ROOMS = [
    ((668, 820, None, True), (820, 152)),
    ((700, 820, None, True), (820, 120)),
    ((900, 820, None, True), (900, 152)),  # it was saved so
    ((820, 668, 120, False), (700, None)),
    ((820, 668, None, False), (668, None)),  # it was opened in Nodes 2.0
    ((1120, 668, None, False), (968, None)),
    ((700, 668, 152, False), (668, None)),
]


def test_a_part_leaves_a_number_as_height(modules):
    """Catches: a part opened in one renderer and closed in the other, which made the node's height NaN."""
    source = """([height, least, grown, open]) => {
      const room = js.roomFor({ height, least, usual: 152, grown: grown ?? undefined, open });
      return [room.height, room.grown ?? null];
    }"""
    assert call(modules, source, [given for given, _ in ROOMS]) == [list(room) for _, room in ROOMS]


# What the run's lines were, what they are now, a shot's blocks, a clip's before them, and the block of its picture.
PICTURES = [
    ([[4, "b"], [7, "c"]], [[4, "b"], [7, "c"]], (4, 6), 0, 6),
    ([[4, "b"], [7, "c"]], [[6, "b"], [9, "c"]], (6, 8), 0, 6),  # the first shot is longer
    ([[4, "b"], [7, "c"]], [[3, "b"], [6, "c"]], (3, 5), 0, 5),
    ([[4, "b"], [7, "c"]], [[3, "b"], [6, "c"]], (1, 2), 0, 2),
    ([[4, "b"], [7, "c"]], [[8, "b"], [11, "c"]], (8, 10), 0, 6),  # all of it stood elsewhere
    ([[4, "b"], [7, "c"]], [[4, "c"], [7, "b"]], (4, 6), 0, 9),  # it is moved
    ([[4, "b"], [7, "c"]], [[4, "c"]], (4, 6), 0, 9),  # the one before it is removed
    ([[4, "b"], [7, "c"]], [[4, "new"], [7, "c"]], (4, 6), 0, 6),  # until it is made, the picture of its old words
    ([[4, "b"], [7, "c"]], [[6, "new"], [9, "c"]], (6, 8), 0, 6),
    ([[4, "b"], [7, "c"]], [[4, "new"], [7, "b"], [10, "c"]], (4, 6), 0, None),  # it is added
    ([[4, "b"], [7, "b"]], [[4, "b"], [7, "b"]], (4, 6), 0, 6),
    ([[6, "b"], [9, "c"]], [[6, "b"], [9, "c"]], (4, 6), 2, 6),
    ([[6, "b"], [9, "c"]], [[8, "b"], [11, "c"]], (6, 8), 2, 6),
    (None, [[6, "b"]], (6, 8), 0, 8),
]


def test_a_card_shows_its_own_shot(modules):
    """Catches: a first frame, which is still the shot before; another shot's block after a change of length."""
    source = """([then, now, [first, last], before]) => {
      const sign = (prompts) => prompts && { prompts, positive: "a" };
      const events = [1, 2, 3, 4, 5, 6, 7, 8, 9].map((number) => ({ number }));
      const run = { info: { signature: sign(then) }, events };
      return js.pictureOf({ first, last, before }, run, sign(now))?.number ?? null;
    }"""
    assert call(modules, source, [case[:4] for case in PICTURES]) == [number for *_, number in PICTURES]


TAKES = [
    ("", 6, 2, "6:2"),
    ("6:2", 2, 3, "2:3, 6:2"),
    ("6:2", 6, 1, ""),
    (" 6:2;2:4 ", 4, 2, "2:4, 4:2, 6:2"),
    ("9:2, 1:1, nonsense", 3, 2, "3:2"),
]


def test_a_take_is_written_beside_the_others(modules):
    """Without first takes and blocks that the run does not have; and the server reads it as the strip does."""
    texts = call(modules, "([before, number, take]) => js.withTake(before, 6, number, take)", TAKES)
    assert texts == [written for *_, written in TAKES]
    for written, shown in zip(texts, call(modules, "(text) => [...js.takesOf(text)]", texts), strict=True):
        assert {number - 1: take for number, take in shown} == read_takes(written, 6)


PAGE = (HERE / "browser" / "player.js").read_text(encoding="utf-8")


def test_pictures_on_the_screen_are_never_dropped(modules):
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


# What the square of a block says that begins a shot: of one that is locked, and of one that was made.
SHOT_BEGUN = """
globalThis.i18n = { en: {} };
const { sentenceOf } = await import("./strip_sentences.js");
const join = { brightness: 3, contrast: 2, usual_brightness: 1, usual_contrast: 1, from_first: 4 };
const said = ["given", "kept"].map((outcome) => {
  const event = { outcome, seconds: 1 };
  return sentenceOf({ number: 4, of: 9, event, join, letter: "r", take: 1, kept: outcome === "given" });
});
console.log(JSON.stringify(said));
"""


def test_square_says_how_its_shot_begins(modules):
    """Catches: no word of the join to a shot of which only the rest was made anew."""
    assert [said.count("join") for said in run_node(modules, SHOT_BEGUN)] == [1, 1]
