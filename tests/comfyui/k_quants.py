"""Matrices as superblocks of GGUF's K-quants, which gguf's Python only reads.

The layouts are those of ggml (`block_q4_K`, `block_q5_K`, `block_q6_K`). Numbers are rounded to the range of their
group, without the search by which ggml errs less.
"""

import torch

SUPERBLOCK = 256


def q4_k(weights):
    """Return `n 144` bytes of `n 256` weights."""
    head, numbers = _ranged(weights, 15)
    return torch.cat([head, _nibbles(numbers)], dim=1)


def q5_k(weights):
    """Return `n 176` bytes of `n 256` weights."""
    head, numbers = _ranged(weights, 31)
    fifth_bits = sum(numbers[:, group] >> 4 << group for group in range(8))
    return torch.cat([head, fifth_bits, _nibbles(numbers & 15)], dim=1)


def q6_k(weights):
    """Return `n 210` bytes of `n 256` weights."""
    groups = weights.unflatten(1, (16, 16))
    wanted = groups.abs().amax(dim=2) / 31
    scale = (wanted.amax(dim=1, keepdim=True) / 127).half()
    scales = (wanted / scale).round().clamp(min=1)
    numbers = (groups / (scale * scales)[..., None]).round().clamp(-32, 31) + 32
    # Each half of a superblock has four runs of 32 numbers.
    runs = numbers.to(torch.uint8).flatten(1).unflatten(1, (2, 4, 32))
    low = (runs & 15).unflatten(2, (2, 2))
    four_bits = low[:, :, 0] | low[:, :, 1] << 4
    two_bits = sum(runs[:, :, run] >> 4 << 2 * run for run in range(4))
    signed = scales.to(torch.int8).view(torch.uint8)
    return torch.cat([four_bits.flatten(1), two_bits.flatten(1), signed, scale.view(torch.uint8)], dim=1)


WRITERS = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}


def superblocks(kind, weight):
    """Return a matrix as rows of bytes."""
    rows = weight.shape[0]
    return WRITERS[kind](weight.float().reshape(-1, SUPERBLOCK)).reshape(rows, -1).numpy()


def _ranged(weights, most):
    """Return scales and minima as bytes, and the numbers from 0 to `most`, `n 8 32`."""
    groups = weights.unflatten(1, (8, 32))
    offset = -groups.amin(dim=2).clamp(max=0)
    step = (groups.amax(dim=2) + offset) / most
    scale = (step.amax(dim=1, keepdim=True) / 63).half()
    minimum = (offset.amax(dim=1, keepdim=True) / 63).half()
    scales = (step / scale).round().clamp(1, 63)
    minima = (offset / minimum).round().clamp(0, 63)
    numbers = (groups + (minimum * minima)[..., None]) / (scale * scales)[..., None]
    head = [scale.view(torch.uint8), minimum.view(torch.uint8), _sixes(scales, minima)]
    return torch.cat(head, dim=1), numbers.round().clamp(0, most).to(torch.uint8)


def _sixes(scales, minima):
    """Return twelve bytes of eight scales and eight minima in six bits."""
    scales = scales.to(torch.uint8)
    minima = minima.to(torch.uint8)
    first_scales = scales[:, :4] | scales[:, 4:] >> 4 << 6
    first_minima = minima[:, :4] | minima[:, 4:] >> 4 << 6
    low_bits = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return torch.cat([first_scales, first_minima, low_bits], dim=1)


def _nibbles(numbers):
    """Return 128 bytes, each with a number of a group and the one beside it in the next group."""
    pairs = numbers.unflatten(1, (4, 2))
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
