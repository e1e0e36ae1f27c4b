"""Kept blocks, and runs that end before their last block: bit for bit what a run from nothing makes."""

import json
from dataclasses import replace

import comfy.model_management
import pytest
import torch
from host_run import KEEP, SamplerRun, find_lock, make_job, starts, with_inputs
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.sockets import PICTURE, RouterValue, StartValue
from sdvg_pack.nodes.page import kept as store
from sdvg_pack.nodes.page.live import RUNS
from sdvg_pack.nodes.page.routes import answer_keep
from sdvg_pack.nodes.report import RouteReport
from sdvg_pack.nodes.run import run_job
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.nodes.start import EXTEND
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.report.run_report import report_from_dict
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.route import Budget, First, Route, Stride, TargetOnly

from tests.support.thinned import in_turn

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store", "output_folder")]


def test_blocks_after_a_lock_stay_the_same(parts, kept):
    """Catches: a block after the lock that is made from another history, or a lock that nothing is said of."""
    text, frames, latents = kept
    locked = SamplerRun(make_job(parts), text)
    assert torch.equal(locked.frames, frames)
    assert torch.equal(locked.latents, latents)
    assert [record.span.index for record in locked.report.blocks] == list(range(KEEP, 9))
    assert not any(record.reused for record in locked.report.blocks)
    digest = text.split(":")[1]
    assert locked.report.settings["kept"] == {"blocks": KEEP, "digest": digest}
    assert locked.report.request["blocks"] == locked.report.settings["blocks"] == 9 - KEEP
    assert f"Blocks 1 to {KEEP} were locked" in locked.report.notes[0]
    assert digest in locked.report.notes[0]
    assert (locked.live.done["blocks"], locked.live.done["of"]) == (5, 5)
    assert not locked.live.done["stopped"]


def test_locked_blocks_stay_whatever_else_changes(parts, kept):
    """And the directions and takes of the others are theirs. Catches: takes that are off by one at the lock."""
    text, _, latents = kept
    changed = with_inputs(make_job(parts, prompt=3), seed=77, takes="4:3, 5:4, 6:2", directions="dddd.t...")
    locked = SamplerRun(changed, text)
    count = 3 * KEEP
    assert torch.equal(locked.latents[:, :, :count], latents[:, :, :count])
    assert not torch.equal(locked.latents[:, :, count:], latents[:, :, count:])
    assert [record.span.take for record in locked.report.blocks] == [4, 2, 1, 1, 1]
    assert locked.report.blocks[1].decision.reason.name == "DIRECTED_TARGET"


def test_lock_of_blocks_that_are_gone_is_refused():
    answer = answer_keep({"blocks": "2:0123456789abcdef"})
    assert answer.status == 404
    assert "no longer has blocks 1 to 2" in answer.text


@pytest.mark.parametrize("question", [{}, {"blocks": ""}, {"blocks": 3}, [], None])
def test_lock_of_no_blocks_is_refused(question):
    answer = answer_keep(question)
    assert answer.status == 400
    assert "to lock blocks" in answer.text


@pytest.mark.parametrize("start", ["start_image", "start", "continue_from", ""])
def test_start_that_a_lock_replaces_is_noted(parts, kept, start):
    """The kind: an input that another one makes moot. Catches: a picture that is wired, changed, and not read."""
    text, frames, latents = kept
    job = replace(make_job(parts), **({start: starts(latents)[start]} if start else {}))
    locked = SamplerRun(job, text)
    assert torch.equal(locked.frames, frames)
    assert (store.UNREAD in locked.report.notes) == bool(start)


STARTS = ["picture", "start image", "1 latent frame", "2 latent frames", "4 latent frames", 1, 5, 9, 10]
"""Starts of every kind: clips in pixels by their number of frames. 2 latent frames and 5 frames fill no block."""


def begun_with(job, start, latents):
    """Return the job with a start: one of `STARTS`."""
    random = torch.Generator().manual_seed(0)
    if isinstance(start, int):
        images = torch.rand(start, 40, 32, 3, generator=random)
        return replace(job, start=StartValue(images, EXTEND, "", "IMAGE"))
    if "latent" in start:
        return replace(job, continue_from={"samples": latents[:, :, : int(start[0])]})
    image = torch.rand(1, 32, 32, 3, generator=random)
    if start == "picture":
        return replace(job, start=StartValue(image, PICTURE, "", ""))
    return replace(job, start_image=image)


def run_then_lock(job, blocks, restart):
    """Return a run and the one after it with its first blocks locked. `restart`: the server's, in between."""
    shown = SamplerRun(job)
    text = shown.lock(blocks)
    if restart:
        answer_keep({"blocks": text})
        restart()
    return shown, SamplerRun(job, text)


def assert_same_film(made, expected):
    assert torch.equal(made.frames, expected.frames)
    assert torch.equal(made.latents, expected.latents)
    assert made.live.clip_frames == expected.live.clip_frames


