"""Caches in host memory, of which each step fetches the tokens that landmarks on the device choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.facts.records import Fact
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Instance, KVEviction, all_devices
from ridgeline.seams.technique import accuracy, param

_RANK_BYTES = 2.0  # of a number of keys of low rank


@dataclass(frozen=True, kw_only=True)
class KVRetrieval(KVEviction):
    """A cache lies in host memory; each step fetches the tokens that landmarks on the device choose.

    The device holds the tokens of the last step, a landmark of every `chunk` tokens and, with a `rank`, keys of low
    rank, so that only values are fetched. Which tokens are chosen, and how good answers are then, is not asked.

    Letters: P tokens when the prompt is done, k kept, f fetched, c tokens of a landmark, r rank of the keys.
    """

    key: ClassVar[str] = "kv-retrieval"
    word: ClassVar[str] = "kv_fetched"
    source: ClassVar[tuple[str, ...]] = ("sun2024shadowkv",)
    quality: ClassVar[Fact | None] = accuracy(
        "that of the whole cache on RULER, LongBench and Needle In A Haystack, abstract", "sun2024shadowkv"
    )
    owns: ClassVar[frozenset[str]] = KVEviction.owns | {"stages", "drafts"}
    tokens: int = param(
        2048, "tokens", "tokens of a cache in host memory that a step fetches for each layer", low=1, high=10_000_000,
        word="kv_fetched",
    )  # fmt: skip
    kept: int = param(
        0, "tokens", "tokens of a prompt's cache that stay on the device besides", high=10_000_000, word="kv_kept"
    )
    rank: int | None = param(
        None, "1", "rank of the keys that stay on the device, so that only values are fetched", low=1, high=65_536,
        whole=True, word="kv_rank",
    )  # fmt: skip
    chunk: int = param(
        8, "tokens", "tokens of one landmark of a cache in host memory; 8 when absent", low=1, high=1_000_000,
        word="kv_chunk",
    )  # fmt: skip
    reused: float = param(
        0.0, "1", "share of fetched tokens that the step before fetched", high=0.999, word="kv_reused"
    )

    def unfit(self, instance: Instance) -> str:
        """As of every eviction; keys of low rank take less than the keys."""
        keys, _, low_rank = self._token_bytes(instance)
        if low_rank >= keys:
            return (
                f"with kv_rank {self.rank} takes {low_rank:,.0f} byte a token on a device, its keys {keys:,.0f}; take a"
                " lower rank, or leave it out"
            )
        return super().unfit(instance)

    def _token_bytes(self, instance: Instance) -> tuple[float, float, float]:
        """Keys, values and keys of low rank of a token on one device of one stage [byte]."""
        layers = sum(count for count, _ in _cores(instance.steps.served))
        return *token_bytes(instance), 0.0 if self.rank is None else self.rank * _RANK_BYTES * layers

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """What is held, read and fetched.

        With key bytes K and value bytes V of a token: held share = (K / c + 2 r layers) / (K + V), read share
        = K / c / (K + V); a fetched token takes (V, and K where no keys of low rank are held) (1 - reused) over the
        host's rate, one of a prompt as much on its way out, reused or not.
        """
        host = instance.machine.cluster.host
        keys, values, low_rank = self._token_bytes(instance)
        away = values + (keys if self.rank is None else 0.0)
        rate = host_rate(instance.deployment, host)
        return {
            "kept": self.kept,
            "fetched": self.tokens,
            "held_share": (keys / self.chunk + low_rank) / (keys + values),
            "read_share": keys / self.chunk / (keys + values),
            "fetch_s": away * (1.0 - self.reused) / rate,
            "store_s": away / rate,
            "host_tokens": int(host.dram_bytes / sharing(instance.deployment, host) / away),
        }

    def held_tokens(self, instance: Instance, prompt: float) -> float:
        """min(P, k + f + share P)."""
        share = self.numbers(instance, 0)["held_share"]
        return min(prompt, min(prompt, float(self.kept + self.tokens)) + share * prompt)

    def fetch_seconds(self, instance: Instance, context: float) -> float:
        """Its tokens over the host's rate, of a context that the device does not hold whole."""
        each = self.numbers(instance, 0)["fetch_s"] if context > self.kept + self.tokens else 0.0
        return self.tokens * each

    def retimed(self, steps: Any, tables: Any) -> Any:
        """Steps in which keys of the fetched tokens are made from those of low rank, of N sequences in all layers.

        For each head of keys a product of (N f (1 - reused), r) by (r, head's width).
        """
        import numpy as np

        from ridgeline.lower.pieces import Product

        if self.rank is None:
            return tables
        total = tables.decode
        for count, core in _cores(steps.served):
            piece = Product(name="rebuilt_keys", n=float(core.qk_dim), k=float(self.rank), part="plain")
            rows = np.maximum(tables.sequences[:, None] * core.kv_heads * self.tokens * (1.0 - self.reused), 1.0)
            total = total + steps.prices.product(piece, rows).times(count)
        return replace(tables, decode=total)

    def told(self) -> str:
        """Tokens kept and fetched."""
        kept = f"{self.kept:,} tokens of cache kept " if self.kept else ""
        return f"{kept}{self.tokens:,} fetched a step"


def _cores(served: Any) -> Iterator[tuple[int, Any]]:
    """The attention of all layers, and how many have it."""
    from ridgeline.lower.pieces import Core

    return ((kind.count, piece) for kind in served.kinds for piece in kind.pieces if isinstance(piece, Core))


def token_bytes(instance: Instance) -> tuple[float, float]:
    """Keys and values of a token on one device of one stage [byte]."""
    from ridgeline.cost.formats import form

    size = form(instance.formats.cache).weight_bytes
    cores = list(_cores(instance.steps.served))
    keys, values = (
        sum(count * core.kv_heads * getattr(core, name) * size for count, core in cores) for name in ("qk_dim", "v_dim")
    )
    return keys, values


def sharing(one: Deployment, host: Any) -> int:
    """Devices of a deployment under one host [1]."""
    return int(min(all_devices(one), host.devices))


def host_rate(one: Deployment, host: Any) -> float:
    """What one device gets of its host [byte/s]: its own link, or its share of the host's memory where that is less."""
    return float(min(host.device_bytes_per_s, host.dram_bytes_per_s / sharing(one, host)))
