"""What each group of a fleet on devices of unlike kinds does and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.report.blocks import Table
from ridgeline.report.text import money_text


@dataclass(frozen=True, kw_only=True)
class GroupUse:
    """Instances of one deployment: shares of requests and output tokens [1] and of the time that it is busy [1].

    A request counts for the group of its last token. Prices are None where none is known of the kind.
    """

    kind: str
    role: str
    instances: int
    devices: int
    request_share: float
    output_token_share: float
    busy_share: float
    usd_per_h: float | None
    usd_per_million_output_tokens: float | None


def groups_table(groups: Sequence[GroupUse]) -> Table:
    """Groups, one a row."""
    rows = tuple(
        (
            one.kind, one.role, f"{one.instances:,}", f"{one.devices:,}", f"{one.request_share:.1%}",
            f"{one.output_token_share:.1%}", f"{one.busy_share:.1%}",
            "-" if one.usd_per_h is None else f"{one.usd_per_h:.4g}",
            "-" if one.usd_per_million_output_tokens is None else money_text(one.usd_per_million_output_tokens),
        )
        for one in groups
    )  # fmt: skip
    columns = ("device", "role", "instances", "devices", "requests", "output tokens", "busy", "$/h", "$/M tokens")
    return Table(columns=columns, rows=rows, right=frozenset(columns[2:]))
