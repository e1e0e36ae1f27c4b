"""Films of shots that begin afresh: each is the run that it would be alone, wherever it stands.

That the core makes such films is proved in tests/videos/test_film.py; here is what the nodes add.
"""

import zlib
from dataclasses import replace

import pytest
import torch
from host_run import SamplerRun, make_job, with_inputs
from host_tiny import generator_of
from sdvg_pack.nodes.host.conditioning import with_lines, with_text
from sdvg_pack.nodes.host.sockets import PICTURE, ClipValue, PromptEntry, StartValue
from sdvg_pack.nodes.run import JOINS_NOTE, run_job
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.text.prompts import read_prompt
from sdvg_pack.sdvg_core.weights.latents import shots_in

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]

FILM = "a red ball\n3 fresh #b: a blue ring\n5: the ring stops\n6 fresh #d from #b: a green box"
DIRECTIONS = "tdtrdtad"
SHOTS = {"#0": (0, 2), "#b": (2, 5), "#d": (5, 8)}
"""First block, from 0, and the one after the last."""


def conditioning_of(text):
    """Return the CONDITIONING of a prompt with lines; equal words have equal embeddings."""

    def encoded(words):
        embedding = torch.randn(1, 512, 32, generator=generator_of(zlib.crc32(words.encode())))
        return with_text([[embedding, {}]], words)

    return with_lines(read_prompt(text), encoded)


def film_job(parts, text=FILM, directions=DIRECTIONS, **changes):
    """Return the job of a film whose blocks are made as the directions say."""
    prompts = (PromptEntry(0, conditioning_of(text), ""),)
    job = make_job(parts, prompts=prompts, blocks=len(directions), **changes)
    return with_inputs(job, directions=directions)


class Film(SamplerRun):
    """A run of the sampler. `shots`: latents by key of the shot."""

    def __init__(self, job, locks=""):
        super().__init__(job, locks)
        begins = shots_in(self.latent, self.latent["samples"])
        stops = [*(shot.first for shot in begins[1:]), None]
        self.shots = {
            shot.shot.key: self.latent["samples"][:, :, shot.first : stop]
            for shot, stop in zip(begins, stops, strict=True)
        }

    @property
    def numbers(self):
        """Return the numbers of the blocks that were made, as the report has them."""
        return [self.report.number_of(record) for record in self.report.blocks]


@pytest.fixture(scope="module")
def film(parts):
    return Film(film_job(parts))


def test_fresh_shot_is_what_it_is_alone(parts, film):
    """Catches: history, place in the route, noise or prompts of another shot in one that begins afresh."""
    alone = Film(film_job(parts, "1 fresh #b: a blue ring\n3: the ring stops", DIRECTIONS[2:5]))
    assert torch.equal(film.shots["#b"], alone.shots["#b"])
    assert torch.equal(film.frames[21 : 21 + 33], alone.frames)
    decisions = [record.decision for record in film.report.blocks[2:5]]
    assert decisions == [record.decision for record in alone.report.blocks]


def test_first_shot_is_the_plain_film(parts, film):
    plain = Film(film_job(parts, "a red ball", DIRECTIONS[:2]))
    assert torch.equal(film.shots["#0"], plain.shots["#0"])
    assert torch.equal(film.frames[:21], plain.frames)


def test_shot_begins_with_the_last_frame_of_another(parts, film):
    """It is that of a start image, and not shown twice."""
    last = film.frames[53:54].mul(255).round().div(255)
    alone = Film(film_job(parts, "1 fresh #d: a green box", DIRECTIONS[5:], start_image=last))
    assert torch.equal(film.shots["#d"], alone.shots["#d"])
    assert torch.equal(film.frames[54:], alone.frames[1:])
    assert len(film.frames) == 21 + 33 + 36


def test_moved_shot_keeps_its_latents(parts, film):
    """Catches: noise that belongs to the place; a key that is lost at the front."""
    text = "1 fresh #b: a blue ring\n3: the ring stops\n4 fresh #0: a red ball\n6 fresh #d from #b: a green box"
    moved = Film(film_job(parts, text, DIRECTIONS[2:5] + DIRECTIONS[:2] + DIRECTIONS[5:]))
    assert all(torch.equal(film.shots[key], moved.shots[key]) for key in SHOTS)


