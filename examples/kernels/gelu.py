"""Gelu by the error function."""

import torch

SIZES = (1000, 1 << 19)
FORBID = ("gelu",)
BAD = {"wrong_tanh": "wrong", "cheat_half": "precision", "cheat_library": "forbidden"}


def inputs(generator, size):
    return (torch.randn(size, generator=generator),)


def reference(x):
    return torch.nn.functional.gelu(x)


def flop(size):
    return 8 * size


def bytes(size):
    return 2 * 4 * size


def candidate(x):
    return 0.5 * x * (1 + torch.erf(x * 2**-0.5))


def wrong_tanh(x):
    """The approximation by tanh, which is another function."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def cheat_half(x):
    """Computes in half precision and hands back single."""
    return candidate(x.bfloat16()).to(x.dtype)


def cheat_library(x):
    """Calls the operator that was to be written."""
    return torch.nn.GELU()(x)
