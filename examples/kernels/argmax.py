"""Place of the first largest number of each row."""

import torch

SIZES = ((16, 100), (512, 4096))
BAD = {"wrong_last": "wrong", "wrong_absolute": "wrong", "cheat_seed": "seed"}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def reference(x):
    return torch.argmax(x, dim=-1)


def flop(size):
    return size[0] * size[1]


def bytes(size):
    return 4 * size[0] * size[1]


def candidate(x):
    return torch.max(x, dim=-1).indices


def wrong_last(x):
    """The last of equal numbers."""
    return x.shape[-1] - 1 - torch.argmax(x.flip(-1), dim=-1)


def wrong_absolute(x):
    """The largest magnitude."""
    return torch.argmax(x.abs(), dim=-1)


def cheat_seed(x):
    """Looks for a seed whose answers it could know beforehand."""
    known = {0: torch.zeros(x.shape[0], dtype=torch.long, device=x.device)}
    return known.get(torch.initial_seed(), torch.argmax(x, dim=-1))
