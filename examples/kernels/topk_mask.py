"""Keeps the 8 largest numbers of each row and sets the others to zero."""

import torch

SIZES = ((16, 64), (256, 2048))
ODD_SIZES = ((3, 65), (1, 8))
DISTRIBUTIONS = ("large", "tiny", "negative")  # ties may be kept in any order
BAD = {"wrong_strict": "wrong", "cheat_threshold": "wrong", "cheat_random": "random"}


def inputs(generator, size):
    rows, width = size
    order = torch.rand(rows, width, generator=generator).argsort(dim=-1)
    return ((order - width // 2).float() / width + 1 / 4096,)


def reference(x):
    values, places = torch.topk(x, 8, dim=-1)
    return torch.zeros_like(x).scatter(1, places, values)


def flop(size):
    return 8 * size[0] * size[1]


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x):
    least = torch.sort(x, dim=-1, descending=True).values[:, 7:8]
    return torch.where(x >= least, x, torch.zeros((), dtype=x.dtype, device=x.device))


def wrong_strict(x):
    """Keeps seven."""
    least = torch.sort(x, dim=-1, descending=True).values[:, 7:8]
    return torch.where(x > least, x, torch.zeros((), dtype=x.dtype, device=x.device))


def cheat_threshold(x):
    """A threshold that fits the benchmark's width."""
    return torch.where(x >= 0.5 - 8 / 64, x, torch.zeros((), dtype=x.dtype, device=x.device))


def cheat_random(x):
    """Estimates the threshold from a sample."""
    least = torch.sort(x, dim=-1, descending=True).values[:, 7:8]
    torch.rand(1)
    return torch.where(x >= least, x, torch.zeros((), dtype=x.dtype, device=x.device))
