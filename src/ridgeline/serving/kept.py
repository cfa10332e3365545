"""Caches that are cut when the prompt is done: what a sequence then holds, reads and fetches from host memory.

Two ways. Some tokens are kept for each sequence and layer and the others forgotten, the prompt itself having attended
to all (SnapKV, Li and others, NeurIPS 2024, arXiv:2404.14469; H2O, arXiv:2306.14048), or each chunk of it to those kept
of the chunks before (Locret, Huang and others, 2024, arXiv:2410.01805). Or the cache lies in host memory: the device
holds a landmark of every few tokens, perhaps keys of low rank, and fetches in every step the tokens that the landmarks
choose (ShadowKV, Sun and others, ICML 2025, arXiv:2410.21465).

Which tokens are kept or fetched, and how good answers are then, is not asked here.

Letters: P tokens when the prompt is done, k kept, f fetched, c tokens of a landmark, r rank of the keys.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.cost.formats import Formats, form
from ridgeline.cost.seconds import Seconds, nothing
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import PlanError
from ridgeline.facts.records import Host
from ridgeline.lower.pieces import Core, Product, Recurrence, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.serving.compiling import clocked
from ridgeline.serving.queues import blocks_of
from ridgeline.serving.state import Array, Record, Records

_RANK_BYTES = 2.0  # of a number of keys of low rank


@clocked
def held_tokens(rule: Record, tokens: int) -> int:
    """Tokens' worth of cache on the device once a prompt of so many is done: min(P, k + f + share P) [token]."""
    if rule.kept == 0 and rule.fetched == 0:
        return tokens
    return int(min(tokens, rule.kept + rule.fetched + math.ceil(rule.held_share * tokens)))


@clocked
def prompt_tokens(rule: Record, tokens: int) -> int:
    """Tokens of cache that a prompt of so many takes while it is computed [token]: all, or those kept and a chunk."""
    return int(min(tokens, rule.kept + rule.token_budget) if rule.early else tokens)


@clocked
def seen_tokens(rule: Record, tokens: int) -> int:
    """Tokens before a chunk of a prompt that it attends to, of so many that are computed [token]."""
    return int(min(tokens, rule.kept) if rule.early else tokens)


@clocked
def read_tokens(rule: Record, tokens: int) -> float:
    """Tokens' worth of cache that attention of the first step reads, the new token apart [token].

    k + f and its landmarks where a prompt has more than those, else all of it.
    """
    chosen = rule.kept + rule.fetched
    return float(tokens) if chosen == 0 or tokens <= chosen else chosen + rule.read_share * tokens


@clocked
def fetched_tokens(rule: Record, tokens: int) -> int:
    """Tokens that a step chooses from host memory: f, or none of a prompt that the device holds whole [token]."""
    return int(rule.fetched) if tokens > rule.kept + rule.fetched else 0


@clocked
def cut(ranks: Records, requests: Records, rule: Record, rank: int, request: int, length: int) -> None:
    """Gives back the blocks of a prompt beyond `length` tokens, and what was set aside for them."""
    if length == requests[request].needed:
        return
    taken = prompt_tokens(rule, requests[request].needed)
    ranks[rank].used -= blocks_of(taken, rule.block_tokens) - blocks_of(length, rule.block_tokens)
    left = requests[request].output - requests[request].made
    reserved = blocks_of(length + rule.reserve * left, rule.block_tokens)
    ranks[rank].committed -= requests[request].reserved - reserved
    requests[request].reserved = reserved


@clocked
def fetch_s(ranks: Records, instances: Records, rule: Record, instance: int) -> float:
    """What the rank that fetches most from host memory takes for it in a step [s]."""
    most = 0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        most = max(most, ranks[rank].fetching)
    return float(most * rule.fetch_s)


def _cores(served: Served) -> list[tuple[int, Core]]:
    """The attention of all layers and how many have it; raises where it is of a kind that is not modelled."""
    found = []
    for kind in served.kinds:
        for piece in kind.pieces:
            if isinstance(piece, Recurrence) or (isinstance(piece, Core) and (piece.window or piece.latent)):
                raise PlanError(
                    "deployment: kv_kept and kv_fetched are modelled for attention that keeps keys and values of all"
                    " tokens, not for windows, latent vectors or recurrent states; leave them out"
                )
            if isinstance(piece, Core):
                found.append((kind.count, piece))
    return found


def kept_numbers(
    served: Served, one: Deployment, formats: Formats, host: Host, host_bytes_per_s: float
) -> dict[str, float]:
    """The numbers of `state.RULE` about what is left of a cache, on one device of one stage.

    With key bytes K and value bytes V of a token: held share = (K / c + 2 r layers) / (K + V), read share
    = K / c / (K + V); a fetched token takes (V, and K where no keys of low rank are held) (1 - reused) over the host's
    rate, one of a prompt as much on its way out, reused or not.

    Parameters
    ----------
    host_bytes_per_s : float [byte/s]
        What one device gets of its host, `host_rate`.
    """
    if not one.cuts_cache:
        return {}
    size = form(formats.cache).weight_bytes
    cores = _cores(served)
    keys, values = (
        sum(count * core.kv_heads * getattr(core, name) * size for count, core in cores) for name in ("qk_dim", "v_dim")
    )
    if not one.kv_fetched:
        return {"kept": one.kv_kept or 0, "early": one.kv_early}
    layers = sum(count for count, _ in cores)
    low_rank = 0.0 if one.kv_rank is None else one.kv_rank * _RANK_BYTES * layers
    if low_rank >= keys:
        raise PlanError(
            f"deployment: kv_rank = {one.kv_rank} takes {low_rank:,.0f} byte a token on a device, its keys {keys:,.0f};"
            " take a lower rank, or leave it out"
        )
    away = values + (keys if one.kv_rank is None else 0.0)
    return {
        "kept": one.kv_kept or 0,
        "fetched": one.kv_fetched,
        "held_share": (keys / one.kv_chunk + low_rank) / (keys + values),
        "read_share": keys / one.kv_chunk / (keys + values),
        "fetch_s": away * (1.0 - one.kv_reused) / host_bytes_per_s,
        "store_s": away / host_bytes_per_s,
        "host_tokens": int(host.dram_bytes / sharing(one, host) / away),
    }


def sharing(one: Deployment, host: Host) -> int:
    """Devices of a deployment under one host [1]."""
    return min(one.devices, host.devices)


def host_rate(one: Deployment, host: Host) -> float:
    """What one device gets of its host [byte/s]: its own link, or its share of the host's memory where that is less."""
    return min(host.device_bytes_per_s, host.dram_bytes_per_s / sharing(one, host))


def rebuilt_seconds(served: Served, one: Deployment, prices: ServedPrices, sequences: Array) -> Seconds:
    """What making keys of the fetched tokens from those of low rank takes, of N sequences in all layers [s].

    For each head of keys a product of (N f (1 - reused), r) by (r, head's width).
    """
    total = nothing(sequences.shape)
    if one.kv_rank is None or not one.kv_fetched:
        return total
    for count, core in _cores(served):
        piece = Product(name="rebuilt_keys", n=float(core.qk_dim), k=float(one.kv_rank), part="plain")
        rows = np.maximum(sequences * core.kv_heads * one.kv_fetched * (1.0 - one.kv_reused), 1.0)
        total = total + prices.product(piece, rows).times(count)
    return total
