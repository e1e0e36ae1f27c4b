"""Read a ComfyUI CONDITIONING: its embedding, the prompt text it was made from, and VACE controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...sdvg_core.engine.inputs import ControlClip
from ...sdvg_core.engine.types import Condition
from ...sdvg_core.errors import BadInput
from ...sdvg_core.settings.request import Shot, ShownClip, clips_text, shots_text
from ...sdvg_core.text.prompts import Conditions, PromptSchedule, check_prompt
from .sockets import PromptEncoder, PromptEntry

WIRE = "wire CLIP Text Encode (Wan) straight to this input"

VACE_KEYS = ("vace_frames", "vace_mask", "vace_strength")
VACE_NODE = "make them with WanVaceToVideo"
ZERO = 1e-4

TEXT_KEY = "sdvg_text"
"""Option of a conditioning that holds its prompt text. ComfyUI passes unknown options on and ignores them."""
NOTE_KEY = "sdvg_note"
"""Option with a note on that text."""
EMBEDDING_KEY = "sdvg_embedding"
"""Option with the embedding of that text: other nodes may change the embedding and keep the text."""
LATER_KEY = "sdvg_later"
"""Option with the `PromptEntry` of each later line."""
STRENGTHS_KEY = "sdvg_strengths"
"""Option with the strengths stated in the lines, by block."""
SHOTS_KEY = "sdvg_shots"
"""Option with the `Shot` of each line that begins one afresh."""
CLIPS_KEY = "sdvg_clips"
"""Option with the `ShownClip` of each line that shows one."""
ENCODER_KEY = "sdvg_encoder"
"""Option with the `PromptEncoder` of that text."""
TEXT_NODE = "encode the prompt with SDVG Prompt, whose conditioning carries its text"

DIFFERS = (
    "{} carries its own text, which counts, as the video shows it. The text typed in differs and has no effect: "
    "empty it."
)
TEXT_CHANGED = (
    "{} was changed after its text was encoded, so the scorer may read another text than the video shows. Type in the "
    "whole prompt as well."
)

# Options of a conditioning that ComfyUI would use and we cannot.
UNUSABLE = {
    "concat_latent_image": "an image to start from (use start_image)",
    "reference_latents": "reference images",
    "clip_vision_output": "a CLIP vision image",
    "control": "a ControlNet",
    "area": "an area",
    "mask": "a mask",
    "hooks": "hooks (scheduled LoRAs)",
    "camera_conditions": "a camera path",
    "audio_embed": "audio",
    "context_latents": "reference videos",
    "time_dim_concat": "frames to append",
}


def with_text(
    conditioning: Sequence[Any], text: str, note: str = "", *, encoder: PromptEncoder | None = None
) -> list[list[Any]]:
    """Return a CONDITIONING with its prompt text attached, a note on the text for the report, and what encoded it."""
    carried = {TEXT_KEY: text, **({NOTE_KEY: note} if note else {}), **({ENCODER_KEY: encoder} if encoder else {})}
    return [[embedding, {**extras, **carried, EMBEDDING_KEY: embedding}] for embedding, extras in conditioning]


def with_lines(lines: PromptSchedule, encode: Callable[[str], list[list[Any]]]) -> list[list[Any]]:
    """Return the CONDITIONING of the first line, with those of later lines attached. `encode`: a text to CONDITIONING."""
    (_, first), *later = lines.entries
    entries = tuple(PromptEntry(at, encode(text), "", at in lines.cuts) for at, text in later)
    shots = tuple(shot for shot in lines.shots if shot != Shot())
    carried = {LATER_KEY: entries, STRENGTHS_KEY: lines.strengths, SHOTS_KEY: shots, CLIPS_KEY: lines.clips}
    return [[embedding, {**extras, **carried}] for embedding, extras in encode(first)]


def strengths_of(prompts: Sequence[PromptEntry]) -> tuple[tuple[int, str], ...]:
    """Return pairs of block and strength stated in the prompts' lines."""
    return tuple(pair for entry in prompts for pair in _carried(entry.conditioning, STRENGTHS_KEY, _is_strength))


def fresh_shots(prompts: Sequence[PromptEntry]) -> str:
    """Return the shots that the prompts' lines begin afresh, as text."""
    shots = [shot for entry in prompts for shot in _carried(entry.conditioning, SHOTS_KEY, _is_shot)]
    starts = {shot.start for shot in shots}
    first = () if 0 in starts else (Shot(),)
    return shots_text([*first, *sorted(shots, key=lambda shot: shot.start)])


def shown_clips(prompts: Sequence[PromptEntry]) -> str:
    """Return the clips that the prompts' lines show, as text."""
    clips = [clip for entry in prompts for clip in _carried(entry.conditioning, CLIPS_KEY, _is_clip)]
    return clips_text(sorted(clips, key=lambda clip: clip.start))


def _is_clip(value: Any) -> bool:
    return isinstance(value, ShownClip)


