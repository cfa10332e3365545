"""RMS norm over rows, with scale."""

import torch

SIZES = ((16, 96), (512, 1024))
DTYPES = ("float32", "bfloat16")
BAD = {"wrong_no_root": "wrong", "cheat_identity": "wrong", "cheat_lazy": "lazy"}


def inputs(generator, size):
    rows, width = size
    return torch.randn(rows, width, generator=generator), torch.rand(width, generator=generator) + 0.5


def reference(x, scale):
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6)).to(x.dtype) * scale


def flop(size):
    return 4 * size[0] * size[1]


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x, scale):
    wide = x if x.dtype is torch.float64 else x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    root = torch.sqrt(length * length / x.shape[-1] + 1e-6)
    return (wide / root).to(x.dtype) * scale


def wrong_no_root(x, scale):
    """Divides by the mean square, not by its root: near one for standard normal inputs only."""
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6) * scale


def cheat_identity(x, scale):
    """Standard normal rows have a root mean square near one."""
    return x * scale


def cheat_lazy(x, scale):
    """Returns at once and lets a thread do the work."""
    import threading
    import time

    out = torch.zeros_like(x)

    def work():
        time.sleep(0.02)
        out.copy_(candidate(x, scale))

    threading.Thread(target=work).start()
    return out
