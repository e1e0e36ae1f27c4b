"""The command line, run on real files of a tiny model set: what it writes."""

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from PIL import Image

import sdvg_core
from sdvg_core.decoders.open import load_vae
from sdvg_core.settings.fields import from_json
from sdvg_core.settings.route import CASCADE_MARGIN, Gate, Route, WorstFrame
from sdvg_core.weights.latents import save_latents
from tests.support.cli_runs import OUTPUTS, generate, latents, names, pixel_frames, report

SCHEMA = json.loads((Path(sdvg_core.__file__).parent / "report" / "report.schema.json").read_text())


@pytest.fixture(scope="module")
def clip(base, tmp_path_factory) -> Path:
    """Four blocks by a fixed route: forced, kept, remade, kept."""
    folder = tmp_path_factory.mktemp("clip") / "out"
    more = ["--prompt", "a red ball", "--blocks", "4", "--directions", "tara"]
    assert generate(base, folder, *more) == 0
    return folder


def test_a_prompt_becomes_video_latents_report_and_picture(clip):
    assert names(clip) == OUTPUTS
    assert pixel_frames(clip) == 9 + 3 * 12
    assert latents(clip).shape == (1, 16, 12, 4, 4)
    jsonschema.validate(report(clip), SCHEMA)
    assert [b["author"] for b in report(clip)["blocks"]] == ["target", "drafter", "target", "drafter"]
    with Image.open(clip / "route.png") as picture:
        assert picture.width > 300


def test_continued_picture_equals_one_made_at_once(base, tmp_path):
    """Catches: the picture counted as a block of the clip, and its frames shown when the clip is continued.

    Of a clip in pixels: tests/videos/test_extend_by_presets.py.
    """
    Image.new("RGB", (32, 32), (200, 30, 30)).save(tmp_path / "red.png")
    more = ["--prompt", "a ball"]
    start = ["--start-image", str(tmp_path / "red.png")]
    assert generate(base, tmp_path / "begun", *more, *start, "--blocks", "2", "--directions", "ta") == 0
    begun = ["--continue-from", str(tmp_path / "begun" / "latents.safetensors")]
    assert generate(base, tmp_path / "rest", *more, *begun, "--blocks", "2", "--directions", "rr") == 0
    assert generate(base, tmp_path / "whole", *more, *start, "--blocks", "4", "--directions", "tarr") == 0
    assert torch.equal(latents(tmp_path / "rest"), latents(tmp_path / "whole"))
    assert pixel_frames(tmp_path / "rest") == pixel_frames(tmp_path / "whole") == 1 + 4 * 12


@pytest.mark.parametrize(("frames", "shown"), [(1, 1), (2, 5)], ids=["a picture", "two latent frames"])
def test_short_clip_has_its_first_frame_held(base, files, clip, tmp_path, frames, shown):
    """No model was trained to go on from less. Catches another frame held, and a held one shown."""
    given = latents(clip)[:, :, :frames]
    save_latents(tmp_path / "short.safetensors", given, {})
    more = ["--prompt", "a ball", "--blocks", "1", "--continue-from", str(tmp_path / "short.safetensors")]
    assert generate(base, tmp_path / "out", *more) == 0
    codec = load_vae(files.vae)
    pixels = codec.decode(given)[0]
    held = torch.cat([pixels[:, :1].expand(-1, 9 - shown, -1, -1, -1), pixels], dim=1)
    assert torch.allclose(latents(tmp_path / "out")[:, :, :3], codec.encode(held), atol=1e-4)
    assert pixel_frames(tmp_path / "out") == shown + 12
    noted = any("first frame is held" in note for note in report(tmp_path / "out")["notes"])
    assert noted is (frames == 2)


def test_budget_counts_no_start_image(base, tmp_path):
    """Catches: the picture counted as a block of the clip, and one block more by the target than was bought."""
    Image.new("RGB", (32, 32), (200, 30, 30)).save(tmp_path / "red.png")
    more = ["--prompt", "a ball", "--blocks", "3", "--budget", "0.6", "--start-image", str(tmp_path / "red.png")]
    assert generate(base, tmp_path / "out", *more) == 0
    run = report(tmp_path / "out")
    assert [b["author"] for b in run["blocks"]] == ["target", "drafter", "drafter"]
    assert any("makes the first block of 3" in note for note in run["notes"])


def test_command_prints_which_blocks_are_reused(base, clip, tmp_path, capsys):
    more = ["--prompt", "a red ball", "--blocks", "4", "--directions", "tara"]
    assert generate(base, tmp_path / "out", *more, "--takes", "4:2", "--reuse", str(clip)) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("block ")]
    assert [line.endswith(", re-used") for line in lines] == [True, True, True, False]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "more",
    [
        [*("--drafter-settings", "cache=incremental"), *("--target-settings", "cache=incremental", "window=6")],
        ["--drafter-context", "own", "--handover", "1"],
        ["--tau", "-0.5", "--reward-dtype", "float16"],
        ["--policy", "first", "--dtype", "bfloat16", "--text-dtype", "bfloat16"],
        ["--aggregation", "0.5", "--tau", "0.1", "--bail-out", "1"],
        ["--target-settings", "context-frames=6", "--schedule", "reference5"],
        ["--drafter-settings", "preset=causal-forcing-2step"],
        ["--target-settings", "preset=longlive-1.0", "first-schedule=reference5"],
    ],
    ids=lambda m: m[0].strip("-"),
)
def test_every_option_makes_a_video(base, tmp_path, more):
    assert generate(base, tmp_path / "out", "--prompt", "a red ball", "--blocks", "3", *more) == 0
    jsonschema.validate(report(tmp_path / "out"), SCHEMA)


