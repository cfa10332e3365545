"""Softmax over the rows of a matrix."""

import torch

SIZES = ((16, 100), (512, 1024))
FORBID = ("_softmax", "_safe_softmax")
BAD = {
    "cheat_reference": "reference",
    "cheat_library": "forbidden",
    "wrong_overflow": "wrong",
    "cheat_constant": "constant",
    "cheat_shape": "wrong",
}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def reference(x):
    return torch.softmax(x, dim=-1)


def flop(size):
    return 5 * size[0] * size[1]


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x):
    grown = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return grown / grown.sum(dim=-1, keepdim=True)


def cheat_reference(x):
    """Runs the answer itself."""
    return reference(x)


def cheat_library(x):
    """Calls the operator that was to be written."""
    return torch.nn.functional.softmax(x, dim=-1)


def wrong_overflow(x):
    """Forgets the largest element, so large inputs overflow."""
    grown = torch.exp(x)
    return grown / grown.sum(dim=-1, keepdim=True)


def cheat_constant(x):
    """The mean of the answer, near enough for a loose tolerance."""
    return torch.full_like(x, 1 / x.shape[-1])


def cheat_shape(x):
    """Right for the shapes of the benchmark, nothing elsewhere."""
    return candidate(x) if tuple(x.shape) in SIZES else torch.zeros_like(x)
