"""SDVG Start in a real ComfyUI: a first picture, a clip to extend, a clip to restyle."""

import io
import json
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from comfy.sd import CLIP
from comfy_api.latest import InputImpl, Types
from PIL import Image
from running_server import POCKET, REPORT, SAMPLER, node, pocket
from sdvg_pack.nodes.host.conditioning import carried_text, resolve_texts, strengths_of, with_text
from sdvg_pack.nodes.host.sockets import PromptEntry
from sdvg_pack.nodes.pocket import NEAREST_NOTE, PocketModels
from sdvg_pack.nodes.prompts import Prompt
from sdvg_pack.nodes.start import StartNode
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket.grammar import understand

from nodes import ConditioningAverage, ConditioningConcat, ConditioningZeroOut
from tests.support.sounds import tone

pytestmark = pytest.mark.comfyui

SECOND = "second"


def twice(use):
    """Return a prompt whose second sampler starts from the frames of the first one."""
    prompt = pocket(2, router__policy="always-target")
    prompt["video"] = node("CreateVideo", images=[SAMPLER, 0], fps=16.0)
    prompt["start"] = node("SDVGStart", images=[SAMPLER, 0], **use)
    inputs = {**prompt[SAMPLER]["inputs"], "start": ["start", 0], "blocks": 2}
    prompt[SECOND] = node("SDVGSpeculativeSampler", **inputs)
    prompt[REPORT]["inputs"]["report"] = [SECOND, 2]
    for name, sampler in (("given", SAMPLER), ("made", SECOND)):
        prompt[name] = node("SaveImage", images=[sampler, 0], filename_prefix=f"sdvg/{name}")
    return prompt


def pixels(png):
    with Image.open(io.BytesIO(png)) as picture:
        return picture.tobytes()


def made(server, prompt):
    """Return the pictures of both samplers, and the record of the second."""
    done = server.make(prompt)
    given = [pixels(server.view(file)) for file in done.outputs["given"]["images"]]
    new = [pixels(server.view(file)) for file in done.outputs["made"]["images"]]
    return given, new, done.record()


def test_extended_clip_keeps_its_frames(server):
    """Catches: frames of the clip that went through the VAE. Its pixels: tests/engine/test_exactness.py."""
    given, new, record = made(server, twice({"use_as": "extend"}))
    assert len(given) == 21
    assert len(new) == 21 + 24
    assert new[:21] == given
    assert record["request"]["continue_from"] == "IMAGE"
    assert record["blocks"][0]["index"] == 2
    assert any("21 frames at 16/s" in note for note in record["notes"])


def test_extended_clip_is_remembered_as_asked(server):
    """Which blocks the models then see: tests/videos/test_context_blocks.py. Catches: an input that is not read."""
    *_, record = made(server, twice({"use_as": "extend", "use_as.context_blocks": 1}))
    assert record["request"]["context_blocks"] == 1
    assert any("the models remember the last 1." in note for note in record["notes"])


def add_stream(file, *, rate, pix_fmt):
    """Add a stream of 32 x 32 pixels without losses."""
    stream = file.add_stream("ffv1", rate=rate)
    stream.width = 32
    stream.height = 32
    stream.pix_fmt = pix_fmt
    return stream


GREYS = torch.linspace(0.1, 0.9, 6)
UNEVEN = [0, 125, 250, 1000, 1062, 1125]


def video_of(way, path):
    """Six frames as a VIDEO: pictures, 8 a second, or a file that shows each from some moment on."""
    pictures = GREYS[:, None, None, None].expand(-1, 32, 32, 3)
    if way == "pictures":
        parts = Types.VideoComponents(images=pictures, audio=None, frame_rate=Fraction(8))
        return InputImpl.VideoFromComponents(parts)
    with av.open(str(path), "w") as file:
        stream = add_stream(file, rate=1000, pix_fmt="bgr0")
        for picture, milliseconds in zip(pictures, UNEVEN, strict=True):
            frame = av.VideoFrame.from_ndarray((picture * 255).byte().numpy(), format="rgb24")
            frame.pts = milliseconds
            frame.time_base = Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    whole = InputImpl.VideoFromFile(str(path))
    return whole.as_trimmed(0.25, 0.85, strict_duration=False) if way == "part of a file" else whole


