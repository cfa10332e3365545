"""Calls that a training step on a processor is made of, each as it is made there, timed over the sizes people run.

What a layer reads once a step comes from memory: weights in turn. Results stay: each is written where none was just
written. Sizes are drawn once by a fixed seed. Letters: m rows, n outputs, k inputs; B, S, K kv heads, G query heads of
each, D head size.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.calibrate.here.fitting import KIND
from ridgeline.calibrate.here.kernels import FEWEST_REPEATS, MOST_REPEATS, Call, KernelClock, Kernels, Sizes, measured
from ridgeline.facts.profiles import BenchmarkRow

FORMS = ("fp32", "bf16")
_PRODUCTS = {"gemm.forward": 24, "gemm.input": 14, "gemm.weight": 20}
_PROMPTS = 16
_POINTWISE = ("rms_norm", "layer_norm", "gated", "activation", "rotary", "residual", "cross_entropy")
_BOTH = ("forward", "backward")
_ROWS, _WIDTH = (16.0, 2048.0), (128.0, 4096.0)
_TOKENS, _VOCABULARY = (16.0, 1024.0), (256.0, 32768.0)
_MOST_FLOP = 6e9  # of one call
_MOST_ELEMENTS = 2.0**22
_LEAST_S = 5e-7
_SEVERAL_S = 5e-5  # calls shorter than that are timed several at a time
_BRIEF_S = 1e-3  # for the time of what is taken away from others
_CHAIN, _NARROW = 16, 32  # linear layers of a chain, so narrow that the host's time is all
_TABLE = 2.0**24  # elements of a table
_HEAD = 64  # of what rotary embedding turns


def plan(form: str) -> list[tuple[str, Sizes]]:
    """Calls with their sizes, in a random order, so that a run cut short has some of all."""
    chance = np.random.default_rng(FORMS.index(form))

    def drawn(bounds: tuple[float, float], step: float = 1.0) -> float:
        return float(max(step, round(2 ** chance.uniform(*np.log2(bounds)) / step) * step))

    found: list[tuple[str, Sizes]] = [(f"{one}.{way}", {}) for one in ("linear", "layer") for way in _BOTH]
    for call, count in _PRODUCTS.items():
        while count:
            sizes = {"m": drawn(_ROWS), "n": drawn(_WIDTH, 32), "k": drawn(_WIDTH, 32)}
            if 2 * math.prod(sizes.values()) <= _MOST_FLOP:
                found.append((call, sizes))
                count -= 1
    for _ in range(_PROMPTS):
        batch, tokens = float(chance.integers(1, 9)), drawn(_TOKENS, 8)
        heads, head_dim = 2.0 ** int(chance.integers(0, 5)), float(chance.choice((32, 64, 128)))
        group = 2.0 ** int(chance.integers(0, int(math.log2(heads)) + 1))
        batch = max(1.0, min(batch, _MOST_FLOP // (32 * heads * tokens**2 * head_dim)))
        prompt = {"batch": batch, "tokens": tokens, "kv_heads": heads / group, "group": group, "head_dim": head_dim}
        found += [("attention.forward", prompt), ("attention.backward", prompt)]
    for function in _POINTWISE:
        for _ in range(8):
            rows, width = drawn(_ROWS), drawn(_VOCABULARY if function == "cross_entropy" else _WIDTH, _HEAD)
            sizes = {"rows": min(rows, _MOST_ELEMENTS // width), "width": width}
            found += [(f"{function}.{way}", sizes) for way in _BOTH]
    for _ in range(6):
        rows, width, vocab = drawn(_ROWS), drawn((128.0, 1024.0), 32), drawn(_VOCABULARY, 64)
        sizes = {"rows": rows, "width": width, "vocab": min(vocab, _TABLE // width)}
        found += [("embedding.forward", sizes), ("embedding.backward", sizes)]
        found.append(("bias.backward", {"rows": rows, "width": width}))
    for tensors, elements in ((1, 2**24), (64, 2**12), (96, 2**16), (16, 2**20), (200, 64), (8, 2**18)):
        found.append(("optimizer.adamw", {"tensors": float(tensors), "elements": float(tensors * elements)}))
    return [found[index] for index in chance.permutation(len(found))]


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Makes and times calls with so many threads of a processor whose last cache holds `cache_bytes`."""

    torch: Any
    threads: int
    cache_bytes: float
    clock: KernelClock = field(init=False)
    kernels: Kernels = field(init=False)
    results: Kernels = field(init=False)
    engine_s: float = field(init=False)

    def __post_init__(self) -> None:
        keep_freed_memory()
        object.__setattr__(self, "clock", KernelClock(kind="cpu", torch=self.torch))
        for name in ("kernels", "results"):
            made = Kernels(torch=self.torch, device="cpu", cache_bytes=self.cache_bytes)
            object.__setattr__(self, name, made)
        small = self.torch.randn(4, requires_grad=True)
        passed = small.view(4)  # by a node that does nothing
        engine = self._times(
            lambda: self.torch.autograd.grad(passed, small, small, retain_graph=True), None, 10 * _BRIEF_S
        )  # the first one of a process takes long
        object.__setattr__(self, "engine_s", min(engine))

    def row(self, call: str, form: str, sizes: Sizes, budget_s: float, *, ranks: int = 1) -> BenchmarkRow:
        """The time of one call within a budget, without what its autograd engine takes to start [s]."""
        dtype = self.torch.bfloat16 if form == "bf16" else self.torch.float32
        family, way = call.split(".")
        beside_s, times_of = 0.0, 1
        if family == "gemm":
            made = self._product(way, sizes, dtype)
        elif family == "attention":
            made, beside_s = self._way(way, *self._attention(sizes, dtype))
        elif family == "optimizer":
            made = self._optimizer(sizes)
        elif family == "linear":
            made, beside_s, times_of = self._linear(way, dtype)
        elif family == "layer":
            made, beside_s = self._layer(way, dtype)
        else:
            made, beside_s = self._pointwise(family, way, sizes, dtype)
        first = self._other(dtype) if family in ("gemm", "attention") else None
        times = [max(one - beside_s, _LEAST_S) / times_of for one in self._times(made, first, budget_s)]
        known = {**sizes, "ranks": float(ranks), "threads": float(self.threads), "cache_bytes": self.cache_bytes}
        if "rows" in sizes:
            known |= {"elements": sizes["rows"] * sizes["width"], "table": sizes.get("vocab", 0.0) * sizes["width"]}
        return measured(KIND, form, known, times, note=call)

    def _times(self, made: Call, first: Call | None, budget_s: float) -> list[float]:
        """Times of repeats of a call after a warm-up, each after another one that is not timed, as in a step [s]."""
        end = time.perf_counter() + budget_s
        made()
        several = 1 if first else max(1, min(1000, int(_SEVERAL_S / max(self.clock.seconds(made, 1), 1e-8))))
        found: list[float] = []
        while len(found) < FEWEST_REPEATS or (len(found) < MOST_REPEATS and time.perf_counter() < end):
            if first is not None:
                first()
            found.append(self.clock.seconds(made, several))
        return found

    def _other(self, dtype: Any) -> Call:
        """A product of other sizes, which leaves the library and the caches as a step's other calls do."""
        return self._product("forward", {"m": 32.0, "n": 320.0, "k": 448.0}, dtype)

    def _product(self, way: str, sizes: Sizes, dtype: Any) -> Call:
        m, n, k = (int(sizes[name]) for name in "mnk")
        torch = self.torch
        x, weight, grad = (m, k), (n, k), (m, n)
        if way == "forward":
            left, turns = self.kernels.random(*x, dtype=dtype), self.kernels.in_turn(*weight, dtype=dtype)
            outs = self.results.in_turn(*grad, dtype=dtype)
            return lambda: torch.mm(left, next(turns).t(), out=next(outs))
        left = self.kernels.random(*grad, dtype=dtype)
        if way == "input":
            turns, outs = self.kernels.in_turn(*weight, dtype=dtype), self.results.in_turn(*x, dtype=dtype)
            return lambda: torch.mm(left, next(turns), out=next(outs))
        turns, outs = self.kernels.in_turn(*x, dtype=dtype), self.results.in_turn(*weight, dtype=dtype)
        return lambda: torch.mm(left.t(), next(turns), out=next(outs))

    def _way(self, way: str, forward: Callable[..., Any], inputs: list[Any]) -> tuple[Call, float]:
        """A function forward, or its gradients with what the engine takes to start; results stay for a while."""
        torch = self.torch
        inputs = [one.requires_grad_(one.is_floating_point()) for one in inputs]
        result = forward(*inputs)
        count = max(2, min(256, int(2 * self.cache_bytes / (4 * max(1, result.numel())))))
        stays: deque[Any] = deque(maxlen=count)
        if way == "forward":
            return lambda: stays.append(forward(*inputs)), 0.0
        wanted = [one for one in inputs if one.requires_grad]
        gradient = torch.randn_like(result)
        return (lambda: stays.append(torch.autograd.grad(result, wanted, gradient, retain_graph=True)), self.engine_s)

    def _attention(self, sizes: Sizes, dtype: Any) -> tuple[Callable[..., Any], list[Any]]:
        """Attention between products: heads are views of a layer's width, and so are those of the result."""
        batch, tokens, kv_heads, group, head = (
            int(sizes[name]) for name in ("batch", "tokens", "kv_heads", "group", "head_dim")
        )
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def forward(*wide: Any) -> Any:
            q, k, v = (one.unflatten(-1, (-1, head)).transpose(1, 2) for one in wide)
            return attend(q, k, v, is_causal=True, enable_gqa=group > 1).transpose(1, 2).flatten(2)

        widths = (kv_heads * group * head, kv_heads * head, kv_heads * head)
        return forward, [self.kernels.random(batch, tokens, width, dtype=dtype) for width in widths]

    def _pointwise(self, function: str, way: str, sizes: Sizes, dtype: Any) -> tuple[Call, float]:
        torch, rows, width = self.torch, int(sizes["rows"]), int(sizes["width"])
        call = torch.nn.functional
        x, y, weight = (self.kernels.random(*shape, dtype=dtype) for shape in ((rows, width), (rows, width), (width,)))
        if function == "residual":  # backward adds the gradients of both branches
            return self._way("forward", torch.add, [x, y] if way == "forward" else [x.detach(), y.detach()])
        if function == "bias":
            return lambda: x.sum(0), 0.0
        if function == "embedding":
            table = self.kernels.random(int(sizes["vocab"]), width, dtype=dtype)
            tokens = torch.randint(len(table), (rows,))
            return self._way(way, lambda one: call.embedding(tokens, one), [table])
        if function == "cross_entropy":
            tokens = torch.randint(width, (rows,))
            return self._way(way, lambda one: call.cross_entropy(one.float(), tokens), [x])
        if function == "rotary":
            angles = torch.randn(rows, 1, _HEAD // 2, dtype=dtype)
            return self._way(way, lambda one: _turned(torch, one, angles), [x.view(rows, -1, _HEAD)])
        made: dict[str, tuple[Callable[..., Any], list[Any]]] = {
            "rms_norm": (lambda a, w: call.rms_norm(a, (width,), w, 1e-5), [x, weight]),
            "layer_norm": (lambda a, w: call.layer_norm(a, (width,), w, w), [x, weight]),
            "gated": (lambda a, b: call.silu(a) * b, [x, y]),
            "activation": (call.gelu, [x]),
        }
        return self._way(way, *made[function])

    def _optimizer(self, sizes: Sizes) -> Call:
        torch, count = self.torch, int(sizes["tensors"])
        weights = [torch.nn.Parameter(torch.randn(int(sizes["elements"]) // count)) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        step: Call = torch.optim.AdamW(weights, lr=1e-3, fused=True).step
        return step

    def _layer(self, way: str, dtype: Any) -> tuple[Call, float]:
        """A layer so narrow that Python, views and autograd are what takes time, beside its calls."""
        torch, call = self.torch, self.torch.nn.functional
        sizes = {"rows": 8.0, "width": float(_HEAD)}
        prompt = {"batch": 1.0, "tokens": 8.0, "kv_heads": 1.0, "group": 1.0, "head_dim": float(_HEAD)}
        angles = torch.randn(8, 1, _HEAD // 2, dtype=dtype)
        weight = torch.ones(_HEAD, dtype=dtype)
        linear = [torch.nn.Linear(_HEAD, _HEAD, bias=False, dtype=dtype) for _ in range(7)]
        q, k, v, out, gate, up, down = linear

        def norm(x: Any) -> Any:
            return call.rms_norm(x, (_HEAD,), weight, 1e-5)

        def turned(x: Any) -> Any:
            return _turned(torch, x.unflatten(-1, (-1, _HEAD)), angles).transpose(1, 2)

        def forward(x: Any, *weights: Any) -> Any:
            y = norm(x)
            core = call.scaled_dot_product_attention(
                turned(q(y)), turned(k(y)), v(y).unflatten(-1, (-1, _HEAD)).transpose(1, 2), is_causal=True
            )
            x = x + out(core.transpose(1, 2).flatten(2))
            y = norm(x)
            return x + down(call.silu(gate(y)) * up(y))

        parts: list[tuple[int, tuple[Call, float]]] = [
            (count, self._pointwise(one, way, sizes, dtype))
            for count, one in ((2, "rms_norm"), (1, "rotary"), (1, "gated"), (2, "residual"))
        ]
        parts.append((1, self._way(way, *self._attention(prompt, dtype))))
        spent = sum(count * (min(self._times(one, None, _BRIEF_S)) - beside) for count, (one, beside) in parts)
        chain, _, layers = self._linear(way, dtype)
        spent += len(linear) * min(self._times(chain, None, _BRIEF_S)) / layers
        weights = [one.weight for one in linear]
        made, engine_s = self._way(way, forward, [torch.randn(1, 8, _HEAD, dtype=dtype), *weights])
        return made, spent + engine_s

    def _linear(self, way: str, dtype: Any) -> tuple[Call, float, int]:
        """A chain of layers so narrow that modules and autograd are what takes time, beside their products."""
        torch = self.torch
        chain = torch.nn.Sequential(
            *(torch.nn.Linear(_NARROW, _NARROW, bias=False, dtype=dtype) for _ in range(_CHAIN))
        )
        x, weight = torch.randn(8, _NARROW, dtype=dtype), chain[0].weight.detach()
        one_s = min(self._times(lambda: torch.mm(x, weight), None, _BRIEF_S))
        if way == "forward":
            return lambda: chain(x), _CHAIN * one_s, _CHAIN
        result, gradient = chain(x.requires_grad_()), torch.randn(8, _NARROW, dtype=dtype)
        return lambda: result.backward(gradient, retain_graph=True), 2 * _CHAIN * one_s, _CHAIN


def _turned(torch: Any, x: Any, angles: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angles - second * angles, first * angles + second * angles], dim=-1)


def keep_freed_memory() -> None:
    """Makes glibc give no freed memory back to the system, as in runs (`run/launch.py`); elsewhere nothing happens."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    tune(-4, 0)  # M_MMAP_MAX
    tune(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