def test_report_knows_the_shots(film):
    shots = film.report.settings["shots"]
    assert [(shot["key"], shot["first_block"]) for shot in shots] == [("#0", 1), ("#b", 3), ("#d", 6)]
    assert [shot for shot in shots if "join" in shot] == shots[1:]
    assert JOINS_NOTE in film.report.notes
    assert film.numbers == list(range(1, 9))
    assert film.live.begin["shots"] == [["#0", 1, 2], ["#b", 3, 3], ["#d", 6, 3]]


@pytest.mark.parametrize("key", SHOTS)
def test_locked_shot_stays_whatever_else_changes(parts, film, output_folder, key):
    """Catches: a lock of one shot that is taken for another's; blocks numbered without those before."""
    first, stop = SHOTS[key]
    locks = f"{key[1:]}={stop - first - 1}:{film.live.done['digests'][stop - 2]}"
    changed = Film(with_inputs(film_job(parts), seed=77), locks)
    kept = 3 * (stop - first - 1) + (3 if key == "#d" else 0)  # a held picture comes before
    assert torch.equal(changed.shots[key][:, :, :kept], film.shots[key][:, :, :kept])
    assert not torch.equal(changed.shots[key], film.shots[key])
    others = [other for other in SHOTS if other not in (key, "#d")]
    assert not any(torch.equal(changed.shots[other], film.shots[other]) for other in others)
    locked = range(first + 1, stop)
    assert changed.numbers == [number for number in range(1, 9) if number not in locked]
    given = [event["number"] for event in changed.live.events if event["outcome"] == "given"]
    assert given == list(locked)
    assert changed.live.done["blocks"] == changed.live.done["of"] == 8 - len(locked)


def test_film_that_is_locked_whole_calls_no_model(parts, film, output_folder):
    """Catches: a shot that is made again though all of it is locked."""
    digests = film.live.done["digests"]
    locks = f"2:{digests[1]}, b=3:{digests[4]}, d=3:{digests[7]}"
    locked = Film(film_job(parts), locks)
    assert torch.equal(locked.latent["samples"], film.latent["samples"])
    assert torch.equal(locked.frames, film.frames)
    assert locked.report.blocks == ()
    assert locked.live.done["digests"] == digests
    assert [shot["first_block"] for shot in locked.report.settings["shots"]] == [1, 3, 6]


@pytest.mark.parametrize(
    "locks, fault",
    [
        ("x=1:{0}", "#x are locked, and the film has none"),
        ("1:{0}, 0=1:{0}", "two locks"),
        ("b=1:{0}, b=1:{0}", "lock blocks on the strip"),
        ("b=2:{1}, 0=3:{4}", "it has 2"),
        ("B=1:{0}", "lock blocks on the strip"),
    ],
)
def test_wrong_locks_are_refused(parts, film, output_folder, locks, fault):
    with pytest.raises(BadInput, match=fault):
        run_job(film_job(parts), locks.format(*film.live.done["digests"]))


def test_lock_of_the_first_shot_follows_it(parts, film, output_folder):
    """Catches: a lock that is the first shot's by its place, after another shot has moved there."""
    text = "1 fresh #b: a blue ring\n2 fresh #0: a red ball"
    moved = Film(film_job(parts, text, "ttd", seed=5), f"0=2:{film.live.done['digests'][1]}")
    assert torch.equal(moved.shots["#0"], film.shots["#0"])


@pytest.mark.parametrize("until, numbers", [(1, [1]), (4, [3, 4]), (7, [3, 4, 5, 6, 7])])
def test_run_up_to_a_block_makes_its_shot_alone(parts, film, until, numbers):
    """And the shots that it begins from. Catches: the shots before it made for a take of one block."""
    trial = Film(film_job(parts, until_block=until))
    assert trial.numbers == numbers
    assert [event["number"] for event in trial.live.events] == numbers
    key = next(key for key, (_, stop) in SHOTS.items() if until <= stop)
    latents = trial.shots[key]
    assert torch.equal(latents, film.shots[key][:, :, : latents.shape[2]])


