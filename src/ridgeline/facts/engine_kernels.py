"""Kernels that serving engines choose: backends of experts and products, all-reduces; their releases in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store
from ridgeline.facts.policies import ENGINES

ANY = "any"  # of a row: formats of experts, whose kernels are those that were measured
NEVER_BYTES = 1e15
"""From here on begins a kernel that an engine does not have [byte]."""


@dataclass(frozen=True, kw_only=True)
class ExpertBackend:
    """Kernels of experts in one number format: families of pools of prompts and of decode steps, library and kernel.

    `exchange` says how tokens reach their experts: 'deepep', 'gather' to all ranks, 'narrow' to all in the experts'
    format, or '' as with any.
    """

    engine: str
    backend: str
    form: str
    prompts: str
    steps: str
    library: str
    kernel: str
    exchange: str
    source: str


@cache
def _experts() -> tuple[ExpertBackend, ...]:
    return store.records(ExpertBackend, store.read_tsv("expert_backends.tsv"))


def expert_backend(engine: str, backend: str, form: str) -> ExpertBackend | None:
    """The kernels of an engine's backend in a number format; None where they are not known."""
    own = (one for one in _experts() if (one.engine, one.backend) == (engine, backend))
    return next((one for one in own if one.form in (form, ANY)), None)


@cache
def expert_backends() -> tuple[str, ...]:
    """The words of all backends, each once."""
    return tuple(dict.fromkeys(one.backend for one in _experts()))


def gathering(engine: str) -> str:
    """The engine's word for gathering all tokens on all ranks, '' where it has none.

    >>> gathering("vLLM")
    'allgather_reducescatter'
    """
    return next((one.backend for one in _experts_of(engine) if one.exchange == "gather"), "")


@cache
def by_batch(backend: str) -> bool:
    """Whether a backend has other kernels for iterations with prompts than for steps.

    >>> by_batch("deepep"), by_batch("deepep_low_latency")
    (True, False)
    """
    return any(one.prompts != one.steps for one in _experts() if one.backend == backend)


def backends_of(engine: str) -> tuple[str, ...]:
    """The words that one engine has for its backends, each once; none for an engine without any.

    >>> backends_of("TensorRT-LLM")
    ('TRTLLM', 'CUTLASS', 'DEEPGEMM', 'WIDEEP')
    """
    return tuple(dict.fromkeys(one.backend for one in _experts_of(engine)))


def _experts_of(engine: str) -> list[ExpertBackend]:
    return [one for one in _experts() if ENGINES.canonical(one.engine) == ENGINES.canonical(engine)]


@dataclass(frozen=True, kw_only=True)
class ProductBackend:
    """Products in one format: the `share` of the matrix rate of measured ones, `least` and `most` that was seen [1]."""

    engine: str
    backend: str
    form: str
    share: float
    least: float
    most: float


@cache
def product_backends() -> tuple[ProductBackend, ...]:
    """All backends of products."""
    return store.records(ProductBackend, store.read_tsv("product_backends.tsv"))


def product_backend(engine: str, backend: str) -> ProductBackend | None:
    """The products of an engine's backend; None where they are those that were measured."""
    return next((one for one in product_backends() if (one.engine, one.backend) == (engine, backend)), None)


@dataclass(frozen=True, kw_only=True)
class AllReduceRule:
    """What an engine does with an all-reduce over `ranks` devices of a node; sizes are of one rank's buffer [byte].

    One-shot below `two_shot_from_bytes`, two-shot from it, kernels of symmetric memory from `symmetric_from_bytes`,
    the collective library above `most_bytes`; infinite where there is no such kernel.
    """

    ranks: int
    two_shot_from_bytes: float
    symmetric_from_bytes: float
    most_bytes: float
    source: str


@cache
def all_reduce_rules(engine: str, version: str, place: str) -> Mapping[int, AllReduceRule]:
    """The rules of an engine by ranks; empty where it has no kernels of its own.

    `place` says 'linked' or 'bus', then vendor, architecture and device. Without a version the newest rules answer.
    """
    wanted = release_key(version)
    found: dict[int, tuple[str, AllReduceRule]] = {}
    for row in store.read_tsv("engine_all_reduce.tsv"):
        newer = bool(version) and release_key(row["since"]) > wanted
        if row["engine"] != engine or newer or not re.search(rf"^{row['pattern']}\b", place):
            continue
        ranks = int(row["ranks"])
        known = found.get(ranks)
        if known is None or release_key(row["since"]) > release_key(known[0]):
            found[ranks] = (row["since"], store.records(AllReduceRule, (row,))[0])
    return {ranks: rule for ranks, (_, rule) in sorted(found.items())}


def nearest_version(known: Iterable[str], wanted: str) -> str:
    """The newest version that is not newer than the one wanted, else the oldest; the newest when none is wanted."""
    ordered = sorted(known, key=release_key)
    older = [version for version in ordered if not wanted or release_key(version) <= release_key(wanted)]
    return (older or ordered[:1] or [""])[-1]


@cache
def release_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts versions as their writers meant: 0.5.14 after 0.5.9, candidates before a release, post-releases after."""
    words = re.findall(r"\d+|[a-z]+", version.casefold())
    keys = tuple((1, int(word)) if word.isdigit() else (2 if word == "post" else 0, word) for word in words)
    return keys if any(word.isalpha() for word in words) else (*keys, (0, "zz"))
