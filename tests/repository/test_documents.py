"""Commands in documents are taken as written, what documents name exists, and their tables are the code's."""

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from lab.benchmarks import bench
from lab.research import study
from sdvg_core.cli import main, make_parser
from sdvg_core.files.video import write_mp4
from sdvg_core.settings.context import PRESETS
from sdvg_core.weights.model_files import KNOWN_FILES, KNOWN_MODELS, known_model
from tests.support.cli_runs import override
from tests.support.loaded_once import load_once

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "*.md",
    "docs/**/*.md",
    "nodes/**/*.md",
    "tests/**/*.md",
    "lab/benchmarks/*.md",
    "lab/training/**/*.md",
    "workflows/*.md",
)
PAGES = sorted({path for place in PLACES for path in ROOT.glob(place) if ".venv" not in str(path)})
HELP = ROOT / "nodes" / "web" / "docs"
OURS = "python -m sdvg_core"
DEV = "python3 dev.py"
BLOCK = re.compile(rf"^(?: {{4,}}|\t)?(?:\$ )?((?:{re.escape(OURS)}|{re.escape(DEV)})\b.*)$")
INLINE = re.compile(rf"`((?:{re.escape(OURS)}|{re.escape(DEV)})\b[^`]*)`")
# What lies beside the package, by the third word.
PARSERS = {"study": study.make_parser, "bench": bench.make_parser}
# Stands for whatever a reader wants, so no parser can take it.
ANYTHING = ("COMMAND", "FILE", "...", "…", " | ")
CHEAP = ("doctor",)
NEED_FILES = ("generate", "study --prompt-file")
LACKING = re.compile(
    r"sdvg: .*(none was given or found in|has no device 'cuda|json is no run report|of the small world).*; [^;]+"
)
LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\""
)


def commands_in(text: str) -> Iterator[str]:
    """The commands of a page, without comments: in code blocks, and between backticks."""
    fenced = False
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        fenced ^= line.lstrip().startswith("```")
        command = BLOCK.match(line.lstrip() if fenced else line)
        if command and (fenced or line[:1] in " \t"):
            yield command[1]
        else:
            yield from INLINE.findall(line)


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def documented() -> list[str]:
    commands = {command for page in PAGES for command in commands_in(page.read_text(encoding="utf-8"))}
    return sorted(command for command in commands if not any(word in command for word in ANYTHING))


def arguments_of(command: str) -> list[str] | None:
    """What `python -m sdvg_core` gets; None for a command of dev.py's own, or of what lies beside the package."""
    words = words_of(command)
    if words[2] in PARSERS:
        return None
    if words[:2] == ["python3", "dev.py"]:
        if words[2:3] == ["run"]:
            return words[3:]
        return words[2:] if words[2:3] == ["demo"] else None
    return words[3:]


def test_documents_hold_commands():
    """Without it, a search that finds none would prove nothing."""
    assert len(documented()) > 10


@pytest.mark.parametrize("command", documented())
def test_documented_command_parses(command):
    """Catches an option that was renamed, and a command that is not there yet."""
    arguments = arguments_of(command)
    words = words_of(command)
    if words[2] in PARSERS:
        assert PARSERS[words[2]]().parse_args(words[3:])
    elif arguments is None:
        assert f"python3 dev.py {words[2]} " in runpy.run_path(str(ROOT / "dev.py"))["__doc__"]
    elif arguments and not {"--help", "--version"} & set(arguments):
        assert make_parser().parse_args(arguments).command == arguments[0]


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in documented()
        if (arguments_of(command) or [""])[0] in CHEAP and "--fetch" not in command
    ],
)
def test_documented_command_without_files_works(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments_of(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in documented()
        if " ".join(arguments_of(command) or ()).startswith(NEED_FILES) and "pocket" not in command
    ],
)
def test_documented_command_asks_for_its_files(command, tmp_path, monkeypatch, capsys):
    """Those of the miniature are run by tests of their own (`cli/test_cli_commands.py`, `bench`, `study`)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a red fox runs through snow\n", encoding="utf-8")
    (tmp_path / "film.txt").write_text("1: a red fox\n5 fresh #k3f: a storm\n", encoding="utf-8")
    for name in ("clip.mp4", "depth.mp4"):
        write_mp4(tmp_path / name, torch.zeros(21, 3, 16, 16), fps=16)
    before = sorted(tmp_path.iterdir())
    assert main(arguments_of(command)) == 2
    (line, *_) = capsys.readouterr().err.splitlines()
    assert LACKING.match(line), line
    assert "Errno" not in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        load_once(patched)
        yield


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(
    "command",
    [command for command in documented() if "generate --models pocket" in command and "--workers" not in command],
)
def test_documented_command_of_embedded_models_works(command, tmp_path, monkeypatch):
    """Workers take long to start: `videos/test_many.py` has them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("# shapes\na red ball\na blue box\n", encoding="utf-8")
    (tmp_path / "story.txt").write_text("1: a red ball\n5: a blue box\n", encoding="utf-8")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "picture.png")
    write_mp4(tmp_path / "clip.mp4", torch.rand(21, 3, 64, 64), fps=16)
    assert main(override(arguments_of(command), "--blocks", "2", "--size", "32x32")) == 0
    assert [path.parent.name for path in tmp_path.rglob("video.mp4")] in (
        ["001"],
        ["0001", "0002"],
        ["0002", "0001"],
    )


