"""How instances come and go: scaling by a rule, failures and repairs; as pure data and as the clock reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.seams.registry import technique
from ridgeline.seams.router import Autoscaler
from ridgeline.serving.state import Array, Records

_FAILURES = 64  # of one instance at most


@dataclass(frozen=True, kw_only=True)
class Autoscale:
    """Instances by a `rule`, the text of an autoscaler, asked every `period_s` [s] up to `step` times; `ttft_s` [s] is
    the objective's. Starting takes `start_s` [s], None: a cold start's (`cold_start`). `fewest` are always up, the
    deployment's instances at most; each pool is scaled on its own, and keeps its own fewest.
    Cold starts pull `image_bytes` [byte] at `pull_bytes_per_s` and read weights at `load_bytes_per_s` [byte/s], 0: as
    fast as the engine's loader does."""

    rule: str = "load-scaling"
    ttft_s: float | None = None
    period_s: float = 10.0
    start_s: float | None = 60.0
    fewest: int = 1
    step: int = 1
    image_bytes: float = 10e9
    pull_bytes_per_s: float = 0.5e9
    load_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.period_s > 0 and (self.start_s or 0.0) >= 0 and self.fewest >= 1):
            raise PlanError(
                f"autoscale: period {self.period_s} s, start {self.start_s} s, fewest {self.fewest}; needs period > 0,"
                " start >= 0 and fewest >= 1"
            )
        self.hooks()

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """The rule as a hook of the clock."""
        rule = technique("autoscalers", self.rule)
        assert isinstance(rule, Autoscaler)
        return {"scales": rule.scales(self.ttft_s)}


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Instances fail and are repaired after exponential times of these means [s], drawn from a seed.

    Those on one kind of devices where `on` names it, as spot machines that are taken away beside others that stay.
    """

    mean_up_s: float
    mean_down_s: float
    seed: int = 0
    on: str = ""

    def __post_init__(self) -> None:
        if not (self.mean_up_s > 0 and self.mean_down_s >= 0):
            raise PlanError(
                f"failures: mean up {self.mean_up_s} s, mean down {self.mean_down_s} s; needs up > 0 and down >= 0"
            )


@dataclass(frozen=True, kw_only=True)
class FleetEvents:
    """How instances come and go; by default none does."""

    autoscale: Autoscale | None = None
    failures: Failures | None = None


def failures_of(instances: Records, fleet_events: FleetEvents, kinds: Sequence[str]) -> Array:
    """Times (I, F) from each instance's start to its failure and then to its repair, in turn [s]; notes the first.

    `kinds` are those of the devices of each deployment.
    """
    if fleet_events.failures is None:
        return np.zeros((len(instances), 0))
    law, rng = fleet_events.failures, np.random.default_rng(fleet_events.failures.seed)
    drawn = rng.exponential((law.mean_up_s, law.mean_down_s), (len(instances), _FAILURES, 2))
    drawn = drawn.reshape(len(instances), 2 * _FAILURES)
    if law.on:
        drawn[np.array(kinds)[instances["kind"]] != law.on] = np.inf
    instances["fails_s"] = np.where(instances["up"] > 0, drawn[:, 0], np.inf)
    return drawn


def scale(system: Records, instances: Records, auto: Autoscale | None) -> None:
    """Notes how instances are scaled; those beyond the fewest wait for it."""
    if auto is None:
        return
    system["period_s"] = system["look_s"] = auto.period_s
    if auto.start_s is None:
        raise PlanError("autoscale: how long a start takes hangs on the engine; say start=60s, or ask predict")
    system["start_s"] = auto.start_s
    system["scale_step"] = auto.step
    system["fewest"], system["most"] = auto.fewest, len(instances)
    for pool in np.unique(instances["takes"]):
        asleep = np.flatnonzero(instances["takes"] == pool)[auto.fewest :]
        instances["up"][asleep], instances["paid_since_s"][asleep] = 0, -1.0
