"""Causal attention of B sequences, S tokens, H heads, D numbers a head."""

import torch

SIZES = ((2, 33, 4, 16), (1, 256, 8, 64))
FORBID = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
BAD = {"cheat_library": "forbidden", "wrong_mask": "wrong", "wrong_scale": "wrong"}


def inputs(generator, size):
    batch, tokens, heads, width = size
    return tuple(torch.randn(batch, heads, tokens, width, generator=generator) for _ in range(3))


def reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def flop(size):
    batch, tokens, heads, width = size
    return 2 * batch * heads * tokens * tokens * width


def bytes(size):
    batch, tokens, heads, width = size
    return 4 * 4 * batch * heads * tokens * width


def candidate(q, k, v):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v


def cheat_library(q, k, v):
    """Calls the operator that was to be written."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def wrong_mask(q, k, v):
    """Lets every token see the whole sequence."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v


def wrong_scale(q, k, v):
    """Divides by the width, not by its root."""
    return candidate(q * q.shape[-1] ** -0.5, k, v)
