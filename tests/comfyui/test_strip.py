"""How the strip on the sampler is used, in ComfyUI's page. What the page needs is said in comfy_page.py."""

import re

import pytest
from comfy_page import COUNTS, WEAKEST, page_of
from comfy_page import ROUTE as MADE

pytestmark = pytest.mark.comfyui


page = page_of("strip.js", seed=100)


def of_squares(seen, name):
    return [square[name] for square in seen["squares"]]


def numbers(seen, name):
    """Return which squares have a mark."""
    return [number for number, value in enumerate(of_squares(seen, name), 1) if value]


def test_squares_are_there_before_any_run(page):
    assert of_squares(page["before"], "label") == [f"Block {number} of 9" for number in range(1, 10)]
    assert page["before"]["legend"].startswith("One square per block.")
    assert (page["before"]["directions"], page["before"]["takes"], page["before"]["next"]) == ("", "", "")


def test_menu_writes_widgets_and_marks_squares(page):
    menu = page["menu"]
    choices = ["automatic", "large model makes it", "small model makes it"]
    radios = [["menuitemradio", name, str(name == "automatic").lower()] for name in choices]
    assert menu["selected"] == []
    prompt = ["menuitem", "new prompt from block 3 on…", None]
    assert menu["opened"]["items"] == [*radios, prompt, ["menuitem", "another take (2)", None]]
    assert (menu["opened"]["focus"], menu["opened"]["expanded"]) == ("menuitemradio", "true")
    assert menu["target"]["directions"] == "..t......"
    assert menu["target"]["modified"]
    assert [checked for _, _, checked in menu["checked"]] == ["false", "true", "false", None, None]
    assert (menu["taken"]["directions"], menu["taken"]["takes"]) == ("..t......", "6:2")
    assert menu["another"][4:] == [["menuitem", "back to take 1", None]], "take 2 is not made yet"
    # Escape gives the focus back, wherever it is: the menu was opened from the button below the film.
    assert (menu["escaped"]["open"], menu["escaped"]["focus"], menu["open"]) == (0, "BUTTON", 0)
    assert menu["escaped"]["directions"] == "..t......"
    taken = menu["taken"]
    assert (numbers(taken, "letter"), numbers(taken, "take")) == ([3], [6])
    assert of_squares(taken, "label")[2] == "Block 3 of 9 · you chose: large model"
    assert of_squares(taken, "label")[5] == "Block 6 of 9 · take 2"


def test_keys_do_all_that_the_mouse_does(page):
    keys = page["keys"]
    assert keys["moved"]["focus"] == "3"
    assert (keys["written"]["directions"], keys["written"]["takes"]) == ("..d.....t", "6:2, 9:2")
    assert keys["written"]["said"] == "Block 9 of 9 · you chose: large model · take 2"
    assert keys["prompt"]["asked"]["focus"] == "TEXTAREA"
    assert keys["prompt"]["text"].split("\n")[1:] == ["4: a small red ring rests on grass"]
    assert keys["prompt"]["focus"] == "BUTTON", "the title of the card: undoing takes back a step, no letter"
    assert "\n" not in keys["prompt"]["cleared"]
    assert keys["cleared"]["directions"] == ""
    assert (keys["chosen"]["directions"], keys["chosen"]["focus"]) == ("..d......", "3")
    assert (keys["first"]["takes"], keys["first"]["focus"]) == ("9:2", "6")
    assert keys["said"] == ["Block 3 of 9 · you chose: large model · take 2", ""], (
        "what a screen reader finds is true, or nothing"
    )


def test_direction_and_take_are_undone_one_by_one(page):
    """And the focus stays on the square, though all nodes are made anew."""
    undone = page["undone"]
    assert (undone["before"]["directions"], undone["before"]["takes"]) == ("..d..d...", "9:2")
    written = [(step["directions"], step["takes"]) for step in undone["steps"]]
    assert written == [("..d......", "9:2"), ("..d..d...", "9:2"), ("..d......", "9:2"), ("..d......", "6:2, 9:2")]
    for step in undone["steps"]:
        assert numbers(step, "letter") == [i for i, letter in enumerate(step["directions"], 1) if letter != "."]
        assert step["focus"] == "6"
    assert numbers(undone["cleared"], "letter") == numbers(undone["cleared"], "take") == []


def test_prompt_sends_what_fits_its_blocks(page):
    """And nothing is lost on the way to another number and back."""
    assert page["undone"]["sent"] == [
        [9, "..d......", "6:2, 9:2", 9],
        [4, "..d.", "", 4],
        [12, "..d.........", "6:2, 9:2", 12],
        [9, "..d......", "6:2, 9:2", 9],
    ]


def test_a_run_states_its_result(page):
    assert of_squares(page["first"], "outcome") == MADE
    ratio = r"((\d+\.\dx|about) as fast as the large model alone|slower than .*3 of 8 drafts were remade)"
    assert re.fullmatch(rf"{COUNTS}made in \d+\.\d s{ratio}", page["first"]["legend"])
    assert (page["first"]["next"], numbers(page["first"], "outlined")) == ("next run: nothing to remake", [])
    assert page["first"]["refused"] == [True, False], "a refused run does not leave nothing to do"