@in_turn("start, restarted", STARTS, [False, True])
def test_lock_shows_the_video_of_the_run_before(parts, kept, restart, start, restarted):
    """Catches: a locked run that decodes what the run before showed as it was given, and is longer by that."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), start, kept[2])
    shown, locked = run_then_lock(job, 2, restart if restarted else None)
    assert_same_film(locked, shown)
    assert locked.live.done["digests"] == shown.live.done["digests"]
    notes_on_clip = {note for note in shown.report.notes if "clip" in note}
    assert notes_on_clip <= set(locked.report.notes)


@in_turn("other, start", [None, "start image", "4 latent frames", 5], ["2 latent frames", 10])
def test_lock_refuses_another_clip_than_its_own(parts, kept, start, other):
    """Catches: the old clip in the video, or its decoding, where another one or none is wired."""
    job = with_inputs(make_job(parts), blocks=3)
    shown = SamplerRun(begun_with(job, start, kept[2]))
    with pytest.raises(BadInput, match="another clip"):
        run_job(begun_with(job, other, kept[2]) if other else job, shown.lock(2))


def test_lock_refuses_a_clip_changed_by_one_value(parts, kept):
    """Catches: a clip known by its length or its first frame alone."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), 10, kept[2])
    shown = SamplerRun(job)
    images = job.start.images.clone()
    images[9, 20, 16, 0] += 0.5
    with pytest.raises(BadInput, match="another clip"):
        run_job(replace(job, start=replace(job.start, images=images)), shown.lock(2))


def test_lock_without_a_hash_of_its_clip_loads(parts, kept, restart):
    """Catches: files of earlier versions, which do not know their clip, no longer found or refused."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), 10, kept[2])
    shown = SamplerRun(job)
    blocks = find_lock(shown.lock(2))
    spans = (Span(1, 4, 3), Span(2, 7, 3))
    (_, older) = store.beginnings_of(blocks.latents, spans, (32, 32), blocks.lead).values()
    assert older.digest != blocks.digest
    store.write_kept(older)
    restart()
    locked = SamplerRun(job, f"2:{older.digest}")
    assert torch.equal(locked.latents, shown.latents)
    assert len(locked.frames) == 1 + 4 * 12
    assert store.UNREAD in locked.report.notes


@in_turn("start, restarted", ["", *STARTS], [False, True])
def test_run_without_new_blocks_shows_the_locked_film(parts, kept, restart, start, restarted):
    """Catches: a refused run once the last shot is locked, a model's pass for it, or a block more or fewer."""
    job = with_inputs(make_job(parts), blocks=3)
    job = begun_with(job, start, kept[2]) if start else job
    shown, locked = run_then_lock(job, 3, restart if restarted else None)
    assert_same_film(locked, shown)
    assert locked.report.blocks == ()
    assert locked.report.settings["blocks"] == 0
    assert locked.report.notes[0].startswith("Blocks 1 to 3 were locked")
    assert not any("Stopped" in note for note in locked.report.notes)
    assert (locked.live.done["blocks"], locked.live.done["of"]) == (0, 0)
    assert not locked.live.done["stopped"]
    assert locked.live.done["digests"] == shown.live.done["digests"]
    assert [(event["outcome"], event["number"], event["of"]) for event in locked.live.events] == [
        ("given", number, 3) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("route", [Route(), Route(First(2)), Route(Stride(2)), Route(TargetOnly())], ids=str)
def test_locked_film_loads_the_decoder_alone(parts, monkeypatch, route):
    """Catches: a model loaded, checked or reported for a block that nobody makes: the one after the film's last."""
    job = with_inputs(make_job(parts, router=RouterValue(route, parts.scorer)), blocks=KEEP)
    shown = SamplerRun(job)
    comfy.model_management.unload_all_models()
    loaded = []
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda patchers, **_: loaded.extend(patchers))
    locked = SamplerRun(job, shown.lock(KEEP))
    assert [patcher is parts.vae.patcher for patcher in loaded] == [True]
    assert torch.equal(locked.frames, shown.frames)
    assert (locked.report.settings["drafter"], locked.report.settings["target"]) == (None, None)


@pytest.mark.parametrize("route", [Route(First(2)), Route(Stride(2)), Route(TargetOnly()), Budget(0.5)], ids=str)
def test_locked_film_is_shown_whatever_the_route(parts, route):
    """Catches: a route that is refused for a block which nobody asked for."""
    job = make_job(parts, router=RouterValue(route, parts.scorer))
    shown = SamplerRun(job)
    locked = SamplerRun(job, shown.lock(9))
    assert torch.equal(locked.frames, shown.frames)


def test_report_of_a_locked_film_is_drawn(parts):
    """Catches: a report that cannot be drawn, summed up or read again without a block."""
    job = with_inputs(make_job(parts), blocks=KEEP)
    shown = SamplerRun(job)
    locked = SamplerRun(job, shown.lock(KEEP))
    picture, record = RouteReport.execute(report=locked.report).args
    assert picture.shape[0] == 1
    report = report_from_dict(json.loads(record))
    assert report.blocks == ()
    assert report.settings["kept"]["blocks"] == KEEP


