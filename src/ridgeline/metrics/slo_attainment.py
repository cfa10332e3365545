"""Share of an application's requests that keep all of their objectives, and how near they come to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.errors import InputError
from ridgeline.metrics.metric import Metric, Score
from ridgeline.metrics.results import Results
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class SloAttainment(Metric):
    """Share of an application's requests that keep all of their objectives, and how near they come to them.

    ConsumerBench's metrics of the tables that it writes, a row a request: a request is in its objectives where each
    time with an objective is at most that; a normalized latency is the mean over requests of a time over its objective.
    Of several applications, one table each, the least share tells how fair their sharing of a device is. A row without
    a number is a request that did not end, and is late.
    """

    key: ClassVar[str] = "slo-attainment"
    source: ClassVar[tuple[str, ...]] = ("consumerbench", "consumerbench-code")
    columns: ClassVar[Mapping[str, str]] = {
        "ttft": "[s] time to the first token", "tpot": "[s] time of each token after it",
        "time": "[s] of a whole request",
    }  # fmt: skip
    ttft: float | None = param(None, "s", "objective of the time to the first token", low=1e-6, high=1e6)
    tpot: float | None = param(None, "s", "objective of the time of a token", low=1e-6, high=1e6)
    time: float | None = param(None, "s", "objective of a whole request", low=1e-6, high=1e6)

    def score(self, table: Results) -> Score:
        """Requests, share in objectives [1], and mean time over each objective [1]."""
        asked = {name: bound for name in self.columns if (bound := getattr(self, name)) is not None}
        if not asked:
            raise InputError(
                "slo-attainment needs an objective; say slo-attainment(ttft=1,tpot=0.25) or (time=28)",
                field="--metric",
            )
        table.need(*asked)
        times = {name: [table.number(row, name) for row in table.rows] for name in asked}
        kept = sum(
            all(one is not None and one <= bound for one, bound in zip(each, asked.values(), strict=True))
            for each in zip(*times.values(), strict=True)
        )
        told = {name: [one for one in each if one is not None] for name, each in times.items()}
        normalized = {
            f"normalized_{name}": sum(each) / len(each) / asked[name] if each else None for name, each in told.items()
        }
        return Score(values={"requests": len(table.rows), "attained_share": kept / len(table.rows), **normalized})

    def across(self, scores: Sequence[Score]) -> Mapping[str, float | str | None]:
        """The least share of several applications [1]."""
        return {"least_attained_share": min(float(one.values["attained_share"] or 0.0) for one in scores)}
