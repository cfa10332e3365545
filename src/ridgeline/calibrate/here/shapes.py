"""Which shapes are measured: a plan that spreads over the sizes, then those whose prediction is least certain.

Shape letters: m, n, k of a product; B sequences, S tokens, K kv heads, G query heads of each, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Sizes = Mapping[str, float]
_WIDE = ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (2048, 8192))  # n and k of layers
_MOST_OPERAND_BYTES = 2**30
PRODUCT = {"m": 512.0, "n": 512.0, "k": 512.0}  # the reference, alone and by several ranks at once
TRIAD_BYTES = 2.0**26  # of each array that several ranks pass over at once


def products(scale: int = 1) -> list[Sizes]:
    """Products (m, k) x (k, n): squares, few rows, tall k, and between; the first ones span the rest.

    `scale` multiplies the sizes for devices that a small one would not fill.
    """
    squares = [(size * scale,) * 3 for size in (512, 128, 1024, 256, 2048, 64, 768)]
    skinny = [(m, *_WIDE[index % len(_WIDE)]) for index, m in enumerate((1, 16, 4, 64, 2, 32, 8, 1, 48, 12))]
    tall = [(64 * scale, 64 * scale, 8192), (256 * scale, 256, 8192), (16, 512, 16384), (128 * scale, 128, 2048)]
    middle = [(128, 1024, 1024), (256, 2048, 512), (512 * scale, 512, 2048), (96, 3072, 768), (1024 * scale, 768, 256),
              (1024 * scale, 3072, 1024), (2048 * scale, 1024, 512), (512 * scale, 4096, 1024)]  # fmt: skip
    vectors = [(1, n, k) for n, k in ((4096, 4096), (512, 512), (2048, 8192), (4096, 1024), (256, 2048), (3072, 768))]
    few = [(2, 512, 2048), (8, 256, 512), (4, 3072, 768), (3, 256, 256), (10, 1024, 1024), (6, 2048, 512),
           (12, 512, 128), (5, 2048, 4096)]  # fmt: skip
    return _dealt(
        _named(("m", "n", "k"), skinny),
        _named(("m", "n", "k"), squares),
        _named(("m", "n", "k"), middle),
        _named(("m", "n", "k"), tall),
        _named(("m", "n", "k"), vectors),
        _named(("m", "n", "k"), few),
    )


def more_products(seed: int, count: int = 64, scale: int = 1) -> list[Sizes]:
    """Random products between those of the plan, from which the least certain are chosen."""
    chance = np.random.default_rng(seed)
    low, high = np.log2((1, 64, 64)), np.log2((1024 * scale, 4096 * scale, 8192))
    drawn = 2 ** chance.uniform(low, high, (count, 3))
    rounded = np.maximum(1, np.round(drawn / (1, 32, 32)) * (1, 32, 32))
    kept = rounded[np.max(rounded[:, 1:], axis=1) * np.min(rounded[:, 1:], axis=1) * 4 < _MOST_OPERAND_BYTES]
    return _named(("m", "n", "k"), [tuple(row) for row in kept])


_PREFILL = ("batch", "tokens", "kv_heads", "group", "head_dim")
_DECODE = ("batch", "context", "kv_heads", "group", "head_dim")


def prompts(scale: int = 1) -> list[Sizes]:
    """Causal attention over whole prompts: B, S, K, G, D."""
    plan = [
        (1, 512, 8, 1, 64), (1, 128, 8, 4, 64), (1, 1024, 4, 4, 64), (4, 256, 8, 1, 128), (1, 2048, 4, 1, 64),
        (2, 512, 2, 4, 128), (8, 64, 8, 1, 64), (1, 256, 8, 4, 128), (16, 128, 4, 2, 64), (1, 768, 12, 1, 64),
        (1, 32, 8, 4, 64), (2, 1024, 2, 2, 64), (4, 512, 4, 1, 64), (1, 1536, 2, 4, 128), (1, 4096, 1, 2, 64),
    ]  # fmt: skip
    return _named(_PREFILL, [(b * scale, *rest) for b, *rest in plan])


def steps(scale: int = 1) -> list[Sizes]:
    """Attention of one new token a sequence over its context: B, P, K, G, D."""
    plan = [
        (1, 1024, 8, 1, 64), (8, 1024, 8, 4, 64), (1, 8192, 8, 4, 64), (16, 512, 4, 1, 128), (4, 4096, 2, 4, 128),
        (1, 128, 8, 4, 64), (32, 256, 8, 1, 64), (2, 2048, 12, 1, 64), (1, 4096, 8, 4, 128), (16, 2048, 2, 2, 64),
        (4, 256, 8, 4, 128), (64, 128, 4, 4, 64), (8, 4096, 4, 1, 64), (1, 512, 2, 4, 128), (2, 8192, 4, 2, 64),
    ]  # fmt: skip
    return _named(_DECODE, [(b * scale, *rest) for b, *rest in plan])


def more_attention(kind: str, seed: int, count: int = 48, scale: int = 1) -> list[Sizes]:
    """Random prompts or steps between those of the plan."""
    chance = np.random.default_rng(seed)
    names, longest = (_PREFILL, 2048) if kind == "prefill" else (_DECODE, 8192)
    found = []
    for _ in range(count):
        length = int(2 ** chance.uniform(5, np.log2(longest)))
        batch = int(2 ** chance.integers(0, 5)) * scale
        kv_heads, group = int(chance.choice((1, 2, 4, 8))), int(chance.choice((1, 2, 4)))
        head = int(chance.choice((64, 128)))
        if batch * length * kv_heads * (length * group if kind == "prefill" else 1) <= 2**26 * scale:
            found.append((batch, length, kv_heads, group, head))
    return _named(names, found)


def streams(cache_bytes: float, memory_bytes: float) -> list[float]:
    """Bytes of one array of a stream: from the cache's to well beyond, at most a sixteenth of the memory."""
    beyond = [4 * cache_bytes, 2 * cache_bytes, 8 * cache_bytes]
    sizes = [beyond[0], 2.0**16, beyond[1], 2.0**20, 2.0**22, beyond[2]]
    return [float(int(size)) for size in sizes if size <= min(memory_bytes / 16, 2**30)]


def messages(most_bytes: float) -> list[float]:
    """Buffers of collectives: 4 KiB to `most_bytes`, the ends first."""
    doubled = [4096.0 * 4**step for step in range(12)]
    sizes = [size for size in doubled if size <= most_bytes]
    return [*sizes[-1:], *sizes[:1], *sizes[1:-1]]


def _named(names: tuple[str, ...], rows: Sequence[tuple[float, ...]]) -> list[Sizes]:
    return [dict(zip(names, (float(size) for size in row), strict=True)) for row in rows]


def _dealt(*hands: list[Sizes]) -> list[Sizes]:
    """One of each hand in turn, so that a run cut short has some of all."""

    def turns() -> Iterator[Sizes]:
        for index in range(max(map(len, hands))):
            yield from (hand[index] for hand in hands if index < len(hand))

    return list(turns())
