"""Kept blocks, and runs that end before their last block: bit for bit what a run from nothing makes."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import folder_paths
import pytest
import torch
from host_run import make_job, video_of, with_inputs
from sdvg_pack.nodes.host import reuse
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.sockets import PICTURE, RouterValue, StartValue
from sdvg_pack.nodes.page import kept as store
from sdvg_pack.nodes.page.kept import find_kept
from sdvg_pack.nodes.page.live import RUNS
from sdvg_pack.nodes.page.routes import answer_keep
from sdvg_pack.nodes.report import RouteReport
from sdvg_pack.nodes.run import run_job
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.nodes.start import EXTEND
from sdvg_pack.sdvg_core.engine.reuse import Store
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.report.run_report import report_from_dict
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.route import Budget, First, Route, Stride, TargetOnly
from sdvg_pack.sdvg_core.weights.latents import load_latents, save_latents
from torch import Tensor

from tests.support.thinned import in_turn

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]
KEEP = 4
Kept = tuple[str, Tensor, Tensor]


@pytest.fixture(scope="module", autouse=True)
def output(tmp_path_factory):
    """A folder for what is written."""
    folder = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder_paths, "get_output_directory", lambda: str(folder))
        yield


@pytest.fixture(scope="module")
def kept(parts):
    """What names the first blocks of a video, its frames and its latents."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "STORE", Store(0))
        frames, latent, _, live = run_job(make_job(parts))
    return text_of(live, KEEP), frames, latent["samples"]


def text_of(live, blocks):
    """What names the first blocks of a finished run."""
    return f"{blocks}:{live.done['digests'][blocks - 1]}"


def folder():
    return Path(folder_paths.get_output_directory()) / store.FOLDER


def test_blocks_after_a_lock_stay_the_same(parts, kept):
    text, frames, latents = kept
    again = run_job(make_job(parts), text)
    assert torch.equal(again[0], frames)
    assert torch.equal(again[1]["samples"], latents)
    assert [record.span.index for record in again[2].blocks] == list(range(KEEP, 9))
    assert not any(record.reused for record in again[2].blocks)
    digest, done = text.split(":")[1], again[3].done
    assert again[2].settings["kept"] == {"blocks": KEEP, "digest": digest}
    assert again[2].notes[0] == f"Blocks 1 to {KEEP} were locked: taken from an earlier run, latents {digest}."
    assert (done["blocks"], done["of"], done["stopped"]) == (5, 5, False)


def test_kept_blocks_stay_whatever_else_changes(parts, kept):
    """And the directions and takes of the others are theirs: block 6 has its own second take."""
    text, _, latents = kept
    changed = with_inputs(make_job(parts, prompt=3), seed=77, takes="2:3, 6:2", directions="dddd.t...")
    made = run_job(changed, text)
    frames = 3 * KEEP
    assert torch.equal(made[1]["samples"][:, :, :frames], latents[:, :, :frames])
    assert not torch.equal(made[1]["samples"][:, :, frames:], latents[:, :, frames:])
    assert [record.span.take for record in made[2].blocks] == [1, 2, 1, 1, 1]
    assert made[2].blocks[1].decision.reason.name == "DIRECTED_TARGET"


def test_a_lock_is_on_the_disk_once_the_page_has_asked_for_it(parts, monkeypatch):
    """Kind: what is promised is on the disk before it is shown. Nothing ran between the lock and a restart."""
    _, latent, _, live = run_job(make_job(parts, seed=5))
    text = text_of(live, 2)
    answer = answer_keep({"blocks": text})
    assert text[2:] in {path.stem for path in folder().iterdir()}
    assert json.loads(answer.text)["bytes"] == sum(path.stat().st_size for path in folder().iterdir())
    monkeypatch.setattr(store.RUNS, "now", list)
    made = run_job(make_job(parts, seed=6), text)[1]["samples"]
    assert torch.equal(made[:, :, :6], latent["samples"][:, :, :6])
    assert not torch.equal(made[:, :, 6:], latent["samples"][:, :, 6:])
    gone = answer_keep({"blocks": "2:0123456789abcdef"})
    assert (gone.status, "the server no longer has blocks 1 to 2" in gone.text) == (404, True)
    for nothing in ({}, {"blocks": ""}, {"blocks": 3}, [], None):
        answer = answer_keep(nothing)
        assert (answer.status, "to lock blocks" in answer.text) == (400, True)


@pytest.fixture(scope="module")
def written(parts, kept):
    """The file of `kept`, which the next run writes."""
    run_job(replace(make_job(parts), until_block=KEEP + 1), kept[0])
    return folder() / f"{kept[0].split(':')[1]}.safetensors"


