"""Backends of experts: which measured kernels an engine's word for one means, from `data/expert_backends.tsv`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store
from ridgeline.facts.engines import engine_named

TABLE = "expert_backends.tsv"
ANY = "any"  # of a row: formats of experts, whose kernels are those that were measured


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
def expert_backend(engine: str, backend: str, form: str) -> ExpertBackend | None:
    """The kernels of an engine's backend in a number format; None where they are not known."""
    asked = {"engine": (engine,), "backend": (backend,), "form": (form, ANY)}
    for row in store.read_tsv(TABLE):
        if all(row[name] in values for name, values in asked.items()):
            return ExpertBackend(**row)
    return None


@cache
def expert_backends() -> tuple[str, ...]:
    """The words of all backends, each once."""
    return tuple(dict.fromkeys(row["backend"] for row in store.read_tsv(TABLE)))


def gathering(engine: str) -> str:
    """The engine's word for gathering all tokens on all ranks, '' where it has none.

    >>> gathering("vLLM")
    'allgather_reducescatter'
    """
    rows = (row for row in store.read_tsv(TABLE) if engine_named(row["engine"]) == engine_named(engine))
    return next((row["backend"] for row in rows if row["exchange"] == "gather"), "")


@cache
def by_batch(backend: str) -> bool:
    """Whether a backend has other kernels for iterations with prompts than for steps.

    >>> by_batch("deepep"), by_batch("deepep_low_latency")
    (True, False)
    """
    return any(row["prompts"] != row["steps"] for row in store.read_tsv(TABLE) if row["backend"] == backend)


def backends_of(engine: str) -> tuple[str, ...]:
    """The words that one engine has for its backends, each once; none for an engine without any.

    >>> backends_of("TensorRT-LLM")
    ('TRTLLM', 'CUTLASS', 'DEEPGEMM', 'WIDEEP')
    """
    rows = store.read_tsv(TABLE)
    return tuple(dict.fromkeys(row["backend"] for row in rows if engine_named(row["engine"]) == engine_named(engine)))
