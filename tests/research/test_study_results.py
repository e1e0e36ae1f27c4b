"""The summary, the page for people, and the plots, from rows whose truth is known."""

import itertools
import json
import re

import pytest
from matplotlib.figure import Figure
from study_rows import made_up_plan, made_up_rows

from research.plots import LOOKS, draw_gain_over_first
from research.summary import page_text, summarise_study

pytestmark = pytest.mark.heavy


def summary_of(prompts: int = 20, **options):
    plan = made_up_plan(prompts)
    return summarise_study(made_up_rows(plan, **options), plan)


@pytest.fixture(scope="module")
def summary():
    return summary_of()


def words_of(summary, column: str = "minus random, as many target calls") -> dict[str, str]:
    """The last word of the page's table on every configuration: better, worse or open."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page_text(summary).splitlines()]
    start = next(i for i, cells in enumerate(lines) if cells[0] == "configuration")
    place = lines[start].index(column)
    table = itertools.takewhile(lambda cells: len(cells) > place, lines[start + 2 :])
    return {cells[0]: cells[place].split()[-1] for cells in table}


def test_the_page_says_in_a_word_whether_the_reward_beats_chance(summary):
    """With no bonus one gate in twenty seems to differ; with one of 1 dB every gate does, whatever its sign."""
    gates = [c["name"] for c in summary["configurations"] if c["tau"] is not None]
    assert len([name for name in gates if ":" not in name and not name.startswith("hybrid")]) == 7
    assert len(gates) == 12
    plain, better, worse = map(words_of, (summary, *(summary_of(12, gate_bonus=b) for b in (1.0, -1.0))))
    assert sum(plain[gate] == "open" for gate in gates) >= 0.7 * len(gates)
    for found, word in ((better, "better"), (worse, "worse")):
        assert found["reward-min@0"] == word
        assert sum(found[gate] == word for gate in gates) >= 0.7 * len(gates)


def test_few_prompts_give_figures_without_intervals_and_no_verdict():
    """Catches a table of two prompts that says *better*."""
    summary = summary_of(2, gate_bonus=1.0)
    text = page_text(summary)
    assert "2 prompts are too few for an interval, so nothing is claimed beyond them" in text
    assert "takes at least 10 prompts" in text
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    assert not re.search(r"\[|\d (better|worse|open)\b", table)
    assert '"low": null' in json.dumps(summary)
    assert not re.search(r'"(low|high)": [-\d]', json.dumps(summary))


def test_the_gain_over_the_first_m_is_drawn_as_the_paired_difference(summary):
    """Catches: the quality itself in its place, or another curve's difference."""
    axes = Figure().add_subplot()
    draw_gain_over_first(axes, summary)
    drawn = {(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    drawable = [c for c in summary["configurations"] if c["group"] in LOOKS]
    compared = [c for c in drawable if c["at_same"].get("first", {}).get("cost")]
    assert compared
    for one in compared:
        assert (one["cost"]["value"], one["at_same"]["first"]["cost"]["value"]) in drawn