@pytest.fixture
def lock(written, monkeypatch):
    """That file, whose run no page shows any more; whole again afterwards."""
    monkeypatch.setattr(store.RUNS, "now", list)
    whole = written.read_bytes()
    yield written
    written.write_bytes(whole)


def altered(latents, at):
    """Return the latents with the last bit of one number changed, in latent frame `at`."""
    bits = latents.clone().view(torch.int32)
    bits[0, 0, at, 0, 0] ^= 1
    return bits.view(torch.float32)


@pytest.mark.parametrize(
    "change",
    [
        0,
        5,
        3 * KEEP - 1,
        {"width": 64},
        {"width": None},
        {"height": [32]},
        {"from_pixels": 3},
        {"start_image_frames": 1},
        {"clip": "0123456789abcdef"},
    ],
    ids=str,
)
def test_altered_lock_is_refused(kept, lock, change):
    """The kind: a file that is taken by its name. Catches: other latents under a lock's name, by one bit."""
    saved = load_latents(lock)
    if isinstance(change, int):
        save_latents(lock, altered(saved.latents, change), saved.metadata)
    else:
        save_latents(lock, saved.latents, {**saved.metadata, **change})
    named = f"kept/{lock.name} is not the lock of 4 blocks that it is named after; lock"
    with pytest.raises(BadInput, match=named):
        find_kept(kept[0])


def test_lock_named_for_other_blocks_is_refused(kept, lock):
    """Catches: the lock of another video, renamed to this one's; one of four blocks taken for one of two."""
    other = store._path("0123456789abcdef")
    other.write_bytes(lock.read_bytes())
    try:
        for text in ("4:0123456789abcdef", f"2:{lock.stem}", f"999999:{lock.stem}"):
            with pytest.raises(BadInput, match=f"is not the lock of {text.split(':')[0]} blocks"):
                find_kept(text)
    finally:
        other.unlink()


def test_a_lock_is_proved_by_its_digest_alone(kept, lock):
    """Not by what its file says of its blocks. Locking again mends an altered file."""
    whole, latents = lock.read_bytes(), load_latents(lock).latents.clone()
    save_latents(lock, latents, {"width": 32, "height": 32, "blocks": 5, "digest": "older"})
    again = find_kept(kept[0])
    assert (again.blocks, again.width, again.height) == (4, 32, 32)
    assert torch.equal(again.latents, latents)
    lock.write_bytes(whole)
    kept_blocks = find_kept(kept[0])
    save_latents(lock, altered(latents, 7), load_latents(lock).metadata)
    store.write_kept(replace(kept_blocks, latents=latents))
    assert lock.read_bytes() == whole


def starts(latents):
    """What a run may begin with, by the sampler's inputs."""
    return {
        "start_image": torch.rand(1, 32, 32, 3),
        "start": StartValue(torch.rand(9, 32, 32, 3), EXTEND, "", "IMAGE"),
        "continue_from": {"samples": latents[:, :, :4]},
    }


@pytest.mark.parametrize("start", ["start_image", "start", "continue_from"])
def test_lock_after_a_start_is_read_from_disk(parts, kept, monkeypatch, start):
    """With the frames before its first block. The kind: all that a digest is made of comes back from the disk."""
    job = replace(with_inputs(make_job(parts), blocks=6), **{start: starts(kept[2])[start]})
    _, whole, _, live = run_job(job)
    text = text_of(live, 2)
    run_job(job, text)
    monkeypatch.setattr(store.RUNS, "now", list)
    assert torch.equal(run_job(job, text)[1]["samples"], whole["samples"])


@pytest.mark.parametrize("start", ["start_image", "start", "continue_from", ""])
def test_start_that_a_lock_replaces_is_noted(parts, kept, start):
    """The kind: an input that another one makes moot. Catches: a picture that is wired, changed, and not read."""
    text, frames, latents = kept
    job = replace(make_job(parts), **({start: starts(latents)[start]} if start else {}))
    again = run_job(job, text)
    assert torch.equal(again[0], frames)
    assert (store.UNREAD in again[2].notes) == bool(start)


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


