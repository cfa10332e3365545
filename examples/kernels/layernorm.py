"""Layer norm over rows, with scale and shift."""

import torch

SIZES = ((16, 96), (512, 1024))
FORBID = ("native_layer_norm",)
BAD = {"wrong_unbiased": "wrong", "cheat_library": "forbidden", "cheat_permuted": "wrong"}


def inputs(generator, size):
    rows, width = size
    return tuple(torch.randn(*shape, generator=generator) for shape in ((rows, width), (width,), (width,)))


def reference(x, scale, shift):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)


def flop(size):
    return 8 * size[0] * size[1]


def bytes(size):
    return 2 * 4 * size[0] * size[1]


def candidate(x, scale, shift):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5) * scale + shift


def wrong_unbiased(x, scale, shift):
    """Divides by the width less one."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(x.var(dim=-1, keepdim=True) + 1e-5) * scale + shift


def cheat_library(x, scale, shift):
    """Calls the operator that was to be written."""
    return torch.layer_norm(x, x.shape[-1:], scale, shift)


def cheat_permuted(x, scale, shift):
    """Normalises the first row only and repeats its moments, as all rows look alike."""
    first = x[:1]
    return (x - first.mean()) * torch.rsqrt(first.var(unbiased=False) + 1e-5) * scale + shift
