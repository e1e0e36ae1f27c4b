"""What comes over wires that carry anything, and with anybody's prompt, is held against the schema, or refused."""

import json
import re
import sys
from dataclasses import replace
from errno import ENOSPC
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType

import comfy.utils
import folder_paths
import pytest
import torch
from comfy_api.latest import io, ui
from host_run import TEXT, make_job, video_of
from PIL import Image
from sdvg_pack.nodes import router
from sdvg_pack.nodes.host.conditioning import read_conditions
from sdvg_pack.nodes.host.job import crop_note, fit, footage_of, start_picture
from sdvg_pack.nodes.host.sockets import PICTURE, PromptEntry, StartValue
from sdvg_pack.nodes.loaders import DrafterLoader
from sdvg_pack.nodes.pocket import PocketModels
from sdvg_pack.nodes.prompts import PromptScheduleNode
from sdvg_pack.nodes.report import RouteReport
from sdvg_pack.nodes.router import QualityRouter
from sdvg_pack.nodes.sampler import SpeculativeSampler as Sampler
from sdvg_pack.nodes.sampler import plain
from sdvg_pack.nodes.schema import check_values, numbers, saved_by, workflow_id
from sdvg_pack.nodes.start import EXTEND, StartNode
from sdvg_pack.sdvg_core.errors import BadInput

from tests.support.scratch_option import WORDS, copy_with_option

pytestmark = pytest.mark.comfyui

NAME = "0a8d2c4e-0000-4000-8000-000000000001"
ODD = (None, [], "workflow", 3, float("nan"), {}, {"workflow": None}, {"workflow": []}, {"workflow": "x"})
NO_ID = ({"workflow": {}}, *({"workflow": {"id": odd}} for odd in (None, 7, "", [], {"id": NAME})))


@pytest.mark.parametrize("extra_pnginfo", [*ODD, *NO_ID], ids=repr)
def test_odd_metadata_has_no_workflow_and_breaks_nothing(extra_pnginfo):
    assert workflow_id(extra_pnginfo) is None


ODD_WORKFLOWS = (None, [1], {"nodes": [[], 3, {"properties": 1}]})


@pytest.mark.parametrize("version", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "", ".."])
def test_odd_versions_and_workflows_break_nothing(version):
    numbers(version)
    assert {saved_by({"workflow": workflow}) for workflow in ODD_WORKFLOWS} == {""}


@pytest.fixture(autouse=True)
def reward_folder(monkeypatch):
    """A server makes it known when it loads the pack."""
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "image_reward", ([], {".pt"}))


EMPTY = torch.zeros(1, 4, 8)
LATENTS = (
    ({}, "a dict"),
    *(({"samples": torch.zeros(shape)}, "a tensor of 1 x ") for shape in ((1, 4, 8, 8), (1, 16, 8, 8))),
)
PICTURES = (
    *(torch.zeros(shape) for shape in ((0, 8, 8, 3), (8, 8, 3), (1, 8, 8), (1, 0, 8, 3), (1, 8, 8, 2))),
    torch.zeros(1, 8, 8, 3, dtype=torch.uint8),
    torch.full((1, 8, 8, 3), torch.nan),
    torch.zeros(1, 8, 8, 3).to_sparse(),
)
NO_PICTURES = "is a tensor of .*, not pictures"
BAD = [
    (Sampler, {"width": -16}, "width is -16, not a whole number from 16 to"),
    (Sampler, {"blocks": True}, "blocks is True"),
    (Sampler, {"blocks": 2.0}, "blocks is 2.0, not a whole number"),
    (Sampler, {"kv_dtype": "int4"}, "kv_dtype is 'int4'"),
    (Sampler, {"seed": 10**400}, "a number of many digits"),
    (Sampler, {"schedule": "fast"}, "schedule is 'fast'"),
    (Sampler, {"prompt": 3}, "prompt is 3, not a STRING"),
    (Sampler, {"drafter": "x" * 99}, f"drafter is '{'x' * 59}..., not a MODEL"),
    (Sampler, {"router": None}, "router is nothing, not an SDVG_ROUTER"),
    (Sampler, {"start_image": [1]}, "start_image is a list, not an IMAGE"),
    (QualityRouter, {"policy": {"policy": "reward", "tau": "x"}}, "policy.tau is 'x'"),
    (QualityRouter, {"policy": {"policy": "always-target", "\x1b": 1}}, r"no '\\x1b' under always-target"),
    (DrafterLoader, {"weight_dtype": "../../x"}, "weight_dtype is"),
    (PromptScheduleNode, {"schedule": "abc"}, "schedule is 'abc', not an SDVG_PROMPTS"),
    (Sampler, {"prompt_schedule": (1,)}, "prompt_schedule is a tuple, not an SDVG_PROMPTS"),
    (Sampler, {"start": "x"}, "start is 'x', not an SDVG_START"),
    (StartNode, {"video": 5}, "video is 5, not a VIDEO"),
    *((Sampler, {"positive": [bad]}, "positive is a list, not a COND") for bad in (1, [1], [EMPTY, None])),
    *((Sampler, {"continue_from": bad}, f"continue_from is {kind}") for bad, kind in LATENTS),
    *((Sampler, {"start_image": bad}, f"start_image {NO_PICTURES}") for bad in PICTURES),
    *((StartNode, {"images": bad}, f"images {NO_PICTURES}") for bad in PICTURES),
]