@in_turn("start, restarted", STARTS, [False, True])
def test_lock_shows_the_video_of_the_run_before(parts, kept, monkeypatch, start, restarted):
    """Catches: a locked run that decodes what the run before showed as it was given, and is longer by that."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), start, kept[2])
    frames, latent, report, live = run_job(job)
    text = text_of(live, 2)
    if restarted:
        answer_keep({"blocks": text})
        monkeypatch.setattr(store.RUNS, "now", list)
    again = run_job(job, text)
    assert torch.equal(again[0], frames)
    assert torch.equal(again[1]["samples"], latent["samples"])
    assert again[3].clip_frames == live.clip_frames
    assert again[3].done["digests"] == live.done["digests"]
    notes = {note for note in report.notes if "clip" in note}
    assert notes <= set(again[2].notes)


@in_turn("other, start", [None, "start image", "4 latent frames", 5], ["2 latent frames", 10])
def test_lock_refuses_another_clip_than_its_own(parts, kept, start, other):
    """Catches: the old clip in the video, or its decoding, where another one or none is wired."""
    job = with_inputs(make_job(parts), blocks=3)
    text = text_of(run_job(begun_with(job, start, kept[2]))[3], 2)
    with pytest.raises(BadInput, match="another clip"):
        run_job(begun_with(job, other, kept[2]) if other else job, text)


def test_lock_refuses_a_clip_changed_by_one_value(parts, kept):
    """Catches: a clip known by its length or its first frame alone."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), 10, kept[2])
    text = text_of(run_job(job)[3], 2)
    images = job.start.images.clone()
    images[9, 20, 16, 0] += 0.5
    with pytest.raises(BadInput, match="another clip"):
        run_job(replace(job, start=replace(job.start, images=images)), text)


def test_lock_without_a_hash_of_its_clip_loads(parts, kept, monkeypatch):
    """Catches: files of earlier versions, which do not know their clip, no longer found or refused."""
    job = begun_with(with_inputs(make_job(parts), blocks=3), 10, kept[2])
    _, whole, _, live = run_job(job)
    blocks = find_kept(text_of(live, 2))
    spans = (Span(1, 4, 3), Span(2, 7, 3))
    (_, older) = store.beginnings_of(blocks.latents, spans, (32, 32), blocks.lead).values()
    store.write_kept(older)
    monkeypatch.setattr(store.RUNS, "now", list)
    assert older.digest != blocks.digest
    frames, latent, report, _ = run_job(job, f"2:{older.digest}")
    assert torch.equal(latent["samples"], whole["samples"])
    assert len(frames) == 1 + 4 * 12
    assert store.UNREAD in report.notes


