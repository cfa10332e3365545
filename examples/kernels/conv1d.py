"""Convolution over time: B sequences, C channels, T steps, width 5, same length."""

import torch

SIZES = ((2, 8, 50), (4, 32, 1024))
FORBID = ("convolution", "mkldnn_convolution", "convolution_overrideable")
BAD = {"wrong_causal": "wrong", "wrong_flip": "wrong", "cheat_library": "forbidden"}


def inputs(generator, size):
    batch, channels, steps = size
    x = torch.randn(batch, channels, steps, generator=generator)
    return x, torch.randn(channels, channels, 5, generator=generator)


def reference(x, weight):
    return torch.nn.functional.conv1d(x, weight, padding=2)


def flop(size):
    batch, channels, steps = size
    return 2 * batch * steps * channels * channels * 5


def bytes(size):
    batch, channels, steps = size
    return 4 * (2 * batch * channels * steps + channels * channels * 5)


def _sum_of_taps(x, weight, before):
    padded = torch.nn.functional.pad(x, (before, 4 - before))
    return sum(weight[:, :, tap] @ padded[:, :, tap : tap + x.shape[-1]] for tap in range(5))


def candidate(x, weight):
    return _sum_of_taps(x, weight, 2)


def wrong_causal(x, weight):
    """Sees the past only."""
    return _sum_of_taps(x, weight, 4)


def wrong_flip(x, weight):
    """Convolves as mathematicians do, with the weight turned round."""
    return _sum_of_taps(x, weight.flip(-1), 2)


def cheat_library(x, weight):
    """Calls the operator that was to be written."""
    return torch.conv1d(x, weight, padding=2)