@pytest.mark.parametrize("node, values, words", BAD)
def test_value_that_no_widget_holds_is_refused(node, values, words):
    """Over a wire ComfyUI looks neither at ranges nor at choices, nor at kinds where the wire is one of any."""
    with pytest.raises(BadInput, match=words):
        check_values(node.define_schema().inputs, values)


def test_null_for_a_needed_widget_is_refused():
    """As over the API. Catches: a trace for an argument that is missing."""
    with pytest.raises(BadInput, match="prompt is nothing, not a STRING"):
        PocketModels.execute(prompt=None)


def prompt_of(text):
    return (PromptEntry(0, [[torch.zeros(1, 4, 8), {}]], text),)


@pytest.mark.parametrize("from_block", [4, 5])
def test_prompts_out_of_order_are_refused(from_block):
    """Catches: two prompts for one block."""
    fifth = (PromptEntry(4, [[torch.zeros(1, 4, 8), {}]], "a storm"),)
    with pytest.raises(BadInput, match=f"from_block is {from_block}, but the prompt before it starts at block 5"):
        PromptScheduleNode.execute(from_block=from_block, conditioning=[], text="a calm sea", schedule=fifth)
    (made,) = PromptScheduleNode.execute(from_block=6, conditioning=[], text="a calm sea", schedule=fifth).args
    assert [entry.index for entry in made] == [4, 5]


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("text, words", [("a\x00b", r"U\+0000"), ("a " * 15_000, "over 20000")])
def test_prompt_that_is_no_text_is_refused(text, words, scored):
    with pytest.raises(BadInput, match=words):
        read_conditions(prompt_of(text), 8, scored=scored)


def test_text_that_nobody_scores_may_be_empty():
    assert read_conditions(prompt_of(""), 8, scored=False)(0).text == ""


def test_empty_text_that_is_scored_is_refused():
    with pytest.raises(BadInput, match="no prompt text from block 1 on"):
        read_conditions(prompt_of(""), 8, scored=True)


def test_unwritable_models_folder_is_logged_and_harmless(tmp_path, monkeypatch, logged):
    """A container may mount its models read-only. A file in the folder's place refuses to root as well."""
    folders = {name: of for name, of in folder_paths.folder_names_and_paths.items() if name != router.REWARD_FOLDER}
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", folders)
    (tmp_path / "models").touch()
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))
    router.register_reward_folder()
    assert router.reward_files() == []
    assert "image_reward" in logged.getvalue()


def test_inputs_of_another_option_are_logged(logged):
    """As an API prompt has them whose policy was changed. Catches: dropped without a word."""
    values = {"reward_file": "none"}
    values |= {"device": "default", "dtype": "auto", "policy": {"policy": "always-target"}}
    QualityRouter.execute(**values)
    assert not logged.getvalue()
    QualityRouter.execute(**values, **{"policy.tau": 1.0})
    assert "policy.tau has no effect" in logged.getvalue()


def test_directions_are_taken_as_people_type_them():
    """Over the API: capital letters and blanks, or no more; what is no letter is refused as before."""
    assert Sampler.validate_inputs(drafter=None, blocks=3, directions=" T .\nd ")
    assert Sampler.validate_inputs(drafter=None, blocks=3, kept_blocks=" \n")
    assert plain("T. d") == "t.d"
    with pytest.raises(BadInput, match="unknown letters"):
        Sampler.validate_inputs(drafter=None, blocks=3, directions="T?d")


