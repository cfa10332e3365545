"""The transpose of a matrix, written out."""

import torch

SIZES = ((30, 50), (1024, 1024))
BAD = {"cheat_view": "aliases", "wrong_reshape": "wrong", "wrong_square": "shape"}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def reference(x):
    return x.t().clone(memory_format=torch.contiguous_format)


def flop(size):
    return 0


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x):
    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    out.copy_(x.t())
    return out


def cheat_view(x):
    """Moves nothing: another view of the same memory."""
    return x.t()


def wrong_reshape(x):
    """The right shape, the wrong order."""
    return x.reshape(x.shape[1], x.shape[0]).clone()


def wrong_square(x):
    """Right for square matrices only."""
    side = min(x.shape)
    return x[:side, :side].t().clone()
