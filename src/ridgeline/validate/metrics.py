"""What a metric and its unit ask for, and how it is read off a report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.facts.benchmarks import Convergence, convergence
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.readings import reading, tell_recipe
from ridgeline.facts.records import Evidence
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import LinearOp
from ridgeline.graph.workload import Task
from ridgeline.memory.stage import STATES, peak_interval, peak_range
from ridgeline.report.report import Report, StageMemory
from ridgeline.units import UNITS
from ridgeline.validate.images import counted_times, meters_tokens
from ridgeline.validate.interpret import Interpretation
from ridgeline.validate.rows import Row

PASSES = 3  # forward once and backward twice; recompute adds one more
OUTSIDE_ALLOCATOR = ("context",)
"""Memory categories that a framework's allocator does not count."""
FP32_BYTES = 4.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted number in the row's unit with its interval, None where the report gives none."""

    value: float
    low: float | None
    high: float | None
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class TrainingMetric:
    """How one kind of metric is read off a report; names that match `pattern` are of this kind.

    `read` is None for metrics that ask whether jobs fit, which takes more than one report.
    """

    name: str
    pattern: str
    read: Callable[[Row, Interpretation, Report], Prediction] | None


REFUSED: tuple[tuple[str, str], ...] = (
    (r"time_to_accuracy|convergence", "it depends on convergence, which is not predicted"),
    (r"needs_more_than|at_least|at_most", "a one-sided statement is no measurement"),
)
"""Metrics that no prediction of a step can answer."""


def find_metric(row: Row) -> TrainingMetric:
    """The kind of metric that a row asks for; raises `InputError` with the reason when it cannot be answered."""
    name = row.text("metric").casefold()
    for pattern, reason in REFUSED:
        if re.search(pattern, name):
            raise InputError(f"'{row.text('metric')}': {reason}", field="metric")
    for metric in METRICS:
        if re.fullmatch(metric.pattern, name):
            if metric.name != "fits":
                row.positive()
            _check_unit(metric, row)
            return metric
    known = ", ".join(metric.name for metric in METRICS)
    raise InputError(
        f"'{row.text('metric')}' is not a metric of training that is predicted; known: {known}", field="metric"
    )


def said_word(row: Row) -> str:
    """'fits' or 'OOM' as the row's value says it."""
    value = row.text("value").casefold()
    return "OOM" if re.search(r"oom|not|no\b|out of memory|fail|false", value) else "fits"


_DIMENSIONS = {
    "step_time": "s", "forward_time": "s", "time_to_train": "s", "memory": "byte", "allocated": "byte",
    "states": "byte", "activations": "byte", "power": "W",
}  # fmt: skip
_COUNTED = r"tok|samp|seq|im(?:g|age)|examp|sent|utter|frame|word|pair|item|record|row|clip|volume|graph|quer|it\b|step"
_SHAPES = {
    "tokens_per_s": (_COUNTED, "tok/s"),
    "samples_per_s": (_COUNTED, "samples/s"),
    "flop_rate": (r"^[kmgtpe]?fl?op", "TFLOP/s"),
    "utilisation": (r"^(?:%|1|percent|ratio|fraction)$", "%"),
    "device_hours": (r"\bh(?:ours?|rs?)?\b", "GPU h"),
    "max_seq_len": (r"^tok", "tokens"),
}
"""What the units of other metrics look like, and one of them; a blank unit is the metric's own."""


def _check_unit(metric: TrainingMetric, row: Row) -> None:
    """Raises `InputError` when the unit cannot be that of the metric."""
    unit = row.text("unit")
    wanted = _DIMENSIONS.get(metric.name)
    if wanted is not None and unit and UNITS.get(unit, ("", 0.0))[0] != wanted:
        raise InputError(f"'{unit}' is no unit of {row.text('metric')}; wanted one in {wanted}", field="unit")
    shape, example = _SHAPES.get(metric.name, ("", ""))
    if unit and not re.search(shape, unit.casefold()):
        raise InputError(f"'{unit}' is no unit of {row.text('metric')}; wanted one such as {example}", field="unit")


def _rate_unit(row: Row) -> float:
    """How many of what a rate counts make one of its unit in a second [1/s]: 1000 of ktok/s, 1/60 of samples/min."""
    unit = row.text("unit").split("(")[0]
    many = re.match(rf"([kM])[ -]?(?:{_COUNTED})", unit)
    often = re.search(r"/\s*(min|h)(?:$|[\s/]|our|ute)", unit)
    factor = {"k": 1e3, "M": 1e6}[many[1]] if many else 1.0
    return factor / ({"min": 60.0, "h": 3600.0}[often[1]] if often else 1.0)


# ---------------------------------------------------------------- time and rates