def test_run_up_to_no_block_names_all_shots(parts):
    """Catches: of those that may be chosen, the last shot's alone, or each shot's."""
    with pytest.raises(BadInput, match="until_block is 9, and the run makes blocks 1 to 8; choose one of these"):
        run_job(film_job(parts, until_block=9))


def test_locked_block_is_none_to_run_up_to(parts, film):
    """Catches: locked blocks among those that may be chosen."""
    locks = f"b=2:{film.live.done['digests'][3]}"
    with pytest.raises(BadInput, match="until_block is 3, and the run makes blocks 1 to 2 and 5 to 8; choose"):
        Film(film_job(parts, until_block=3), locks)


def test_run_up_to_a_block_makes_all_origins(parts):
    """Catches: the shot that it begins from made without the one that this one begins from."""
    text = "a red ball\n2 fresh #b from #0: a blue ring\n3 fresh #d: fog\n4 fresh #c from #b: a green box"
    trial = Film(film_job(parts, text, "tdtd", until_block=4))
    assert trial.numbers == [1, 2, 4]
    assert torch.equal(trial.shots["#c"], Film(film_job(parts, text, "tdtd")).shots["#c"])


def test_new_frames_begin_after_the_clip_alone(parts):
    """Catches: the picture with which a later shot begins taken for the clip's end."""
    clip = Film(film_job(parts, "a red ball", "td"))
    text = "a red ball\n4 fresh #b from #0: fog"
    longer = Film(film_job(parts, text, "dd", continue_from=clip.latent))
    assert longer.live.clip_frames == len(clip.frames)


def test_clip_of_shots_goes_on_with_its_last(parts, film):
    """Up to rounding, as ComfyUI scales a LATENT. Catches: noise, history or held picture of another shot."""
    short = Film(film_job(parts, directions=DIRECTIONS[:7]))
    longer = Film(film_job(parts, "a green box", "d", continue_from=short.latent))
    torch.testing.assert_close(longer.latent["samples"], film.shots["#d"], rtol=0, atol=1e-4)
    assert shots_in(longer.latent, longer.latent["samples"])[0].shot.key == "#d"


def test_report_numbers_blocks_of_a_continued_film(parts, output_folder):
    """From its own first one, as the strip does. Catches: blocks of a later shot that count the clip's, too."""
    clip = Film(film_job(parts, "a red ball", "td"))
    text = "a red ball\n4 fresh #b: a blue ring"
    job = film_job(parts, text, "dtd", continue_from=clip.latent)
    film = Film(job)
    assert film.numbers == [1, 2, 3]
    assert [event["number"] for event in film.live.events] == [1, 2, 3]
    locked = Film(job, f"b=1:{film.live.done['digests'][1]}")
    assert locked.numbers == [1, 3]
    assert torch.equal(locked.latents, film.latents)


def test_locked_continuation_keeps_the_noise_of_its_shot(parts, film, output_folder):
    """Catches: blocks after a lock that lose the key of the LATENT's last shot."""
    short = Film(film_job(parts, directions=DIRECTIONS[:6]))
    job = film_job(parts, "a green box", "td", continue_from=short.latent)
    whole = Film(job)
    locked = Film(job, f"1:{whole.live.done['digests'][0]}")
    assert torch.equal(locked.latent["samples"], whole.latent["samples"])


def test_start_that_a_shot_cannot_take_is_refused(parts):
    """Catches: a LATENT of nothing that is continued, and one of two starts that has no effect."""
    empty = {"samples": torch.zeros(1, 16, 3, 4, 4)}
    with pytest.raises(BadInput, match="the clip to continue is empty"):
        run_job(film_job(parts, "a red ball", "t", continue_from=empty))
    text = "1 clip #clip1:\n1 fresh #b from #clip1: a blue ring"
    picture = torch.rand(1, 32, 32, 3, generator=generator_of(7))
    for start in ({"start_image": picture}, {"continue_from": {"samples": torch.ones(1, 16, 3, 4, 4)}}):
        with pytest.raises(BadInput, match="and a start is wired in"):
            run_job(film_job(parts, text, "t", **start))


