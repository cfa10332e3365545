"""Traffic that ships with the package: real request traces, and the rates and lengths of a service's clients."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.trace_file import DEFAULT_BLOCK_TOKENS, TraceFile, parse_trace

WINDOW_S = 600.0  # of one row of the rates
SEGMENT_S = 21600.0  # of one row of the lengths
DAY_S = 86400.0
LEVELS = (0.01, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99)


@dataclass(frozen=True, kw_only=True)
class ShippedTrace:
    """One file of `data/traces.tsv`: `kind` is 'trace', or 'rates' and 'lengths' of a client mix."""

    name: str
    kind: str
    file: str
    source: str
    licence: str
    rows: int
    block_tokens: int | None
    what: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientMix:
    """A day of a service's clients.

    W windows with traffic: `client` indexes `client_names`; gaps between requests have the fitted shape, Weibull or
    else gamma; `rate_per_s` is what was measured. `segment` (W,) is the row of `prompt_tokens` and `output_tokens`
    (G, 7), quantiles at `LEVELS`.
    """

    client_names: tuple[str, ...]
    client: NDArray[np.int64]
    window_start_s: NDArray[np.float64]
    rate_per_s: NDArray[np.float64]
    shape: NDArray[np.float64]
    weibull: NDArray[np.bool_]
    segment: NDArray[np.int64]
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]


@cache
def shipped() -> Mapping[str, ShippedTrace]:
    """The shipped files by name."""
    found = store.records(ShippedTrace, store.read_tsv("traces.tsv"))
    return {one.name: one for one in found}


def trace_names() -> tuple[str, ...]:
    """Names of the shipped traces."""
    return tuple(name for name, entry in shipped().items() if entry.kind == "trace")


@cache
def shipped_trace(name: str) -> TraceFile:
    """The requests of a shipped trace."""
    if name not in trace_names():
        raise UnknownNameError("trace", name, trace_names())
    entry = shipped()[name]
    raw = store.read_bytes(f"traces/{entry.file}")
    return parse_trace(raw, f"data/traces/{entry.file}", block_tokens=entry.block_tokens or DEFAULT_BLOCK_TOKENS)


@cache
def client_mix() -> ClientMix:
    """ServeGen's clients of DeepSeek-R1; client names are the source's numbers."""
    rates = _rows("servegen-rates")
    lengths = [row for row in _rows("servegen-lengths") if row["in_p50"]]
    names = sorted({row["client"] for row in rates}, key=int)
    segments = {(row["client"], float(row["segment_start_s"]) // SEGMENT_S): i for i, row in enumerate(lengths)}
    return ClientMix(
        client_names=tuple(names),
        client=np.array([names.index(row["client"]) for row in rates], dtype=np.int64),
        window_start_s=_column(rates, "window_start_s"),
        rate_per_s=_column(rates, "rate_rps"),
        shape=_column(rates, "dist_p1"),
        weibull=np.array([row["iat_dist"] == "Weibull" for row in rates], dtype=np.bool_),
        segment=np.array(
            [segments[row["client"], float(row["window_start_s"]) // SEGMENT_S] for row in rates], dtype=np.int64
        ),
        prompt_tokens=_quantiles(lengths, "in"),
        output_tokens=_quantiles(lengths, "out"),
    )


def _rows(name: str) -> list[dict[str, str]]:
    text = gzip.decompress(store.read_bytes(f"traces/{shipped()[name].file}")).decode()
    return list(csv.DictReader(text.splitlines()))


def _column(rows: Sequence[Mapping[str, str]], name: str) -> NDArray[np.float64]:
    return np.array([float(row[name]) for row in rows], dtype=np.float64)


def _quantiles(rows: Sequence[Mapping[str, str]], side: str) -> NDArray[np.float64]:
    return np.stack([_column(rows, f"{side}_p{round(level * 100)}") for level in LEVELS], axis=1)
