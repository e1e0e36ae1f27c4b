"""Dtypes and their names, as options, reports and refusals spell them."""

from __future__ import annotations

import torch

from ..errors import BadInput

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""What a model can be run in."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of any dtype."""
    return str(dtype).removeprefix("torch.")


def parse_dtype(name: str) -> torch.dtype:
    """Return one of `DTYPES` by its name. Raises `BadInput` if there is none such."""
    if name not in DTYPES:
        raise BadInput(f"expected a dtype among {', '.join(DTYPES)}, but got {name!r}; choose one of them")
    return DTYPES[name]
