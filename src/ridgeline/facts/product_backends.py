"""Backends of products that no table of measured kernels holds, from `data/product_backends.tsv`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store

TABLE = "product_backends.tsv"


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
    return tuple(
        ProductBackend(
            engine=row["engine"], backend=row["backend"], form=row["form"],
            **{name: float(row[name]) for name in ("share", "least", "most")},
        )
        for row in store.read_tsv(TABLE)
    )  # fmt: skip


def product_backend(engine: str, backend: str) -> ProductBackend | None:
    """The products of an engine's backend; None where they are those that were measured."""
    return next((one for one in product_backends() if (one.engine, one.backend) == (engine, backend)), None)
