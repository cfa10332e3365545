"""Counts of N whole numbers in 0 ... 255."""

import torch

SIZES = (1000, 1 << 18)
FORBID = ("bincount", "histc")
BAD = {"cheat_expected": "constant", "wrong_last_bin": "wrong", "wrong_once": "wrong"}


def inputs(generator, size):
    return (torch.randint(256, (size,), generator=generator),)


def SPECIAL(generator, size):  # noqa: N802
    """All numbers equal, at either end."""
    yield (torch.zeros(size, dtype=torch.long),)
    yield (torch.full((size,), 255),)


def reference(x):
    return torch.bincount(x, minlength=256)


def flop(size):
    return size


def bytes(size):
    return 8 * size


def candidate(x):
    return torch.zeros(256, dtype=torch.long, device=x.device).index_add_(0, x, torch.ones_like(x))


def cheat_expected(x):
    """What even numbers would give."""
    return torch.full((256,), x.numel() // 256, device=x.device)


def wrong_last_bin(x):
    """Forgets the last bin."""
    out = candidate(x)
    out[255] = 0
    return out


def wrong_once(x):
    """Counts each number once, as unordered writes to one address do."""
    out = torch.zeros(256, dtype=torch.long, device=x.device)
    out[x] += 1
    return out
