"""Files of prompts: tables, stories, and what is nearly a direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.text.prompts import read_prompt, read_video_prompt, taken_as_text

ROWS = [("a sea, calm", 7, 2), ("a lake", None, 0)]
TABLES = {
    "a.csv": 'prompt,seed,first\n"a sea, calm",7,2\na lake,,\n',
    "b.csv": "\ufeffSeed;Prompt;First\r\n7;a sea, calm;2\r\n;a lake;\r\n",
    "c.tsv": "first\tprompt\tseed\n2\ta sea, calm\t7\n\ta lake\t\n",
    "d.jsonl": '{"prompt": "a sea, calm", "seed": 7, "first": 2}\n\n{"prompt": "a lake"}\n',
    "e.CSV": 'seed,first,prompt\n7,2,"a sea, calm"\n,,a lake',
    "g.csv": "\n\nprompt;first;seed\n\na sea, calm;2;7\na lake;;\n",
    "f.ndjson": '{"prompt": "a sea, calm", "seed": "7", "first": "2"}\n{"prompt": "a lake", "seed": null}',
}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_a_video(tmp_path, name):
    """Catches: a header that becomes a video, and a seed that is read as a part of the prompt."""
    path = tmp_path / name
    path.write_text(TABLES[name], encoding="utf-8", newline="")
    prompts = read_prompt_list(path)
    assert [(*prompt.texts, prompt.seed, prompt.first) for prompt in prompts] == ROWS


@pytest.mark.parametrize(
    "name, text", [("a.csv", "prompt,seed\na sea,0\n"), ("a.jsonl", '{"prompt": "a sea", "seed": 0}\n')]
)
def test_seed_of_zero_in_a_table_counts(tmp_path, name, text):
    """Catches: a number that is taken for none, as it counts as false, so the video has the usual seed."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    (prompt,) = read_prompt_list(tmp_path / name)
    assert prompt.seed == 0


def test_prompt_of_a_table_may_change(tmp_path):
    (tmp_path / "a.csv").write_text('prompt\n"1: a sea\n5: a storm"\na lake\n', encoding="utf-8")
    first, second = read_prompt_list(tmp_path / "a.csv")
    assert first.entries == ((0, "a sea"), (4, "a storm"))
    assert second.texts == ("a lake",)


REFUSED = {
    ("a.csv", "prompt,mood\na sea,calm\n"): "column 'mood'",
    ("a.csv", "a sea\na lake\n"): "column 'a sea'",
    ("a.csv", "prompt,seed\na sea,1,2\n"): "row 1 of a.csv has more values than columns",
    ("a.csv", "prompt\na sea, calm\n"): "in quotes",
    ("a.csv", "prompt,Prompt\na sea,a lake\n"): "the column 'prompt' twice",
    ("a.csv", "prompt,seed,seed\na sea,1,2\n"): "the column 'seed' twice",
    ("a.csv", "prompt,seed\na sea,x\n"): "row 1 of a.csv: seed is 'x'",
    ("a.csv", "prompt,seed\na sea,1\n,2\n"): "row 2 of a.csv: the prompt is empty",
    ("a.csv", "prompt,first\na sea,0\n"): "first blocks",
    ("a.csv", "prompt\n"): "no rows",
    ("a.csv", 'prompt\n"a sea\n'): "no CSV file",
    ("a.csv", "prompt\n7 strength 0.5: a sea\n"): "row 1",
    ("a.csv", 'prompt\n"a sea\n7 strength 0.5: a storm"\n'): "a table has no strengths",
    ("a.csv", 'prompt\n"a sea\n7 fresh #k: a storm"\n'): "a table has no strengths, shots",
    ("a.csv", 'prompt\na lake\n"a sea\n7 clip #a:"\n'): "row 2",
    ("a.csv", "prompt\n1 fresh #k: a sea\n"): "a table has no strengths, shots",
    ("a.csv", f"prompt\n{'x' * 200_000}\n"): "no CSV file",
    ("a.jsonl", "a sea\n"): "line 1 of a.jsonl is no JSON",
    ("a.jsonl", '["a sea"]\n'): "is no object",
    ("a.jsonl", '{"prompt": 5}\n'): "the prompt is empty",
    ("a.jsonl", '{"prompt": "a sea", "seed": true}\n'): "seed is True",
    ("a.jsonl", '{"prompt": "a sea", "first": false}\n'): "first is False",
    ("a.jsonl", '{"prompt": "a sea", "text": "x"}\n'): "column 'text'",
    ("a.jsonl", "[" * 100_000): "nested too deeply",
    ("a.json", '[\n{"prompt": "a sea"}\n]'): "save it as .jsonl",
    ("a.txt", '{"prompt": "a sea"}\n'): "save it as .jsonl",
    ("a.txt", "prompt,seed\na sea,7\n"): "name it .csv",
    ("a.txt", "id\tPrompt\n1\ta sea\n"): "name it .csv",
}