@in_turn("start, restarted", ["", *STARTS], [False, True])
def test_run_without_new_blocks_shows_the_locked_film(parts, kept, monkeypatch, start, restarted):
    """Catches: a refused run once the last shot is locked, a model's pass for it, or a block more or fewer."""
    job = with_inputs(make_job(parts), blocks=3)
    job = begun_with(job, start, kept[2]) if start else job
    frames, latent, _, live = run_job(job)
    text = text_of(live, 3)
    if restarted:
        answer_keep({"blocks": text})
        monkeypatch.setattr(store.RUNS, "now", list)
    shown = run_job(job, text)
    report, done = shown[2], shown[3].done
    assert torch.equal(shown[0], frames)
    assert torch.equal(shown[1]["samples"], latent["samples"])
    assert shown[3].clip_frames == live.clip_frames
    assert report.blocks == ()
    assert report.settings["blocks"] == 0
    assert report.notes[0].startswith("Blocks 1 to 3 were locked")
    assert not any("Stopped" in note for note in report.notes)
    assert (done["blocks"], done["of"], done["stopped"]) == (0, 0, False)
    assert done["digests"] == live.done["digests"]
    assert [(event["outcome"], event["number"], event["of"]) for event in shown[3].events] == [
        ("given", number, 3) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("route", [Route(First(2)), Route(Stride(2)), Route(TargetOnly()), Budget(0.5)], ids=str)
def test_locked_film_is_shown_whatever_the_route(parts, route):
    """Catches: a route that is refused for a block which nobody asked for."""
    job = make_job(parts, router=RouterValue(route, parts.scorer))
    frames, _, _, live = run_job(job)
    assert torch.equal(run_job(job, text_of(live, 9))[0], frames)


def test_report_of_a_locked_film_is_drawn(parts):
    """Catches: a report that cannot be drawn, summed up or read again without a block."""
    job = with_inputs(make_job(parts), blocks=KEEP)
    *_, live = run_job(job)
    report = run_job(job, text_of(live, KEEP))[2]
    picture, record = RouteReport.execute(report=report).args
    assert picture.shape[0] == 1
    again = report_from_dict(json.loads(record))
    assert again.blocks == ()
    assert again.settings["kept"]["blocks"] == KEEP


def test_lock_of_one_frame_is_no_picture(parts):
    """Catches: a single latent frame of locked blocks held for a block of its own, as a start image is."""
    preset = get_preset("self-gradient-forcing-framewise")
    drafter = attach_origin(parts.drafter.clone(), preset=preset)
    target = attach_origin(parts.target.clone(), preset=preset)
    job = replace(make_job(parts, script="ddd"), drafter=drafter, target=target)
    frames, latent, _, live = run_job(job)
    again = run_job(job, text_of(live, 1))
    assert torch.equal(again[0], frames)
    assert torch.equal(again[1]["samples"], latent["samples"])


def test_full_disk_leaves_no_half_lock(parts, kept, tmp_path, monkeypatch):
    def fill(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(store, "save_latents", fill)
    *_, live = run_job(make_job(parts))
    with pytest.raises(BadInput, match=r"output/sdvg/kept cannot be written \(No space left on device\); "):
        run_job(make_job(parts), text_of(live, KEEP))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


REFUSED = [
    (
        {"width": 64, "height": 32},
        None,
        "the locked blocks have 32 x 32 pixels and the video 64 x 32",
    ),
    ({"blocks": KEEP - 1}, None, f"{KEEP} blocks are locked, and the video has {KEEP - 1}"),
    ({}, "4:0123456789abcdef", "has no file of the locked blocks 1 to 4"),
    ({}, "four", "the locked blocks are 'four'"),
    ({}, "0:0123456789abcdef", "the locked blocks are '0:0123456789abcdef'"),
]


@pytest.mark.parametrize("change, text, sentence", REFUSED, ids=str)
def test_lock_that_cannot_be_used_is_refused(parts, kept, change, text, sentence):
    named, *_ = kept
    size = {"width": 32, "height": 32, "blocks": 9, **change}
    with pytest.raises(BadInput, match=sentence):
        SpeculativeSampler.validate_inputs(drafter=None, **size, kept_blocks=text or named)
    with pytest.raises(BadInput, match=sentence):
        run_job(with_inputs(make_job(parts), **change), text or named)


def test_shortened_run_is_the_beginning_of_the_whole(parts):
    """As takes that are compared are made. Catches a route planned for fewer blocks."""
    whole = video_of(make_job(parts))
    part = video_of(replace(make_job(parts), until_block=5))
    assert torch.equal(part[1], whole[1][:, :, :15])
    assert [record.decision for record in part[2].blocks] == [record.decision for record in whole[2].blocks[:5]]


def test_a_kept_run_can_be_kept_on_and_a_take_made_after_it(parts, kept):
    """Catches digests of the new blocks alone, or others than those of a run from nothing."""
    text, frames, _ = kept
    first, live = (run_job(make_job(parts), given)[3] for given in ("", text))
    assert live.done["digests"] == first.done["digests"]
    further = text_of(live, 6)
    assert torch.equal(run_job(make_job(parts), further)[0], frames)
    part = run_job(replace(make_job(parts), until_block=7), further)
    assert [record.span.index for record in part[2].blocks] == [6]
    for block in (6, 10):
        with pytest.raises(BadInput, match=f"until_block is {block}, and the run makes blocks 7 to 9"):
            run_job(replace(make_job(parts), until_block=block), further)
    with pytest.raises(BadInput, match="until_block is 9, and every block is locked"):
        run_job(replace(make_job(parts), until_block=9), text_of(live, 9))


def test_blocks_on_the_screen_stay_lockable(parts):
    """That of the newest run of every node: the twenty share theirs, and another node has made none meanwhile.

    Kind: a store with a limit drops what was used longest ago, and never what a page shows. Catches also: the
    latents of all runs of a day held in memory.
    """
    job = make_job(parts, script="ta", size=(16, 16))
    shown = run_job(replace(job, node_id="shown"))[3]
    runs = [run_job(with_inputs(job, node_id="busy", takes=f"2:{take}"))[3] for take in range(2, 22)]
    for newest in (shown, runs[-1]):
        for number, digest in enumerate(newest.done["digests"], 1):
            blocks = find_kept(f"{number}:{digest}")
            assert blocks
            assert (blocks.blocks, blocks.latents.shape[2]) == (number, 3 * number)
    assert len({run.done["digests"][0] for run in runs if run.done}) == 1
    kept = [run for run in runs if run in RUNS.now()]
    assert len(kept) < 8
    with pytest.raises(BadInput, match=r"no file of.*\(troubleshooting: A lock or a film is gone\)$"):
        find_kept(f"2:{runs[0].done['digests'][1]}")
