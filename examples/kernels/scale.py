"""y = 2 x + 1 over N numbers."""

import torch

SIZES = (777, 1 << 20)
BAD = {"wrong_in_place": "mutates", "cheat_alias": "aliases", "wrong_dtype": "dtype"}
_out = {}


def inputs(generator, size):
    return (torch.randn(size, generator=generator),)


def reference(x):
    return 2 * x + 1


def flop(size):
    return 2 * size


def bytes(size):
    return 2 * 4 * size


def candidate(x):
    return torch.add(torch.ones((), dtype=x.dtype, device=x.device), x, alpha=2)


def wrong_in_place(x):
    """Writes over its input."""
    return x.mul_(2).add_(1).clone()


def cheat_alias(x):
    """Hands out the same memory every time."""
    out = _out.setdefault((x.shape, x.dtype), torch.empty_like(x))
    return torch.add(torch.ones((), dtype=x.dtype, device=x.device), x, alpha=2, out=out)


def wrong_dtype(x):
    """Answers in another number format."""
    return 2.0 * x.double() + 1.0