def _step_time(row: Row, job: Interpretation, report: Report) -> Prediction:
    scale = _seconds(row)
    step = report.step_time
    return Prediction(value=step.value / scale, low=step.low / scale, high=step.high / scale, evidence=step.evidence)


def _seconds(row: Row) -> float:
    """Seconds in one of the row's unit [s]; seconds when the unit is blank."""
    kind, factor = UNITS.get(row.text("unit"), ("s", 1.0))
    return factor if kind == "s" else 1.0


def _forward_time(row: Row, job: Interpretation, report: Report) -> Prediction:
    seconds = sum(op.forward_s * op.layers for op in report.ops)
    spread = report.step_time
    share = seconds / spread.value if spread.value else 0.0
    scale = _seconds(row)
    return Prediction(
        value=seconds / scale,
        low=spread.low * share / scale,
        high=spread.high * share / scale,
        evidence=spread.evidence,
    )


def _rate(amount: float, report: Report) -> Prediction:
    """`amount` a step as a rate; the interval of the time turned over."""
    step = report.step_time
    return Prediction(value=amount / step.value, low=amount / step.high, high=amount / step.low, evidence=step.evidence)


def counted_by_one(row: Row) -> bool:
    """Whether a rate is that of one device: its metric or unit says so, or its program or source is known to log so."""
    text = f"{row.text('metric')} {row.text('unit').split('(')[0]}".casefold()
    if re.search(r"per_(?:gpu|chip|device|core)|/\s*(?:gpu|device|chip|core)", text):
        return True
    return reading("rate_of_one_device", **row.cells_of(program=row.text("engine"), words=text)) is not None


def _per_device(row: Row, job: Interpretation) -> float:
    """What a rate is divided by: the devices where it counts one, else 1 [1]."""
    return float(job.cluster.count) if counted_by_one(row) else 1.0


def _tokens(row: Row, job: Interpretation, report: Report) -> Prediction:
    counted = job.model.dims.get("counted_tokens")  # of a sequence, where a program's meter counts the source as well
    tokens = job.workload.step_tokens if counted is None else job.workload.global_batch * float(str(counted))
    return _rate(tokens / _rate_unit(row) / _per_device(row, job), report)


def _samples(row: Row, job: Interpretation, report: Report) -> Prediction:
    unit = row.text("unit").casefold()
    if re.match(r"tok", unit) or meters_tokens(row):
        return _tokens(row, job, report)
    if re.match(r"im(?:g|age)", unit) and "image" not in job.model.dims:
        raise InputError(f"'{row.text('unit')}' counts images; the model reads tokens", field="unit")
    length = re.search(r"samples_(\d+)k", row.text("metric"))
    samples = job.workload.global_batch / float(str(job.model.dims.get("parts", 1))) * counted_times(row)
    if length:
        samples = job.workload.step_tokens / (int(length[1]) * 1024)
    return _rate(samples / _rate_unit(row) / _per_device(row, job), report)


# ---------------------------------------------------------------- FLOP


def counted_flop(row: Row, job: Interpretation, report: Report, *, hardware: bool | None = None) -> float:
    """FLOP of one step as the row's source counts them [FLOP].

    'full' counts every position in attention (Megatron-LM, PaLM appendix B), 'causal' the attended
    ones, 'hardware' adds the recomputed forward pass: 96 B S L D^2 (1 + S / 6 D + V / 16 L D),
    arXiv:2104.04473 eq. 3. LoRA counts what the report counts.
    """
    accounting = job.engine.accounting
    if reading("counts_hardware_flop", **row.cells_of(words=row.text("notes"))) is not None:
        accounting = "hardware"
    if hardware is not None:
        accounting = "hardware" if hardware else "full" if accounting == "hardware" else accounting
    if job.workload.task in (Task.LORA, Task.QLORA):
        return report.hardware_flop if accounting == "hardware" else report.model_flop
    graph, seq_len = job.model.graph, float(job.workload.seq_len)
    attention = "causal" if accounting == "causal" else "full"
    source = None if job.workload.encoder_seq_len is None else float(job.workload.encoder_seq_len)
    forward = model_flop_per_token(graph, seq_len, attention=attention, encoder_seq_len=source)
    total = PASSES * forward
    if accounting == "hardware" and _recomputes(job, report):
        head = sum(2.0 * op.k * op.n for op in graph.head if isinstance(op, LinearOp))
        total += forward - head
    return total * job.workload.step_tokens


def _recomputes(job: Interpretation, report: Report) -> bool:
    stated = job.stated.get("recompute", report.plan.recompute)
    return stated == "full"


def _flop_rate(row: Row, job: Interpretation, report: Report) -> Prediction:
    said = re.match(r"([kmgtpe]?)fl?op", row.text("unit").casefold()) or re.search(r"([tp])flops", row.text("metric"))
    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}.get(said[1], 1.0) if said else 1e12
    return _rate(counted_flop(row, job, report) / scale / _per_device(row, job), report)


