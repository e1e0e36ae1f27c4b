"""Refuse values that are not finite, naming the block and the part they came from."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadInput
from .types import Span


def check_finite(values: Tensor, span: Span, what: str) -> None:
    """Raise `BadInput` if a block's values hold a NaN or an infinity. People count blocks from 1."""
    if not bool(torch.isfinite(values).all()):
        raise BadInput(
            f"block {span.index + 1} got NaN or infinity in its {what}, which must be finite; "
            "check that model's file and try a wider dtype (bfloat16 or float32)"
        )
