"""The one sentence: predict(scenario) = report(simulate(price(lower(build(workload), plan, cluster))))."""

from __future__ import annotations

from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict.explain import explain
from ridgeline.predict.predictor import RECOMPUTE_CODE, Evaluation, Predictor
from ridgeline.report.report import Report

__all__ = ["RECOMPUTE_CODE", "Evaluation", "Predictor", "explain", "predict"]


def predict(model: Model, cluster: Cluster, workload: Workload, plan: Plan, *, evidence: str | None = None) -> Report:
    """Predict one plan on one cluster; `evidence='datasheet'` uses no rate that anyone measured."""
    predictor = Predictor(model, cluster, workload, datasheet_only=evidence == "datasheet")
    return explain(predictor, predictor.evaluate(plan))
