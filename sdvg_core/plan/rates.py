"""How fast a device is, from published times; every rate names its source.

Two published times of one device, target-only and draft-only, give two rates: that of the transformers, and the far
lower one of the VAE's decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9
PAPER_REJECTED = 0.18
"""From the paper's table at tau -0.7: 1.44 of the 8 blocks after the first were rejected."""
PCIE_GB_PER_SECOND = 20.0
"""PCIe 4.0 x16 from pinned memory; assumed, not measured. Expect half of it from unpinned memory."""

# Work of target, drafter and decoder for a nine-block video of 832x480 in five passes, and for a block in four, in
# 1e12 operations; computed with the functions of `work` (a test compares them).
PAPER, BLOCK = (7701.4, 1019.1, 356.7), (730.7, 97.0, 40.65)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Operations per second of transformers, VAE and scorer, and bytes per second of the device's own memory."""

    name: str
    source: str
    transformer: float
    vae: float
    scorer: float
    memory: float


def two_rates(work: tuple[float, float, float], target_seconds: float, draft_seconds: float) -> tuple[float, float]:
    """Return the rates of transformer and decoder from two times, which both include the decoder's."""
    target, draft, decode = work
    transformer = (target - draft) / (target_seconds - draft_seconds)
    return transformer, decode / (draft_seconds - draft / transformer)


_A6000, _H100 = two_rates(PAPER, 97.0, 25.7), two_rates(BLOCK, 12 / 4.5, 12 / 16)
# On an A6000, 12 frames of 138e9 operations take 0.3 to 0.54 s, one by one and through the host.
_A6000_SCORER = 1.65 / 0.42

A6000 = Rates(
    name="a6000",
    source="RTX A6000, from 97.0 s target-only and 25.7 s draft-only for nine blocks in five passes "
    "(arXiv 2604.17397)",
    transformer=_A6000[0] * TERA,
    vae=_A6000[1] * TERA,
    scorer=_A6000_SCORER * TERA,
    memory=768 * GIGA,
)
H100 = Rates(
    name="h100",
    source="H100, from 4.5 (14B) and 16 (1.3B) pixel frames per second (arXiv 2511.20426), four passes and a "
    "context pass assumed; the scorer's rate scaled from the RTX A6000",
    transformer=_H100[0] * TERA,
    vae=_H100[1] * TERA,
    scorer=_A6000_SCORER * _H100[0] / _A6000[0] * TERA,
    memory=3350 * GIGA,
)
