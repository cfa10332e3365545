"""The best plan that keeps every field a person (or a measured row) has stated."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.errors import NoPlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.seams.resolve import rewritten
from ridgeline.search.search import Searcher
from ridgeline.search.space import Space


def complete(
    model: Model, cluster: Cluster, workload: Workload, stated: Mapping[str, object], *, evidence: str | None = None
) -> Plan:
    """The fastest plan with the stated fields of Plan; it fits in memory when any such plan does.

    Chunks of a stage that are not stated are chosen as well.
    When none fits, the one with the least excess memory is returned: what is stated ran, so it is the
    memory prediction that is in doubt.
    """
    schedules = ("1f1b",) if stated.get("chunks") == 1 else ("1f1b", "interleaved")
    space = Space(
        schedules=schedules,
        zero=(0, 1, 2, 3),
        overlap_tensor=(False,),
        offload_optimizer=(False,),
        within_host=False,
        fixed=stated,
    )
    model = rewritten(model, space.techniques)
    predictor = Predictor(model, cluster, workload, datasheet_only=evidence == "datasheet")
    searcher = Searcher(predictor, space)
    try:
        return searcher.run(top=1, budget=8).plans[0][1]
    except NoPlanError:
        if not searcher.groups:
            raise
        group = min(searcher.groups, key=lambda one: one.least[0])
        return group.plan(group.least[1])