def _utilisation(row: Row, job: Interpretation, report: Report) -> Prediction:
    name = row.text("metric").casefold()
    hardware = {"mfu": False, "hfu": True}.get(name)
    peaks = job.cluster.accelerator.peak_flop_per_s
    peak = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    percent = 100.0 if row.text("unit").casefold() in ("%", "", "percent") else 1.0
    return _rate(percent * counted_flop(row, job, report, hardware=hardware) / peak / job.cluster.count, report)


def _device_hours(row: Row, job: Interpretation, report: Report) -> Prediction:
    tokens = job.notes.number("train-tokens-t")
    count = tokens * 1e12 if tokens else job.notes.number("train-tokens")
    if count is None:
        raise InputError("device-hours need the tokens of the run (train_tokens_T in notes)", field="notes")
    steps = count / job.workload.step_tokens
    step, scale = report.step_time, steps * job.cluster.count / 3600.0
    return Prediction(value=step.value * scale, low=step.low * scale, high=step.high * scale, evidence=step.evidence)


def _time_to_train(row: Row, job: Interpretation, report: Report) -> Prediction:
    """Training and evaluation until the target of an MLPerf benchmark, as many sequences as its reference runs took."""
    batch, found = job.workload.global_batch, _reference(row, job.workload.global_batch)
    if found is None:
        raise InputError(
            f"it depends on convergence, and no reference runs of {row.text('model')} at batch {batch} are known",
            field="metric",
        )
    forward = sum(op.forward_s * op.layers for op in report.ops)
    both = forward + sum(op.backward_s * op.layers for op in report.ops)
    evaluated = found.evaluated * forward / both if both else 0.0
    step, each = report.step_time, 1.0 / batch / _seconds(row)
    return Prediction(
        value=(found.sequences + evaluated) * step.value * each,
        low=(found.low + evaluated) * step.low * each,
        high=(found.high + evaluated) * step.high * each,
        evidence=step.evidence,
    )


def _reference(row: Row, batch: int) -> Convergence | None:
    """What reference runs of a row's benchmark of MLPerf Training took at a batch; None where none are known."""
    said = re.search(r"training_results_v(\d+)\.(\d+)", row.text("source"))
    if said is None:
        return None
    found = convergence(row.text("model"), batch=batch, mlperf_round=(int(said[1]), int(said[2])))
    if found is not None:
        tell_recipe(re.escape(said[0]), row.text("source"), f"sequences to the target ({found.source})")
    return found


def _power(row: Row, job: Interpretation, report: Report) -> Prediction:
    """Mean power of one node or device at its own supply: building overhead is not in such meters."""
    overhead = job.cluster.pue.value if job.cluster.pue is not None else 1.0
    devices = min(job.cluster.node_devices, job.cluster.count) if "node" in row.text("metric") else 1
    watts = report.power_w / overhead * devices / job.cluster.count
    kind, factor = UNITS.get(row.text("unit"), ("W", 1.0))
    value, (low, high) = watts / (factor if kind == "W" else 1.0), report.power_range
    return Prediction(value=value, low=value * low, high=value * high, evidence=Evidence.DERIVED)


# ---------------------------------------------------------------- memory


def _memory_unit(row: Row, engine: TrainingProgram) -> float:
    unit = row.text("unit")
    if unit == "MB" and engine.mebibytes:
        return 2.0**20
    return UNITS.get(unit, ("byte", 1.0))[1]


def _counted(stage: StageMemory, *, without: tuple[str, ...], only: tuple[str, ...]) -> dict[str, float]:
    def kept(name: str) -> bool:
        return (not only or name in only) and name not in without

    return {name: held for name, held in stage.categories.items() if kept(name)}


def _held(
    row: Row, job: Interpretation, report: Report, *, without: tuple[str, ...], only: tuple[str, ...]
) -> Prediction:
    stages = report.memory
    place = reading("memory_stage", **row.cells_of(words=f"{row.text('engine')}; {row.text('notes')}"))
    if place is not None:
        stages = stages[-1:] if place.text == "last" else stages[:1]
    if not stages:
        raise InputError("the report holds no memory")
    unit = _memory_unit(row, job.engine)
    held = [_counted(stage, without=without, only=only) for stage in stages]
    value = max(sum(counted.values()) for counted in held) / unit
    measured = job.workload.policy.peaks_measured
    intervals = [peak_interval(counted, measured=measured) for counted in held]
    low, high = (max(ends) / unit for ends in zip(*intervals, strict=True))
    if low == high:  # states alone, which are counted exactly
        return Prediction(value=value, low=None, high=None, evidence=Evidence.DERIVED)
    return Prediction(value=value, low=low, high=high, evidence=Evidence.DERIVED)


