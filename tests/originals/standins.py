"""What a CPU lacks and what a miniature cannot have, put in place before an original's modules are imported.

Everything here works from outside: the originals' files stay as they lie there. A script that uses this runs in a
process of its own, for the originals share module names (`wan`, `utils`, `pipeline`), and some of what is set here
is set for the whole process. It imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FULL_FRAME = 1560
"""The originals' tokens per latent frame, at 480 x 832; a number in their code."""


def use_checkout(folder: Path, *, packages: tuple[str, ...], absent: tuple[str, ...]) -> None:
    """Make a checkout's modules importable.

    `packages`: those whose `__init__` would import far more than is needed; they are entered without it.
    `absent`: modules that are imported and never called here.
    """
    sys.path.insert(0, str(folder))
    for name in packages:
        module = ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    for name in absent:
        sys.modules[name] = MagicMock(name=name)


def without_cuda() -> None:
    """Let code that names CUDA devices, streams and events run on the CPU, and compiled functions run eagerly."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.device = lambda device: contextlib.nullcontext()
    cuda.Stream = cuda.Event = MagicMock
    tensor: Any = Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    given: Any = torch
    given.compile = lambda function, **options: function


def float32_only() -> None:
    """Let code that asks for half precision by name compute in float32."""
    given: Any = torch
    given.bfloat16 = given.float16 = torch.float32
    tensor: Any = Tensor
    tensor.half = tensor.bfloat16 = Tensor.float


def eager_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attend without a mask, in the inputs' dtype: q `b l n d`, k and v `b m n d`, result `b l n d`."""
    options.pop("deterministic", None)  # it always is
    ignored = {name: value for name, value in options.items() if value is not None}
    assert not ignored, f"the stand-in for flash attention knows no {sorted(ignored)}"
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    return (weights @ v).transpose(1, 2)


def use_eager_attention(attention: Any) -> None:
    """Put it in the place of an original's flash attention; `attention`: its module `wan.modules.attention`."""
    attention.flash_attention = attention.attention = eager_attention
    attention.FLASH_ATTN_2_AVAILABLE = True
    attention.FLASH_ATTN_3_AVAILABLE = False


def replace_numbers(owner: Any, method: str, numbers: Mapping[int, int]) -> None:
    """Give a function other numbers than those written in its code, by name in a module or a class.

    The originals know one size of model and picture. Raises `AssertionError` if a number is not there.
    """
    function = getattr(owner, method)
    function = getattr(function, "__wrapped__", function)
    code: CodeType = function.__code__
    missing = set(numbers) - {c for c in code.co_consts if type(c) is int}
    assert not missing, f"{method} has no number {sorted(missing)}: is this another version of the original?"
    constants = tuple(numbers.get(c, c) if type(c) is int else c for c in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)


@contextlib.contextmanager
def drawing(name: str, noise: Tensor, steps: int, block_frames: int = 3, frames_at: int = 1) -> Iterator[None]:
    """Have `torch.randn` or `torch.randn_like` hand out the renoising of `noise`, all of it."""
    draws = Draws(renoise(noise, steps, block_frames, frames_at))
    honest = getattr(torch, name)
    setattr(torch, name, draws)
    try:
        yield
    finally:
        setattr(torch, name, honest)
    draws.check_all_used()


class Draws:
    """In the place of a random draw: hands out given tensors in order, and says if they do not fit."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        self._tensors = tensors

    def __call__(self, *size: Any, **options: Any) -> Tensor:
        """Return the next tensor. `size`: of the draw, as numbers, one sequence, or a tensor of that size."""
        size = options.get("size", size)
        if len(size) == 1:
            size = tuple(size[0].shape if torch.is_tensor(size[0]) else size[0])
        drawn = next(self._tensors)
        assert tuple(drawn.shape) == size, f"a draw of {size} was asked for, but {tuple(drawn.shape)} is next"
        return drawn

    def check_all_used(self) -> None:
        """Raise `AssertionError` if there are more."""
        assert next(self._tensors, None) is None, "the original drew less noise than it was given"


def renoise(noise: Tensor, steps: int, block_frames: int = 3, frames_at: int = 1) -> Iterator[Tensor]:
    """Yield what is drawn after each step of each block but the last step, `t c h w`; `noise`: `slots t c h w`.

    `frames_at`: which axis of `noise` is `t`; 2 for originals that have `c t h w`.
    """
    blocks = [block.unbind() for block in noise.split(block_frames, dim=frames_at)]
    return (block[slot] for block in blocks for slot in range(1, steps))


def load(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    module.load_state_dict(weights, strict=True)
    return module.eval().requires_grad_(False)


def random_weights(module: nn.Module, seed: int) -> nn.Module:
    """Draw a VAE's weights so that every one matters and pixels are neither all black nor all white."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if not name.endswith("gamma"):
            spread = 0.7 / max(parameter[0].numel(), 1) ** 0.5 if parameter.ndim > 1 else 0.1
            parameter.data = torch.randn(parameter.shape, generator=draw) * spread
        else:
            parameter.data = 1 + 0.1 * torch.randn(parameter.shape, generator=draw)
    return module.eval().requires_grad_(False)


class Prompts:
    """In the place of a text encoder: embeddings by prompt, `1 m c`."""

    def __init__(self, embeddings: Mapping[str, Tensor]) -> None:
        self._embeddings = embeddings

    def __call__(self, text_prompts: list[str]) -> dict[str, Tensor]:
        return {"prompt_embeds": self._embeddings[text_prompts[0]].clone()}


class NoPixels:
    """In the place of a VAE whose pixels nobody looks at."""

    def decode_to_pixel(self, latents: Tensor, **options: Any) -> Tensor:
        return torch.zeros(1)


def answer(run: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Read the checkout's folder and the request, run, and write the answer: three arguments of the script."""
    checkout, request, written = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    with torch.no_grad():
        answered = run(checkout, torch.load(request, weights_only=True))
    torch.save(answered, written)
