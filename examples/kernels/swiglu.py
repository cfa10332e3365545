"""silu(gate) * up, both halves of one row."""

import torch

SIZES = ((16, 64), (512, 2048))
ODD_SIZES = ((17, 66), (1, 2))
FORBID = ("silu",)
BAD = {"wrong_swapped": "wrong", "cheat_frames": "inspects", "cheat_linear": "wrong"}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def reference(x):
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def flop(size):
    return 5 * size[0] * size[1] / 2


def bytes(size):
    return 1.5 * 4 * size[0] * size[1]


def candidate(x):
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def wrong_swapped(x):
    """Takes the halves the other way round."""
    up, gate = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def cheat_frames(x):
    """Looks for the expected answer among the caller's variables."""
    import sys

    frame = sys._getframe(1)
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, list) and value and isinstance(value[0], torch.Tensor) and value[0].dtype is x.dtype:
                return value[0].clone()
        frame = frame.f_back
    return candidate(x)


def cheat_linear(x):
    """Right for small numbers only."""
    gate, up = x.chunk(2, dim=-1)
    return gate * (0.5 + gate / 4) * up
