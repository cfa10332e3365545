"""Sums of the table's rows that each bag of 8 indices names."""

import torch

SIZES = ((100, 16, 20), (10_000, 64, 2048))
BAD = {"wrong_mean": "wrong", "cheat_unique": "wrong"}


def inputs(generator, size):
    rows, width, bags = size
    return torch.randn(rows, width, generator=generator), torch.randint(rows, (bags, 8), generator=generator)


def SPECIAL(generator, size):  # noqa: N802
    """All bags name one row, and bags of equal indices."""
    rows, width, bags = size
    table = torch.randn(rows, width, generator=generator)
    yield table, torch.zeros(bags, 8, dtype=torch.long)
    yield table, torch.full((bags, 8), rows - 1)


def reference(table, index):
    return torch.nn.functional.embedding_bag(index, table, mode="sum")


def flop(size):
    return 8 * size[1] * size[2]


def bytes(size):
    return 4 * 9 * size[1] * size[2] + 8 * 8 * size[2]


def candidate(table, index):
    return table[index].sum(dim=1)


def wrong_mean(table, index):
    """The mean, not the sum."""
    return table[index].mean(dim=1)


def cheat_unique(table, index):
    """Adds each row once: right as long as no bag names one twice."""
    hits = torch.zeros(index.shape[0], table.shape[0], dtype=table.dtype, device=table.device)
    return hits.scatter_(1, index, 1.0) @ table
