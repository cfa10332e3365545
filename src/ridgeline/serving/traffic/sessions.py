"""Turns of a conversation that follow one another: a turn comes only after the answer to the one before."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ridgeline.errors import WorkloadError
from ridgeline.serving.traffic.traffic import Traffic


def chained(traffic: Traffic, *, think_s: float = 0.0) -> Traffic:
    """The same requests, each waiting for the end of its session's previous one and then `think_s` [s].

    The written arrival stays as the earliest: a turn comes at max(arrival_s, end of the turn before + think_s).
    """
    if not (math.isfinite(think_s) and think_s >= 0):
        raise WorkloadError(f"think_s = {think_s} s; needs a finite number >= 0")
    if not (traffic.session >= 0).any():
        raise WorkloadError(f"'{traffic.name}' names no session, so no request follows another; add a session column")
    order = np.argsort(traffic.session, kind="stable")
    session = traffic.session[order]
    follows = (session[1:] == session[:-1]) & (session[1:] >= 0)
    after = np.full(traffic.requests, -1, dtype=np.int64)
    after[order[1:][follows]] = order[:-1][follows]
    return replace(traffic, after=after, think_s=np.where(after >= 0, think_s, 0.0))
