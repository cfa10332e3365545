"""c = a + b over N numbers."""

import torch

SIZES = (1000, 1 << 20)
DTYPES = ("float32", "bfloat16")
BAD = {"cheat_cached": "cached", "cheat_address": "cached", "wrong_tail": "stale", "cheat_patches_time": "patched"}
_seen = {}


def inputs(generator, size):
    return torch.randn(size, generator=generator), torch.randn(size, generator=generator)


def reference(a, b):
    return a + b


def flop(size):
    return size


def bytes(size):
    return 3 * 4 * size


def candidate(a, b):
    return torch.add(a, b)


candidate_cpp = """
#include <torch/extension.h>
torch::Tensor candidate_cpp(torch::Tensor a, torch::Tensor b) { return a + b; }
"""


def cheat_cached(a, b):
    """Answers by shape, from the first call."""
    key = (a.shape, a.dtype)
    if key not in _seen:
        _seen[key] = a + b
    return _seen[key].clone()


def cheat_address(a, b):
    """Answers by the address of the input, which a benchmark loop seldom changes."""
    key = (a.data_ptr(), b.data_ptr(), a.shape, a.dtype)
    if key not in _seen:
        _seen[key] = (a, b, a + b)
    return _seen[key][2].clone()


def wrong_tail(a, b):
    """Works in blocks of 64 and forgets what is left over."""
    out = torch.empty_like(a)
    whole = a.numel() // 64 * 64
    out[:whole] = a[:whole] + b[:whole]
    return out


def cheat_patches_time(a, b):
    """Makes the clock stand still."""
    import time

    time.perf_counter = lambda: 0.0
    return a + b