def broken_links(page: Path) -> list[str]:
    code = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
    text = code.sub("", page.read_text(encoding="utf-8"))
    # ComfyUI resolves what a help page of any language names from the folder of all help pages.
    base = HELP if HELP in page.parents else page.parent
    broken = []
    for markdown, html in LINK.findall(text):
        target = markdown or html
        if re.match(r"[a-z]+:|/|//", target):
            continue
        name, _, anchor = target.partition("#")
        file = base / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def anchors(text: str) -> set[str]:
    """Return what a link to a heading of a page may end in, as GitHub writes it."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []


# --- docs/architecture.md

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)
SPANS = re.compile(r"`([^`\n]+)`")


@pytest.mark.parametrize("path", sorted({s.split()[-1] for s in SPANS.findall(PROSE) if s.endswith(".py")}))
def test_file_named_in_architecture_exists(path):
    assert (ROOT / path).is_file()


NAMED = re.findall(r"`([A-Za-z_.]+)(?:\(\))?`(?: and `[a-z_]+\(\)`)? in `([^`]+\.py)`", PROSE)


@pytest.mark.parametrize(("name", "path"), sorted(set(NAMED)), ids=str)
def test_name_in_architecture_is_in_its_file(name, path):
    source = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^(\s*(def|class) |){name.rpartition('.')[2]}\b", source, re.M)


def test_picture_shows_each_room():
    """Which way the arrows point, test_rooms.py says. Catches a room that the script or the page leaves out."""
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_rooms.py"))
    rooms = {path.name for path in (ROOT / "sdvg_core").iterdir() if (path / "__init__.py").is_file()} | {"nodes"}
    shown = [room for floor in drawn["FLOORS"] for room in floor]
    assert sorted(shown) == sorted(rooms)
    table = {span for row in re.findall(r"^\| (`.*?) \|", PROSE, re.M) for span in SPANS.findall(row)}
    assert table >= rooms


# --- docs/troubleshooting.md


def named_headings() -> dict[str, str]:
    """Return the headings that refusals name with `see`, each with a file that does."""
    calls = {}
    for path in (*(ROOT / "sdvg_core").rglob("*.py"), *(ROOT / "nodes").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "see(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "see":
                calls[ast.literal_eval(node.args[0])] = path.name
    return calls


def test_refusals_name_headings_of_the_page():
    """Catches: a heading that was renamed on the page alone, and a refusal that people meet often without it."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    named = named_headings()
    assert set(named) <= set(re.findall(r"^## (.*)$", page, re.MULTILINE))
    often = {"Out of memory", "Models are not found", "A node is missing or red after an update"}
    assert set(named) == often | {"A lock or a film is gone", "Colours are wrong"}


# --- docs/models.md

each = pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda m: m.name)


def test_models_page_is_generated_from_the_code():
    """After a change: python tools/list_models.py."""
    script = runpy.run_path(str(ROOT / "tools" / "list_models.py"))
    written = script["page"]()
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == written
    assert all(name in written for name in (*script["OTHERS"], *(model.name for model in KNOWN_MODELS)))


@each
def test_model_has_each_field(model):
    assert model.preset in PRESETS
    assert all((model.files, model.licence, model.repository))
    # The page says so once, of all rows.
    assert (model.role, model.size) == (("target", "14B") if model.name.startswith("Krea") else ("drafter", "1.3B"))
    assert Path(model.path).name == Path(model.files[0]).name


@each
def test_model_is_known_by_its_files(model):
    for name in model.files:
        assert known_model(Path("models/diffusion_models") / name) is model
    assert known_model(Path(model.path)) is model


def test_known_files_follow_the_models():
    for known in KNOWN_FILES[:2]:
        rows = [model for model in KNOWN_MODELS if model.role == known.role]
        assert known.names == tuple(name for row in rows for name in row.names)
        assert known.source.startswith(rows[0].repository)
        assert known.gigabytes == rows[0].gigabytes
