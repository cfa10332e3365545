"""What each client, or each priority, of a traffic got: the same quantiles as of all, by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.serving.metrics import Quantiles, quantiles
from ridgeline.serving.replay import Replay
from ridgeline.serving.state import Whole
from ridgeline.serving.traffic.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class RequestShare:
    """One group of requests: how many, how many of them ended, tokens of those, and what they waited [s]."""

    name: str
    requests: int
    done: int
    prompt_tokens: int
    output_tokens: int
    ttft: Quantiles
    tpot: Quantiles


def client_shares(found: Replay, traffic: Traffic) -> tuple[RequestShare, ...]:
    """What each client got, the most requests first."""
    names = traffic.client_names if (traffic.client >= 0).any() else ()
    owner = traffic.client if names else traffic.session
    return _shares(found, owner, dict(enumerate(names)), "nobody's")


def priority_shares(found: Replay, traffic: Traffic) -> tuple[RequestShare, ...]:
    """What the requests of each priority got, the most urgent first."""
    return tuple(sorted(_shares(found, traffic.priority, {}, ""), key=lambda one: int(one.name)))


def _shares(found: Replay, groups: Whole, names: dict[int, str], none: str) -> tuple[RequestShare, ...]:
    shares = []
    for group in np.unique(groups):
        mine = groups == group
        done = mine & found.done
        gaps = np.where(done & (found.output > 1), found.output - 1, np.nan)
        shares.append(
            RequestShare(
                name=none if none and group < 0 else names.get(int(group), str(group)),
                requests=int(mine.sum()),
                done=int(done.sum()),
                prompt_tokens=int(found.prompt[done].sum()),
                output_tokens=int(found.output[done].sum()),
                ttft=quantiles((found.first_s - found.came_s)[done]),
                tpot=quantiles((found.end_s - found.first_s) / gaps),
            )
        )
    return tuple(sorted(shares, key=lambda one: -one.requests))
