"""SDVG Start in a real ComfyUI: a first picture, a clip to extend, a clip to restyle."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from comfy_api.latest import InputImpl, Types
from PIL import Image
from running_server import REPORT, Server
from sdvg_pack.nodes.start import StartNode
from sdvg_pack.sdvg_core.errors import BadInput
from server_prompts import SAMPLER, node, pocket
from sounds import tone

pytestmark = pytest.mark.comfyui

SECOND = "second"


def twice(use: dict[str, Any]) -> dict[str, Any]:
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


def pixels(png: bytes) -> bytes:
    with Image.open(io.BytesIO(png)) as picture:
        return picture.tobytes()


def made(server: Server, prompt: dict[str, Any]) -> tuple[list[bytes], list[bytes], dict[str, Any]]:
    """Return the pictures of both samplers, and the record of the second."""
    done = server.make(prompt)
    given, new = ([pixels(server.view(one)) for one in done.outputs[name]["images"]] for name in ("given", "made"))
    return given, new, done.record()


def test_a_clip_is_extended_and_its_frames_are_shown_as_they_were(server: Server) -> None:
    given, new, record = made(server, twice({"use_as": "extend"}))
    assert len(given) == 21
    assert len(new) == 21 + 24
    assert new[:21] == given
    assert record["settings"]["continue_from"] == "IMAGE"
    assert record["blocks"][0]["index"] == 2
    assert any("21 frames at 16 a second" in note for note in record["notes"])


GREYS = torch.linspace(0.1, 0.9, 6)
UNEVEN = [0, 125, 250, 1000, 1062, 1125]


def video_of(way: str, path: Path) -> Any:
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
        ("pictures", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "8 a second"),
        ("file", [0, 0, 1, 1, *[2] * 12, 3, 4, 5], "its time stamps, "),
        ("part of a file", [*[2] * 12, 3, 4], "its time stamps, "),
    ],
)
def test_a_video_is_taken_by_its_time_stamps_or_its_rate(
    way: str, shown: list[int], taken: str, tmp_path: Path
) -> None:
    """Catches: frames taken by their index, or a variable rate by its average."""
    start = StartNode.execute(use_as={"use_as": "extend"}, video=video_of(way, tmp_path / "clip.mkv")).args[0]
    near = (start.images[:, 0, 0, :1] - GREYS).abs().argmin(dim=1).tolist()
    assert near[: len(shown)] == shown
    assert len(near) - len(shown) in (0, 1), "how long the last frame is shown, a file does not say"
    assert start.taken.startswith(taken)


WRONG = [
    ({"images": torch.zeros(0, 8, 8, 3)}, "the video's frames are a tensor of 0 x 8 x 8 x 3, not pictures"),
    ({"frame_rate": 0}, "the video has 0 frames a second; give it another rate"),
    ({"audio": {}}, "the video's sound is a dict, not an AUDIO; change that wire"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG)
@pytest.mark.parametrize("use", ["extend", "first frame"])
def test_a_video_of_another_pack_that_holds_nonsense_is_refused_in_a_sentence(
    use: str, wrong: dict[str, Any], says: str
) -> None:
    """The kind: what a wire of any kind carries, one level down. Catches an error of torch or of arithmetic."""
    parts = {"images": torch.zeros(9, 8, 8, 3), "audio": None, "frame_rate": Fraction(8), **wrong}
    video = InputImpl.VideoFromComponents(Types.VideoComponents(**parts))
    with pytest.raises(BadInput, match=says):
        StartNode.execute(use_as={"use_as": use}, video=video)


@pytest.mark.parametrize("use", ["extend", "restyle", "first frame"])
@pytest.mark.parametrize("way", ["pictures", "file"])
def test_the_sound_of_the_frames_is_the_last_output(way: str, use: str, tmp_path: Path) -> None:
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


def test_colours_that_are_not_read_are_refused_and_alpha_is_said(tmp_path: Path) -> None:
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
    video = InputImpl.VideoFromFile(str(tmp_path / "alpha.mkv"))
    start = StartNode.execute(use_as={"use_as": "extend"}, video=video).args[0]
    assert start.taken.endswith(", without its alpha")


class HdrFrames(InputImpl.VideoFromComponents):
    """A VIDEO of frames that Create Video calls HDR, as in ComfyUI after 0.33."""

    def get_color_space(self) -> str:
        return "HDR PQ"


@pytest.mark.parametrize("use", ["extend", "first frame"])
def test_frames_in_hdr_are_refused(use: str) -> None:
    pictures = GREYS[:, None, None, None].expand(-1, 32, 32, 3)
    video = HdrFrames(Types.VideoComponents(images=pictures, frame_rate=Fraction(16)))
    with pytest.raises(BadInput, match=r"^the video is in HDR PQ, which is not read; convert it to sRGB \(trouble"):
        StartNode.execute(use_as={"use_as": use}, video=video)


def test_a_word_leaves_out_steps(server: Server) -> None:
    use = {"use_as": "restyle", "use_as.strength": "light"}
    given, new, record = made(server, twice(use))
    assert [block["target"]["denoising_passes"] for block in record["blocks"]] == [1, 1]
    assert len(new) == len(given)
    assert new != given
    assert record["settings"]["strength"] == "light"


def test_a_first_frame_is_the_sampler_s_start_image(server: Server) -> None:
    prompt = twice({"use_as": "first frame"})
    _, new, record = made(server, prompt)
    prompt[SECOND]["inputs"] |= {"start_image": [SAMPLER, 0]}
    del prompt[SECOND]["inputs"]["start"]
    assert new == made(server, prompt)[1]
    assert record["settings"]["start_image"] == "IMAGE"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": {"images": None}}, "has no images and no video; wire one of them"),
        ({"start": {"video": ["video", 0]}}, "has images and a video; wire one of them"),
        ({SECOND: {"start_image": [SAMPLER, 0]}}, "the video has two starts; give "),
        (
            {SECOND: {"blocks": 5}, "start": {"use_as": "restyle", "use_as.strength": "light"}},
            "lower the number of blocks",
        ),
        ({"start": {"use_as": "restyle", "use_as.strength": "by number"}}, "give use_as.amount, such as 0.6"),
        ({"start": {"use_as": "melt"}}, "there is no use_as 'melt'; choose first frame, extend, restyle"),
    ],
)
def test_what_cannot_be_is_one_sentence(change: dict[str, Any], says: str, server: Server) -> None:
    prompt = twice({"use_as": "extend"})
    for name, inputs in change.items():
        kept = {**prompt[name]["inputs"], **inputs}
        prompt[name]["inputs"] = {key: value for key, value in kept.items() if value is not None}
    answer = server.ask("/prompt", {"prompt": prompt, "client_id": "test", "extra_data": {}})
    ended = server.wait(answer["prompt_id"]).message("execution_error")
    assert says in json.dumps([answer["node_errors"], ended])
