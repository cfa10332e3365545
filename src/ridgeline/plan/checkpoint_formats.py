"""Number formats that a deployment leaves to its checkpoint: the one place that says which they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.graph.checkpoint import other_weights, served_weights

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model
    from ridgeline.plan.deployment import Deployment


def with_formats(one: Deployment, model: Model, cluster: Cluster) -> tuple[Deployment, str]:
    """The deployment in the formats that it is served in, and why where nobody asked for one; '' is 16 bits.

    What `weights` and `other_weights` say is kept; the rest is the checkpoint's own (`served_weights`). A deployment
    that came through here comes out of it again as it is.
    """
    rates, asked = rates_of_both(cluster), one.weights or None
    weights, why = served_weights(model, rates, asked)
    other = one.other_weights or other_weights(model, rates, asked)
    if (weights, other) == (one.weights, one.other_weights):
        return one, why
    return replace(one, weights=weights, other_weights=other), why


def rates_of_both(cluster: Cluster) -> frozenset[str]:
    """Number formats that every kind of device of a cluster multiplies."""
    beside = () if cluster.secondary is None else (cluster.secondary.cluster.accelerator,)
    return frozenset.intersection(*(frozenset(part.peak_flop_per_s) for part in (cluster.accelerator, *beside)))