def test_lock_of_one_frame_is_no_picture(parts):
    """Catches: a single latent frame of locked blocks held for a block of its own, as a start image is."""
    preset = get_preset("self-gradient-forcing-framewise")
    drafter = attach_origin(parts.drafter.clone(), preset=preset)
    target = attach_origin(parts.target.clone(), preset=preset)
    job = replace(make_job(parts, script="ddd"), drafter=drafter, target=target)
    shown = SamplerRun(job)
    locked = SamplerRun(job, shown.lock(1))
    assert torch.equal(locked.frames, shown.frames)
    assert torch.equal(locked.latents, shown.latents)
    assert [made.live.begin["block_length"] for made in (shown, locked)] == [1, 1]


REFUSED = [
    ({"width": 64, "height": 32}, None, "32 x 32 pixels and the video 64 x 32"),
    ({"blocks": KEEP - 1}, None, f"{KEEP} blocks are locked"),
    ({}, "4:0123456789abcdef", "no file of the locked blocks 1 to 4"),
    ({}, "four", "'four'"),
    ({}, "0:0123456789abcdef", "'0:0123456789abcdef'"),
]


@pytest.mark.parametrize("change, text, words", REFUSED, ids=str)
def test_lock_that_cannot_be_used_is_refused(parts, kept, change, text, words):
    """When the prompt is queued, and by the run itself. Catches: a refusal after models were loaded."""
    text = text or kept[0]
    size = {"width": 32, "height": 32, "blocks": 9, **change}
    with pytest.raises(BadInput, match=words):
        SpeculativeSampler.validate_inputs(drafter=None, **size, kept_blocks=text)
    with pytest.raises(BadInput, match=words):
        run_job(with_inputs(make_job(parts), **change), text)


def test_shortened_run_is_the_beginning_of_the_whole(parts):
    """As a take is made to compare. Catches: a budget spent on five blocks in place of nine."""
    job = make_job(parts, router=RouterValue(Budget(0.5), parts.scorer))
    whole = SamplerRun(job)
    part = SamplerRun(replace(job, until_block=5))
    assert torch.equal(part.latents, whole.latents[:, :, :15])
    decisions = [[record.decision for record in made.report.blocks] for made in (part, whole)]
    assert decisions[0] == decisions[1][:5]


def test_locked_run_can_be_locked_further(parts, kept):
    """Catches digests of the new blocks alone, or others than those of a run from nothing."""
    text, frames, _ = kept
    locked = SamplerRun(make_job(parts), text)
    assert locked.live.done["digests"] == SamplerRun(make_job(parts)).live.done["digests"]
    further = SamplerRun(make_job(parts), locked.lock(6))
    assert torch.equal(further.frames, frames)


def test_take_after_a_lock_makes_its_block_alone(parts, kept):
    """Catches: a take that makes the whole rest of the video."""
    part = SamplerRun(replace(make_job(parts), until_block=KEEP + 1), kept[0])
    assert [record.span.index for record in part.report.blocks] == [KEEP]


@pytest.mark.parametrize("block", [KEEP, 10])
def test_take_of_no_new_block_is_refused(block, parts, kept):
    """Catches: the last locked block, or one after the video's end, asked for."""
    with pytest.raises(BadInput, match=f"until_block is {block}, and the run makes blocks {KEEP + 1} to 9"):
        run_job(replace(make_job(parts), until_block=block), kept[0])


def test_take_of_a_locked_film_is_refused(parts):
    """Catches: a take of a film that has no block to make."""
    shown = SamplerRun(make_job(parts))
    with pytest.raises(BadInput, match="every block is locked"):
        run_job(replace(make_job(parts), until_block=9), shown.lock(9))


def test_blocks_on_the_screen_stay_lockable(parts):
    """That of the newest run of every node: the twenty share theirs, and another node has made none meanwhile.

    Kind: a store with a limit drops what was used longest ago, and never what a page shows. Catches also: the
    latents of all runs of a day held in memory.
    """
    job = make_job(parts, script="ta", size=(16, 16))
    shown = SamplerRun(replace(job, node_id="shown")).live
    runs = [SamplerRun(with_inputs(job, node_id="busy", takes=f"2:{take}")).live for take in range(2, 22)]
    for newest in (shown, runs[-1]):
        for number, digest in enumerate(newest.done["digests"], 1):
            blocks = find_lock(f"{number}:{digest}")
            assert blocks.blocks == number
            assert blocks.latents.shape[2] == 3 * number
    assert len({run.done["digests"][0] for run in runs}) == 1
    remembered = [run for run in runs if run in RUNS.now()]
    assert len(remembered) < 8
    with pytest.raises(BadInput, match="no file of"):
        find_lock(f"2:{runs[0].done['digests'][1]}")
