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
from sdvg_pack.nodes.pocket import NEAREST_NOTE
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
    given, new = ([pixels(server.view(one)) for one in done.outputs[name]["images"]] for name in ("given", "made"))
    return given, new, done.record()


def test_extended_clip_keeps_its_frames(server):
    given, new, record = made(server, twice({"use_as": "extend"}))
    assert len(given) == 21
    assert len(new) == 21 + 24
    assert new[:21] == given
    assert record["request"]["continue_from"] == "IMAGE"
    assert record["blocks"][0]["index"] == 2
    assert any("21 frames at 16/s" in note for note in record["notes"])


GREYS = torch.linspace(0.1, 0.9, 6)
UNEVEN = [0, 125, 250, 1000, 1062, 1125]


def video_of(way, path):
    """Six frames as a VIDEO: pictures, 8 a second, or a file that shows each from some moment on."""
    pictures = GREYS[:, None, None, None].expand(-1, 32, 32, 3)
    if way == "pictures":
        parts = Types.VideoComponents(images=pictures, audio=None, frame_rate=Fraction(8))
        return InputImpl.VideoFromComponents(parts)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "bgr0"
        for picture, at in zip(pictures, UNEVEN, strict=True):
            frame = av.VideoFrame.from_ndarray((picture * 255).byte().numpy(), format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 1000)
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


WRONG = [
    ({"images": torch.zeros(0, 8, 8, 3)}, "the video's frames are a tensor of 0 x 8 x 8 x 3, not pictures"),
    ({"frame_rate": 0}, "the video has 0 frames a second; give it a rate above 0"),
    ({"audio": {}}, "the video's sound is a dict, not an AUDIO; change that wire"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG)
@pytest.mark.parametrize("use", ["extend", "first frame"])
def test_video_that_holds_nonsense_is_refused(use, wrong, says):
    """The kind: what a wire of any kind carries, one level down. Catches an error of torch or of arithmetic."""
    parts = {"images": torch.zeros(9, 8, 8, 3), "audio": None, "frame_rate": Fraction(8), **wrong}
    video = InputImpl.VideoFromComponents(Types.VideoComponents(**parts))
    with pytest.raises(BadInput, match=says):
        StartNode.execute(use_as={"use_as": use}, video=video)


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


@pytest.mark.parametrize("use", ["extend", "restyle", "first frame"])
@pytest.mark.parametrize("way", ["pictures", "file"])
def test_the_sound_of_the_frames_is_the_last_output(way, use, tmp_path):
    """Of 12 frames, 0.75 s of a second. Catches: sound cut at the front, or longer than the frames."""
    chosen = {"use_as": use, **({"strength": "light", "amount": 0.5} if use == "restyle" else {})}
    mute = StartNode.execute(use_as=chosen, video=video_of("file", tmp_path / "mute.mkv")).args
    assert mute[1] is None
    if way == "pictures":
        given = {"waveform": torch.rand(1, 2, 1000), "sample_rate": 1000}
        pictures = GREYS[:, None, None, None].expand(-1, 32, 32, 3)
        parts = Types.VideoComponents(images=pictures, audio=given, frame_rate=Fraction(8))
        video, end = InputImpl.VideoFromComponents(parts), 750
    else:
        video = InputImpl.VideoFromFile(str(tone(tmp_path / "clip.mp4")))
        given, end = video.get_components().audio, 120000
    start, sound = StartNode.execute(use_as=chosen, video=video).args
    if use == "first frame":
        assert sound is None
        return
    assert len(start.images) == end * 16 // given["sample_rate"]
    assert sound["sample_rate"] == given["sample_rate"]
    assert torch.equal(sound["waveform"], given["waveform"][..., :end])


def test_colours_that_are_not_read_are_refused_and_alpha_is_said(tmp_path):
    """The frames are ComfyUI's, which takes HDR for SDR and gives alpha apart."""
    for name, kind, curve in (("hdr", "yuv420p", 16), ("alpha", "yuva420p", 1)):
        with av.open(str(tmp_path / f"{name}.mkv"), "w") as file:
            stream = file.add_stream("ffv1", rate=16)
            stream.width, stream.height, stream.pix_fmt = 32, 32, kind
            stream.codec_context.color_trc = curve
            picture = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 90, np.uint8), format="rgb24")
            for packet in (*stream.encode(picture.reformat(format=kind)), *stream.encode()):
                file.mux(packet)
    refused = r"^the video is in HDR \(PQ\), which is not read; convert it to BT\.709 \(troubleshooting: "
    for use in ("extend", "first frame"):
        with pytest.raises(BadInput, match=refused):
            StartNode.execute(use_as={"use_as": use}, video=InputImpl.VideoFromFile(str(tmp_path / "hdr.mkv")))
    frames = InputImpl.VideoFromComponents(Types.VideoComponents(torch.zeros(9, 8, 8, 3), Fraction(16)))
    frames.get_color_space = lambda: "HDR PQ"  # as Create Video calls them in ComfyUI after 0.33
    with pytest.raises(BadInput, match=r"^the video is in HDR PQ, which is not read; convert it to sRGB \(trouble"):
        StartNode.execute(use_as={"use_as": "extend"}, video=frames)
    video = InputImpl.VideoFromFile(str(tmp_path / "alpha.mkv"))
    start = StartNode.execute(use_as={"use_as": "extend"}, video=video).args[0]
    assert start.taken.endswith(" without alpha")


def test_strength_by_word_leaves_out_steps(server):
    use = {"use_as": "restyle", "use_as.strength": "light"}
    given, new, record = made(server, twice(use))
    assert [block["target"]["denoising_passes"] for block in record["blocks"]] == [1, 1]
    assert len(new) == len(given)
    assert new != given
    assert record["request"]["strength"] == "light"


