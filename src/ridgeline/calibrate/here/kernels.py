"""Kernels as torch runs them, on random data that is never zero: products, attention, streams, copies, launches.

Shape letters: m, n, k of a product; B sequences, S tokens, K kv heads, G query heads of each, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, repeat
from typing import Any

from ridgeline.calibrate.here.timing import Call

Sizes = Mapping[str, float]
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
