"""Shapes that are measured, kernels as torch runs them on random data that is never zero, and a clock that waits.

Shape letters: m, n, k of a product; B sequences, S tokens, K kv heads, G query heads of each, D head size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from typing import Any

import numpy as np

from ridgeline.facts.profiles import BenchmarkRow

Call = Callable[[], Any]
MOST_REPEATS = 60
FEWEST_REPEATS = 3
_SHORTEST_S = 5e-5  # of one repeat: shorter calls are timed several at a time
_DEVICE_SHORTEST_S = 5e-4  # on a device whose queue is filled ahead


@dataclass(frozen=True, kw_only=True)
class KernelClock:
    """How calls are timed on one kind of device: 'cuda' by events on its stream, others by the host's clock."""

    kind: str
    torch: Any

    def wait(self) -> None:
        """Returns when the device has done what was asked."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize()
        elif self.kind == "mps":
            self.torch.mps.synchronize()

    def seconds(self, call: Call, times: int) -> float:
        """Time of `times` calls in a row [s], over their number."""
        if self.kind == "cuda":
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times):
                call()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3 / times
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            call()
        self.wait()
        return (time.perf_counter() - start) / times

    def repeats(self, call: Call, budget_s: float) -> list[float]:
        """Times of repeats of a call within a budget, after a warm-up; one long call may be its own warm-up [s]."""
        end = time.perf_counter() + budget_s
        first = self.seconds(call, 1)
        if first > budget_s / 2:
            return [first]
        first = min(self.seconds(call, 1), first)
        shortest = _SHORTEST_S if self.kind == "cpu" else _DEVICE_SHORTEST_S
        times = max(1, min(1000, int(shortest / max(first, 1e-8))))
        found: list[float] = []
        while len(found) < MOST_REPEATS and (len(found) < FEWEST_REPEATS or time.perf_counter() < end):
            found.append(self.seconds(call, times))
            if time.perf_counter() > end + budget_s:
                break
        return found


def measured(
    kind: str,
    form: str,
    sizes: Mapping[str, float],
    times: list[float],
    *,
    flop: float = 0.0,
    moved: float = 0.0,
    note: str = "",
) -> BenchmarkRow:
    """A row from the times of repeats: their median and best [s], and half the 10 to 90 % range over the median."""
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9))
    return BenchmarkRow(
        kind=kind,
        form=form,
        sizes={name: float(size) for name, size in sizes.items()},
        seconds=float(middle),
        best_s=float(min(times)),
        spread=float((high - low) / 2 / middle),
        repeats=len(times),
        flop=float(flop),
        bytes=float(moved),
        note=note,
    )


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


_LAUNCHES = 200  # of one repeat
_BEYOND = 2.0  # copies of what is read once fill the cache so many times
_BLOCK = 2**18 - 5  # random numbers made at once; odd, so that rows differ


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Makes calls on one device; each returned call runs one kernel on operands made before.

    What a layer reads once a step, its weights and the keys and values of a cache, comes from memory, not from a
    cache of the device: repeats take turns over copies that `cache_bytes` do not hold.
    """

    torch: Any
    device: str
    cache_bytes: float = 0.0
    _pools: dict[Any, Any] = field(default_factory=dict)

    def in_turn(self, *shape: int, dtype: Any) -> Iterator[Any]:
        """Random operands of a shape without end, each read again only after more than the cache holds."""
        count = math.prod(shape)
        if dtype not in self._pools:
            self._pools[dtype] = self.random(int(_BEYOND * self.cache_bytes / dtype.itemsize), dtype=dtype)
        copies = self._pools[dtype].numel() // count
        if copies < 2:
            return repeat(self.random(*shape, dtype=dtype))
        return cycle(self._pools[dtype][: copies * count].view(copies, *shape).unbind())

    def random(self, *shape: int, dtype: Any) -> Any:
        """Random numbers around one in size, either sign, none zero; large arrays repeat a block of them."""
        torch, count = self.torch, math.prod(shape)
        some = min(max(count, 1), _BLOCK)
        if dtype is torch.int8:
            block = torch.randint(1, 100, (some,), device=self.device, dtype=dtype)
        else:
            made = torch.randn(some, device=self.device, dtype=torch.float32)
            block = (made + torch.sign(made) * 0.1).to(dtype)
        return block.repeat(-(-count // len(block)))[:count].view(shape)

    def product(self, form: str, sizes: Sizes) -> Call:
        """(m, k) x (k, n) in a format, the weight stored (n, k) as layers do."""
        m, n, k = (int(sizes[name]) for name in "mnk")
        torch = self.torch
        if form == "int8":
            a, b = self.random(m, k, dtype=torch.int8), self.in_turn(n, k, dtype=torch.int8)
            return lambda: torch._int_mm(a, next(b).t())
        if form == "fp8":
            a8 = self.random(m, k, dtype=torch.float8_e4m3fn)
            b8 = self.in_turn(n, k, dtype=torch.float8_e4m3fn)
            one = torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(a8, next(b8).t(), one, one, out_dtype=torch.bfloat16)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[form]
        x, weights = self.random(m, k, dtype=dtype), self.in_turn(n, k, dtype=dtype)
        linear = torch.nn.functional.linear
        return lambda: linear(x, next(weights))

    def attention(self, kind: str, sizes: Sizes, *, form: str = "bf16") -> Call:
        """Causal attention over prompts ('prefill'), or of one token a sequence over its context ('decode')."""
        torch = self.torch
        dtype = torch.float32 if form == "fp32" else torch.bfloat16
        batch, kv_heads, group, head = (int(sizes[name]) for name in ("batch", "kv_heads", "group", "head_dim"))
        keys = int(sizes["tokens"] if kind == "prefill" else sizes["context"])
        queries = keys if kind == "prefill" else 1
        query = self.random(batch, kv_heads * group, queries, head, dtype=dtype)
        attend = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": kind == "prefill", **({"enable_gqa": True} if group > 1 else {})}
        if kind == "decode":
            caches = self.in_turn(2, batch, kv_heads, keys, head, dtype=dtype)
            return lambda: attend(query, *next(caches), **options)
        key, value = (self.random(batch, kv_heads, keys, head, dtype=dtype) for _ in range(2))
        return lambda: attend(query, key, value, **options)

    def stream(self, name: str, array_bytes: float) -> tuple[Call, float]:
        """A pass over arrays of fp32 and the bytes it moves: 'read', 'copy' or 'triad' (a = b + s c)."""
        torch, count = self.torch, int(array_bytes // 4)
        source = self.random(count, dtype=torch.float32)
        if name == "read":
            return lambda: source.sum(), 4.0 * count
        target = torch.empty_like(source).fill_(1.0)
        if name == "copy":
            return lambda: target.copy_(source), 8.0 * count
        other = self.random(count, dtype=torch.float32)
        return lambda: torch.add(source, other, alpha=1.5, out=target), 12.0 * count

    def transfer(self, name: str, size_bytes: float) -> Call:
        """A copy between host and device: 'h2d' or 'd2h', each 'pinned' or 'pageable'."""
        torch, count = self.torch, int(size_bytes // 4)
        way, memory = name.split(" ")
        host = self.torch.randn(count, dtype=torch.float32)
        host = host.pin_memory() if memory == "pinned" else host
        there = host.to(self.device)
        if way == "h2d":
            return lambda: there.copy_(host, non_blocking=memory == "pinned")
        return lambda: host.copy_(there, non_blocking=memory == "pinned")

    def launches(self) -> tuple[Call, int]:
        """Tiny kernels issued one by one, and how many of them."""
        small = self.random(4, dtype=self.torch.float32)

        def issue() -> None:
            for _ in range(_LAUNCHES):
                small.mul_(1.0001)

        return issue, _LAUNCHES

    def replay(self) -> tuple[Call, int]:
        """The same tiny kernels, replayed from a graph (cuda only)."""
        torch = self.torch
        issue, count = self.launches()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            issue()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            issue()
        return graph.replay, count


def attention_work(kind: str, sizes: Sizes, form: str = "bf16") -> tuple[float, float]:
    """FLOP and bytes of attention, each operand once [FLOP, byte]."""
    wide = 2.0 if form == "fp32" else 1.0
    batch, kv_heads, group, head = (sizes[name] for name in ("batch", "kv_heads", "group", "head_dim"))
    heads = kv_heads * group
    if kind == "prefill":
        tokens = sizes["tokens"]
        seen, queries, keys = tokens * (tokens + 1) / 2, tokens, tokens
    else:
        seen, queries, keys = sizes["context"], 1.0, sizes["context"]
    return 4 * batch * heads * head * seen, wide * batch * head * (4 * queries * heads + 4 * keys * kv_heads)
