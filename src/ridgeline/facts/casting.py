"""Attention over 8-bit caches by kernels that cast queries to the cache's format: fits under two names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_CASTS, _ASKED = "fp8", "bf16_kv8"  # products in 8 bits, and what is asked where only the cache is said to be narrow


def with_cast_queries(family: str, rows: Iterable[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Rows of fits, and those of prompts in 8 bits again for 8-bit caches of kernels that read them in no other way.

    A kernel that was timed over an 8-bit cache with 16-bit queries too has rows of its own for it. Decode is timed
    under the cache's format whatever queries are cast to. Source: sglang, layers/attention/flashattention_backend.py
    and trtllm_mha_backend.py (queries go to the cache's format); aiconfigurator, collection_meta.yaml of B200's
    attention tables. Evidence: measured elsewhere, as the rows themselves.

    >>> row = {"device": "H100-SXM", "engine": "sglang", "version": "0.5.14", "kernel": "fa3", "form": "fp8"}
    >>> [one["form"] for one in with_cast_queries("prefill", [row])]
    ['fp8', 'bf16_kv8']
    """
    known = list(rows)
    yield from known
    if family == "prefill":
        kept = {_kernel(row) for row in known if row["form"] == _ASKED}
        yield from ({**row, "form": _ASKED} for row in known if row["form"] == _CASTS and _kernel(row) not in kept)


def _kernel(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("device", "engine", "version", "kernel"))
