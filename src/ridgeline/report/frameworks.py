"""Which training frameworks run the best plan of a search, and what the best that each other runs costs more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.plan.plan import Plan
from ridgeline.report.report import FrameworkRun


def framework_lines(runs: Sequence[FrameworkRun], plan_text: Callable[[Plan], str]) -> list[str]:
    """One line for the frameworks that run the best plan, for those with the same best one, and for the rest."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        lines.setdefault(_what(run, plan_text), []).append(run.name)
    return [f"{', '.join(names)}: {what}" for what, names in lines.items()]


def _what(run: FrameworkRun, plan_text: Callable[[Plan], str]) -> str:
    if run.plan is None or run.slowdown is None:
        reason = run.why.partition(";")[0].removeprefix(f"{run.name} ")
        return f"no plan of these; {reason}"
    if not run.why:
        return "the best plan"
    share = f"{'at most ' if run.at_most else ''}{run.slowdown:.1%} slower"
    return f"{share if run.slowdown >= 0.0005 else 'as quick'} with {plan_text(run.plan)}"


def frameworks_as_list(runs: Sequence[FrameworkRun], plan: Callable[[Plan], Any]) -> list[dict[str, Any]]:
    """The same for JSON: `slowdown` [1] is None where a framework runs no plan that fits."""
    return [
        {
            "framework": run.name,
            "runs_best": not run.why,
            "slowdown": run.slowdown,
            "at_most": run.at_most,
            "plan": None if run.plan is None else plan(run.plan),
            "why_not_best": run.why,
        }
        for run in runs
    ]
