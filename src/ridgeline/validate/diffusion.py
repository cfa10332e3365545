"""Rows of image and video diffusion: which model at which size, divided how, and what is measured of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading, words
from ridgeline.facts.records import Accelerator
from ridgeline.graph.denoiser_specs import DENOISERS, find_diffusion
from ridgeline.graph.diffusion import UNETS
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.sampling import SamplingCost, sample
from ridgeline.validate.hardware import find_device
from ridgeline.validate.machines import Machines, machines, place
from ridgeline.validate.recipes import FP8_ARCHITECTURES, HALF_ONLY
from ridgeline.validate.rows import Row
from ridgeline.validate.score import Memo, scored

MEMORY = "memory_gb_per_gpu"
METRICS = ("latency_s", "latency_per_step_s", "images_per_s", "steps_per_s", MEMORY)
_SPELLED = words("sampled_metric")
"""Metrics by other words. A step is one of the denoiser's, guidance included, as diffusers counts."""

_UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "min": 60.0},
    "1/s": {f"{what}/{each}": scale for what in ("images", "image", "img", "samples", "it", "steps", "1", "videos")
            for each, scale in (("s", 1.0), ("min", 1 / 60))},
    "byte": {"GB": 1e9, "GiB": 2.0**30, "MiB": 2.0**20},
}  # fmt: skip
"""Units of a time, of a rate and of memory, in SI."""

_OF_A_STEP = ("latency_per_step_s", "steps_per_s")
ENGINE_BATCH = 8  # pictures that an engine makes at a time when a row leaves it to the engine (assumed)
EIGHT_BITS = re.compile(r"fp8|int8|float8", re.IGNORECASE)
_DIVISION = re.compile(
    r"(cfg(?: parallel)?|ulysses|ring|pipefusion|tensor parallel|\btp|sequence parallel|\busp|\bsp)\s*[-=]?\s*(\d+)",
    re.IGNORECASE,
)
_WORDS = {
    "cfg": "guidance", "cfg parallel": "guidance", "pipefusion": "pipeline", "tensor parallel": "tensor",
    "tp": "tensor", "sequence parallel": "ulysses", "usp": "ulysses", "sp": "ulysses",
}  # fmt: skip
_PLAIN = re.compile(
    r"single (?:GPU|device)|\breplicas\b|data[- ]parallel|^none$|^\w+ (?:dynamic )?quanti[sz]ation\b", re.IGNORECASE
)


class DiffusionRows:
    """Answers rows of a table of diffusion one by one; rows that ask the same are predicted once."""

    def __init__(self, source: Machines | None = None) -> None:
        self._source = source
        self._known = Memo[SamplingCost]()

    def answer(self, row: Row) -> dict[str, Any]:
        """One row's answer; raises `InputError` with the reason when it has none."""
        metric, name = _metric(row), _model(row)
        source = self._source or machines()
        found = find_device(row.text("hardware"), source.accelerators(), source.usual)
        devices = _count(row, "n_devices") or 1
        by, replicas, said = _division(row, devices)
        asked, more = _sampling(row, metric, found.accelerator)
        texts = (row.text("hardware"), row.text("note"))
        cluster, wiring = place(found.accelerator, by.devices, texts, source)
        key = repr((name, cluster.name, found.accelerator, cluster.tiers, asked, by))
        cost = self._known.of(key, lambda: sample(name, cluster, asked, by))
        scale = _scale(row, metric)
        value, low, high = (each / scale for each in _read(metric, cost, asked, replicas))
        assumed = dict.fromkeys((*found.assumptions, *wiring, *said, *more, *cost.assumptions))
        named = {"model": name, "device": found.accelerator.name, "assumptions": list(assumed)}
        return scored(row, value, low, high, evidence=cost.evidence, **named)


def _metric(row: Row) -> str:
    metric = row.text("metric").strip().casefold()
    refused = reading("sampled_refused", words=metric)
    if refused is not None:
        raise InputError(f"'{metric}': {refused.value}", field="metric")
    metric = _SPELLED.get(metric, metric)
    if metric not in METRICS:
        raise InputError(f"'{metric}' is not predicted; known: {', '.join(METRICS)}", field="metric")
    return metric


def _scale(row: Row, metric: str) -> float:
    """The row's unit in SI [s], [1/s] or [byte]; raises `InputError` for another kind of unit."""
    kind = "byte" if metric == MEMORY else "1/s" if metric.endswith("s_per_s") else "s"
    unit, known = row.text("unit").strip(), _UNITS[kind]
    if unit and unit not in known:
        raise InputError(f"'{unit[:20]}' is no unit of {metric}; known: {', '.join(known)}", field="unit")
    return known.get(unit, 1e9 if kind == "byte" else 1.0)