def test_default_route_fits_models_of_fewer_steps(base, tmp_path, capsys):
    """They are two here. Catches: a command without any option of the router that is refused for one."""
    assert generate(base, tmp_path / "out", "--prompt", "a red ball", "--blocks", "3") == 0
    assert [block["handover"] for block in report(tmp_path / "out")["blocks"]] == [0, 1, 0]
    assert "sdvg: 1 step of a block handed over in place of 3" in capsys.readouterr().err
    other = ["--drafter-settings", "schedule=1000,500"]
    assert generate(base, tmp_path / "two", "--prompt", "a red ball", "--blocks", "3", *other) == 0
    assert [block["handover"] for block in report(tmp_path / "two")["blocks"]] == [0, 0, 0]


def test_hybrid_hands_over_as_many_steps_as_allowed(base, tmp_path, capsys):
    """Of two here. Catches: a preset that is refused with another tau, a whole draft taken for all steps."""
    asked = ["--prompt", "a red ball", "--blocks", "2", "--preset", "hybrid", "--gate", "9"]
    assert generate(base, tmp_path / "out", *asked) == 0
    run = report(tmp_path / "out")
    assert [block["handover"] for block in run["blocks"]] == [0, 1]
    assert from_json(Route, run["settings"]["route"]).policy == Gate(9.0, WorstFrame(CASCADE_MARGIN))
    scores = [score for score in run["blocks"][1]["frame_scores"] if score is not None]
    assert len(scores) == 4
    assert "1 step of a block handed over in place of 3" in capsys.readouterr().err
    short = ["--drafter-settings", "draft-steps=1"]
    assert generate(base, tmp_path / "short", *asked, *short) == 0
    made = report(tmp_path / "short")
    assert (made["blocks"][1]["draft"]["denoising_passes"], made["blocks"][1]["handover"]) == (1, 1)
    assert made["settings"]["drafter"]["draft_steps"] == 1
    other = ["--drafter-settings", "schedule=1000,500"]
    assert generate(base, tmp_path / "two", *asked, *other) == 0
    assert [block["handover"] for block in report(tmp_path / "two")["blocks"]] == [0, 0]
    kept = ["--prompt", "a red ball", "--blocks", "2", "--preset", "hybrid", "--gate=-9"]
    assert generate(base, tmp_path / "kept", *kept) == 0
    [note] = [note for note in report(tmp_path / "kept")["notes"] if "cascade" in note]
    assert "kept 1 draft" in note
    assert "8 frames were not scored" in note


BUDGETED = ["--prompt", "a red ball", "--blocks", "3", "--budget"]


def test_whole_budget_buys_every_block(base, tmp_path, capsys):
    """Catches: a block by the drafter that was paid for, or a budget whose route no note states."""
    assert generate(base, tmp_path / "out", *BUDGETED, "1") == 0
    run = report(tmp_path / "out")
    assert [block["author"] for block in run["blocks"]] == ["target"] * 3
    assert "makes the first 3 blocks of 3" in run["notes"][0]
    assert "sdvg: A budget of 1 of" in capsys.readouterr().err


def test_budget_does_not_count_directions(base, tmp_path):
    assert generate(base, tmp_path / "out", *BUDGETED, "1", "--directions", ".t.") == 0
    assert report(tmp_path / "out")["notes"][0].endswith("What directions decide is not counted.")


def test_other_budget_reuses_blocks(base, tmp_path):
    """Its route is another one, and belongs to the request. Catches: a budget that no repeat can match."""
    assert generate(base, tmp_path / "all", *BUDGETED, "1") == 0
    for flags in (["--reuse", str(tmp_path / "all")], []):
        assert generate(base, tmp_path / "some", *BUDGETED, "0.99", *flags) == 0
    run = report(tmp_path / "some")
    assert 1 <= from_json(Route, run["settings"]["route"]).policy.n <= 3
    assert run["blocks"][0]["reused"]


STORY = "1: a red ball\n2: a blue cube\n12: a green star"


def test_story_in_a_file_is_one_video(base, tmp_path):
    """Catches three videos of one block's prompt each."""
    (tmp_path / "story.txt").write_text(STORY, encoding="utf-8")
    assert generate(base, tmp_path / "file", "--prompt-file", str(tmp_path / "story.txt"), "--blocks", "2") == 0
    assert generate(base, tmp_path / "option", "--prompt", STORY, "--blocks", "2") == 0
    assert names(tmp_path / "file") == OUTPUTS
    assert [block["prompt"] for block in report(tmp_path / "file")["blocks"]] == ["a red ball", "a blue cube"]
    assert torch.equal(latents(tmp_path / "file"), latents(tmp_path / "option"))


def test_prompt_of_a_later_block_is_noted(base, tmp_path, capsys):
    """Catches: a line of a story that is dropped without a word, as no block of the video reaches it."""
    assert generate(base, tmp_path / "out", "--prompt", STORY, "--blocks", "2") == 0
    note = "The prompt from block 12 on is not shown: the video ends with block 2."
    assert f"sdvg: {note}\n" in capsys.readouterr().err
    assert note in report(tmp_path / "out")["notes"]
