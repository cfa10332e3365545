"""`predict` of pictures: from a scenario file to seconds of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import asked_tables
from ridgeline.errors import InputError, ModelError, PlanError
from ridgeline.memory.sampling import SamplingMemory
from ridgeline.plan.sampling import DEGREES, OFFLOADS
from ridgeline.predict.sampling import SamplingCost, sample
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.scenario.sampling import SamplingScenario, sampling_of
from ridgeline.scenario.sampling_fields import DIVISION_FIELDS, SAMPLING_FIELDS
from ridgeline.units import bytes_text, time_text

_WIDTH = 120  # columns when piped


def asked_of(subject: str, on: str | None, words: Mapping[str, Any]) -> SamplingScenario:
    """The pictures that a command line describes; flags win over a scenario file."""
    fields = {"workload": SAMPLING_FIELDS, "plan": DIVISION_FIELDS}
    return sampling_of(*asked_tables(subject, on, words, fields, "pictures", example="1xH100-SXM"))


def predict_sampling(subject: str, on: str | None, words: Mapping[str, Any]) -> Answer:
    """How long a batch of pictures takes, what it holds, draws and costs."""
    asked = asked_of(subject, on, words)
    try:
        cost = sample(asked.model, asked.cluster, asked.asked, asked.by)
    except (ModelError, PlanError) as error:
        section = "plan" if isinstance(error, PlanError) else "workload"
        raise InputError(str(error), file=subject if subject.endswith(".toml") else None, field=section) from None
    large = None if cost.memory.fits else _too_large(asked, cost.memory)
    return Answer(
        lambda: _as_dict(asked, cost), lambda: _blocks(asked, cost), width=_WIDTH, value=cost, impossible=large
    )


def _too_large(asked: SamplingScenario, memory: SamplingMemory) -> str:
    """What a device would have to hold, and with which weights in host memory it fits."""
    part, least = asked.cluster.accelerator.name, bytes_text(memory.peak_bytes)
    ways = [way for way in OFFLOADS if memory.with_offload(way) <= memory.capacity_bytes]
    nearest = f"offload = '{ways[0]}' holds {bytes_text(memory.with_offload(ways[0]))}" if ways else "a larger device"
    return (
        f"{asked.model} in {asked.asked.precision} holds at least {least} on each {part}, which has"
        f" {bytes_text(memory.capacity_bytes)}; nearest: {nearest}"
    )


def _as_dict(asked: SamplingScenario, cost: SamplingCost) -> dict[str, Any]:
    return {
        "model": asked.model, "machine": asked.cluster.name, "devices": asked.by.devices,
        "idle_devices": asked.cluster.count - asked.by.devices, "asked": vars(asked.asked),
        "division": vars(asked.by), "evidence": cost.evidence.label, "images_per_s": asked.asked.batch / cost.seconds,
        **{name: value for name, value in vars(cost).items() if name not in ("evidence", "memory", "assumptions")},
        "assumptions": (*asked.assumed, *cost.assumptions),
        "memory": {
            "parts": {name: vars(part) for name, part in cost.memory.parts.items()}, "offload": cost.memory.offload,
            "peak_bytes": cost.memory.peak_bytes, "capacity_bytes": cost.memory.capacity_bytes,
            "fits": cost.memory.fits,
        },
    }  # fmt: skip


def _blocks(asked: SamplingScenario, cost: SamplingCost) -> list[Block]:
    what, by = asked.asked, {name: getattr(asked.by, name) for name in DEGREES if getattr(asked.by, name) > 1}
    frames = f", {what.frames} frames" if what.frames > 1 else ""
    divided = ", ".join([f"{name} {size}" for name, size in by.items()] or ["one device"])
    divided += "".join(f"; {text}" for text in asked.by.technique)
    idle = asked.cluster.count - asked.by.devices
    divided += f"; {idle} of {asked.cluster.count} devices are idle" if idle else ""
    ends = {
        "words": cost.words_s,
        f"{what.steps} steps": cost.step_s * what.steps,
        "pixels": cost.pixels_s,
        "copies from host": cost.copied_s,
    }
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
        Line(text=f"{what.batch / cost.seconds:.3g} {_made(asked)}s a second, {time_text(cost.step_s)} a step"),
        *([Line(text=_wanted(asked, cost))] if asked.per_minute is not None else []),
        Line(text=_spent(asked, cost)),
        Line(text=_held(cost.memory)),
        blank(),
        Table(columns=("part", "time", "share"), rows=tuple(rows), right=right),
        blank(),
        Table(columns=("of a step on one device", "time", "share"), rows=tuple(parts), right=right),
        blank(),
        *(Line(text=f"assumed: {text}", indent=2, hang=2) for text in (*asked.assumed, *cost.assumptions)),
        Line(text=f"rates: {cost.evidence.label}", indent=2, hang=2),
    ]  # fmt: skip


def _made(asked: SamplingScenario) -> str:
    return "video" if asked.asked.frames > 1 else "picture"


def _wanted(asked: SamplingScenario, cost: SamplingCost) -> str:
    """The devices that make as many pictures as are wanted, of those there are."""
    groups = math.ceil((asked.per_minute or 0) / 60.0 * cost.seconds / asked.asked.batch)
    wanted, devices = f"{asked.per_minute:,} {_made(asked)}s a minute", groups * asked.by.devices
    return f"{wanted} take {devices:,} devices of {asked.cluster.count:,}"


def _spent(asked: SamplingScenario, cost: SamplingCost) -> str:
    """Energy and money of a picture."""
    each = asked.asked.batch
    money = "no price is known" if cost.usd is None else f"${1000 * cost.usd / each:.3g} a thousand {_made(asked)}s"
    carbon = "" if cost.carbon_kg is None else f", {cost.carbon_kg / each * 1e3:.3g} g CO2e a {_made(asked)}"
    return f"{cost.energy_j / each:,.4g} J a {_made(asked)}, {money}{carbon}"


def _held(memory: SamplingMemory) -> str:
    parts = ", ".join(f"{name} {bytes_text(part.weights_bytes)}" for name, part in memory.parts.items())
    told = "" if memory.fits else "DOES NOT FIT: "
    waits = {"none": "all stay on the device", "model": "one model at a time", "layers": "one layer at a time"}
    return (
        f"{told}at least {bytes_text(memory.peak_bytes)} of {bytes_text(memory.capacity_bytes)} on a device: weights"
        f" {parts}; {waits[memory.offload]}"
    )