def _model(row: Row) -> str:
    name = row.text("model").strip()
    found = find_diffusion(name)
    if found is None:
        known = ", ".join((*DENOISERS, *UNETS))
        raise InputError(f"'{name[:60]}' is no diffusion model that is predicted; known: {known}", field="model")
    return found


def _count(row: Row, field: str) -> int | None:
    text = row.text(field)
    if not text:
        return None
    if not re.fullmatch(r"\d{1,7}", text) or int(text) < 1:
        raise InputError(f"'{text[:40]}' is not a whole number above 0", field=field)
    return int(text)


def _division(row: Row, devices: int) -> tuple[Division, int, tuple[str, ...]]:
    """How a picture's work is divided, how often that is there, and what was assumed."""
    text = row.text("technique")
    if _PLAIN.search(text) or not text:
        return Division(), devices, ()
    if re.search(r"cache|distrifusion|label says", text, re.IGNORECASE):
        raise InputError(f"'{text}': this technique is not predicted", field="technique")
    found: dict[str, Any] = {}
    for word, number in _DIVISION.findall(text):
        field = _WORDS.get(word.casefold(), word.casefold())
        found[field] = int(number)
    if re.fullmatch(r"SP\d+", text):
        found["ulysses"] = int(text[2:])
    if not found:
        raise InputError(
            f"'{text}' names no division; known: cfg, ulysses, ring, pipefusion, tensor", field="technique"
        )
    by = Division(**found)
    if devices % by.devices:
        raise InputError(f"'{text}' takes {by.devices} devices, the row has {devices}", field="n_devices")
    said = ("the first step of a pipeline waits (xDiT's warmup_steps)",) if by.pipeline > 1 else ()
    return by, devices // by.devices, said


def _sampling(row: Row, metric: str, device: Accelerator) -> tuple[Sampling, tuple[str, ...]]:
    """What a row asks for: size, steps, batch, precision and execution."""
    cell = row.text("resolution").strip()
    size = re.fullmatch(r"(\d{2,5})\s*[xX*\u00d7]\s*(\d{2,5})", f"{cell}x{cell}" if cell.isdecimal() else cell)
    steps, said = _count(row, "steps"), []
    if size is None:
        raise InputError("the size of the picture is not stated", field="resolution")
    if steps is None and metric in (*_OF_A_STEP, MEMORY):
        steps = 1
    if steps is None:
        raise InputError("the number of steps is not stated", field="steps")
    precision, engine = "bf16", re.search(r"tensorrt|shark|stage|flax|jetpack", row.text("engine"), re.IGNORECASE)
    cell = row.text("precision")
    narrow = device.architecture in FP8_ARCHITECTURES
    if device.architecture in HALF_ONLY or re.match(r"(?:fp|float)16\b", cell, re.IGNORECASE):
        precision = "fp16"
    if (EIGHT_BITS.search(cell) or (not cell and re.search("tensorrt", row.text("engine"), re.IGNORECASE))) and narrow:
        precision = "fp8"
        said.append("products and convolutions of the denoiser in 8 bits")
    compiled = row.text("compile").casefold() in ("torch.compile", "onediff", "yes")
    execution = "graph" if engine else "compiled" if compiled else "eager"
    batch = _count(row, "batch")
    if batch is None:
        batch = ENGINE_BATCH
        said.append(f"batch not stated: {batch} pictures at a time assumed")
    width, height = int(size[1]), int(size[2])
    if row.text("frames") and height > width:  # some tables give videos as height x width
        width, height = height, width
    asked = Sampling(
        width=width, height=height, frames=_count(row, "frames") or 1, steps=steps, batch=batch, precision=precision,
        execution=execution, attention_kernel="flash" if engine else "flash2",
    )  # fmt: skip
    return (replace(asked, decoded=False) if metric in _OF_A_STEP else asked), tuple(said)


def _read(metric: str, cost: SamplingCost, asked: Sampling, replicas: int) -> tuple[float, float, float]:
    """Value, low and high of a metric."""
    if metric == MEMORY:
        return cost.memory.peak_bytes, *cost.memory.interval_bytes
    if metric == "images_per_s":
        made = float(asked.batch * replicas)
        return made / cost.seconds, made / cost.high_s, made / cost.low_s
    if metric == "latency_per_step_s":
        return cost.step_s, *cost.share(cost.step_s)
    if metric == "steps_per_s":
        low, high = cost.share(cost.step_s)
        return 1.0 / cost.step_s, 1.0 / high, 1.0 / low
    return cost.seconds, cost.low_s, cost.high_s
