"""A scenario of pictures: a diffusion model, a cluster, what is asked and how it is divided, from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.graph.load import find
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.scenario.fields import read_fields
from ridgeline.scenario.sampling_fields import DIVISION_FIELDS, SAMPLING_FIELDS, TASK
from ridgeline.scenario.training import Place, Table, cluster_in, failing, guarded, task_in

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster


@dataclass(frozen=True, kw_only=True)
class SamplingScenario:
    """What to predict: a model by name, where, what of it and how it is divided."""

    model: str
    cluster: Cluster
    asked: Sampling
    by: Division
    per_minute: int | None = None  # pictures a minute that are wanted of the whole cluster [1/min]
    assumed: tuple[str, ...] = ()  # what nobody said


def names_sampling(subject: str) -> bool:
    """Whether a command's subject is a diffusion model, or a scenario whose task is diffusion that can be read."""
    if subject.endswith(".toml"):
        return task_in(subject) == TASK
    if find(subject) is not None:  # no model of the catalog is one
        return False
    from ridgeline.graph.denoiser_specs import find_diffusion

    return find_diffusion(subject) is not None


def sampling_of(tables: Mapping[str, Table], place: Place) -> SamplingScenario:
    """The scenario that tables describe; raises `InputError` with file, line and field, or the flag at fault."""
    from ridgeline.graph.denoiser_specs import diffusion_model, usual_sampling

    model = tables.get("model", {})
    name = model.get("name")
    if not isinstance(name, str) or set(model) != {"name"}:
        raise place.fail("model", "name", "needs the name of a diffusion model alone, e.g. name = 'flux.1-dev'")
    meant: str = guarded("model", {"name": name}, place, lambda: diffusion_model(name))
    cluster = cluster_in(tables, place)
    asked = read_fields(tables.get("workload", {}), SAMPLING_FIELDS, failing("workload", place))
    asked.pop("task", None)
    per_minute = asked.pop("pictures_per_minute", None)
    if ("width" in asked) != ("height" in asked):
        raise place.fail("workload", "height" if "width" in asked else "width", "missing: a picture has two sides")
    usual = {name: value for name, value in usual_sampling(meant).items() if name not in asked}
    sampling = guarded("workload", {}, place, lambda: Sampling(**{**usual, **asked}))
    stated = read_fields(tables.get("plan", {}), DIVISION_FIELDS, failing("plan", place))
    division = guarded("plan", {}, place, lambda: Division(**stated))
    told = ", ".join(f"{name} {value}" for name, value in usual.items() if name != "frames" or value > 1)
    return SamplingScenario(
        model=meant, cluster=cluster, asked=sampling, by=division, per_minute=per_minute,
        assumed=(f"{told}: what its pipeline makes where nothing is said",) if told else (),
    )  # fmt: skip
