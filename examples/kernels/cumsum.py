"""Running sums along rows."""

import torch

SIZES = ((8, 100), (128, 4096))
FORBID = ("cumsum",)
DISTRIBUTIONS = ("zeros", "ones", "large", "tiny", "negative", "mixture")
BAD = {"wrong_exclusive": "wrong", "cheat_library": "forbidden"}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def reference(x):
    return torch.cumsum(x, dim=-1)


def flop(size):
    return size[0] * size[1]


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x):
    """Hillis and Steele's scan: sums over 1, 2, 4, ... places."""
    out, step = x.clone(), 1
    while step < x.shape[-1]:
        out = torch.cat([out[:, :step], out[:, step:] + out[:, :-step]], dim=-1)
        step *= 2
    return out


def wrong_exclusive(x):
    """Leaves each number out of its own sum."""
    return candidate(x) - x


def cheat_library(x):
    """Calls the operator that was to be written."""
    return x.cumsum(-1)