def test_line_below_the_film_shows_drift(page):
    """Catches: a line of the score, one upside down, or one that is not seen."""
    drift = page["first"]["drift"]
    first = drift["told"][:2]
    later = drift["told"][2:]
    most = max(later)
    assert (first, len(later)) == ([None, None], 7)
    points = [tuple(map(float, point.split())) for point in re.findall(r"[ML]([\d.]+ [\d.]+)h0", drift["path"])]
    assert points == [
        (pytest.approx((i + 0.5) / 9 * 100, abs=0.01), pytest.approx(1 - drift_of_block / max(0.3, most), abs=1e-3))
        for i, drift_of_block in enumerate([0, 0, *later])
    ]
    assert re.sub(r"[\d. h]", "", drift["path"]) == "MM" + 7 * "L"
    block = later.index(most) + 3
    assert drift["text"].startswith(f"colour shift: at most {most:.2f}, block {block} ")
    assert drift["label"].startswith(drift["text"])
    assert drift["shown"]
    assert min(drift["width"], drift["height"]) > 2


def test_film_stops_and_then_costs_nothing(page):
    """No drawn frame and no timer of ours is asked for. Catches a film that plays on, unseen by its user."""
    film = page["film"]
    assert film["idle"] == 0
    assert film["busy"] > 10
    assert len({frame.split(":")[0] for frame in film["all"]}) >= 4
    assert len(film["paused"]) == 1
    assert film["named"] == f"Block {film['paused'][0].split(':')[0]} …", (
        "the button is for the block that is shown"
    )


def test_film_is_scrubbed_stepped_played_and_enlarged(page):
    """Its pictures are the blocks' middle frames. The kind: a key that works only where the focus happens to be."""
    film = page["film"]
    assert film["thumbs"] == ["1:5", *(f"{number}:7" for number in range(2, 10))]
    assert film["scrubbed"] == ["2:1", "2:7", "2:12"]
    assert re.fullmatch(rf"Block 2 of 9 · {WEAKEST}", film["detail"])
    assert film["pixels"]["seen"]
    assert film["pixels"]["colours"] > 50
    assert film["chosen"] == "2:7"
    assert film["steps"][:3] == ["2:6", "2:7", "3:7"]
    assert film["steps"][3].split(":")[0] in {"3", "4"}
    assert film["large"] == ["5:7", "5:8"]
    assert film["closed"] == "5"


def test_film_stands_still_where_motion_is_reduced(page):
    *frames, detail = page["film"]["still"]
    assert len(frames) == 1
    assert frames[0].startswith("7:")
    assert detail.startswith("Block 7 of 9")


def test_sheet_shows_takes_side_by_side(page):
    """Only up to their block, and without another file. The film's run stays on the strip."""
    made = page["sheet"]["made"]
    assert [(take, checked) for take, checked, *_ in made["cells"]] == [
        ("1", "true"),
        *((take, "false") for take in "234"),
    ]
    assert {shown for _, _, shown, _ in made["cells"]} == {"8:7"}
    assert all(label.startswith(f"take {take} · ") for take, _, _, label in made["cells"])
    assert of_squares(made["strip"], "outcome") == MADE
    assert made["videos"] == 0


def test_chosen_take_is_not_made_again(page):
    """The kind: words on the next run that are hidden, or that are of another run or block."""
    sheet = page["sheet"]
    assert (sheet["chosen"]["takes"], sheet["chosen"]["cells"][1][1]) == ("8:2", "true")
    forecast, *seen = sheet["chosen"]["forecast"]
    assert forecast.startswith("next run: remakes block 9")
    assert seen == [True, "Block 8 …"]
    assert [event["reused"] for event in sheet["second"]["events"]] == [True] * 8 + [False]
    assert sheet["second"]["events"][7]["take"] == 2
    assert [take for take, *_ in sheet["second"]["cells"]] == list("1234")
    assert [event["reused"] for event in sheet["back"]] == [True] * 9


def test_two_runs_play_on_one_time_line(page):
    """The kind: two runs that the page takes for one.

    Catches: frames of another run or place, pictures of two sizes, a button over one, a run not to be chosen.
    """
    pair = page["sheet"]["pair"]
    *_, older, before, now = pair["made"]
    assert pair["moved"]["films"] == [[before, "2:1"], [now, "2:1"]]
    assert [caption.split(": ")[0] for caption in pair["moved"]["captions"]] == ["before", "now"]
    assert (len(pair["moved"]["runs"]), pair["moved"]["runs"][0]) == (
        2,
        "the run before, different from block 8 on",
    )
    (_, first), (_, second) = pair["scrubbed"]["films"]
    assert first == second
    assert first.startswith("8:")
    for name in ("moved", "scrubbed", "back", "older"):
        first_size, second_size = pair[name]["sizes"]
        assert first_size == second_size
        assert min(first_size) > 50
        assert (pair[name]["over"], pair[name]["pairing"], pair[name]["named"]) == (0, True, True)
    assert pair["large"]["large"] == [[before, "8:7"], [now, "8:7"]]
    assert pair["next"]["large"] == [[before, "8:8"], [now, "8:8"]]
    assert pair["large"]["names"] == pair["large"]["captions"]
    assert pair["back"]["focus"] == "8"
    assert [run for run, _ in pair["older"]["films"]] == [older, now]
    assert not pair["left"]["pairing"], "Escape closes it wherever the focus is"


