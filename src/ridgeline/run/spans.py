"""Time that ranks spend moving bytes, apart from the time in which one waits for another to come.

A collective's span on a rank runs from its call to its end, so the span of the rank that came first holds its waiting.
Ranks of one machine share a clock: the bytes of the n-th call of a kind move from the moment its last rank has come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

Span = tuple[str, float, float]  # kind, begin [s], end [s]
_SEND, _RECEIVE = "send", "recv"


def moving_s(ranks: Sequence[Sequence[Span]]) -> list[dict[str, float]]:
    """Seconds in which each rank's bytes move, by kind [s]: its spans from the moment that all ranks have come.

    The ranks must form one group, whose n-th call of a kind is one collective, and a send's bytes arrive when the
    peer's receiving ends: two ranks, for sends. Calls that overlap in time are counted once. Kinds whose calls differ
    in number between ranks are left out.
    """
    calls = [_by_kind(spans) for spans in ranks]
    found: list[dict[str, float]] = [{} for _ in ranks]
    for kind in sorted({name for one in calls for name in one} - {_SEND, _RECEIVE}):
        if len({len(one[kind]) for one in calls}) != 1:
            continue
        begun = [max(begins) for begins in zip(*([begin for begin, _ in one[kind]] for one in calls), strict=True)]
        for rank, one in enumerate(calls):
            spans = [(max(begin, last), end) for (begin, end), last in zip(one[kind], begun, strict=True)]
            found[rank][kind] = union_s(spans)
    if len(ranks) == 2:
        for rank, (sender, receiver) in enumerate((calls, calls[::-1])):
            sent, received = sender[_SEND], receiver[_RECEIVE]
            if sent and len(sent) == len(received):
                spans = [(max(begin, ready), end) for (begin, _), (ready, end) in zip(sent, received, strict=True)]
                found[rank][_SEND] = union_s(spans)
    return found


def _by_kind(spans: Sequence[Span]) -> Mapping[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, begin, end in sorted(spans, key=lambda span: span[1]):
        found[kind].append((begin, end))
    return found


def union_s(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that some of the spans cover [s].

    >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (7.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def idle_share(busy_s: Sequence[float], whole_s: float) -> float:
    """Mean share of a time in which ranks do not compute [1]: 1 - sum(busy) / (ranks whole); a pipeline's bubble.

    >>> idle_share([3.0, 2.0], 4.0)
    0.375
    """
    return 1.0 - sum(busy_s) / (len(busy_s) * whole_s)
