"""Reads a truth table, predicts every row it can, and says how wrong it was."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.cost.answer import ALL, Rung
from ridgeline.errors import NoPlanError, RidgelineError
from ridgeline.facts.readings import recipes_told
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.report.report import Report
from ridgeline.validate.diffusion import DiffusionRows
from ridgeline.validate.interpret import Interpretation, Refusal, interpret
from ridgeline.validate.machines import Machines, machines
from ridgeline.validate.metrics import Prediction, TrainingMetric, find_metric, said_word
from ridgeline.validate.notes import is_language
from ridgeline.validate.offload import OffloadRows
from ridgeline.validate.offload_rows import on_processors
from ridgeline.validate.operators import answer_operator
from ridgeline.validate.post_training import Iteration, PostTrainingRows
from ridgeline.validate.rows import MEASURED_KINDS, PROVENANCE, Row, TruthTable, read
from ridgeline.validate.score import Memo, scored, summarise
from ridgeline.validate.serving import ServedRows, by_recipe
from ridgeline.validate.unsaid import widened

Predictor = Callable[[Model, Cluster, Workload, Plan], Report]
Completer = Callable[[Model, Cluster, Workload, Mapping[str, object]], Plan]

OPERATOR_KINDS = ("kernels", "collectives")
SEQUENCE_STEP = 1024  # resolution of the longest sequence that fits, for one context rank [token]
SEARCH_SHARE = 50  # the search ends within 1 / 50 of the answer
LONGEST_SEQUENCE = 2**27  # 134M tokens, beyond any published run [token]
_WHOLE_PLAN = ("tp", "pp", "cp", "dp", "micro_batch")


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The answer to `check`, ready for JSON: one dictionary a row, and the summary."""

    path: str
    rows: tuple[dict[str, Any], ...]
    summary: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The report under its stable keys."""
        return {"path": self.path, "rows": list(self.rows), "summary": self.summary}


def check(
    path: str | Path,
    *,
    completer: Completer,
    predictor: Predictor | None = None,
    source: Machines | None = None,
    strict: bool = False,
    blind: bool = False,
) -> CheckReport:
    """Every row of a truth table answered: scored, refused with the reason, or skipped by rule.

    `predictor(model, cluster, workload, plan)` gives the report of a plan, `completer(model,
    cluster, workload, stated)` the best plan that keeps the stated fields. `strict` lets errors
    that are not Ridgeline's own through; else they are refused as 'internal'. `blind` hides from each prediction where
    its row comes from, and with it every recipe of a source. Raises `InputError` when nothing in the file can be used.
    """
    table = read(path)
    checker = Checker(predictor=predictor, completer=completer, source=source, strict=strict, blind=blind)
    rows = tuple(checker.answer(row, table) for row in table.rows)
    return CheckReport(path=table.path, rows=rows, summary=summarise(rows, kind=table.kind))


class Checker:
    """Answers rows one by one; scenarios that ask the same are predicted once."""

    def __init__(
        self,
        *,
        completer: Completer,
        predictor: Predictor | None = None,
        source: Machines | None = None,
        strict: bool = False,
        rungs: tuple[Rung, ...] = ALL,
        blind: bool = False,
        recipe: str = "",
        iteration: Iteration | None = None,
    ) -> None:
        self._rungs, self._blind, self._recipe = rungs, blind, recipe
        self._predictor = predictor or _default_predictor()
        self._completer = completer
        self._source, self._strict = source, strict
        self._served = ServedRows(source)
        self._offloaded = OffloadRows(source)
        self._sampled = DiffusionRows(source)
        self._post_trained = PostTrainingRows(iteration, source)
        self._reports = Memo[Report]()

    def answer(self, row: Row, table: TruthTable) -> dict[str, Any]:
        """One row's dictionary, with the keys of every row."""
        answer = _blank(row)
        reason = _refused_kind(row, table)
        if reason is not None:
            return answer | {"status": reason[0], "reason": reason[1]}
        asked = row.blind() if self._blind else row
        with recipes_told(*(asked.text(name) for name in PROVENANCE), asked.source) as recipes:
            answer |= self._tried(lambda: self._answered(asked, table.kind))
        return answer | {"recipes": list(recipes)}

    def _answered(self, row: Row, kind: str) -> dict[str, Any]:
        if kind == "serving":
            row = row if self._blind else by_recipe(row, self._recipe)
            alone = on_processors(row)
            return self._served.answer(row) if alone is None else self._offloaded.answer(alone)
        if kind == "offload":
            return self._offloaded.answer(row)
        if kind == "post-training":
            return self._post_trained.answer(row)
        if kind == "diffusion":
            return self._sampled.answer(row)
        if kind in OPERATOR_KINDS:
            return answer_operator(row, kind, self._source or machines(), self._rungs)
        metric = find_metric(row)
        job = interpret(row, source=self._source)
        if isinstance(job, Refusal):
            return {"status": "refused", "reason": job.reason, "engine": job.engine, "device": job.device}
        known: dict[str, Any] = {"engine": job.engine.name, "device": job.cluster.accelerator.name}
        known |= {"model": job.model.name, "assumptions": list(job.assumptions)}
        return known | self._tried(lambda: self._scored(row, job, metric))

    def _tried(self, predict: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `predict` answers, or the refusal that its error is."""
        try:
            return predict()
        except RidgelineError as error:
            return {"status": "refused", "reason": str(error)}
        except Exception as error:
            if self._strict:
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).stem}.{place.name}"
            return {"status": "refused", "reason": f"internal: {type(error).__name__}: {error} (in {where})"}

    def _scored(self, row: Row, job: Interpretation, metric: TrainingMetric) -> dict[str, Any]:
        if metric.name == "fits":
            return self._fits(row, job)
        found = self._longest(job) if metric.read is None else metric.read(row, job, self._report(job))
        found = widened(row, job, found, metric, self._report)
        evidence = Evidence.ASSUMED if job.derived else found.evidence
        return scored(row, found.value, found.low, found.high, evidence=evidence)

    def _fits(self, row: Row, job: Interpretation) -> dict[str, Any]:
        word = "fits" if self._does_fit(job) else "OOM"
        evidence = Evidence.ASSUMED if job.derived else Evidence.DERIVED
        return {"status": "scored", "measured": said_word(row), "predicted": word, "evidence": evidence.label}

    def _does_fit(self, job: Interpretation) -> bool:
        try:
            return self._report(job).fits
        except NoPlanError:
            return False

    def _longest(self, job: Interpretation) -> Prediction:
        """The longest sequence that fits, by bisection over multiples of `SEQUENCE_STEP` for each context rank."""
        step = SEQUENCE_STEP * max(1, int(str(job.stated.get("cp", 1))))
        low, high = 0, 1
        while high * step <= LONGEST_SEQUENCE and self._fits_at(job, high * step):
            low, high = high, 2 * high
        while high - low > max(1, low // SEARCH_SHARE):
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits_at(job, middle * step) else (low, middle)
        if low == 0:
            raise NoPlanError(f"not even {step} tokens fit; the row measured {job.workload.seq_len}")
        return Prediction(value=float(low * step), low=None, high=None, evidence=Evidence.DERIVED)

    def _fits_at(self, job: Interpretation, seq_len: int) -> bool:
        workload = replace(job.workload, seq_len=seq_len)
        return self._does_fit(replace(job, workload=workload, key=f"{job.key} at {seq_len}"))

    def _report(self, job: Interpretation) -> Report:
        return self._reports.of(job.key, lambda: self._predict(job))

    def _predict(self, job: Interpretation) -> Report:
        plan = _plan(job.stated) if _settled(job.stated) else self._chosen(job)
        report = self._predictor(job.model, job.cluster, job.workload, plan)
        return replace(report, tasks=None, timeline=None)

    def _chosen(self, job: Interpretation) -> Plan:
        try:
            return self._completer(job.model, job.cluster, job.workload, job.stated)
        except NoPlanError:
            # A measured run did fit, so a wholly stated plan is priced all the same.
            if not all(name in job.stated for name in _WHOLE_PLAN):
                raise
            return _plan(job.stated)


def _plan(stated: Mapping[str, object]) -> Plan:
    return Plan(**stated)  # type: ignore[arg-type]


def _settled(stated: Mapping[str, object]) -> bool:
    """Whether the stated fields leave nothing to choose: fields not stated are then switches that are off."""
    needed = {*_WHOLE_PLAN, "ep", "etp", "zero", "recompute", "sequence_parallel"}
    return needed <= stated.keys() and (stated["pp"] == 1 or "chunks" in stated)


def _default_predictor() -> Predictor:
    from ridgeline.predict import predict

    return partial(predict, changes=False)


def _blank(row: Row) -> dict[str, Any]:
    """A row's keys before it is answered."""
    measured: float | str | None = row.measured
    return {
        "id": row.id,
        "line": row.line,
        "status": "",
        "reason": "",
        "metric": row.text("metric"),
        "unit": row.text("unit"),
        "scenario": row.text("scenario"),
        "measured": row.text("value") if measured is None else measured,
        "predicted": None,
        "low": None,
        "high": None,
        "ape": None,
        "evidence": None,
        "model": row.text("model"),
        "language_model": is_language(row.text("model")),
        "device": row.text("hardware") or row.text("gpu") or "not stated",
        "engine": row.text("engine") or row.text("library") or "not stated",
        "source": row.source,
        "assumptions": [],
        "recipes": [],
    }


def _refused_kind(row: Row, table: TruthTable) -> tuple[str, str] | None:
    """Status and reason of rows that no prediction is tried for."""
    if table.kind not in MEASURED_KINDS:
        return "skipped", f"a table of {table.kind} holds facts, not measured results"
    if row.problem is not None:
        return "refused", row.problem
    if re.fullmatch(r"low", row.text("confidence"), re.IGNORECASE):
        return "skipped", "confidence low: inconsistent, never scored"
    return None