def test_control_of_one_clip_is_refused_for_shots(parts):
    """Its latents are one clip's, and every shot would need its own."""
    job = film_job(parts)
    frames, mask = (torch.zeros(1, channels, 25, 4, 4) for channels in (32, 64))
    control = {"vace_frames": [frames + 1], "vace_mask": [mask], "vace_strength": [1.0]}
    (entry,) = job.prompts
    ((embedding, extras),) = entry.conditioning
    prompts = (PromptEntry(0, [[embedding, {**extras, **control}]], ""),)
    with pytest.raises(BadInput, match="fresh shots; write cut"):
        run_job(with_inputs(job, prompts=prompts))


def test_shots_of_a_prompt_schedule_are_sorted(parts):
    """Catches: shots in the order of the nodes, which are refused."""
    text = "a red ball\n2: a blue ring\n3 fresh #d: a green box\n4 fresh #e: fog"
    one_node = film_job(parts, text, "tdtd")
    two_nodes = (
        PromptEntry(0, conditioning_of("a red ball\n4 fresh #e: fog"), ""),
        PromptEntry(1, conditioning_of("a blue ring\n3 fresh #d: a green box"), ""),
    )
    assert torch.equal(Film(with_inputs(one_node, prompts=two_nodes)).latents, Film(one_node).latents)


CLIPS_FILM = "a red ball\n3 clip #clip1 0.5-1.5:\n3 fresh #b from #clip1: a blue ring\n5 clip #clip2:"


