"""Files of locks: what is on the disk, altered, damaged or missing, and what is read from there."""

import errno
import json
from dataclasses import replace

import folder_paths
import pytest
import torch
from host_run import KEEP, SamplerRun, find_lock, make_job, starts, with_inputs
from sdvg_pack.nodes.page import kept as store
from sdvg_pack.nodes.page.routes import answer_keep
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.weights.latents import load_latents, save_latents

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store", "output_folder")]


def test_lock_is_on_disk_once_asked_for(parts, restart, output_folder):
    """Kind: what is promised is on the disk before it is shown. Nothing ran between the lock and a restart."""
    shown = SamplerRun(make_job(parts, seed=5))
    text = shown.lock(2)
    answer = answer_keep({"blocks": text})
    files = list((output_folder / store.FOLDER).iterdir())
    assert text[2:] in {path.stem for path in files}
    assert json.loads(answer.text)["bytes"] == sum(path.stat().st_size for path in files)
    restart()
    locked = SamplerRun(make_job(parts, seed=6), text)
    assert torch.equal(locked.latents[:, :, :6], shown.latents[:, :, :6])
    assert not torch.equal(locked.latents[:, :, 6:], shown.latents[:, :, 6:])


@pytest.fixture(scope="module")
def written(parts, kept, output_folder):
    """The file of `kept`, which the next run writes."""
    run_job(replace(make_job(parts), until_block=KEEP + 1), kept[0])
    return output_folder / store.FOLDER / f"{kept[0].split(':')[1]}.safetensors"


@pytest.fixture
def lock(written, restart):
    """That file, whose run no page shows any more; whole again afterwards."""
    restart()
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
    with pytest.raises(BadInput, match=f"{lock.name} is not the lock of 4 blocks"):
        find_lock(kept[0])


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_damaged_lock_says_how_to_lock_again(kept, lock, share):
    """As a lost lock does. Catches: a lock that is to be fetched again, as if it were a model."""
    whole = lock.read_bytes()
    lock.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInput, match=f"output/sdvg/kept/{lock.name}.* is damaged; unlock, press Run"):
        find_lock(kept[0])


def test_lock_named_for_other_blocks_is_refused(kept, lock):
    """Catches: the lock of another video, renamed to this one's; one of four blocks taken for one of two."""
    other = store._path("0123456789abcdef")
    other.write_bytes(lock.read_bytes())
    try:
        for text in ("4:0123456789abcdef", f"2:{lock.stem}", f"999999:{lock.stem}"):
            with pytest.raises(BadInput, match=f"is not the lock of {text.split(':')[0]} blocks"):
                find_lock(text)
    finally:
        other.unlink()


def test_lock_is_proved_by_its_digest_alone(kept, lock):
    """Not by what its file says of its blocks."""
    latents = load_latents(lock).latents.clone()
    save_latents(lock, latents, {"width": 32, "height": 32, "blocks": 5, "digest": "older"})
    blocks = find_lock(kept[0])
    assert (blocks.blocks, blocks.width, blocks.height) == (4, 32, 32)
    assert torch.equal(blocks.latents, latents)


def test_locking_again_mends_an_altered_file(kept, lock):
    """Catches: a file that is there already, taken for the lock."""
    whole = lock.read_bytes()
    blocks = find_lock(kept[0])
    latents = blocks.latents.clone()
    save_latents(lock, altered(latents, 7), load_latents(lock).metadata)
    store.write_kept(replace(blocks, latents=latents))
    assert lock.read_bytes() == whole


@pytest.mark.parametrize("start", ["start_image", "start", "continue_from"])
def test_lock_after_a_start_is_read_from_disk(parts, kept, restart, start):
    """With the frames before its first block. The kind: all that a digest is made of comes back from the disk."""
    job = replace(with_inputs(make_job(parts), blocks=6), **{start: starts(kept[2])[start]})
    whole = SamplerRun(job)
    text = whole.lock(2)
    run_job(job, text)
    restart()
    assert torch.equal(SamplerRun(job, text).latents, whole.latents)


def test_full_disk_leaves_no_half_lock(parts, kept, tmp_path, monkeypatch):
    """Catches: the system's own error, and half a file that is found later."""

    def fill(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(store, "save_latents", fill)
    video = SamplerRun(make_job(parts))
    with pytest.raises(BadInput, match="No space left on device"):
        run_job(make_job(parts), video.lock(KEEP))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
