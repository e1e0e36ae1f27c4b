"""A clip that is made in parts, or stopped and gone on with: no frame is lost, none is there twice.

The kind: what is cut, or counted, by a number that was right for one length. The template *Long video* as it is
saved; and, with its first part stopped early, at its cut, past it or not at all, the same wires in one process.
"""

import json
from dataclasses import replace

import folder_paths
import pytest
import torch
from comfy_extras import nodes_post_processing  # noqa: F401 - nodes_latent needs it to be first
from comfy_extras.nodes_latent import LatentCut
from host_run import make_job
from running_server import ROOT
from sdvg_pack.nodes.host.sockets import RouterValue, StartValue
from sdvg_pack.nodes.page.live import RUNS
from sdvg_pack.nodes.page.progress import NodeProgress
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.engine.plan import NO_TARGET_BLOCK
from sdvg_pack.sdvg_core.settings.route import ROUTE_PRESETS, First, Route
from tiny_workflows import count_frames, names, with_tiny_models

pytestmark = pytest.mark.comfyui

TEMPLATE = json.loads((ROOT / "workflows" / "sdvg_15_long_video.json").read_text(encoding="utf-8"))
# Frames of a clip's first block, and of every other one.
FIRST = 9
LATER = 12
LONGEST = 16
HALF_A_LEVEL = 0.5 / 255


class Part:
    """What a sampler gave; `new`: its frames without those of the clip that it goes on from."""

    def __init__(self, frames, latent, report, live, sound):
        self.frames = frames
        self.latent = latent
        self.report = report
        self.live = live
        self.new = frames[live.clip_frames :]


def in_api_form(workflow):
    """Return a saved workflow as the page sends it."""
    sources = {link: [str(node), slot] for link, node, slot, *_ in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        if node["type"] == "MarkdownNote":
            continue
        values = dict(zip(names(node), node.get("widgets_values", []), strict=True))
        values.pop("after", None)
        wired = {slot["name"]: sources[slot["link"]] for slot in node["inputs"] if slot["link"] is not None}
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": {**values, **wired}}
    return prompt


@pytest.mark.parametrize("blocks", [2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (4, 7, 9))])
def test_long_video_template_saves_every_frame(blocks, server):
    """As it is saved, but for models, size and length. Catches a cut of 81 frames, whatever was handed over."""
    prompt = in_api_form(TEMPLATE)
    cuts = {key: dict(node["inputs"]) for key, node in prompt.items() if "SDVG" not in node["class_type"]}
    prompt = with_tiny_models(prompt)
    for key, node in prompt.items():
        if key in cuts and node["class_type"] in ("LatentCut", "ImageFromBatch"):
            node["inputs"] = cuts[key]  # not made smaller
        if node["class_type"] == "SDVGSpeculativeSampler":
            node["inputs"]["blocks"] = blocks
    done = server.make(prompt)
    videos = [output["images"][0] for output in done.outputs.values() if "mp4" in str(output)]
    lengths = sorted(count_frames(server.view(video)) for video in videos)
    assert lengths == [FIRST + LATER * (blocks - 1), LATER * blocks, LATER * blocks]


# --- in one process


def drafts(parts, blocks, **more):
    """Return a job whose blocks are all drafts, so that its cost is small."""
    router = RouterValue(Route(First(0)), None)
    return make_job(parts, script="d" * blocks, router=router, **more)


def part(job, text="", *, stop=0):
    """Run a sampler. `text`: its kept blocks; `stop`: the block after which *Stop after this block* is pressed."""
    shown = NodeProgress.block

    def show(self, *what):
        shown(self, *what)
        self.live.stop_asked = self._done == stop

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NodeProgress, "block", show)
        return Part(*run_job(job, text))


@pytest.fixture(scope="module")
def whole(parts):
    """The frames of the same clip made whole; its beginnings are those of shorter ones."""
    return part(drafts(parts, LONGEST)).frames


def handed_on(latent):
    """Return what the template hands to the next part."""
    [cut, _] = [node["widgets_values"] for node in TEMPLATE["nodes"] if node["type"] == "LatentCut"]
    return LatentCut.execute(latent, *cut).args[0]


STOPS = [(2, 1), (2, 2), (4, 1), (4, 4), (9, 1), (9, 7), (9, 8), (9, 9)]
"""Blocks of the first part, and after which it stops. The template hands on 21 latent frames: those of 7 blocks."""