def test_two_wired_starts_are_refused_in_the_queue():
    """Catches: models that are loaded for a run which is refused."""
    with pytest.raises(BadInput, match="two starts"):
        Sampler.validate_inputs(drafter=None, continue_from=None, start_image=None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pictures_of_any_precision_are_read_alike(dtype):
    """The kind: a dtype that no node of ComfyUI's gives, and another pack's may. Catches: a trace for bfloat16."""
    images = torch.rand(3, 40, 24, 3).to(dtype)
    wide = images.float()
    assert torch.equal(start_picture(images, 16, 16)[0], start_picture(wide, 16, 16)[0])
    clip, wide_clip = (footage_of(StartValue(each, EXTEND, "", "IMAGE"), 16, 16) for each in (images, wide))
    assert torch.equal(clip.pixels, wide_clip.pixels)


@pytest.mark.parametrize(
    "count, columns, words",
    [(2, 32, ["batch of 2 pictures"]), (2, 64, ["batch of 2 pictures", "cropped"]), (1, 32, [])],
)
def test_batch_as_start_image_is_noted(count, columns, words):
    """Only its first picture is used. Catches the note of the crop in its place."""
    notes = crop_note(torch.zeros(count, 32, columns, 3), 32, 32)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


def test_start_hands_on_all_pictures():
    """Catches: four pictures wired into SDVG Start, of which it silently takes the first."""
    pictures = torch.zeros(4, 32, 32, 3)
    start = StartNode.execute(use_as={"use_as": PICTURE}, images=pictures).args[0]
    assert "batch of 4 pictures" in crop_note(start.images, 32, 32)[0]


@pytest.mark.parametrize("opacity", [1.0, 0.996])
def test_dropped_alpha_of_a_start_is_noted(opacity):
    """Some nodes give pictures of four channels. Catches: it is dropped unsaid, or told of an opaque one."""
    images = torch.ones(2, 32, 32, 4)
    images[0, 0, 0, 3] = opacity
    transparent = opacity < 1
    assert ["alpha" in note for note in start_picture(images[:1], 32, 32)[1]] == [True] * transparent
    clip = footage_of(StartValue(images, "extend", "", "16 a second"), 32, 32)
    assert (" without alpha" in clip.note) == transparent


@pytest.mark.parametrize(
    ("taken", "size", "words"),
    [
        ("3 frames at 24/s", (16, 16), ["3 frames at 24/s became 2", "cropped to 16x16"]),
        ("", (16, 32), ["2 frames", "scaled to 16x32"]),
        ("", (32, 64), ["2 frames"]),
    ],
)
def test_note_on_a_clip_says_its_changes(taken, size, words):
    """Catches: a crop that is unsaid, or a note that names what did not happen."""
    clip = footage_of(StartValue(torch.ones(2, 64, 32, 3), "extend", "", taken), *size)
    assert [word for word in words if word not in clip.note] == []
    assert re.findall("cropped|scaled", clip.note) == re.findall("cropped|scaled", " ".join(words))


def test_missing_api_input_gets_its_widgets_default():
    """The kind: a default written twice. Catches 2 GB for re-use where the widget, its help and README say 4."""
    different = {}
    for node in (DrafterLoader, QualityRouter, Sampler, RouteReport, PocketModels, StartNode):
        parameters = signature(node.execute).parameters
        for widget in node.define_schema().inputs:
            if not isinstance(widget, io.WidgetInput) or widget.id not in parameters:
                continue
            default = parameters[widget.id].default
            if default not in (Parameter.empty, None, widget.default):
                different[widget.id] = (widget.default, default)
    assert different == {}


# --- a new option of the request, which is one field and its words: see tests/cli/test_new_option.py


PACK = "sdvg_with_one_more_option"


def test_new_option_is_the_samplers_last_widget(tmp_path, monkeypatch):
    """Which keeps the values of saved workflows in place. Catches: a widget that the node lists by itself."""
    pack = ModuleType(PACK)
    pack.__path__ = [str(copy_with_option(tmp_path))]
    monkeypatch.setitem(sys.modules, PACK, pack)
    sampler = import_module(f"{PACK}.nodes.sampler")
    *others, widget = sampler.SpeculativeSampler.define_schema().inputs
    assert [field.id for field in others] == [field.id for field in Sampler.define_schema().inputs]
    assert (widget.id, widget.default, widget.min, widget.max, widget.step) == ("grain", 0.0, 0.0, 1.0, 0.1)
    assert widget.tooltip == WORDS["en"]
    assert "grain" in sampler.OF_REQUEST


# --- what the Route Report leaves behind can be passed on: no prompt is in it unless that was asked for


WORKFLOW = {"workflow": {"nodes": [{"type": "PrimitiveString", "widgets_values": [TEXT]}]}}


class Hidden:
    """What ComfyUI tells a node in addition to its inputs."""

    unique_id = "6"
    prompt = {"1": {"class_type": "PrimitiveString", "inputs": {"value": TEXT}}}  # noqa: RUF012
    extra_pnginfo = WORKFLOW


@pytest.fixture(scope="module")
def report(parts):
    return video_of(make_job(parts, script="ra"))[2]


def show(report, folder, monkeypatch, **inputs):
    """Execute the node as ComfyUI does; return what it hands on, and the file of its preview."""
    monkeypatch.setattr(folder_paths, "temp_directory", str(folder))
    node = type("Report", (RouteReport,), {"hidden": Hidden()})
    output = node.execute(report=report, **inputs)
    [preview] = folder.rglob("*.png")
    return output, preview


def test_route_report_hides_the_prompt_unless_asked(report, tmp_path, monkeypatch):
    """Catches: a prompt in the JSON or the page's record that nobody asked for."""
    assert TEXT in report.to_json()
    output, _ = show(report, tmp_path, monkeypatch)
    assert TEXT not in json.dumps([output.ui, output.result[1]], default=str)
    assert [block["prompt"].partition(":")[0] for block in json.loads(output.result[1])["blocks"]] == ["sha256"] * 2


def test_route_report_shows_the_prompt_if_asked(report, tmp_path, monkeypatch):
    output, _ = show(report, tmp_path / "off", monkeypatch)
    with_prompt, _ = show(report, tmp_path / "on", monkeypatch, prompt_in_report=True)
    assert json.loads(with_prompt.result[1])["blocks"][0]["prompt"].startswith(TEXT)
    assert with_prompt.result[0].shape[1] > output.result[0].shape[1], "by the line with the prompt"


@pytest.mark.parametrize("prompt_in_report", [False, True])
def test_preview_of_the_route_holds_no_workflow(prompt_in_report, report, tmp_path, monkeypatch):
    """Catches the workflow in the preview's file, where ComfyUI writes it if it is told the node."""
    _, preview = show(report, tmp_path, monkeypatch, prompt_in_report=prompt_in_report)
    with Image.open(preview) as picture:
        assert picture.info == {}


# --- what a run begins with


CROPS = [((40, 64), (80, 48)), ((64, 40), (48, 80)), ((33, 57), (32, 32)), ((1, 90), (48, 80))]


@pytest.mark.parametrize("picture, size", CROPS)
def test_picture_is_cropped_as_comfyui_crops_it(picture, size):
    """Catches: another centre, or a row more or less."""
    images = torch.rand(2, *picture, 4, generator=torch.Generator().manual_seed(1))
    theirs = comfy.utils.common_upscale(images[:1, :, :, :3].movedim(-1, 1), *size, "lanczos", "center")
    assert torch.equal(fit(images, *size)[:, 0], theirs)


def test_crop_of_a_start_image_is_noted(parts):
    """Catches: edges that are gone, unsaid."""
    job = make_job(parts, script="d", start_image=torch.full((1, 40, 64, 3), 0.5))
    assert any("cropped at its centre from 64x40 to 40x40" in note for note in video_of(job)[2].notes)


def test_prompt_after_the_last_block_is_noted(parts):
    """Catches: a line of the prompt that no block shows, unsaid."""
    job = make_job(parts, script="d")
    [prompt] = job.prompts
    job = replace(job, prompts=(prompt, PromptEntry(1, prompt.conditioning, "a storm")))
    assert any("prompt from block 2 on is not shown" in note for note in video_of(job)[2].notes)


@pytest.mark.parametrize("line", ["2 CUT: a storm", "2 strength light\N{FULLWIDTH COLON} a storm"])
def test_prompt_line_taken_as_text_is_noted(line, parts):
    """Catches: a line that is nearly a direction, and becomes words of the prompt in silence."""
    job = make_job(parts, script="d")
    conditioning = job.prompts[0].conditioning
    job = replace(job, prompts=(PromptEntry(0, conditioning, f"a sea\n{line}"),))
    assert any("taken as text" in note for note in video_of(job)[2].notes)


def test_prompt_after_a_clip_has_both_block_numbers(parts):
    """Catches: lines that count the clip's blocks, where takes and squares count new ones, and neither said."""
    _, clip, _ = video_of(make_job(parts, script="dd"))
    job = make_job(parts, script="ddddd", blocks=3, continue_from={"samples": clip})
    [prompt] = job.prompts
    job = replace(job, prompts=(prompt, PromptEntry(3, prompt.conditioning, "a storm")))
    assert any("block 4 is new block 2" in note for note in video_of(job)[2].notes)


def test_full_preview_folder_is_refused_in_a_sentence(report, tmp_path, monkeypatch):
    """Catches the system's own error, after the video was made."""

    def full(*_, **__):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(ui, "PreviewImage", full)
    with pytest.raises(BadInput, match="No space left on device"):
        show(report, tmp_path, monkeypatch)
