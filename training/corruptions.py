"""What small video models do to a picture: the artefacts the reward model learns to see.

Each corruption takes a true frame of a scene and a strength in [0, 1], from hardly visible to ruinous, and returns
a frame of the same shape, `3 h w`; `corrupt` keeps it in [0, 1].
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from research.world import render
from sdvg_core.pocket.world import GROUNDS, SIZE, Scene

from .scene_changes import changed

GRID = 8
"""The VAE's pixels per latent: where a bad latent shows as a block."""


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A true frame and where it is from."""

    frame: Tensor
    scene: Scene
    time: float


Corruption = Callable[[Shot, float, random.Random], Tensor]


def corrupt(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Apply one corruption, or two or three that are weaker."""
    count = generator.choices((1, 2, 3), (5, 3, 2))[0]
    for corruption in generator.sample(CORRUPTIONS, count):
        frame = corruption(shot, strength / count**0.5, generator).clamp(0, 1)
        shot = replace(shot, frame=frame)
    return shot.frame


def blur(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Blur everything."""
    return _blurred(shot.frame, 0.3 + 4 * strength**2)


def ghost(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Expose another moment on top."""
    other = _moment(shot, shot.time + generator.choice((-1, 1)) * generator.uniform(4, 40))
    return shot.frame.lerp(other, 0.05 + 0.6 * strength)


def smear(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Draw the things out along their motion."""
    reach = (2 + 24 * strength) * generator.choice((-1, 1))
    return render(shot.scene, (shot.time + torch.linspace(0, reach, 7)).clamp(min=0)).mean(dim=0)


def fade(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Let one thing, or everything, become transparent."""
    return shot.frame.lerp(_without_one(shot, generator), strength)


def dissolve(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Eat holes into a thing."""
    holes = ((_clouds(generator, 1, generator.choice((8, 12, 16))) + 2.2 * strength - 1) * 4).clamp(0, 1)
    return torch.lerp(shot.frame, _without_one(shot, generator), holes.expand(3, -1, -1))


def melt(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Bend the picture out of shape."""
    flow = _clouds(generator, 2, generator.choice((4, 6, 9))).permute(1, 2, 0) * (1 + 9 * strength) * 2 / SIZE
    return F.grid_sample(shot.frame[None], _STILL + flow[None], padding_mode="border", align_corners=False)[0]


def impostor(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Replace the picture, wholly or in part, by one of a scene in which one thing is different."""
    wrong = changed(shot.scene, generator.choice(("colour", "shape", "size", "ground", "place")), generator)
    alpha = 1.0 if generator.random() < 0.4 else strength
    return shot.frame.lerp(_moment(replace(shot, scene=wrong), shot.time), alpha)


def tint(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Shift all colours."""
    shift = _normal(generator, 3, 1, 1) * 0.25 * strength
    return shot.frame * (1 + _normal(generator, 3, 1, 1) * 0.3 * strength) + shift


def wash(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Take contrast or saturation away."""
    flat = shot.frame.mean(dim=generator.choice(((0,), (1, 2))), keepdim=True)
    return shot.frame.lerp(flat.expand_as(shot.frame), strength)


def clouds(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Add colour noise of low frequency."""
    return shot.frame + _clouds(generator, 3, generator.choice((3, 5, 8))) * (0.01 + 0.3 * strength)


def blocks(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Flatten some cells of the VAE's grid and shift their colours."""
    cells = SIZE // GRID
    flat = F.avg_pool2d(shot.frame, GRID) + _normal(generator, 3, cells, cells) * 0.15 * strength
    chosen = (_uniform(generator, 1, cells, cells) < 0.2 + 0.8 * strength) * min(1.0, 0.1 + strength)
    flat, chosen = (part.repeat_interleave(GRID, 1).repeat_interleave(GRID, 2) for part in (flat, chosen))
    return torch.lerp(shot.frame, flat, chosen.expand_as(flat))


def grain(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Add noise to every pixel."""
    return shot.frame + _normal(generator, 3, SIZE, SIZE) * (0.01 + 0.25 * strength**2)


def patch(shot: Shot, strength: float, generator: random.Random) -> Tensor:
    """Spoil one region: blur it, or put another part of the picture there."""
    size = 8 + int(32 * strength)
    top, left, from_top, from_left = (generator.randint(0, SIZE - size) for _ in range(4))
    spoiled = shot.frame.clone()
    source = _blurred(shot.frame, 4) if generator.random() < 0.5 else shot.frame
    spoiled[:, top : top + size, left : left + size] = source[
        :, from_top : from_top + size, from_left : from_left + size
    ]
    return spoiled


CORRUPTIONS: tuple[Corruption, ...] = (
    blur,
    ghost,
    smear,
    fade,
    dissolve,
    melt,
    impostor,
    tint,
    wash,
    clouds,
    blocks,
    grain,
    patch,
)

_AXIS = (torch.arange(SIZE) * 2 + 1) / SIZE - 1
_STILL = torch.stack(torch.meshgrid(_AXIS, _AXIS, indexing="xy"), dim=-1)[None]


def _moment(shot: Shot, time: float) -> Tensor:
    return render(shot.scene, torch.tensor([max(time, 0.0)]))[0]


def _without_one(shot: Shot, generator: random.Random) -> Tensor:
    """Return the frame without one of the things, at times without any."""
    left = [thing for thing in shot.scene.things if thing is not generator.choice(shot.scene.things)]
    if len(left) == 1 and generator.random() < 0.8:
        return _moment(replace(shot, scene=Scene(left[0], shot.scene.ground)), shot.time)
    rows = ((torch.arange(SIZE) + 0.5) / SIZE).view(1, SIZE, 1)
    top, bottom = (torch.tensor(colour).view(3, 1, 1) for colour in GROUNDS[shot.scene.ground])
    return (top + (bottom - top) * rows).expand(3, SIZE, SIZE)


def _blurred(frame: Tensor, deviation: float) -> Tensor:
    reach = min(int(3 * deviation) + 1, SIZE // 2 - 1)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation).square())
    kernel = kernel / kernel.sum()
    wide = F.pad(frame[:, None], (reach, reach, 0, 0), mode="replicate")
    across = F.conv2d(wide, kernel.view(1, 1, 1, -1))
    high = F.pad(across, (0, 0, reach, reach), mode="replicate")
    return F.conv2d(high, kernel.view(1, 1, -1, 1))[:, 0]


def _clouds(generator: random.Random, channels: int, cells: int) -> Tensor:
    """Return smooth noise `channels h w`, of deviation about 1 at the cells' middles."""
    coarse = _normal(generator, 1, channels, cells, cells)
    return F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False)[0]


def _normal(generator: random.Random, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(generator.getrandbits(63)))


def _uniform(generator: random.Random, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(generator.getrandbits(63)))