def test_first_frame_acts_as_the_start_image(server):
    prompt = twice({"use_as": "first frame"})
    _, new, record = made(server, prompt)
    prompt[SECOND]["inputs"] |= {"start_image": [SAMPLER, 0]}
    del prompt[SECOND]["inputs"]["start"]
    assert new == made(server, prompt)[1]
    assert record["request"]["start_image"] == "IMAGE"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": {"images": None}}, "neither images nor a video"),
        ({"start": {"video": ["video", 0]}}, "has images and a video"),
        ({SECOND: {"start_image": [SAMPLER, 0]}}, "the video has two starts; give "),
        (
            {SECOND: {"blocks": 5}, "start": {"use_as": "restyle", "use_as.strength": "light"}},
            "lower the number of blocks",
        ),
        ({"start": {"use_as": "restyle", "use_as.strength": "by number"}}, "set use_as.amount"),
        ({"start": {"use_as": "melt"}}, "there is no use_as 'melt'; choose first frame, extend, restyle"),
    ],
)
def test_start_that_cannot_be_is_refused(change, says, server):
    prompt = twice({"use_as": "extend"})
    for name, inputs in change.items():
        kept = {**prompt[name]["inputs"], **inputs}
        prompt[name]["inputs"] = {key: value for key, value in kept.items() if value is not None}
    answer = server.ask("/prompt", {"prompt": prompt, "client_id": "test", "extra_data": {}})
    ended = server.wait(answer["prompt_id"]).message("execution_error")
    assert says in json.dumps([answer["node_errors"], ended])


# --- one prompt wire: a conditioning of ours carries its text, which then counts before a typed one


THINGS = ("blue ball", "sand"), ("red ball", "snow")
SHOWN, STALE = "a calm sea", "a storm"


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
    [conditioning] = Prompt.execute(clip=Reader(), text=SHOWN).args
    assert carried_text(conditioning) == SHOWN
    [[embedding, extras]] = conditioning
    assert embedding.unique().tolist() == [len(SHOWN)]
    assert extras.pop("sdvg_embedding") is embedding
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
    [entry], told = resolve_texts([PromptEntry(3, encoded(carried), typed)])
    assert entry.text == counts
    assert len(told) == notes
    assert all("From block 4 on" in note and STALE not in note for note in told)


CHANGES = {
    "Concat": lambda one, other: ConditioningConcat().concat(one, other)[0],
    "Average": lambda one, other: ConditioningAverage().addWeighted(one, other, 0.5)[0],
    "Zero Out": lambda one, other: ConditioningZeroOut().zero_out(one)[0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_typed_text_counts_for_a_changed_conditioning(change):
    """ComfyUI's nodes pass the text on with another embedding, so it is not all that the video shows."""
    one, other = ([[torch.full((1, 4, 8), value), {}]] for value in (1.0, 2.0))
    changed = change(with_text(one, SHOWN), with_text(other, STALE))
    both = f"{SHOWN}, {STALE}"
    [entry], told = resolve_texts([PromptEntry(3, changed, both)])
    assert (entry.text, told) == (both, ())
    [entry], told = resolve_texts([PromptEntry(3, changed, "")])
    assert entry.text == SHOWN
    assert [note for note in told if "From block 4 on" in note and "was changed" in note]


BALL, SNOW = (f"a big {what} drifts right from the left over {ground}" for what, ground in THINGS)


def test_prompt_line_changes_only_blocks_after_it(server):
    """Catches: lines that never reach the sampler, and blocks made again that no line changed."""

    def made(text):
        prompt = pocket(blocks=3, router__policy="always-target")
        prompt[POCKET]["inputs"]["prompt"] = text
        prompt[REPORT]["inputs"]["prompt_in_report"] = True
        return server.make(prompt).record()["blocks"]

    assert [block["prompt"] for block in made(BALL)] == [BALL] * 3
    blocks = made(f"{BALL}\n3: {SNOW}")
    assert [block["prompt"] for block in blocks] == [BALL, BALL, SNOW]
    assert [bool(block["reused"]) for block in blocks] == [True, True, False]


def test_lines_are_prompts_of_a_schedule_with_those_of_the_nodes():
    [lines] = Prompt.execute(clip=Reader(), text="a sea\n5: a storm\n7 strength light:\n9: a lake").args
    prompts = (PromptEntry(0, lines, ""), PromptEntry(3, encoded("a boat"), ""))
    settled, told = resolve_texts(prompts)
    assert [(entry.index, entry.text) for entry in settled] == [
        (0, "a sea"),
        (3, "a boat"),
        (4, "a storm"),
        (8, "a lake"),
    ]
    assert [entry.conditioning[0][0].unique().item() for entry in settled] == [5, 0, 7, 6]
    assert strengths_of(settled) == ((6, "light"),)
    assert told == ()
    with pytest.raises(BadInput, match="two prompts begin at block 5"):
        resolve_texts((*prompts, PromptEntry(4, encoded("a boat"), "")))
    with pytest.raises(BadInput, match="start at blocks 1, 7, 5"):
        Prompt.execute(clip=Reader(), text="a sea\n7: a storm\n5: a lake")


def test_pocket_shows_and_scores_the_nearest_prompt(server):
    prompt = pocket(blocks=2)
    prompt[POCKET]["inputs"]["prompt"] = "two whales sing over the sea\n2 CUT: snow"
    prompt[REPORT]["inputs"]["prompt_in_report"] = True
    record = server.make(prompt).record()
    assert any(NEAREST_NOTE in note and "taken as text" in note for note in record["notes"])
    assert understand("two whales sing over the sea\n2 CUT: snow")[0].text in json.dumps(record)
    assert "shown instead: " in (server.folder / "log").read_text(encoding="utf-8")
