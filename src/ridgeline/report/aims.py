"""Aims of a search: what a step of a plan, or a request of a deployment, takes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.errors import NoPlanError
from ridgeline.report.post_training import PostTrainingReport
from ridgeline.report.report import Report
from ridgeline.report.serving_search import Candidate

Spent = Report | PostTrainingReport | Candidate


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is wanted less of: how it is read from a step, from an iteration of post-training and from a deployment
    (None where it is not known), the key and the title of a step and of a deployment, and what must be known of the
    cluster for it."""

    step: Callable[[Report], float | None]
    iteration: Callable[[PostTrainingReport], float | None]
    fleet: Callable[[Candidate], float | None]
    keys: tuple[str, str]
    titles: tuple[str, str]
    needs: str = ""

    def of(self, one: Spent) -> float | None:
        """What a plan or a deployment takes of it."""
        if isinstance(one, PostTrainingReport):
            return self.iteration(one)
        return self.step(one) if isinstance(one, Report) else self.fleet(one)


AIMS = {
    "time": Aim(
        step=lambda one: one.step_time.value, iteration=lambda one: one.step.value,
        fleet=lambda one: float(one.metrics.latency.mean),
        keys=("time_s", "time_s"), titles=("s a step", "s a request"),
    ),
    "joules": Aim(
        step=lambda one: one.energy_j_per_step or None, iteration=lambda one: one.energy_j,
        fleet=lambda one: one.energy_j_per_token,
        keys=("energy_j", "energy_j"), titles=("J", "J/token"), needs="rated power",
    ),
    "carbon": Aim(
        step=lambda one: one.carbon_kg_per_step or None, iteration=lambda one: one.carbon_kg,
        fleet=lambda one: one.carbon_kg_per_token,
        keys=("carbon_kg", "carbon_kg"), titles=("kg CO2e", "kg CO2e/token"), needs="rated power or grid",
    ),
    "dollars": Aim(
        step=lambda one: one.usd_per_step, iteration=lambda one: one.usd,
        fleet=lambda one: 1.0 / one.good_per_usd if one.good_per_usd else None,
        keys=("usd_per_step", "usd_per_request"), titles=("$", "$/request"), needs="price",
    ),
}  # fmt: skip


def unknown(aim: str, cluster: str) -> str:
    """What is not known of a cluster, so that a search cannot aim at it."""
    return f"no {AIMS[aim].needs} is known of {cluster}: no {aim} to aim at"


def spent(one: PostTrainingReport, aim: str) -> float:
    """What an iteration takes of the aim; raises `NoPlanError` where that is not known of the devices."""
    found = AIMS[aim].iteration(one)
    if found is None:
        raise NoPlanError(unknown(aim, one.cluster.name))
    return found