@pytest.mark.parametrize(("name", "text"), REFUSED, ids=range(len(REFUSED)))
def test_unreadable_table_is_refused(tmp_path, name, text):
    """Catches: a column that is passed over without a word, or taken for prompts."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as refusal:
        read_prompt_list(tmp_path / name)
    assert REFUSED[name, text] in str(refusal.value)
    assert "; " in str(refusal.value)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["/proc/kmsg", "/proc/self/environ"])
def test_file_of_the_system_is_not_waited_for(name):
    """Catches: a file of 0 bytes that gives one for every message of the kernel, for ever."""
    with pytest.raises(BadInput, match="it is empty"):
        read_prompt_list(Path(name))


# --- a story, whose lines name blocks


@pytest.mark.parametrize(
    "text",
    [
        "1: a sea\n5 strength light: a storm",
        "a sea\n5: a storm\n12: a lake",
        "1: a sea\n5 cut: a storm",
        "1: a sea",
    ],
)
def test_story_means_the_same_in_file_and_option(tmp_path: Path, text: str) -> None:
    """Catches: one spelling with two meanings, as three videos of a story of three lines."""
    path = tmp_path / "story.txt"
    path.write_text(f"# storyboard\n\n{text}\n")
    assert read_prompt_list(path) == (read_prompt(text),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1: a sea\nwith gulls", "'with gulls' names none"),
        ("a ball\na cube\n5: a storm", "'a cube' names none"),
        ("a sea\n7: a storm\n5: a lake", "start at blocks 1, 7, 5"),
        ("5: a storm", "the first block has no prompt"),
    ],
)
def test_mixed_list_and_story_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "story.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=fault):
        read_prompt_list(path)


def test_story_in_a_file_may_state_first_blocks(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("[first 2] a sea\n5: a storm\n")
    (prompt,) = read_prompt_list(path)
    assert (prompt.first, prompt.entries) == (2, ((0, "a sea"), (4, "a storm")))


# --- what is nearly a direction


@pytest.mark.parametrize(
    "text",
    [
        "[first x] a sea",
        "[first light] over a lake",
        "-1: a sea",
        "2.5: a sea",
        "\u0661: a sea",
        "5\uff1a a sea",
        "a sea\n1234567: a storm",
        "\u0665 cut: a storm",
        "2 clip a: a sea",
        "2 clip #a 1:30-2:00:",
        "2 clip #a",
    ],
)
def test_near_direction_is_noted(text):
    """Catches: a number that becomes a word of the prompt, without a word."""
    [note] = taken_as_text(read_video_prompt(text).texts)
    assert "taken as text" in note
    assert "sea" not in note, "a report may be private"


@pytest.mark.parametrize(
    "text",
    ["a sea", "[first 5] a sea", "5 boats", "16:9 video", "10:30 at night", "3 cats: one sleeps", "1: a\n5: b"],
)
def test_usual_words_are_not_noted(text):
    assert taken_as_text(read_video_prompt(text).texts) == ()