def clip_value(frames, seed, sample_rate=None):
    """Return a clip of random pictures, with a sound of its own if it has a sample rate."""
    pictures = torch.rand(frames, 32, 32, 3, generator=generator_of(seed))
    if sample_rate is None:
        return ClipValue(pictures, "")
    wave = torch.rand(1, 2, frames * sample_rate // 16, generator=generator_of(seed))
    return ClipValue(pictures, "", {"waveform": wave, "sample_rate": sample_rate})


@pytest.fixture(scope="module")
def clips():
    return {"clip1": clip_value(32, 1, 48000), "clip2": clip_value(10, 2)}


def start_of(clips):
    """Return the output of an SDVG Start with clips alone."""
    return StartValue(torch.zeros(0, 1, 1, 3), PICTURE, "", "", clips=clips)


def test_clips_are_shown_as_they_are_between_shots(parts, clips):
    """Catches: footage that is encoded, cut elsewhere, or shown twice; its sound at another time."""
    film = Film(film_job(parts, CLIPS_FILM, "tdtd", start=start_of(clips)))
    first, second = (clip.images for clip in clips.values())
    assert torch.equal(film.frames[21 : 21 + 16], first[8:24])
    assert torch.equal(film.frames[-10:], second)
    assert len(film.frames) == 21 + 16 + 24 + 10
    wave = film.sound["waveform"]
    assert film.sound["sample_rate"] == 48000
    assert wave.shape == (1, 2, len(film.frames) * 3000)
    assert torch.equal(wave[..., 21 * 3000 : 37 * 3000], clips["clip1"].sound["waveform"][..., 24000:72000])
    assert not wave[..., : 21 * 3000].any()
    assert not wave[..., 37 * 3000 :].any()
    last = first[23:24].mul(255).round().div(255)
    alone = Film(film_job(parts, "1 fresh #b: a blue ring", "td", start_image=last))
    assert torch.equal(film.shots["#b"], alone.shots["#b"])
    assert [clip["name"] for clip in film.report.settings["clips"]] == ["#clip1", "#clip2"]


def test_sounds_of_other_channels_join(parts, clips):
    """Catches: a film that is lost at its end, as one clip is stereo and another surround."""
    surround = replace(clip_value(10, 2, 16000), sound={"waveform": torch.ones(1, 6, 10000), "sample_rate": 16000})
    start = start_of({"clip1": clips["clip1"], "clip2": surround})
    wave = Film(film_job(parts, CLIPS_FILM, "tdtd", start=start)).sound["waveform"]
    assert wave.shape == (1, 6, 71 * 3000)
    assert torch.equal(wave[:, :2, 21 * 3000 : 37 * 3000], clips["clip1"].sound["waveform"][..., 24000:72000])
    assert not wave[:, 2:, : 37 * 3000].any()
    assert wave[:, 2:, -20 * 1000 :].any()


def test_mono_sound_beside_stereo_is_on_both_channels(parts):
    """Catches: a voice that comes from the left alone, as another clip of the film is stereo."""
    voice = ClipValue(clip_value(8, 1).images, "", {"waveform": torch.ones(1, 1, 4000), "sample_rate": 8000})
    start = start_of({"clip1": voice, "clip2": clip_value(10, 2, 8000)})
    prompt = "a red ball\n2 clip #clip1 0-0.5:\n2 fresh #b: a blue ring\n3 clip #clip2:"
    film = Film(film_job(parts, prompt, "td", start=start))
    assert film.sound["waveform"][0, :, 9 * 500 : 17 * 500].eq(1).all()


def test_sound_ends_with_the_frames_at_any_rate(parts):
    """Of 22,050 samples a second, a frame has 1378 and an eighth. Catches: each part rounded by itself."""
    start = start_of({"clip1": clip_value(8, 1, 22050)})
    film = Film(film_job(parts, "a red ball\n2 clip #clip1 0-0.25:\n2 fresh #b: a blue ring", "td", start=start))
    assert len(film.frames) == 9 + 4 + 9
    assert film.sound["waveform"].shape[2] == round(22 * 22050 / 16)


def test_trimmed_sound_of_another_rate_is_in_time(parts):
    """Catches: its begin counted in samples of the film's rate."""
    tone = torch.zeros(1, 1, 2 * 16000)
    tone[..., 8000:16000] = 1
    slow = replace(clip_value(32, 1), sound={"waveform": tone, "sample_rate": 16000})
    start = start_of({"clip1": slow, "clip2": clip_value(10, 2, 48000)})
    text = "a red ball\n2 clip #clip1 0.5-1.0:\n2 fresh #b: a blue ring\n3 clip #clip2:"
    film = Film(film_job(parts, text, "td", start=start))
    heard = film.sound["waveform"][0, 0, 9 * 3000 : 17 * 3000]
    assert heard[100:-100].min() > 0.9


def test_trial_of_a_shot_shows_no_clip(parts, clips):
    """And begins with the last frame of one as the film does. Catches: the shot of a clip that is not shown."""
    film = Film(film_job(parts, CLIPS_FILM, "tdtd", start=start_of(clips)))
    trial = Film(film_job(parts, CLIPS_FILM, "tdtd", start=start_of(clips), until_block=4))
    assert torch.equal(trial.frames, film.frames[37:61])


@pytest.mark.parametrize(
    "text, wired, fault",
    [
        ("a\n2 clip #clip1:\n2 fresh #b: b", (), "#clip1, which is not wired in"),
        ("a\n2 clip #clip1:", ("clip1",), "which begins no fresh shot"),
        ("a\n3 clip #clip1 1-9:", ("clip1",), "ends after 2 seconds"),
    ],
)
def test_clip_that_cannot_be_shown_is_refused(parts, clips, text, wired, fault):
    start = start_of({name: clips[name] for name in wired}) if wired else None
    with pytest.raises(BadInput, match=fault):
        run_job(film_job(parts, text, "td", start=start))


def test_clip_that_no_line_shows_is_noted(parts, clips):
    report = Film(film_job(parts, "a red ball", "t", start=start_of(clips))).report
    assert any(note.startswith("Not shown, as no line names it: #clip1, #clip2") for note in report.notes)
