"""README's first screen: every figure on it is that of a file, and it is short."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.pocket import CHOSEN, DEFAULT_PROMPT
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import SIZE
from sdvg_core.settings.request import VideoRequest
from sdvg_core.weights.model_files import KNOWN_FILES, KNOWN_MODELS, LICENCES_READ

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 120
BELOW = "## On the command line"
"""The heading after the first screen."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CARD = re.compile(r"^\| ([\d, ]+ GB) \| (.+?) \| (.+?) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
"""A row of README: card, what to choose, what *balanced* and the gate copy, seconds."""
FULL_CARD = re.compile(r"^\| ([\d, ]+ GB) \| (.+?) \| .+? \| (.+?) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
"""The same in docs/performance.md, which `tests/memory/test_plan.py` compares with the plan."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def first_screen(readme: str) -> str:
    """Return all that stands before the command line."""
    return readme.partition(f"\n{BELOW}\n")[0]


def files_by_size() -> list[tuple[str, str]]:
    """Return the names of the files that are wanted, each with its size as README writes it."""
    sizes = {known.names[0]: known.gigabytes for known in KNOWN_FILES}
    sizes["ImageReward.pt"] = 1.8  # 1.79 to one place
    return [(name, f"{size:g} GB" if size > 0.1 else f"{1000 * size:g} MB") for name, size in sizes.items() if name]


@cache
def sources() -> dict[str, list[str | tuple[str, ...]]]:
    """Return the places of the first screen that have figures, each with what stands there by its source."""
    plan = PlanRequest()
    seconds = (1 + 4 * (3 * plan.blocks - 1)) / VideoRequest().fps
    counts = {name: str(count) for name, count in CHOSEN["counts"].items()}
    dev = runpy.run_path(str(ROOT / "dev.py"))
    size = {model.name: model.size for model in KNOWN_MODELS}
    performance = read("docs/performance.md")
    [fp8] = [model.gigabytes for model in KNOWN_MODELS if model.name == "Krea Realtime, fp8"]
    [balanced] = re.findall(r"^\| blocks .* \(\*balanced\*\).*\| 0\.(\d\d) \|", performance, re.MULTILINE)
    [installed] = re.findall(r"\.venv-test \(([\d.]+) GB", read("docs/CONTRIBUTING.md"))
    [paper] = re.findall(r'value: "arXiv:([\d.]+)"', read("CITATION.cff"))
    [comfyui] = re.findall(r'requires-comfyui = ">=([\d.]+)\.0"', read("pyproject.toml"))
    [command_line] = re.findall(r"command line (\d+) GB is enough\. With `\S+ fp8_e4m3fn` (\d+) GB is", performance)
    templates = sorted(path.stem for path in (ROOT / "workflows").glob("sdvg_*.json"))
    return {
        r"at (\d+) % of the large": [balanced],
        r"it went with (\d+) of (\d+) prompts": [(counts["helps"], counts["prompts"])],
        r"with (\d+) the small model alone did as well": [counts["does not help"]],
        r"with (\d+) the two together lost": [counts["lost by both"]],
        r"Wan 2\.1 (\S+) Self-Forcing": [size["Self-Forcing DMD"]],
        r"Krea Realtime \(video\) (\S+);": [size["Krea Realtime"]],
        r"arXiv (\d+\.\d+)\]": [paper],
        r"arxiv\.org/abs/(\d+\.\d+)": [paper],
        r"Python (\d\.\d+) to (\d\.\d+)": [tuple(".".join(map(str, dev[end])) for end in ("OLDEST", "NEWEST"))],
        r"into (out/demo/\d+);": ["out/demo/001"],
        r"installs (\S+) GB": [installed],
        r"ComfyUI (\d\.\d+) or newer": [comfyui],
        r"a clip of (\d+)x(\d+)": [(str(SIZE), str(SIZE))],
        r"\*(sdvg_\d\d_\w+)\*": [name for name in templates if name.startswith(("sdvg_01", "sdvg_03"))],
        r"^ +(\S+) +(\S+ [GM]B) ": files_by_size(),
        r"read on (\d+) November (\d+)": [(LICENCES_READ[-2:], LICENCES_READ[:4])],
        r"For (\d+)x(\d+) and (\w+) blocks, (\S+) s of video": [
            (str(plan.width), str(plan.height), NUMBERS[plan.blocks], f"{seconds:.1f}")
        ],
        CARD.pattern: [row for row in FULL_CARD.findall(performance) if not row[1].startswith("w4a8")],
        r"a file in it\]\(docs/models\.md\) has (\S+) GB": [f"{fp8:g}"],
        r"Up to\s+(\d+) GB, start": re.findall(r"On a card of (\d+) GB or less start", performance),
        r"command line needs (\d+) GB, or (\d+) for \*balanced\*\s+with": [command_line],
    }


NAMES = re.compile(
    r"H100|Apache-2\.0|BY-NC-SA 4\.0|fp8_e4m3fn|float8_e4m3fn|Wan_2\.1_ComfyUI|gdhe17|images/nodes2\.png|python3"
    r"|\(template 20\)|\(18, 19:|^\d\. ",
    re.MULTILINE,
)
"""Names with figures in them, which say nothing of how much or how many."""


def problems(readme: str) -> list[str]:
    """Return the places of the first screen that are not as their sources say, and figures without a source."""
    rest = first_screen(readme)
    wrong = []
    for pattern, stated in sources().items():
        if sorted(re.findall(pattern, rest, re.MULTILINE)) != sorted(stated):
            wrong.append(pattern)
        rest = re.sub(pattern, "", rest, flags=re.MULTILINE)
    return wrong + re.findall(r"\S*\d\S*", NAMES.sub("", rest))


def test_figures_of_the_first_screen_have_sources():
    """Catches: a figure that was changed in one place, or that stands in README alone."""
    assert problems(README) == []


def test_each_changed_figure_is_seen():
    """Without it, a pattern that fits anything would prove nothing."""
    screen = NAMES.sub(lambda name: "x" * len(name[0]), first_screen(README))
    digits = [match.start() for match in re.finditer(r"\d", screen)]
    assert len(digits) > 100
    unseen = [
        screen[place - 20 : place + 10]
        for place in digits
        if not problems(README[:place] + str((int(README[place]) + 1) % 10) + README[place + 1 :])
    ]
    assert unseen == []


def test_performance_page_repeats_its_own_seconds():
    """Catches: seconds of a card that differ between two tables of the page."""
    page = read("docs/performance.md")
    measured = {
        card: f"{first}, {handed}, {draft}"
        for card, first, handed, draft in re.findall(
            r"^\| (whole card|\d+ GB) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE
        )
    }
    stated = {card: seconds for card, _, _, _, seconds in FULL_CARD.findall(page) if seconds}
    whole = f"{measured.pop('whole card')} in fp8"
    assert stated == measured | {"48, 80 GB": whole}


def test_readme_is_short():
    assert len(README.splitlines()) <= MOST_LINES


def test_readme_names_the_thing_of_the_race():
    """Catches: words of an earlier race below the picture of another."""
    caption = README.partition("race.webp)")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert f"loses the {parse(DEFAULT_PROMPT).mover.shape}" in caption


def test_readme_lists_the_files_doctor_wants():
    """Catches: a file that was renamed or goes elsewhere, and a size that was changed in one place."""
    (tree,) = re.findall(r"^```\n(.*?)```", README, re.S | re.M)
    listed = {}
    for line in tree.splitlines():
        if folder := re.match(r"(\w+)/", line):
            current = folder[1]
        else:
            listed[line.split()[0]] = current
    assert listed == {known.names[0]: known.folder for known in KNOWN_FILES} | {"ImageReward.pt": "image_reward"}
