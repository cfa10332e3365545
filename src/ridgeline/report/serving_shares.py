"""What each client, or each priority, got: a table of the most frequent, all of them under stable keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.serving.shares import Share
from ridgeline.units import time_text

_SHOWN = 8  # rows of the table


def shares_blocks(shares: Sequence[Share], of: str) -> list[Block]:
    """A table of shares; nothing where there are none."""
    if not shares:
        return []
    names = ("requests", "ended", "tokens in", "tokens out", "TTFT p50", "TTFT p99", "TPOT p99")
    rows = [
        (
            one.name, f"{one.requests:,}", f"{one.done:,}", f"{one.prompt_tokens:,}", f"{one.output_tokens:,}",
            _cell(one.ttft.p50), _cell(one.ttft.p99), _cell(one.tpot.p99),
        )
        for one in shares[:_SHOWN]
    ]  # fmt: skip
    more = [Line(text=f"and {len(shares) - _SHOWN:,} more (--json has all)", indent=2)] if len(shares) > _SHOWN else []
    return [
        Line(text=f"By {of}", strong=True),
        Table(columns=(of, *names), rows=tuple(rows), right=frozenset(names)),
        *more,
        blank(),
    ]


def share_as_dict(one: Share) -> dict[str, Any]:
    """A share under stable keys, SI numbers."""
    found: dict[str, Any] = {name: getattr(one, name) for name in ("name", "requests", "done")}
    found |= {"prompt_tokens": one.prompt_tokens, "output_tokens": one.output_tokens}
    for name, values in (("ttft", one.ttft), ("tpot", one.tpot)):
        found[name] = {f"{key}_s": value if math.isfinite(value) else None for key, value in vars(values).items()}
    return found


def _cell(value_s: float) -> str:
    return time_text(value_s) if math.isfinite(value_s) else "-"