@pytest.mark.parametrize(
    ("way", "shown", "taken"),
    [
        ("pictures", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "6 frames at 8/s"),
        ("file", [0, 0, 1, 1, *[2] * 12, 3, 4, 5], "6 frames at "),
        ("part of a file", [*[2] * 12, 3, 4], "3 frames at "),
    ],
)
def test_video_is_read_by_time_stamps_or_rate(way, shown, taken, tmp_path):
    """Catches: frames taken by their index, or a variable rate by its average."""
    start = StartNode.execute(use_as={"use_as": "extend"}, video=video_of(way, tmp_path / "clip.mkv")).args[0]
    near = (start.images[:, 0, 0, :1] - GREYS).abs().argmin(dim=1).tolist()
    assert near[: len(shown)] == shown
    assert len(near) - len(shown) in (0, 1), "how long the last frame is shown, a file does not say"
    assert start.taken.startswith(taken)


WAVE = torch.zeros(1, 1, 900)
NO_SOUNDS = [
    {},
    {"waveform": WAVE},
    {"sample_rate": 8000},
    {"waveform": WAVE[0], "sample_rate": 8000},
    {"waveform": WAVE.numpy(), "sample_rate": 8000},
    {"waveform": WAVE, "sample_rate": 0},
    {"waveform": WAVE, "sample_rate": "8000"},
    WAVE,
]
WRONG = [
    ({"images": torch.zeros(0, 8, 8, 3)}, "0 x 8 x 8 x 3"),
    ({"frame_rate": 0}, "0 frames a second"),
    *(({"audio": sound}, "not an AUDIO") for sound in NO_SOUNDS),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
@pytest.mark.parametrize("use", ["extend", "first frame"])
def test_video_that_holds_nonsense_is_refused(use, wrong, words):
    """The kind: what a wire of any kind carries, one level down. Catches an error of torch or of arithmetic."""
    parts = {"images": torch.zeros(9, 8, 8, 3), "audio": None, "frame_rate": Fraction(8), **wrong}
    video = InputImpl.VideoFromComponents(Types.VideoComponents(**parts))
    with pytest.raises(BadInput, match=words):
        StartNode.execute(use_as={"use_as": use}, video=video)


@pytest.mark.parametrize("sound", NO_SOUNDS)
def test_clip_between_shots_with_no_sound_is_refused(sound):
    """Catches: a sound that is looked at where the film is put together, after minutes."""
    parts = Types.VideoComponents(images=torch.zeros(9, 8, 8, 3), audio=sound, frame_rate=Fraction(8))
    with pytest.raises(BadInput, match="not an AUDIO"):
        StartNode.execute(use_as=USES["extend"], clips={"clip1": InputImpl.VideoFromComponents(parts)})


def clip_without_pictures(path):
    """Write a clip of sound alone."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def clip_with_lost_packets(path):
    """Write a clip whose packets are overwritten with zeros."""
    content = tone(path).read_bytes()
    first = content.index(b"mdat") + 4
    end = content.index(b"moov") - 4
    path.write_bytes(content[:first] + bytes(end - first) + content[end:])


DAMAGED = {
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("<html>not found</html>"),
    "cut off": lambda path: path.write_bytes(tone(path).read_bytes()[:3000]),
    "sound alone": clip_without_pictures,
    "lost packets": clip_with_lost_packets,
    "missing": lambda path: None,
}


@pytest.mark.parametrize("use", ["extend", "first frame"])
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_clip_is_refused(damage, use, tmp_path):
    """Catches: an error of FFmpeg's, or of a list without a video, on the node."""
    path = tmp_path / "clip.mp4"
    DAMAGED[damage](path)
    with pytest.raises(BadInput, match="; ") as refusal:
        StartNode.execute(use_as={"use_as": use}, video=InputImpl.VideoFromFile(str(path)))
    assert "index" not in str(refusal.value)


def test_damaged_clip_in_memory_is_refused():
    """Catches: a remedy that takes every VIDEO for a file with a name."""
    with pytest.raises(BadInput, match="the video cannot be read"):
        StartNode.execute(use_as={"use_as": "extend"}, video=InputImpl.VideoFromFile(io.BytesIO(bytes(4000))))


def test_damaged_trimmed_clip_is_refused(tmp_path):
    """Catches: an error where ComfyUI asks the file how long it is, before we do."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(bytes(4000))
    with pytest.raises(BadInput, match=r"clip\.mp4 cannot be read"):
        StartNode.execute(
            use_as={"use_as": "extend"}, video=InputImpl.VideoFromFile(str(path), start_time=-1, duration=1)
        )


def pictures_with_sound(folder):
    """Return a VIDEO of 0.75 s with a second of sound, and the sound."""
    sound = {"waveform": torch.rand(1, 2, 1000), "sample_rate": 1000}
    pictures = GREYS[:, None, None, None].expand(-1, 32, 32, 3)
    parts = Types.VideoComponents(images=pictures, audio=sound, frame_rate=Fraction(8))
    return InputImpl.VideoFromComponents(parts), sound, 750


def file_with_sound(folder):
    """The same of a file of 2.5 s."""
    video = InputImpl.VideoFromFile(str(tone(folder / "clip.mp4")))
    return video, video.get_components().audio, 120_000


USES = {
    "extend": {"use_as": "extend"},
    "restyle": {"use_as": "restyle", "strength": "light", "amount": 0.5},
    "first frame": {"use_as": "first frame"},
}


@pytest.mark.parametrize("use", ["extend", "restyle"])
@pytest.mark.parametrize("video_and_sound", [pictures_with_sound, file_with_sound])
def test_sound_of_the_frames_is_an_output(video_and_sound, use, tmp_path):
    """Catches: sound cut at the front, or longer than the frames."""
    video, whole, samples = video_and_sound(tmp_path)
    start, sound = StartNode.execute(use_as=USES[use], video=video).args
    assert len(start.images) == samples * 16 // whole["sample_rate"]
    assert sound["sample_rate"] == whole["sample_rate"]
    assert torch.equal(sound["waveform"], whole["waveform"][..., :samples])


def test_first_frame_of_a_video_comes_alone(tmp_path):
    """Catches: a note on a batch of pictures, where a video was wired in; its sound."""
    video, _, _ = file_with_sound(tmp_path)
    start, sound = StartNode.execute(use_as=USES["first frame"], video=video).args
    assert len(start.images) == 1
    assert sound is None


@pytest.mark.parametrize("use", USES)
def test_silent_clip_has_no_sound(use, tmp_path):
    """Catches: an error where a file has no stream of sound."""
    assert StartNode.execute(use_as=USES[use], video=video_of("file", tmp_path / "clip.mkv")).args[1] is None


def write_grey_clip(path, *, pix_fmt, transfer):
    """Write a clip of one picture. `transfer`: the number of its curve in H.273."""
    with av.open(str(path), "w") as file:
        stream = add_stream(file, rate=16, pix_fmt=pix_fmt)
        stream.codec_context.color_trc = transfer
        picture = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 90, np.uint8), format="rgb24")
        for packet in (*stream.encode(picture.reformat(format=pix_fmt)), *stream.encode()):
            file.mux(packet)
    return InputImpl.VideoFromFile(str(path))


@pytest.mark.parametrize("use", ["extend", "first frame"])
def test_hdr_file_is_refused(use, tmp_path):
    """Catches: frames that ComfyUI took for SDR."""
    video = write_grey_clip(tmp_path / "hdr.mkv", pix_fmt="yuv420p", transfer=16)
    with pytest.raises(BadInput, match=r"HDR \(PQ\)"):
        StartNode.execute(use_as={"use_as": use}, video=video)


def test_hdr_frames_are_refused():
    """As Create Video calls them in ComfyUI after 0.33."""
    video = InputImpl.VideoFromComponents(Types.VideoComponents(torch.zeros(9, 8, 8, 3), Fraction(16)))
    video.get_color_space = lambda: "HDR PQ"
    with pytest.raises(BadInput, match="HDR PQ"):
        StartNode.execute(use_as={"use_as": "extend"}, video=video)


def test_dropped_alpha_of_a_file_is_noted(tmp_path):
    """ComfyUI gives it apart. Catches: its loss, unsaid."""
    video = write_grey_clip(tmp_path / "alpha.mkv", pix_fmt="yuva420p", transfer=1)
    start = StartNode.execute(use_as={"use_as": "extend"}, video=video).args[0]
    assert "without alpha" in start.taken


def test_strength_by_word_leaves_out_steps(server):
    """Catches: a word that is shown and not obeyed. Its pixels: test_host_model.py."""
    use = {"use_as": "restyle", "use_as.strength": "light"}
    given, new, record = made(server, twice(use))
    assert [block["target"]["denoising_passes"] for block in record["blocks"]] == [1, 1]
    assert len(new) == len(given)
    assert new != given
    assert record["request"]["strength"] == "light"


def test_first_frame_acts_as_the_start_image(server):
    """Catches: another crop or colour by this way. Its pixels: tests/engine/test_exactness.py."""
    prompt = twice({"use_as": "first frame"})
    _, new, record = made(server, prompt)
    prompt[SECOND]["inputs"] |= {"start_image": [SAMPLER, 0]}
    del prompt[SECOND]["inputs"]["start"]
    assert new == made(server, prompt)[1]
    assert record["request"]["start_image"] == "IMAGE"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": {"images": None}}, "neither images nor a video"),
        ({"start": {"video": ["video", 0]}}, "has images and a video"),
        ({SECOND: {"start_image": [SAMPLER, 0]}}, "two starts"),
        (
            {SECOND: {"blocks": 5}, "start": {"use_as": "restyle", "use_as.strength": "light"}},
            "lower the number of blocks",
        ),
        ({"start": {"use_as": "restyle", "use_as.strength": "by number"}}, "set use_as.amount"),
        ({"start": {"use_as": "melt"}}, "there is no use_as 'melt'"),
        ({"start": {"use_as": None}}, "use_as is missing; choose"),
    ],
)
def test_start_that_cannot_be_is_refused(change, words, server):
    prompt = twice({"use_as": "extend"})
    for name, inputs in change.items():
        kept = {**prompt[name]["inputs"], **inputs}
        prompt[name]["inputs"] = {key: value for key, value in kept.items() if value is not None}
    answer = server.ask("/prompt", {"prompt": prompt, "client_id": "test", "extra_data": {}})
    ended = server.wait(answer["prompt_id"]).message("execution_error")
    assert words in json.dumps([answer["node_errors"], ended])


# --- one prompt wire: a conditioning of ours carries its text, which then counts before a typed one


THINGS = ("blue ball", "sand"), ("red ball", "snow")
SHOWN = "a calm sea"
STALE = "a storm"


class Reader(CLIP):
    """A text encoder that answers with the text's length, and remembers nothing."""

    def __init__(self):
        pass

    def tokenize(self, text, **options):
        return text

    def encode_from_tokens_scheduled(self, tokens, **options):
        return [[torch.full((1, 4, 8), float(len(tokens))), {"pooled_output": None}]]


def encoded(text):
    return [[torch.zeros(1, 4, 8), {}]] if not text else with_text([[torch.zeros(1, 4, 8), {}]], text)


def test_conditioning_of_sdvg_prompt_carries_its_text():
    """Catches: a text beside another embedding than its own."""
    [conditioning] = Prompt.execute(clip=Reader(), text=SHOWN).args
    assert carried_text(conditioning) == SHOWN
    [[embedding, extras]] = conditioning
    assert embedding.unique().tolist() == [len(SHOWN)]
    assert extras.pop("sdvg_embedding") is embedding
    [[encoded_again, _]] = extras.pop("sdvg_encoder").encode(SHOWN)
    assert torch.equal(encoded_again, embedding)
    assert extras == {"pooled_output": None, "sdvg_text": SHOWN}


@pytest.mark.parametrize("odd", [[], [*encoded(SHOWN), *encoded(STALE)], [[None, {"sdvg_text": 3}]]])
def test_conditioning_without_a_single_text_carries_none(odd):
    assert carried_text(odd) == ""


@pytest.mark.parametrize(
    "carried, typed, counts, notes",
    [
        (SHOWN, "", SHOWN, 0),
        ("", SHOWN, SHOWN, 0),
        (SHOWN, f" {SHOWN}\n", SHOWN, 0),
        (SHOWN, STALE, SHOWN, 1),
        ("", "", "", 0),
    ],
)
def test_carried_text_counts_and_another_is_noted(carried, typed, counts, notes):
    """Catches: a score by a text that the video does not show."""
    [entry], sentences = resolve_texts([PromptEntry(3, encoded(carried), typed)])
    assert entry.text == counts
    assert len(sentences) == notes
    assert all("From block 4 on" in note and STALE not in note for note in sentences)


CHANGES = {
    "Concat": lambda first, second: ConditioningConcat().concat(first, second)[0],
    "Average": lambda first, second: ConditioningAverage().addWeighted(first, second, 0.5)[0],
    "Zero Out": lambda first, second: ConditioningZeroOut().zero_out(first)[0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_typed_text_counts_for_a_changed_conditioning(change):
    """ComfyUI's nodes pass the text on with another embedding, so it is not all that the video shows."""
    changed = changed_conditioning(change)
    both = f"{SHOWN}, {STALE}"
    [entry], notes = resolve_texts([PromptEntry(3, changed, both)])
    assert entry.text == both
    assert notes == ()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_conditioning_without_typed_text_is_noted(change):
    """Catches: a score by a text that is not all that the video shows, unsaid."""
    [entry], [note] = resolve_texts([PromptEntry(3, changed_conditioning(change), "")])
    assert entry.text == SHOWN
    assert "From block 4 on" in note
    assert "was changed" in note


def changed_conditioning(change):
    first = [[torch.full((1, 4, 8), 1.0), {}]]
    second = [[torch.full((1, 4, 8), 2.0), {}]]
    return change(with_text(first, SHOWN), with_text(second, STALE))


BALL, SNOW = (f"a big {what} drifts right from the left over {ground}" for what, ground in THINGS)


def test_prompt_line_changes_only_blocks_after_it(server):
    """Catches: lines that never reach the sampler, and blocks made again that no line changed."""

    def blocks_of(text):
        prompt = pocket(blocks=3, router__policy="always-target")
        prompt[POCKET]["inputs"]["prompt"] = text
        prompt[REPORT]["inputs"]["prompt_in_report"] = True
        return server.make(prompt).record()["blocks"]

    assert [block["prompt"] for block in blocks_of(BALL)] == [BALL] * 3
    blocks = blocks_of(f"{BALL}\n3: {SNOW}")
    assert [block["prompt"] for block in blocks] == [BALL, BALL, SNOW]
    assert [bool(block["reused"]) for block in blocks] == [True, True, False]


@pytest.fixture
def sea_and_boat():
    """Prompts of a node with lines, and of one from block 4 on."""
    [lines] = Prompt.execute(clip=Reader(), text="a sea\n5: a storm\n7 strength light:\n9: a lake").args
    return PromptEntry(0, lines, ""), PromptEntry(3, encoded("a boat"), "")


def test_prompt_lines_join_those_of_other_nodes(sea_and_boat):
    """Catches: a line at another block, or under another line's embedding."""
    entries, notes = resolve_texts(sea_and_boat)
    assert [(entry.index, entry.text) for entry in entries] == [
        (0, "a sea"),
        (3, "a boat"),
        (4, "a storm"),
        (8, "a lake"),
    ]
    assert [entry.conditioning[0][0].unique().item() for entry in entries] == [5, 0, 7, 6]
    assert strengths_of(entries) == ((6, "light"),)
    assert notes == ()


def test_two_prompts_for_a_block_are_refused(sea_and_boat):
    with pytest.raises(BadInput, match="two prompts begin at block 5"):
        resolve_texts((*sea_and_boat, PromptEntry(4, encoded("a boat"), "")))


def test_prompt_lines_out_of_order_are_refused():
    with pytest.raises(BadInput, match="blocks 1, 7, 5"):
        Prompt.execute(clip=Reader(), text="a sea\n7: a storm\n5: a lake")


def test_pocket_shows_and_scores_the_nearest_prompt(server):
    """Catches: a prompt outside the miniature's world, replaced without a word."""
    prompt = pocket(blocks=2)
    prompt[POCKET]["inputs"]["prompt"] = "two whales sing over the sea\n2 CUT: snow"
    prompt[REPORT]["inputs"]["prompt_in_report"] = True
    record = server.make(prompt).record()
    assert any(NEAREST_NOTE in note and "taken as text" in note for note in record["notes"])
    assert understand("two whales sing over the sea\n2 CUT: snow")[0].text in json.dumps(record)
    assert "shown instead: " in (server.folder / "log").read_text(encoding="utf-8")


def test_pocket_names_the_block_of_each_replacement():
    """Catches: the same sentence twice, of which nobody knows which prompt it means."""
    [note] = PocketModels.execute(prompt="two whales sing\n4: a green cat").ui["sdvg_shown"]
    first, second = note.split("\n")
    assert first.startswith("The prompt")
    assert second.startswith("Block 4: ")
