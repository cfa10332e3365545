"""Kernels as torch runs them, on random data that is never zero: products, attention, streams, copies, launches.

Shape letters: m, n, k of a product; B sequences, S tokens, K kv heads, G query heads of each, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.calibrate.here.timing import Call

Sizes = Mapping[str, float]
_LAUNCHES = 200  # of one repeat
_BLOCK = 2**18 - 5  # random numbers made at once; odd, so that rows differ


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Makes calls on one device; each returned call runs one kernel on operands made before."""

    torch: Any
    device: str

    def _random(self, *shape: int, dtype: Any) -> Any:
        """Random numbers around one in size, either sign, none zero; large arrays repeat a block of them."""
        torch, count = self.torch, math.prod(shape)
        made = torch.randn(min(count, _BLOCK), device=self.device, dtype=torch.float32)
        block = (made + torch.sign(made) * 0.1).to(dtype)
        return block.repeat(-(-count // len(block)))[:count].view(shape)

    def product(self, form: str, sizes: Sizes) -> Call:
        """(m, k) x (k, n) in a format, the weight stored (n, k) as layers do."""
        m, n, k = (int(sizes[name]) for name in "mnk")
        torch = self.torch
        if form == "int8":
            a, b = (torch.randint(1, 100, shape, device=self.device, dtype=torch.int8) for shape in ((m, k), (n, k)))
            return lambda: torch._int_mm(a, b.t())
        if form == "fp8":
            a8 = self._random(m, k, dtype=torch.float8_e4m3fn)
            b8 = self._random(n, k, dtype=torch.float8_e4m3fn)
            one = torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[form]
        x, weight = self._random(m, k, dtype=dtype), self._random(n, k, dtype=dtype)
        linear = torch.nn.functional.linear
        return lambda: linear(x, weight)

    def attention(self, kind: str, sizes: Sizes, *, backward: bool = False) -> Call:
        """Causal attention over prompts ('prefill'), or of one token a sequence over its context ('decode'), bf16."""
        torch, dtype = self.torch, self.torch.bfloat16
        batch, kv_heads, group, head = (int(sizes[name]) for name in ("batch", "kv_heads", "group", "head_dim"))
        keys = int(sizes["tokens"] if kind == "prefill" else sizes["context"])
        queries = keys if kind == "prefill" else 1
        query = self._random(batch, kv_heads * group, queries, head, dtype=dtype)
        key, value = (self._random(batch, kv_heads, keys, head, dtype=dtype) for _ in range(2))
        attend = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": kind == "prefill", **({"enable_gqa": True} if group > 1 else {})}
        if not backward:
            return lambda: attend(query, key, value, **options)
        wanted = [one.requires_grad_() for one in (query, key, value)]
        result = attend(*wanted, **options)
        gradient = self._random(*result.shape, dtype=dtype)
        return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    def stream(self, name: str, array_bytes: float) -> tuple[Call, float]:
        """A pass over arrays of fp32 and the bytes it moves: 'read', 'copy' or 'triad' (a = b + s c)."""
        torch, count = self.torch, int(array_bytes // 4)
        source = self._random(count, dtype=torch.float32)
        if name == "read":
            return lambda: source.sum(), 4.0 * count
        target = torch.empty_like(source).fill_(1.0)
        if name == "copy":
            return lambda: target.copy_(source), 8.0 * count
        other = self._random(count, dtype=torch.float32)
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
        small = self._random(4, dtype=self.torch.float32)

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


def attention_work(kind: str, sizes: Sizes) -> tuple[float, float]:
    """FLOP and bytes of attention in bf16, each operand once [FLOP, byte]."""
    batch, kv_heads, group, head = (sizes[name] for name in ("batch", "kv_heads", "group", "head_dim"))
    heads = kv_heads * group
    if kind == "prefill":
        tokens = sizes["tokens"]
        seen, queries, keys = tokens * (tokens + 1) / 2, tokens, tokens
    else:
        seen, queries, keys = sizes["context"], 1.0, sizes["context"]
    return 4 * batch * heads * head * seen, batch * head * (4 * queries * heads + 4 * keys * kv_heads)
