"""The command `measure`: candidate kernels against their reference, or a plan run for real on local devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError
from ridgeline.facts.clusters import cluster
from ridgeline.report.as_json import choices, cluster_as_dict, model_as_dict, picked
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.units import bytes_text, time_text, whole_number

if TYPE_CHECKING:
    from ridgeline.judge.verdict import JudgeSettings, Verdict
    from ridgeline.run.gap import PlanComparison
    from ridgeline.run.measured import Comparison, RunPhase

_WIDTH = 120  # columns when piped


def measure(given: SimpleNamespace) -> Answer:
    """Runs a plan, or judges kernels with `kernel`; raises InputError for a device that is not there."""
    if (given.subject is None) == (given.kernel is None):
        raise InputError("say what: MODEL or SCENARIO.toml to run a plan, or --kernel FILE to judge a kernel")
    from ridgeline.judge.kernels import require_device

    require_device(given.device)
    what = "kernels" if given.kernel is not None else "batches"
    if given.solutions is not None and given.kernel is None:
        raise InputError("holds candidates of --kernel; say that too, or leave it out", field="--solutions")
    if given.append is not None and (given.kernel is not None or given.serve):
        raise InputError(f"{what} have no row in tables of training runs", field="--append")
    if given.kernel is not None:
        return measure_kernels(given)
    return (measure_batch if given.serve else measure_plan)(given)


def _timed(given: SimpleNamespace) -> dict[str, Any]:
    """Where a plan or batch is run, how often and how long at most."""
    return {"repeats": given.repeats or 5, "device": given.device, "limit_s": given.limit}


def measure_plan(given: SimpleNamespace) -> Answer:
    """Runs a training plan on local devices and prints predicted against measured, phase by phase."""
    from importlib.metadata import version

    from ridgeline.api.asking import blamed_on, scenario_of
    from ridgeline.run.append import append_rows, rows_of
    from ridgeline.run.gap import compare_plan

    machine = _machine(given.subject, given.on, given.words)
    asked = scenario_of(given.subject, machine, given.words, planned=True)
    assert asked.plan is not None
    with blamed_on(asked):
        found = compare_plan(asked.model, asked.cluster, asked.workload, asked.plan, **_timed(given))
    if given.append is not None:
        append_rows(given.append, rows_of(found, engine=f"ridgeline measure, torch {version('torch')}"))
    return Answer(
        lambda: {**_comparison(found), "assumed": list(asked.assumed)},
        lambda: _plan_blocks(found, asked.assumed),
        width=_WIDTH,
    )


def _machine(subject: str, on: str | None, words: Mapping[str, Any]) -> str | None:
    """The machine of a command line and file that name none: as many devices of this one as the plan uses."""
    if on is not None:
        return on
    plan: Mapping[str, Any] = {}
    if subject.endswith(".toml"):
        from ridgeline.scenario.training import tables_of

        tables, _ = tables_of(subject)
        if "cluster" in tables:
            return None
        plan = tables.get("plan", {})
    ranks = 1
    for name in ("tp", "pp", "cp", "dp"):
        ranks *= whole_number(str(words.get(name) or plan.get(name) or 1)) or 1
    return f"{max(1, ranks)}xhere"


def measure_batch(given: SimpleNamespace) -> Answer:
    """Runs one static batch on local devices and prints predicted against measured, by phase."""
    from ridgeline.api.asking import serving_scenario_of
    from ridgeline.run.gap import compare_batch
    from ridgeline.serving.traffic.asked import asked_traffic

    subject, words = given.subject, given.words
    engine = words.get("engine") or (None if subject.endswith(".toml") else "transformers")
    asked = serving_scenario_of(
        subject, _machine(subject, given.on, words),
        {**words, "batch": None, "requests": words.get("batch") or "1", "engine": engine},
    )  # fmt: skip
    if len(asked.deployments) != 1:
        raise InputError("two pools are not run here; leave prefill and decode out", field="plan")
    kept = {name: asked.traffic[name] for name in ("prompt", "output", "requests") if name in asked.traffic}
    traffic, assumed = asked_traffic({**kept, "arrivals": "burst"})
    found = compare_batch(asked.model, asked.cluster, asked.deployments[0], traffic, **_timed(given))
    count = len(found.measured.phases_s)
    told = f"{asked.model.name} on {asked.cluster.name}, {traffic.requests} sequences, {count} batches"
    return Answer(
        lambda: {
            "device": given.device,
            **_phases(found),
            "batches_s": [one["batch"] for one in found.measured.phases_s],
            **picked(found.measured, "memory_bytes", "process_bytes"),
            "remarks": list(found.remarks),
            "assumed": list(assumed),
        },
        lambda: [Line(text=told), *_gap_blocks(found, [*found.remarks, *_assumed(assumed)])],
        width=_WIDTH,
    )


def _phases(found: Comparison[Any]) -> dict[str, Any]:
    return {
        "phases": [vars(one) | {"error": one.error, "covered": one.covered} for one in found.phases],
        "widest_gap": found.widest,
        "widest_gap_share": found.widest_share,
    }


def _comparison(found: PlanComparison) -> dict[str, Any]:
    report, seen = found.report, found.measured
    return {
        "model": model_as_dict(report.model),
        "cluster": cluster_as_dict(report.cluster),
        "workload": choices(report.workload),
        "plan": choices(report.plan),
        "device": seen.device,
        **_phases(found),
        "losses": list(seen.losses),
        "steps_s": [one["step"] for one in seen.phases_s],
        **picked(seen, "memory_bytes", "process_bytes"),
        "idle_share": found.idle_share,
        **picked(seen, "idle_shares", "collectives"),
        "remarks": list(found.remarks),
    }


def _plan_blocks(found: PlanComparison, assumed: Sequence[str]) -> list[Block]:
    report = found.report
    ranks = f"{report.plan.devices} rank{'s' * (report.plan.devices > 1)}"
    told = f"{report.model.name} on {report.cluster.name}, {ranks}, {len(found.measured.phases_s)} steps"
    return [Line(text=told), *_gap_blocks(found, [*_beside(found), *found.remarks, *_assumed(assumed)])]


def _gap_blocks(found: Comparison[Any], notes: Sequence[str]) -> Iterator[Block]:
    """The phases, which of them explains most of the gap, and notes."""
    yield blank()
    yield _phase_table(found.phases)
    yield blank()
    yield Line(text=f"{found.widest} explains most of the gap: {found.widest_share:.0%} of the phases' differences")
    for text in notes:
        yield Line(text=text, indent=2, hang=2)


def _beside(found: PlanComparison) -> Iterator[str]:
    """What the rows do not hold: idle stages, and what the process holds beside its tensors."""
    seen = found.measured
    if found.idle_share is not None and seen.idle_shares:
        yield f"stages idle {median(seen.idle_shares):.0%} of the pipeline's time, predicted {found.idle_share:.0%}"
    if seen.device == "cpu" and seen.process_bytes:
        grown, held = max(seen.process_bytes), max(seen.memory_bytes)
        yield f"a process grew by {bytes_text(grown)}: tensors take {bytes_text(held)}, the rest is heap and libraries"


def _assumed(texts: Sequence[str]) -> list[str]:
    return [f"assumed: {one}" for one in texts]


def _phase_table(phases: Sequence[RunPhase]) -> Table:
    rows = []
    for one in phases:
        tell = bytes_text if one.unit == "byte" else time_text
        rows.append(
            (
                f"  {one.name}" if one.within else one.name,
                tell(one.predicted),
                f"{tell(one.low)} to {tell(one.high)}",
                tell(one.measured),
                f"{tell(one.measured_low)} to {tell(one.measured_high)}",
                "" if one.error is None else f"{one.error:+.0%}",
                "in" if one.covered else "out",
            )
        )
    columns = ("phase", "predicted", "80 % interval", "measured", "p10 to p90", "error", "interval")
    return Table(columns=columns, rows=tuple(rows), right=frozenset({"predicted", "measured", "error"}))


def measure_kernels(given: SimpleNamespace) -> Answer:
    """Judges the tasks of a file or folder; ends with 1 when a candidate is wrong or cheats."""
    from ridgeline.judge.kernels import judge_tasks
    from ridgeline.judge.tasks import kernel_tasks
    from ridgeline.judge.verdict import as_dict, fast_p

    with kernel_tasks(given.kernel, given.solutions) as tasks:
        verdicts = judge_tasks(tasks, given.candidate, _settings(given))
    shares = fast_p(verdicts)
    return Answer(
        lambda: {"kernels": [as_dict(one) for one in verdicts], "fast_p": shares},
        lambda: [*_kernel_blocks(verdicts), *_shares(shares, len(verdicts))],
        width=_WIDTH,
        value=verdicts,
        impossible=None if all(one.correct for one in verdicts) else "",
    )


def _settings(given: SimpleNamespace) -> JudgeSettings:
    from ridgeline.judge.verdict import JudgeSettings

    run: dict[str, Any] = {**_timed(given), "repeats": given.repeats or 20, "compiled": given.compiled}
    if given.on is None:
        return JudgeSettings(**run)
    part = cluster(given.on).accelerator
    sustained = {name: fact.value for name, fact in part.sustained.items()}
    rates = {name: sustained.get(f"matrix.{name}", peak) for name, peak in part.peak_flop_per_s.items()}
    if not rates:
        raise InputError(f"{part.name} has no product rate, so there is no roofline", field="--on")
    moved = sustained.get("hbm", part.memory_bytes_per_s)
    source = f"rates of {part.name}, measured where they are known"
    return JudgeSettings(flop_per_s=rates, bytes_per_s=moved, rates_source=source, **run)


def _kernel_blocks(verdicts: Sequence[Verdict]) -> Iterator[Block]:
    rows = []
    for one in verdicts:
        spent = one.candidate_time
        took = ("", "") if spent is None else (
            time_text(spent.median_s), f"{time_text(spent.low_s)} to {time_text(spent.high_s)}"
        )  # fmt: skip
        judged = "right" if one.correct else ", ".join(found.name for found in one.findings)
        eager = "" if one.speedup is None else f"{one.speedup:.2f}"
        roof = "" if one.roof_share is None else f"{one.roof_share:.0%}"
        rows.append((_task(one), one.candidate, judged, *took, eager, _compiled(one), roof))
    columns = ("task", "candidate", "judged", "median", "p10 to p90", "x eager", "x compiled", "of roofline")
    yield Table(columns=columns, rows=tuple(rows), right=frozenset({"median", "x eager", "x compiled", "of roofline"}))
    yield blank()
    for one in verdicts:
        for found in one.findings:
            text = f"{_task(one)} {one.candidate}: {found.kind}, {found.name}: {found.detail}"
            yield Line(text=text, indent=2, hang=2)
        for remark in one.remarks:
            yield Line(text=f"{_task(one)}: {remark}", indent=2, hang=2)
    roofs = {one.roof.source for one in verdicts if one.roof is not None}
    for source in sorted(roofs):
        yield Line(text=f"roofline: {source}", indent=2, hang=2)


def _task(verdict: Verdict) -> str:
    """A task's file without folder and ending, or the title of a row."""
    return Path(verdict.file).stem if verdict.file.endswith(".py") else verdict.file


def _compiled(verdict: Verdict) -> str:
    if verdict.compiled_time is None or verdict.candidate_time is None:
        return ""
    return f"{verdict.compiled_time.median_s / verdict.candidate_time.median_s:.2f}"


def _shares(shares: dict[str, float], count: int) -> Iterator[Line]:
    if count > 1:
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield Line(text=f"of {count} tasks: {told} (share that is right and more than p times as fast as eager)")
