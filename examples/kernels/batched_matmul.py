"""C[i] = A[i] B[i]."""

import torch

SIZES = ((4, 32, 24, 16), (16, 128, 128, 128))
BAD = {"cheat_first": "wrong", "cheat_subclass": "not a tensor"}


def inputs(generator, size):
    count, m, n, k = size
    return torch.randn(count, m, k, generator=generator), torch.randn(count, k, n, generator=generator)


def reference(a, b):
    return torch.bmm(a, b)


def flop(size):
    count, m, n, k = size
    return 2 * count * m * n * k


def bytes(size):
    count, m, n, k = size
    return 4 * count * (m * k + k * n + m * n)


def candidate(a, b):
    return torch.stack([left @ right for left, right in zip(a, b, strict=True)])


def cheat_first(a, b):
    """Multiplies the first pair and repeats it."""
    return (a[0] @ b[0]).expand(a.shape[0], -1, -1).contiguous()


class _Promise(torch.Tensor):
    pass


def cheat_subclass(a, b):
    """Hands back an object that may compute when it is looked at."""
    return torch.bmm(a, b).as_subclass(_Promise)
