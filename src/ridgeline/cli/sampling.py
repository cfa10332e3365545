"""`predict` of pictures: from a scenario file to seconds of a batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ModelError, PlanError
from ridgeline.plan.sampling_scenario import SamplingScenario, read_sampling
from ridgeline.predict.sampling import SamplingCost, sample
from ridgeline.report.blocks import Block, Line, Table, blank, show
from ridgeline.units import time_text

_WIDTH = 120  # columns when piped


def predict_sampling(subject: str, on: str | None, words: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints how long a batch of pictures takes; of flags, --on alone is read."""
    given = [name for name, value in words.items() if value is not None]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise InputError("pictures are asked in the scenario file; only --on may differ from it", field=flag)
    tables = (
        {} if on is None else {"cluster": {"file": str(Path(on).resolve())} if on.endswith(".toml") else {"name": on}}
    )
    asked = read_sampling(subject, tables)
    try:
        cost = sample(asked.model, asked.cluster, asked.asked, asked.by)
    except (ModelError, PlanError) as error:
        section = "plan" if isinstance(error, PlanError) else "workload"
        raise InputError(str(error), file=subject, field=section) from None
    if as_json:
        print(json.dumps(_as_dict(asked, cost), indent=1, allow_nan=False))
    else:
        show(_blocks(asked, cost), sys.stdout, width=_WIDTH)


def _as_dict(asked: SamplingScenario, cost: SamplingCost) -> dict[str, Any]:
    return {
        "model": asked.model, "machine": asked.cluster.name, "devices": asked.by.devices, "asked": vars(asked.asked),
        "division": vars(asked.by), "evidence": cost.evidence.label, "images_per_s": asked.asked.batch / cost.seconds,
        **{name: value for name, value in vars(cost).items() if name != "evidence"},
    }  # fmt: skip


def _blocks(asked: SamplingScenario, cost: SamplingCost) -> list[Block]:
    what, by = asked.asked, {name: size for name, size in vars(asked.by).items() if size > 1 and name != "warm"}
    frames = f", {what.frames} frames" if what.frames > 1 else ""
    divided = ", ".join(f"{name} {size}" for name, size in by.items()) or "one device"
    ends = {"words": cost.words_s, f"{what.steps} steps": cost.step_s * what.steps, "pixels": cost.pixels_s}
    rows = [(name, time_text(seconds), f"{seconds / cost.seconds:.0%}") for name, seconds in ends.items() if seconds]
    whole = sum(cost.parts.values())
    parts = [
        (name, time_text(seconds), f"{seconds / whole:.0%}")
        for name, seconds in sorted(cost.parts.items(), key=lambda part: -part[1])
    ]
    right = frozenset({"time", "share"})
    pictures = f"{what.batch} x {what.width} x {what.height}{frames}"
    return [
        Line(text=f"{pictures} by {asked.model} on {asked.cluster.name}, {divided}"),
        Line(text=f"{time_text(cost.seconds)} (80 % interval {time_text(cost.low_s)} to {time_text(cost.high_s)})"),
        Line(text=f"{what.batch / cost.seconds:.3g} pictures a second, {time_text(cost.step_s)} a step"),
        blank(),
        Table(columns=("part", "time", "share"), rows=tuple(rows), right=right),
        blank(),
        Table(columns=("of a step on one device", "time", "share"), rows=tuple(parts), right=right),
        blank(),
        *(Line(text=f"assumed: {text}", indent=2, hang=2) for text in cost.assumptions),
        Line(text=f"rates: {cost.evidence.label}", indent=2, hang=2),
    ]  # fmt: skip