def _is_shot(value: Any) -> bool:
    return isinstance(value, Shot)


def _is_strength(value: Any) -> bool:
    return isinstance(value, tuple) and list(map(type, value)) == [int, str] and value[0] >= 0


def _is_prompt(value: Any) -> bool:
    return isinstance(value, PromptEntry)


def _carried(conditioning: Sequence[Any], key: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Return the values that SDVG Prompt attached under `key`. Raises `BadInput` unless each `fits`."""
    values = _extra(conditioning, key)
    if not isinstance(values, tuple) or not all(map(fits, values)):
        raise BadInput(f"the conditioning's {key} is not SDVG Prompt's; {TEXT_NODE}")
    return values


def _extra(conditioning: Sequence[Any], key: str, default: Any = ()) -> Any:
    return conditioning[0][1].get(key, default) if len(conditioning) == 1 else default


def resolve_texts(prompts: Sequence[PromptEntry]) -> tuple[tuple[PromptEntry, ...], tuple[str, ...]]:
    """Return all prompts, those attached to a conditioning too, with the texts to use, and notes on them.

    The attached text wins over a typed one, as the video shows it, unless another node changed the embedding since.
    Raises `BadInput` if two prompts begin at one block.
    """
    entries = [
        inner for entry in prompts for inner in (entry, *_carried(entry.conditioning, LATER_KEY, _is_prompt))
    ]
    entries.sort(key=lambda entry: entry.index)
    for entry, following in pairwise(entries):
        if entry.index == following.index:
            raise BadInput(f"two prompts begin at block {entry.index + 1}; leave one of them out")
    resolved = []
    notes = []
    for entry in entries:
        text, note = _resolve_text(entry)
        resolved.append(replace(entry, text=text))
        notes += [carried_text(entry.conditioning, NOTE_KEY), note]
    return tuple(resolved), tuple(dict.fromkeys(note for note in notes if note))


def _resolve_text(entry: PromptEntry) -> tuple[str, str]:
    """Return the text to use for an entry, and a note or an empty string.

    The note does not quote the text: notes go into files that people pass on.
    """
    carried = carried_text(entry.conditioning)
    typed = entry.text
    from_here = f"From block {entry.index + 1} on, the conditioning"
    if not carried.strip():
        return typed, ""
    if not _was_changed(entry.conditioning):
        differs = typed.strip() and carried.split() != typed.split()
        return carried, DIFFERS.format(from_here) if differs else ""
    if typed.strip():
        return typed, ""
    return carried, TEXT_CHANGED.format(from_here)


def encoder_of(prompts: Sequence[PromptEntry]) -> PromptEncoder:
    """Return what encoded the prompts. Raises `BadInput` unless every text can be encoded again by it."""
    encoders = [_extra(entry.conditioning, ENCODER_KEY, None) for entry in prompts]
    if not all(isinstance(encoder, PromptEncoder) for encoder in encoders):
        raise BadInput(f"a live session needs the text encoder, which the conditioning does not carry; {TEXT_NODE}")
    if any(_was_changed(entry.conditioning) for entry in prompts):
        fault = "a node changed the conditioning after its text was encoded, and could not change a new one"
        raise BadInput(f"{fault}; wire SDVG Prompt straight to positive for a live session")
    encoder: PromptEncoder = encoders[0]
    return encoder


def encoder_device(conditioning: Sequence[Any]) -> str:
    """Return the device on which a conditioning's text encoder reads prompts; empty if it is not known."""
    encoder = _extra(conditioning, ENCODER_KEY, None)
    patcher = encoder.patcher if isinstance(encoder, PromptEncoder) else None
    return "" if patcher is None else str(patcher.load_device)


def with_control_of(conditioning: Sequence[Any], other: Sequence[Any]) -> list[list[Any]]:
    """Return a CONDITIONING with the control of another one, or with none, in place of its own."""
    control = {key: value for _, extras in other for key, value in extras.items() if key in VACE_KEYS}
    return [
        [embedding, {**{key: value for key, value in extras.items() if key not in VACE_KEYS}, **control}]
        for embedding, extras in conditioning
    ]


def read_conditions(prompts: Sequence[PromptEntry], text_channels: int, *, scored: bool) -> Conditions:
    """Return the condition of each block. `scored`: whether a scorer reads the texts, so that they may not be empty.

    Raises `BadInput` for a missing text, an embedding that does not fit, or VACE frames after the first prompt.
    """
    entries = []
    for entry in prompts:
        embedding = read_embedding(entry.conditioning, text_channels)
        if entry.index and states_control(entry.conditioning):
            fault = f"the prompt from block {entry.index + 1} on carries VACE frames"
            raise BadInput(f"{fault}; wire them into positive, for the whole video")
        if scored and not entry.text.strip():
            raise BadInput(f"the scorer has no prompt text from block {entry.index + 1} on; {TEXT_NODE}")
        if entry.text.strip():
            check_prompt(entry.text)
        entries.append((entry.index, Condition(embedding, entry.text, entry.cut)))
    return Conditions(tuple(entries))


def states_control(conditioning: Sequence[Any]) -> bool:
    """True if a CONDITIONING has a control of WanVaceToVideo."""
    return any(_controls(extras) for _, extras in conditioning)


def _controls(extras: Mapping[str, Any]) -> list[tuple[Tensor, Tensor, float]]:
    """Return frames, mask and strength of each control. Raises `BadInput` if their lists do not fit together."""
    parts = [() if extras.get(key) is None else extras[key] for key in VACE_KEYS]
    valid = all(isinstance(part, list | tuple) for part in parts) and len({*map(len, parts)}) == 1
    controls = list(zip(*parts, strict=True)) if valid else []
    kinds = (Tensor, Tensor, int | float)
    if not valid or not all(all(map(isinstance, control, kinds)) for control in controls):
        raise BadInput(f"the conditioning's {', '.join(VACE_KEYS)} do not fit together; {VACE_NODE}")
    return controls


def read_controls(
    conditioning: Sequence[Any], normalised: Callable[[Tensor], Tensor], rows: int, columns: int
) -> tuple[ControlClip, ...]:
    """Return the controls in a CONDITIONING, one for each WanVaceToVideo.

    `normalised`: maps ComfyUI's latents to the model's. `rows`, `columns`: of the video's latents.
    Raises `BadInput` for another size, and for a reference image.
    """
    clips = []
    for frames, mask, strength in _controls(conditioning[0][1]):
        if frames.ndim != 5 or (*frames.shape[:2], *mask.shape[:2]) != (1, 32, 1, 64):
            raise BadInput(f"the VACE frames are {_shape(frames)} with a mask of {_shape(mask)}; {VACE_NODE}")
        if tuple(frames.shape[3:]) != (rows, columns) or mask.shape[2:] != frames.shape[2:]:
            size, wanted = (f"{8 * w}x{8 * h}" for h, w in (frames.shape[3:], (rows, columns)))
            raise BadInput(f"the control is {size} and the video {wanted}; set that size in WanVaceToVideo")
        kept, made = (normalised(half.float()) for half in frames.split(16, dim=1))
        # A reference image is the first frame, where nothing is generated: that half is zero, unlike encoded grey.
        if bool((made[:, :, 0].abs() < ZERO).all()):
            fault = "the control has a reference image, which blocks hardly obey"
            raise BadInput(f"{fault}; leave it out, or give it to SDVG Start as the first frame")
        clips.append(ControlClip(torch.cat((kept, made, mask.to(kept)), dim=1).cpu(), float(strength)))
    return tuple(clips)


def _was_changed(conditioning: Sequence[Any]) -> bool:
    """True if the embedding is not that of the attached text, for instance after Conditioning Concat."""
    embedding, extras = conditioning[0]
    encoded = extras.get(EMBEDDING_KEY)
    if not (torch.is_tensor(encoded) and torch.is_tensor(embedding)):
        return False
    return encoded.dtype != embedding.dtype or not torch.equal(encoded.cpu(), embedding.cpu())


def carried_text(conditioning: Sequence[Any], key: str = TEXT_KEY) -> str:
    """Return the text attached to a CONDITIONING; empty if there is none or it has several entries."""
    text = _extra(conditioning, key, "")
    return text if isinstance(text, str) else ""


def read_embedding(conditioning: Sequence[Any], text_channels: int) -> Tensor:
    """Return a CONDITIONING's embedding `(1, tokens, text_channels)`, float32 on the CPU.

    ComfyUI's Wan text encoder gives 512 tokens (more for a longer prompt), with zeros after the prompt's end. Its Wan
    models attend to every token, so we neither pad nor crop.
    Raises `BadInput` unless it is one finite prompt of that width, without options that we cannot use.
    """
    if len(conditioning) != 1:
        raise BadInput(f"positive has {len(conditioning)} entries; {WIRE}, or use the prompt schedule")
    embedding, extras = conditioning[0]
    for name, what in UNUSABLE.items():
        if extras.get(name) is not None:
            raise BadInput(f"the conditioning carries {what}; {WIRE}")
    if extras.get("start_percent") not in (None, 0) or extras.get("end_percent") not in (None, 1):
        raise BadInput(f"the conditioning is for only some denoising steps; {WIRE}")
    if embedding.ndim != 3 or embedding.shape[0] != 1:
        raise BadInput(f"the embedding is {_shape(embedding)}, not 1 x tokens x channels; {WIRE}")
    if embedding.shape[2] != text_channels:
        width = f"{embedding.shape[2]} channels, not {text_channels}"
        raise BadInput(f"another text encoder's embeddings have {width}; load umt5-xxl with type wan in Load CLIP")
    if not embedding.isfinite().all():
        raise BadInput(f"the embedding holds NaN or infinity; {WIRE}")
    result: Tensor = embedding.to("cpu", torch.float32)
    return result


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
