"""What users of sessions see: time of a whole session and what it goes on, and turns by their place in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.serving.metrics import Quantiles, latencies, quantiles
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import Traffic

_PLACES = (1, 2, 3, 5, 9, 17, 33)  # at which a group of turns begins


@dataclass(frozen=True, kw_only=True)
class TurnUse:
    """Turns `first` to `last` of sessions that ended: their number, mean prompt [token], share of it found in the
    cache [1], and TTFT [s]."""

    first: int
    last: int
    turns: int
    prompt_tokens_mean: float
    hit_share: float
    ttft: Quantiles


@dataclass(frozen=True, kw_only=True)
class SessionUse:
    """Sessions whose turns wait for each other, of which `done` ended every one.

    `time` [s] from the first turn's arrival to the last token; of all that time [1] the shares in tools or thinking,
    before first tokens, and generating.
    """

    sessions: int
    done: int
    turns_mean: float
    time: Quantiles
    waits_share: float
    ttft_share: float
    decode_share: float
    by_turn: tuple[TurnUse, ...]


def session_use(found: Replay, traffic: Traffic) -> SessionUse | None:
    """The sessions of a replay; None where no turn waits for another of its session."""
    same = (traffic.after >= 0) & (traffic.session >= 0) & (traffic.session[traffic.after] == traffic.session)
    if not same.any():
        return None
    place = np.ones(traffic.requests, dtype=np.int64)
    for i in np.flatnonzero(same):
        place[i] = place[traffic.after[i]] + 1
    session = traffic.session
    names, of, turns = np.unique(session[session >= 0], return_inverse=True, return_counts=True)
    mine = np.flatnonzero(session >= 0)
    begun, ended, whole = np.full(len(names), np.inf), np.zeros(len(names)), np.ones(len(names), dtype=bool)
    np.minimum.at(begun, of, np.nan_to_num(found.came_s[mine], nan=np.inf))
    np.maximum.at(ended, of, np.nan_to_num(found.end_s[mine]))
    np.logical_and.at(whole, of, found.done[mine])
    ttft, _, latency = latencies(found)
    took, counted = (ended - begun)[whole], mine[whole[of]]
    total = max(float(took.sum()), 1e-12)
    first, served = float(np.nansum(ttft[counted])), float(np.nansum(latency[counted]))
    groups = []
    for low, high in zip(_PLACES, (*_PLACES[1:], int(place.max()) + 1), strict=True):
        chosen = counted[(place[counted] >= low) & (place[counted] < high)]
        if chosen.size:
            prompts = traffic.prompt_tokens[chosen]
            groups.append(
                TurnUse(
                    first=low, last=min(high - 1, int(place.max())), turns=chosen.size,
                    prompt_tokens_mean=float(prompts.mean()),
                    hit_share=float(found.hit_tokens[chosen].sum() / prompts.sum()), ttft=quantiles(ttft[chosen]),
                )
            )  # fmt: skip
    return SessionUse(
        sessions=len(names), done=int(whole.sum()), turns_mean=float(turns.mean()), time=quantiles(took),
        waits_share=max(0.0, 1.0 - served / total), ttft_share=first / total, decode_share=(served - first) / total,
        by_turn=tuple(groups),
    )  # fmt: skip
