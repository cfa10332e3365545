"""Rotary embedding: halves of each head turn by the token's angle."""

import torch

SIZES = ((2, 17, 4, 16), (1, 512, 8, 64))
ODD_SIZES = ((3, 1, 1, 2), (1, 65, 3, 6))
BAD = {"wrong_pairs": "wrong", "wrong_position": "wrong", "wrong_table": "raises"}
_angles = {}


def inputs(generator, size):
    return (torch.randn(*size, generator=generator),)


def _turns(x):
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    return (torch.arange(x.shape[1], dtype=torch.float64, device=x.device)[:, None] * rates)[None, :, None]


def reference(x):
    angle = _turns(x)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def flop(size):
    return 6 * size[0] * size[1] * size[2] * size[3] / 2


def bytes(size):
    return 2 * 4 * size[0] * size[1] * size[2] * size[3]


def candidate(x):
    turn = torch.polar(torch.ones_like(_turns(x)), _turns(x)).to(
        torch.complex128 if x.dtype.itemsize > 4 else torch.complex64
    )
    turned = torch.complex(*(part.contiguous() for part in x.chunk(2, dim=-1))) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


def wrong_pairs(x):
    """Turns neighbours instead of halves."""
    angle = _turns(x)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)


def wrong_position(x):
    """Counts tokens from one."""
    return reference_at(x, 1)


def reference_at(x, start):
    padded = torch.cat([x[:, :1]] * start + [x], dim=1)
    angle = _turns(padded)[:, start:]
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def wrong_table(x):
    """Keeps the table of the first shape."""
    angle = _angles.setdefault("table", _turns(x))
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
