"""Whose requests are whose."""

from __future__ import annotations

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.serving.traffic.traffic import Ints, Traffic


def clients_of(traffic: Traffic) -> Ints:
    """Whose each request is, numbers from 0: of its client, or else of its session; those of nobody are one client's.

    Raises `PlanError` where the traffic names neither.
    """
    for owner in (traffic.client, traffic.session):
        if (owner >= 0).any():
            return np.unique(owner, return_inverse=True)[1].astype(np.int64)
    raise PlanError(
        f"deployment: queue = fair is fair among clients, and '{traffic.name}' names none;"
        " give a trace with a column client or session, or leave the queue in order of arrival"
    )