@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize(("blocks", "stop"), STOPS)
def test_stop_in_the_first_part_loses_no_frame(blocks, stop, parts, whole):
    """A stop after the last block is none. Two parts are the clip made whole, as long as the second one gets all of
    the first; beyond that, their frames are counted. LATENT is in ComfyUI's scale, which rounds.
    """
    first = part(drafts(parts, blocks), stop=stop % blocks)
    second = part(replace(drafts(parts, blocks), continue_from=handed_on(first.latent)))
    assert len(first.new) == len(first.frames) == FIRST + LATER * (stop - 1)
    assert len(second.new) == LATER * blocks
    both = torch.cat([first.new, second.new])
    assert torch.equal(first.new, whole[: len(first.new)])
    if stop <= 7:
        assert (both - whole[: len(both)]).abs().max() <= HALF_A_LEVEL


# --- a clip of somebody else's, which is extended


CLIP = torch.rand(25, 32, 32, 3, generator=torch.Generator().manual_seed(3))
EXTEND = StartValue(CLIP, "extend", "", "16 a second")


def extending(parts, blocks, preset, **more):
    """Return a job with a preset's router. The clip takes seven latent frames: two blocks and one."""
    router = RouterValue(ROUTE_PRESETS[preset], parts.scorer)
    return make_job(parts, script="d" * blocks, router=router, **{"start": EXTEND, **more})


def made_by(report):
    """Return who made each block: `t` the target, `h` the target from the draft's first steps, `d` the drafter."""
    return "".join("d" if b.decision.accepted else "h" if b.handover else "t" for b in report.blocks)


def decisions(*parts):
    return [block.decision for part in parts for block in part.report.blocks]


@pytest.fixture
def four(parts, empty_store, tmp_path, monkeypatch):
    """The clip with four new blocks, made at once. Locks go into a folder of the test's."""
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    whole = part(extending(parts, 4, "balanced"))
    assert made_by(whole.report) == "thdd"
    return whole


def test_run_after_a_stop_makes_the_same_clip(four, parts):
    """Bit for bit. Catches: a route that begins anew after the stop."""
    part(extending(parts, 4, "balanced"), stop=2)
    rest = part(extending(parts, 4, "balanced"))
    assert decisions(rest) == decisions(four)
    assert torch.equal(rest.latent["samples"], four.latent["samples"])


def test_two_blocks_over_latent_make_four(four, parts):
    """With the same decisions. Catches: what came as pixels taken for blocks once it is a LATENT."""
    two = part(extending(parts, 2, "balanced"))
    more = part(extending(parts, 2, "balanced", start=None, continue_from=two.latent))
    assert len(more.new) == 2 * LATER
    assert decisions(two, more) == decisions(four)
    assert (more.frames - four.frames)[len(CLIP) :].abs().max() <= HALF_A_LEVEL, "ComfyUI's scale rounds"


STARTS = {"clip": {"start": EXTEND}, "picture": {"start_image": CLIP[:1]}, "nothing": {}}


@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize("start", STARTS)
def test_latent_tells_what_no_model_made(start, parts):
    """Catches: a start that counts as blocks, or is shown held, once it is the beginning of a LATENT."""
    given = {"start": None, **STARTS[start]}
    whole = part(extending(parts, 4, "careful", **given))
    two = part(extending(parts, 2, "careful", **given))
    more = part(extending(parts, 2, "careful", start=None, continue_from=two.latent))
    assert made_by(whole.report) == "thhh"
    assert made_by(more.report) == "hh"
    assert len(more.frames) == len(whole.frames)
    assert len(more.new) == 2 * LATER


def test_two_blocks_over_a_lock_make_four(four, parts):
    """From the disk, bit for bit. Catches: what came as pixels taken for blocks once it is locked."""
    two = part(extending(parts, 2, "balanced"))
    text = f"2:{two.live.done['digests'][1]}"
    part(extending(parts, 4, "balanced", seed=9), text)
    for run in RUNS.now():
        run.beginnings.clear()
    more = part(extending(parts, 4, "balanced"), text)
    assert len(more.new) == 4 * LATER, "the locked blocks are new, too"
    assert decisions(two, more) == decisions(four)
    assert torch.equal(more.latent["samples"], four.latent["samples"])
    assert more.live.begin["note"] == ""
    assert NO_TARGET_BLOCK not in more.report.notes
