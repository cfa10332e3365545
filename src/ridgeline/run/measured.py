"""What a run showed, put together from the answers of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ridgeline.run.spans import idle_share, moving_s, union_s


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run showed: per step and phase the slowest rank's seconds, losses, memory per rank, collectives.

    `memory_bytes` is the peak of PyTorch's allocator, `process_bytes` the growth of the process on a processor (heap
    and libraries too), a value a rank. `collectives` holds by kind `calls`, `seconds` from call to end and `moving`
    seconds once all ranks had come (absent where that cannot be told), medians over steps of the rank that spent most.
    `idle_shares` is the part of each step's pipeline in which a stage does not compute, mean over ranks; empty
    without a pipeline.
    """

    phases_s: tuple[Mapping[str, float], ...]
    losses: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    process_bytes: tuple[float, ...] = ()
    collectives: Mapping[str, Mapping[str, float]]
    idle_shares: tuple[float, ...] = ()
    device: str


def merged(ranks: Sequence[Mapping[str, Any]], device: str, *, one_group: bool) -> Measured:
    """The answers of all ranks as one; `one_group` says that every collective is of all ranks."""
    steps = range(len(ranks[0]["phases"]))
    phases = tuple(
        {name: max(one["phases"][step][name] for one in ranks) for name in ranks[0]["phases"][step]} for step in steps
    )
    last = max(one["stage"] for one in ranks)
    told = [one["losses"] for one in ranks if one["stage"] == last]
    return Measured(
        phases_s=phases,
        losses=tuple(sum(column) / len(column) for column in zip(*told, strict=True)),
        memory_bytes=tuple(float(one["tensor_bytes"]) for one in ranks),
        process_bytes=tuple(float(one["grown_bytes"]) for one in ranks),
        collectives=_collectives(ranks, one_group=one_group),
        idle_shares=tuple(_idle(ranks, step) for step in steps) if last else (),
        device=device,
    )


def _idle(ranks: Sequence[Mapping[str, Any]], step: int) -> float:
    phases = [one["phases"][step] for one in ranks]
    whole = max(one["forward"] + one["backward"] for one in phases)
    return idle_share([one["computing"] for one in phases], whole)


def _collectives(ranks: Sequence[Mapping[str, Any]], *, one_group: bool) -> dict[str, dict[str, float]]:
    """Calls and seconds by kind on the rank that spent most in them, medians over all observed steps but the first."""
    observed = [_of_step([one["spans"][step] for one in ranks], one_group) for step in range(len(ranks[0]["spans"]))]
    later = observed[1:] or observed
    if not any(later):
        return {}
    names = {kind for ranks_of in later for one in ranks_of for kind in one}

    def middle(rank: int, kind: str, field: str) -> float:
        seen = [ranks_of[rank][kind][field] for ranks_of in later if field in ranks_of[rank].get(kind, {})]
        return median(seen) if seen else 0.0

    busiest = max(range(len(ranks)), key=lambda rank: sum(middle(rank, kind, "seconds") for kind in names))
    found = {}
    for kind in sorted(names):
        fields = {field for ranks_of in later for one in ranks_of for field in one.get(kind, {})}
        found[kind] = {field: middle(busiest, kind, field) for field in sorted(fields)}
    return {kind: entry for kind, entry in found.items() if entry["calls"]}


def _of_step(ranks: Sequence[Any], one_group: bool) -> list[dict[str, dict[str, float]]]:
    """By rank and kind: calls, seconds from call to end, and seconds of moving bytes where they can be told."""
    moving = moving_s(ranks) if one_group else [{} for _ in ranks]
    found = []
    for spans, moved in zip(ranks, moving, strict=True):
        mine: dict[str, dict[str, float]] = {}
        for kind in {span[0] for span in spans}:
            own = [(begin, end) for name, begin, end in spans if name == kind]
            mine[kind] = {"calls": float(len(own)), "seconds": union_s(own)}
            if kind in moved:
                mine[kind]["moving"] = moved[kind]
        found.append(mine)
    return found
