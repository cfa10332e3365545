"""All that a prediction was made from, in one cell of a table of runs, so that `check` can make the same again."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import FrameworkPolicy, MemoryKeys, framework_policy
from ridgeline.graph.build import build
from ridgeline.graph.model import Model
from ridgeline.graph.workload import PRICED_AS, Workload
from ridgeline.plan.plan import Plan
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field, read_fields

COLUMN = "settings"
_PARTS = ("config", "workload", "habits", "plan")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A model, workload and plan as they were predicted."""

    model: Model
    workload: Workload
    plan: Plan

    def write(self) -> str:
        """One line of JSON that `read_settings` reads back; raises InputError for a model that has no config."""
        if not self.model.config:
            raise InputError(f"{self.model.name} was not built from a config, so no row can hold it", field="model")
        told = {
            "config": dict(self.model.config),
            "workload": _values(self.workload, WORKLOAD_FIELDS),
            "habits": changed_memory(self.workload.policy),
            "plan": _values(self.plan, PLAN_FIELDS),
        }
        return json.dumps(told, separators=(",", ":"))


def _values(record: Workload | Plan, known: tuple[Field, ...]) -> dict[str, object]:
    pairs = ((one, getattr(record, one.name)) for one in known)
    return {one.name: one.write(value) for one, value in pairs if value not in (None, "")}


def changed_memory(policy: FrameworkPolicy) -> dict[str, object]:
    """Memory keys of a program's policy that are not its framework's own, with their values."""
    usual = framework_policy(policy.key)
    names = (one.name for one in fields(MemoryKeys))
    return {name: getattr(policy, name) for name in names if getattr(policy, name) != getattr(usual, name)}


def read_settings(text: str, *, name: str) -> Settings:
    """The settings in a cell; raises InputError naming the field for a cell that was cut or edited to nonsense."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}", field=COLUMN) from None
    lacking = [part for part in _PARTS if not isinstance(told, dict) or part not in told]
    if lacking:
        raise InputError(f"lacks {', '.join(lacking)}", field=COLUMN)
    for part in _PARTS:
        if not isinstance(told[part], dict):
            raise InputError(f"{part} is no object of fields", field=COLUMN)

    def fail(field: str, message: str) -> InputError:
        return InputError(f"{field}: {message}", field=COLUMN)

    habits: dict[str, Any] = {
        key: value for key, value in told["habits"].items() if isinstance(value, bool | int | float | str)
    }
    try:
        values = read_fields(told["workload"], WORKLOAD_FIELDS, fail)
        policy = framework_policy(values.get("framework") or PRICED_AS)
        workload = Workload(**values | {"framework": replace(policy, **habits)})
        plan = Plan(**read_fields(told["plan"], PLAN_FIELDS, fail))
    except TypeError as error:
        raise InputError(f"leaves out what a run needs: {error}", field=COLUMN) from None
    model = build(told["config"], name=name, source=f"column {COLUMN}")
    return Settings(model=model, workload=workload, plan=plan)
