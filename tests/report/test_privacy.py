"""What a run writes can be passed on: no path and no user name is in it, prompts only in report and table."""

import json
import re
from pathlib import Path

import av
import pytest
from PIL import Image, ImageChops
from safetensors import safe_open

from sdvg_core.cli import main
from sdvg_core.report.picture import route_picture
from sdvg_core.report.run_report import hide_prompt, is_hidden, read_report
from tests.support.cli_runs import SMALL
from tests.support.cli_runs import options as files_of
from tests.support.random_set import write_random_set

USER = "zacharias"
# More than the 35 tokens that are scored, so that a note is made of it.
FIRST = "a zebrafinch sings " + "over the old harbour " * 12
SECOND = "a quokka sleeps in the shade"
SECRETS = ("zebrafinch", "harbour", "quokka", USER, "private folder")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A user's home, in which everything lies that is read or written."""
    return tmp_path_factory.mktemp("home") / USER / "private folder"


@pytest.fixture(scope="module")
def options(home) -> list[str]:
    files = write_random_set(home / "models", vae_blocks=1)
    (home / "prompts.txt").write_text(f"1: {FIRST}\n2: {SECOND}\n", encoding="utf-8")
    more = ["--tau", "-0.7", "--blocks", "2", "--prompt-file", str(home / "prompts.txt")]
    return [*files_of(files), *SMALL, *more]


@pytest.fixture(scope="module")
def begun(home, options) -> Path:
    """A clip; it is the one that the others go on from."""
    Image.new("RGB", (40, 40), "red").save(home / "picture.png")
    more = ["--start-image", str(home / "picture.png"), "--private"]
    assert main([*options, "--output", str(home / "begun"), *more]) == 0
    return home / "begun"


@pytest.fixture(scope="module")
def clip(home, options, begun) -> Path:
    more = ["--continue-from", str(begun / "latents.safetensors"), "--private"]
    assert main([*options, "--output", str(home / "out"), *more]) == 0
    return home / "out"


@pytest.fixture(scope="module")
def shown(home, options, begun) -> Path:
    more = ["--continue-from", str(begun / "latents.safetensors")]
    assert main([*options, "--output", str(home / "shown"), *more]) == 0
    return home / "shown"


def secrets_in(path: Path) -> list[str]:
    """Return the secrets that the bytes of a file hold, in one of the ways text is written."""
    content = path.read_bytes().lower()
    encodings = ("utf-8", "utf-16-le", "utf-16-be")
    return [secret for secret in SECRETS if any(secret.encode(encoding) in content for encoding in encodings)]


def test_private_files_hold_no_prompt_or_name(begun, clip):
    """Catches: the prompt in the report, words of it in a note, the folder of a model or of the clip before.

    All that is read lies in the user's folder, so any path there would hold its name.
    """
    files = [path for folder in (begun, clip) for path in folder.rglob("*") if path.is_file()]
    outputs = {"video.mp4", "latents.safetensors", "000001.safetensors", "report.json", "route.png"}
    assert {path.name for path in files} >= outputs
    assert {path.name: secrets_in(path) for path in files if secrets_in(path)} == {}


def test_note_of_long_prompt_omits_its_words(begun):
    assert any("tokens of this prompt" in note for note in read_report(begun / "report.json").notes)


def test_picture_shows_no_prompt(clip, shown):
    """Catches a picture that is drawn before the prompts are taken out."""
    for folder in (clip, shown):
        with Image.open(folder / "route.png") as picture:
            assert picture.info == {}
            expected = route_picture(read_report(folder / "report.json").without_prompts())
            assert ImageChops.difference(picture.convert("RGB"), expected.convert("RGB")).getbbox() is None


def test_video_and_latents_hold_no_text(clip):
    with av.open(str(clip / "video.mp4")) as container:
        assert set(container.metadata) <= {"major_brand", "minor_version", "compatible_brands"}
    with safe_open(clip / "latents.safetensors", "pt") as file:
        fields = {"seed", "block_frames", "fps", "request", "start_image_frames", "latent_frames", "begins"}
        assert set(json.loads(file.metadata()["sdvg"])) == fields
    with safe_open(clip / "blocks" / "000001.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["sdvg"])
        assert set(metadata) == {"digest", "record"}
        assert metadata.pop("record")["prompt"] == ""
        texts = (*file.keys(), *metadata.values())
    assert [text for text in texts if not re.fullmatch("[0-9a-f]{64}", text)] == []


def test_report_alone_shows_prompts(shown):
    assert {block.prompt for block in read_report(shown / "report.json").blocks} == {SECOND}
    for name in ("video.mp4", "latents.safetensors", "blocks/000001.safetensors"):
        assert secrets_in(shown / name) == []
    assert secrets_in(shown / "report.json") == ["quokka"]


@pytest.mark.parametrize(("more", "shown"), [([], True), (["--private"], False)])
def test_table_shows_prompts_unless_private(options, tmp_path, more, shown):
    """Of the lines that are prompts. Catches: a private prompt in the table, and a comment made into a video."""
    (tmp_path / "prompts.txt").write_text(f"# a capybara\n{SECOND}\n", encoding="utf-8")
    alone = ["--blocks", "1", "--policy", "first", "--prompt-file", str(tmp_path / "prompts.txt"), *more]
    assert main([*options[: options.index("--tau")], *alone, "--output", str(tmp_path / "out")]) == 0
    for name in ("videos.csv", "0001/report.json"):
        assert secrets_in(tmp_path / "out" / name) == (["quokka"] if shown else [])
    assert not (tmp_path / "out" / "0002").exists()


def test_hidden_prompts_are_hashes(begun):
    prompts = [block.prompt for block in read_report(begun / "report.json").blocks]
    assert prompts == [hide_prompt(FIRST.strip()), hide_prompt(SECOND)]
    assert all(map(is_hidden, prompts))
    assert not any(map(is_hidden, (FIRST, "", "sha256:", "sha256:" + 17 * "0", "SHA256:" + 16 * "0")))


def test_search_sees_each_spelling_of_a_secret(tmp_path):
    """Without it, a search that finds nothing would prove nothing."""
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "file").write_bytes(b"\0" + f"A Quokka of {USER}".encode(encoding))
        assert secrets_in(tmp_path / "file") == ["quokka", USER]
