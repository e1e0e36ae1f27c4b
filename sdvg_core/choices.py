"""The words a user chooses from, and what is taken without a choice.

Nothing heavy is imported here: the command line reads it to say at once what there is, and every room that does the
work takes its words from here. Where a word stands for a value (a preset, a schedule), a test compares the names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

AUTO: Literal["auto"] = "auto"

# Who makes which block.
Policy = Literal[
    "reward",
    "first",
    "relative",
    "percentile",
    "random",
    "anchor-only",
    "always-draft",
    "always-target",
    "scripted",
]
Aggregation = Literal["min", "mean", "quantile"]
DrafterContext = Literal["committed", "own"]
ROUTER_PRESET_NAMES = ("paper", "fast", "balanced", "careful")

# Models, and how they are run.
PRESET_NAMES = (
    "self-forcing-1.3b",
    "krea-14b",
    "causal-forcing",
    "causal-forcing-framewise",
    "causal-forcing-2step",
    "causal-forcing-1step",
    "one-forcing",
    "longlive-1.0",
    "custom",
)
POLICIES = ("recompute", "incremental")
"""How a transformer gets its context."""
SCHEDULE_NAMES = ("four-step", "reference5", "krea4", "two-step", "one-step", "raw4")
PUBLISHED_SIZES = ("1.3B", "14B")
Weights = Literal["auto", "ema", "raw"]
TaeKind = Literal["taew2_1", "lighttaew2_1"]
TAE_KINDS: tuple[TaeKind, ...] = get_args(TaeKind)
StatedKind = Literal["auto", "taew2_1", "lighttaew2_1"]
"""What a user says of a file; `auto`: see its digest, then its name."""
Crop = Literal["center", "squash", "tiles"]
DTYPE_NAMES = ("float32", "float16", "bfloat16")

# Execution.
CompileMode = Literal["off", "default"]
"""`default`: the stages around a layer's attentions, and the VAE's decoder."""
Attention = Literal["auto", "sdpa", "cudnn", "flash", "sage"]
"""The transformers' attention kernel; `auto` is the best exact one."""
KvDtype = Literal["auto", "float8_e4m3fn"]
"""What keys and values are kept in; `auto` is the dtype of activations."""
VaeLayers = Literal["auto", "diffusers", "channels-last", "planes"]
"""How the VAE's layers are laid out: diffusers' own, with channels last, or as 2-D ones; `auto` is the fastest."""

# Plans.
DecoderName = Literal["wan", "lightvae", "tae"]
JUDGES: tuple[DecoderName, ...] = ("tae", "lightvae")
RATES_NAMES = ("a6000", "h100")
# From the paper's table at tau -0.7: 1.44 of the 8 blocks after the first were rejected.
PAPER_REJECTED = 0.18
# PCIe 4.0 x16 from pinned memory; assumed, not measured. Expect half of it from unpinned memory.
PCIE_GB_PER_SECOND = 20.0

# The embedded models.
DEFAULT_PROMPT = "a big blue ball drifts right from the left over sand"
POCKET = Path("pocket")
"""What stands for the embedded judge where a command takes a file."""
