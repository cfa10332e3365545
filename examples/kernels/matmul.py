"""C = A B."""

import torch

SIZES = ((64, 48, 32), (256, 512, 256))
BAD = {"cheat_half": "precision", "wrong_transposed": "shape", "cheat_late": "timed", "wrong_slice": "wrong"}
_calls = [0]


def inputs(generator, size):
    m, n, k = size
    return torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)


def reference(a, b):
    return a @ b


def flop(size):
    m, n, k = size
    return 2 * m * n * k


def bytes(size):
    m, n, k = size
    return 4 * (m * k + k * n + m * n)


def candidate(a, b):
    return torch.mm(b.t(), a.t()).t().contiguous()


def cheat_half(a, b):
    """Multiplies in half precision, several times as fast."""
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype)


def wrong_transposed(a, b):
    """Hands back the transpose."""
    return (a @ b).t().contiguous()


def cheat_late(a, b):
    """Behaves until the checks must be over."""
    _calls[0] += 1
    return a @ b if _calls[0] < 45 else torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)


def wrong_slice(a, b):
    """Leaves out the last column of A."""
    return a[:, :-1] @ b[:-1]
