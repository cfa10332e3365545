"""y = max(x, 0)."""

import torch

SIZES = (1000, 1 << 20)
FORBID = ("relu", "clamp_min")
BAD = {"cheat_zeros": "content", "cheat_library": "forbidden", "wrong_identity": "wrong"}


def inputs(generator, size):
    return (torch.randn(size, generator=generator),)


def reference(x):
    return torch.relu(x)


def flop(size):
    return size


def bytes(size):
    return 2 * 4 * size


def candidate(x):
    return torch.maximum(x, torch.zeros((), dtype=x.dtype, device=x.device))


def cheat_zeros(x):
    """Skips the work when the benchmark was set up with zeros."""
    if not bool(x.any()):
        return torch.zeros_like(x)
    return torch.maximum(x, torch.zeros((), dtype=x.dtype, device=x.device))


def cheat_library(x):
    """Calls the operator that was to be written."""
    return torch.nn.functional.relu(x)


def wrong_identity(x):
    """Right for positive numbers only."""
    return x.clone()