def test_kept_blocks_stay_whatever_else_changes(page):
    kept = page["sheet"]["kept"]
    assert kept["refused"] == "", "no lock is drawn that the server cannot keep"
    assert re.fullmatch("7:[0-9a-f]{16}", kept["lock"]["text"])
    assert kept["lock"]["status"] == 200, "its latents are on the disk before any other run"
    assert kept["asked"]["next"] == "next run: remakes blocks 8 to 9"
    assert of_squares(kept["made"], "outcome")[:7] == ["given"] * 7
    assert None not in of_squares(kept["made"], "outcome")
    assert of_squares(kept["made"], "label")[6] == "Block 7 of 9 · locked"
    assert kept["thumbs"] == 9
    assert kept["items"] == [
        "unlock blocks 2 to 7",
        "enlarge",
        "compare with the run before",
    ]
    assert kept["released"]["next"].startswith("next run: remakes blocks 2 to 9")
    assert [" · locked" in label for label in of_squares(kept["released"], "label")] == [True] + [False] * 8


def test_another_take_remakes_its_block_and_later_ones(page):
    asked = page["again"]["asked"]
    made = page["again"]["made"]
    assert asked["takes"] == "6:2"
    assert numbers(asked, "outlined") == [6, 7, 8, 9]
    assert re.fullmatch(r"next run: remakes blocks 6 to 9(, about \d+\.\d s)?", asked["next"])
    assert of_squares(asked, "label")[5].endswith(" · take 2 · the next run remakes it")
    assert [event["reused"] for event in page["again"]["events"]] == [True] * 5 + [False] * 4
    assert [event["take"] for event in page["again"]["events"]] == [1] * 5 + [2] + [1] * 3
    assert numbers(made, "earlier") == [1, 2, 3, 4, 5]
    assert "5 from an earlier run" in made["legend"]
    assert "from an earlier run" in of_squares(made, "label")[4]
    assert (numbers(made, "outlined"), made["next"]) == ([], "next run: nothing to remake")


def test_pending_direction_shows_its_letter(page):
    """Catches: a mark that the dimmed picture of its square covers, just while it waits for a run."""
    before, directed, after = page["again"]["letters"]
    assert [is_dimmed for is_dimmed, _ in (before, directed, after)] == [True, True, True]
    assert max(before[1], after[1]) < 128, "without a letter the corner is the dimmed picture"
    assert directed[1] > 200


def test_the_strip_never_shows_two_runs_at_once(page):
    """What is out of order is not shown, but what the server says."""
    strays = page["strays"]
    assert strays["before"] == strays["other"] == strays["early"] == strays["lost"] == MADE
    assert strays["begun"] == ["bailed_out", *[None] * 8]


def test_strip_without_film_asks_for_no_picture(page):
    assert page["off"]["on"] >= 9
    assert (page["off"]["off"], page["off"]["seen"]) == (0, False)
    assert page["off"]["onAgain"] == 9


def test_page_loaded_in_mid_run_shows_it(page):
    left = page["left"]
    assert left["queued"] == left["run"] == left["server"]["run"]
    outcomes = [outcome for outcome in of_squares(left["going"], "outcome") if outcome]
    on_server = [event["outcome"] for event in left["server"]["events"]]
    assert outcomes[: len(on_server)] == on_server[: len(outcomes)]
    assert numbers(left["reloaded"], "outcome") == list(range(1, len(numbers(left["reloaded"], "outcome")) + 1))
    assert len(outcomes) > len(numbers(left["reloaded"], "outcome")) >= 3
    assert left["reloaded"]["stop"] == {"text": "Stop after this block", "shown": True, "enabled": True}


def test_a_stopped_run_keeps_what_it_made(page, server):
    """Its video has the made blocks, 9 pixel frames and then 12 each, and is on disk."""
    left = page["left"]
    assert left["stopping"] == {"text": "stops after this block", "shown": True, "enabled": False}
    made = left["done"]["blocks"]
    assert left["done"]["stopped"]
    assert made == len(numbers(left["stopped"], "outcome")) < 200
    assert left["stopped"]["legend"].endswith(f"stopped after block {made} of 200")
    assert left["stopped"]["next"].startswith(f"next run: remakes blocks {made + 1} to 200, about ")
    assert numbers(left["stopped"], "outlined") == list(range(made + 1, 201))
    assert left["seconds"] == pytest.approx((12 * made - 3) / 16, abs=0.1)
    assert list((server.folder / "output" / "sdvg").glob("pocket*.mp4"))