def _allocated(row: Row, job: Interpretation, report: Report) -> Prediction:
    return _held(row, job, report, without=OUTSIDE_ALLOCATOR, only=())


def peak_memory(row: Row, job: Interpretation, report: Report, counter: str = "") -> Prediction:
    """Per-device peaks: the driver's view where a tool sampled it, what the allocator reserved where a program prints
    that, what it allocated elsewhere. `counter` is one of the three in place of what the row says."""
    words = f"{row.words}; {row.text('metric')}"
    found = reading("memory_counter", **row.cells_of(program=job.engine.name, words=words))
    counter = counter or ("allocated" if found is None else found.text)
    held = _held(row, job, report, without=() if counter == "driver" else OUTSIDE_ALLOCATOR, only=())
    return held if counter == "allocated" else _with_reserve(held, job, report, _memory_unit(row, job.engine))


def _with_reserve(held: Prediction, job: Interpretation, report: Report, unit: float) -> Prediction:
    """As `held`, with what the allocator keeps unused; no more than the device has."""
    fullest = max(report.memory, key=lambda stage: stage.total_bytes)
    more = (fullest.reserved_bytes - fullest.total_bytes) / unit
    if not more or held.low is None or held.high is None:
        return held
    ends = peak_range(measured=job.workload.policy.peaks_measured)
    return replace(held, value=held.value + more, low=held.low + ends.low * more, high=held.high + ends.high * more)


def _states(row: Row, job: Interpretation, report: Report) -> Prediction:
    return _held(row, job, report, without=(), only=STATES)


def _activations(row: Row, job: Interpretation, report: Report) -> Prediction:
    """What a step adds to the states: saved tensors with the loss's, and at the peak temporaries too.

    After forward one fp32 tensor of tokens x vocabulary waits for backward on the last stage.
    """
    if "peak" in row.text("metric"):
        return _held(row, job, report, without=(*OUTSIDE_ALLOCATOR, *STATES), only=())
    plan, scale = report.plan, _memory_unit(row, job.engine)
    kept = _held(row, job, report, without=(), only=("activations",))
    if plan.pp > 1 and re.search(r"rank 0\b", row.text("notes")):
        return kept
    tokens = plan.micro_batch * job.workload.seq_len / plan.cp
    logits = FP32_BYTES * tokens * job.model.graph.vocab / plan.tp
    value = kept.value + logits / scale
    low, high = peak_interval({"activations": value}, measured=job.workload.policy.peaks_measured)
    return replace(kept, value=value, low=low, high=high)


METRICS: tuple[TrainingMetric, ...] = (
    TrainingMetric(
        name="step_time",
        pattern=r"(?:step|iteration|iter)_time(?:_\w+)?|(?:s|sec|seconds|time)_per_(?:step|iteration|iter)",
        read=_step_time,
    ),
    TrainingMetric(name="forward_time", pattern=r"forward_time", read=_forward_time),
    TrainingMetric(name="tokens_per_s", pattern=r"tok(?:en)?s?_(?:per_)?s(?:ec|econd)?(?:_per_\w+)?", read=_tokens),
    TrainingMetric(
        name="samples_per_s",
        pattern=r"(?:samples|sequences|seqs?|images)(?:_\d+k)?_per_s(?:ec|econd)?(?:_per_\w+|_core)?|throughput",
        read=_samples,
    ),
    TrainingMetric(
        name="flop_rate", pattern=r"(?:model_|aggregate_|hardware_)?[tp]flops(?:_per_\w+)?", read=_flop_rate
    ),
    TrainingMetric(name="utilisation", pattern=r"mfu|hfu|pct_of_peak|percent_of_peak", read=_utilisation),
    TrainingMetric(name="device_hours", pattern=r"(?:gpu|tpu|device|chip)_hours", read=_device_hours),
    TrainingMetric(name="time_to_train", pattern=r"time_to_train", read=_time_to_train),
    TrainingMetric(
        name="power",
        pattern=r"(?:mean|avg|average)_(?:(?:node|device|gpu)_)?power|power_per_(?:node|device|gpu)",
        read=_power,
    ),
    TrainingMetric(name="allocated", pattern=r"torch_max_memory_allocated|max_memory_allocated", read=_allocated),
    TrainingMetric(name="memory", pattern=r"peak_mem\w*|max_mem\w*|memory_gb", read=peak_memory),
    TrainingMetric(name="states", pattern=r"model_states?_mem\w*", read=_states),
    TrainingMetric(name="activations", pattern=r"activation\w*_mem\w*", read=_activations),
    TrainingMetric(name="fits", pattern=r"fits", read=None),
    TrainingMetric(name="max_seq_len", pattern=r"max_seq(?:uence)?_len(?:gth)?", read=None),
)
"""Every metric that is answered; the first whose pattern matches the whole name."""
