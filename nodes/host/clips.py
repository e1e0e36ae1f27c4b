"""Clips that a film shows between its shots, and its sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...sdvg_core.errors import BadInput
from ...sdvg_core.files.footage import RATE, Footage
from ...sdvg_core.settings.request import read_clips
from ...sdvg_core.videos.clips import FilmClip
from .job import Job, footage_of
from .sockets import ClipValue


def read_wired_clip(clips: Mapping[str, ClipValue], name: str, width: int, height: int) -> tuple[str, Footage]:
    """Return a clip in the film's size. Raises `BadInput` if it is not wired in."""
    if name not in clips:
        fault = f"the prompt shows the clip {name}, which is not wired in"
        raise BadInput(f"{fault}; wire a video into SDVG Start, whose clip1 is #clip1, or leave the line out")
    return name[1:], footage_of(clips[name], width, height)


def unshown_note(clips: Mapping[str, ClipValue], shown: str) -> tuple[str, ...]:
    """Return a note on clips that are wired in and that no line shows. `shown`: see `read_clips`."""
    names = {clip.name for clip in read_clips(shown)}
    unshown = [name for name in clips if name not in names]
    if not unshown:
        return ()
    line = f"write '4 clip {unshown[0]}:' in the prompt to show it before block 4"
    return (f"Not shown, as no line names it: {', '.join(unshown)}; {line}.",)


def film_sound(job: Job, shown: Sequence[FilmClip], frames: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the sound of a film as an AUDIO, silent where it has none; None if it has none at all.

    That of the start stops where a clip is shown, and goes on after it. `shown`: the clips. `frames`: number of pixel
    frames of the parts of the film in order, by the name of a shot or clip.
    """
    sounds = {clip.name: (clip.first, sound) for clip in shown if (sound := job.clips[clip.name].sound)}
    every = [sound for _, sound in sounds.values()] + ([job.start_sound] if job.start_sound else [])
    if not every:
        return None
    rate = max(int(sound["sample_rate"]) for sound in every)
    channels = max(sound["waveform"].shape[1] for sound in every)
    names = {clip.name for clip in shown}
    waves = {name: _from(sound, first, rate, channels) for name, (first, sound) in sounds.items()}
    silence = torch.zeros(1, channels, 0)
    of_start = _from(job.start_sound, 0, rate, channels) if job.start_sound else silence
    parts = []
    end = 0
    for name, length in frames.items():
        samples = round((end + length) * rate / RATE) - round(end * rate / RATE)
        end += length
        wave = waves.get(name, silence) if name in names else of_start
        if name not in names:
            of_start = of_start[..., samples:]
        wave = wave[..., :samples]
        parts.append(torch.nn.functional.pad(wave, (0, samples - wave.shape[-1])))
    return {"waveform": torch.cat(parts, dim=2), "sample_rate": rate}


def _from(sound: Mapping[str, Any], first: int, rate: int, channels: int) -> Tensor:
    """Return the waveform `1 channels samples` of an AUDIO from frame `first` on, at another sample rate.

    One channel goes to all; of several, those that it lacks are silent.
    """
    own = int(sound["sample_rate"])
    wave: Tensor = sound["waveform"][:1, :, round(first * own / RATE) :].float().cpu()
    if wave.shape[1] == 1:
        wave = wave.expand(-1, channels, -1)
    wave = torch.nn.functional.pad(wave, (0, 0, 0, channels - wave.shape[1]))
    if own == rate:
        return wave
    import torchaudio

    resampled: Tensor = torchaudio.functional.resample(wave, own, rate)
    return resampled
