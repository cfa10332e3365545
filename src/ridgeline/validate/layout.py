"""Devices, degrees and batch of a row: what is stated, what follows from it, what is left to be chosen."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.published_batches import published_batch
from ridgeline.validate.megatron_tests import is_test, named_chunks, named_devices, refuse_unsaid
from ridgeline.validate.notes import Notes
from ridgeline.validate.published_plans import published_configuration, published_degrees
from ridgeline.validate.rows import Row

RANK_SEQUENCES, ENCODER_RANK_SEQUENCES = 8, 32
"""Sequences of one data-parallel rank and step when a row gives no batch (assumed; rates depend on it weakly)."""
STAGE_MICRO_BATCHES = 4
"""Micro-batches for each pipeline stage when a row gives no accumulation (assumed: bubble of a fifth)."""
MODEL_PARALLEL_NODE = 8  # tensor parallelism stays in a node of eight (arXiv:2104.04473, takeaway 1)
LARGEST_WORLD = 10**6
_ACCUMULATION = ("ga", "gas", "grad-accum", "accumulate", "num-microbatches", "gradient-accumulation")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Devices and degrees [1]; a degree is None where it is left to be chosen."""

    devices: int
    tp: int | None
    pp: int | None
    cp: int | None
    dp: int | None
    ep: int | None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of one step and of one micro-batch [1]; the latter is None where it is left to be chosen."""

    global_batch: int
    micro_batch: int | None
    dp: int | None
    assumptions: tuple[str, ...] = ()


def read_layout(row: Row, notes: Notes, engine: TrainingProgram, *, encoder: bool) -> Layout:
    """Devices and degrees, made to agree: dp follows from the others; contradictions are named.

    Encoders (BERT and kin) and programs that only shard states run on data parallelism alone.
    """
    said: list[str] = []
    degrees = {name: row.count(name) for name in ("tp", "pp", "cp", "dp", "ep")}
    if is_test(engine):
        refuse_unsaid(row)
        degrees["ep"] = degrees["ep"] or 1
    if re.search(r"ulysses", row.text("engine"), re.IGNORECASE) and all(
        degrees[name] is None for name in ("tp", "cp", "dp")
    ):
        degrees["cp"] = row.count("n_devices")
        said.append("Ulysses divides the sequence over all devices")
    model_parallel = notes.count("model-parallel-size")
    if model_parallel is not None and degrees["tp"] is None and degrees["pp"] is None:
        tensor = math.gcd(model_parallel, MODEL_PARALLEL_NODE)
        degrees |= {"tp": tensor, "pp": model_parallel // tensor}
        said.append(f"model-parallel size {model_parallel}: tp {degrees['tp']}, pp {degrees['pp']} (tp within a node)")
    degrees |= published_degrees(row, degrees, said)
    shape = {name: degrees[name] or 1 for name in ("tp", "pp", "cp")}
    product = math.prod(shape.values())
    devices = _devices(row, notes, engine, product * (degrees["dp"] or 1), degrees, said)
    stages = "".join(str(stage) for stage in _without_pipelines(engine))
    sharded = bool(re.search(rf"(?<![\w.])[{stages}]\b|FSDP|FULL_SHARD", row.text("zero_stage"))) or encoder
    data_only = (engine.data_only or sharded) and degrees["pp"] is None
    if not data_only and all(degrees[name] is None for name in ("tp", "pp", "cp", "dp")):
        return Layout(devices=devices, tp=None, pp=None, cp=None, dp=None, ep=degrees["ep"], assumptions=tuple(said))
    if degrees["dp"] is not None and product * degrees["dp"] > devices:
        said.append(f"stated tp*pp*cp*dp = {product * degrees['dp']} is not the {devices} devices")
        degrees["dp"] = None
        if devices % product:
            devices = product * max(1, devices // product)
            said.append(f"{devices} devices taken from the degrees")
    settled = data_only or (degrees["tp"] is not None and degrees["pp"] is not None)
    settled = settled or (degrees["dp"] is not None and product * degrees["dp"] == devices)
    if settled:
        if devices % product:
            raise InputError(f"tp*pp*cp = {product} does not divide n_devices = {devices}", field="tp")
        degrees |= {**shape, "dp": devices // product}
        ranks = shape["tp"] * shape["cp"] * (devices // product)
        if ranks % (degrees["ep"] or 1):
            said.append(f"stated ep {degrees['ep']} does not divide tp*cp*dp = {ranks}: left to be chosen")
            degrees["ep"] = None
    return Layout(
        devices=devices, tp=degrees["tp"], pp=degrees["pp"], cp=degrees["cp"], dp=degrees["dp"], ep=degrees["ep"],
        assumptions=tuple(said),
    )  # fmt: skip


def _without_pipelines(engine: TrainingProgram) -> list[int]:
    """ZeRO stages that tell of a row without pipelines: 3, and 2 where the framework's pipelines refuse it."""
    policy = framework_policy(engine.framework)
    return [3] if not policy.schedules or "gradients" in policy.sharding_in_pipelines else [2, 3]


def _devices(
    row: Row, notes: Notes, engine: TrainingProgram, product: int, degrees: dict[str, int | None], said: list[str]
) -> int:
    stated = row.count("n_devices")
    if stated is not None:
        if stated > LARGEST_WORLD:
            raise InputError(f"{stated} is out of range; needs 1 to {LARGEST_WORLD}", field="n_devices")
        if re.search(r"TPU[ -]?v[23]\b", row.text("hardware"), re.IGNORECASE):
            said.append("n_devices counts TensorCores: two a chip")
            return max(1, stated // 2)
        return stated
    if degrees["dp"] is not None and degrees["tp"] is not None and degrees["pp"] is not None:
        said.append(f"n_devices not stated: {product} from the degrees")
        return product
    usual = engine.devices
    if usual is None:
        raise InputError("the number of devices is not stated", field="n_devices")
    ranks, ep = (degrees["tp"] or 1) * (degrees["cp"] or 1), degrees["ep"] or 1
    if is_test(engine):
        devices = named_devices(row, notes, product=product, ranks=ranks, ep=ep)
    else:
        needed = product * math.ceil(ep / ranks)
        devices = usual if usual % product == 0 and usual >= needed else needed * math.ceil(usual / needed)
    said.append(f"n_devices not stated: {devices} assumed ({engine.name})")
    return devices


def read_batch(
    row: Row, notes: Notes, engine: TrainingProgram, layout: Layout, *, seq_len: int, images: int | None = None
) -> Batch:
    """Global and micro batch from cells, accumulation in notes, tokens a step, or a said assumption.

    `images` is what a device takes of an image classifier's batch when a row gives none; their steps have one part.
    """
    said: list[str] = []
    steps = notes.count(*_ACCUMULATION)
    micro = _micro(row, engine, layout, said)
    if micro is not None and micro != row.count("micro_batch") and engine.name == "torchtitan":
        steps = steps or layout.pp  # the local batch is that of a step, all of its micro-batches together
    total = _total(row, notes, layout, seq_len)
    dp = layout.dp
    if total is None and engine.step_tokens is not None:
        total = max(1, round(engine.step_tokens / seq_len))
        said.append(f"batch not stated: {total} sequences ({engine.name}: {engine.step_tokens:.3g} tokens a step)")
    if images is not None and total is None:
        total = (micro or images) * layout.devices
        if micro is None and row.asks_bytes:
            raise InputError(
                "the batch is not stated, and what images hold is in proportion to it", field="micro_batch"
            )
        if micro is None:
            said.append(f"batch not stated: {images} images a device assumed")
    if images is not None:
        steps = steps or 1
    if total is None:
        total = _assumed_total(row, layout, micro, steps, said)
    if dp is None and steps is not None and layout.tp is None and layout.pp is None:
        dp, micro = _from_accumulation(total, steps, layout, micro, said)
    if engine.single_micro_batch and micro is None and dp is not None:
        steps = steps or 1
    if micro is None and steps is not None and dp is not None and total % (steps * dp) == 0:
        micro = total // (steps * dp)
    if dp is not None:
        total, micro = _divisible(total, micro, dp, said)
    return Batch(global_batch=total, micro_batch=micro, dp=dp, assumptions=tuple(said))


def _micro(row: Row, engine: TrainingProgram, layout: Layout, said: list[str]) -> int | None:
    micro = row.count("micro_batch")
    if micro is None:
        plan = published_configuration(row)
        if plan is not None and (plan.tp, plan.pp) == (layout.tp, layout.pp):
            return plan.micro_batch
        own = _scripted(row, layout)
        if own is not None:
            said.append(f"batch not stated: {own} a device, from the program's scripts")
            return own
        return 1 if row.text("metric").startswith("max_seq") else None
    if engine.whole_job_batch and layout.devices > 1:
        said.append(f"micro-batch cell {micro} is that of all {layout.devices} devices")
        return max(1, micro // layout.devices)
    if "OpenBMB/BMTrain" in row.text("source") and (layout.tp or 1) > 1:
        said.append(f"batches are counted a device: {layout.tp} devices of one replica run {micro * (layout.tp or 1)}")
        return micro * (layout.tp or 1)
    if engine.name == "torchtitan" and (layout.pp or 1) > 1 and micro % (layout.pp or 1) == 0:
        said.append(f"local batch {micro} runs as {layout.pp} micro-batches (torchtitan's default: one a stage)")
        return micro // (layout.pp or 1)
    return micro


def _scripted(row: Row, layout: Layout) -> int | None:
    """What the program's own scripts give each device [1]."""
    cells = {"device": row.text("hardware"), "precision": row.text("precision"), "results": _place(row)}
    return published_batch(row.text("model"), devices=layout.devices, **cells)


def _place(row: Row) -> str:
    return f"{row.text('source')}; {row.text('source_where')}"


def _total(row: Row, notes: Notes, layout: Layout, seq_len: int) -> int | None:
    """Sequences of one step, when any cell or note states them."""
    stated = row.count("global_batch")
    if stated is not None:
        return stated
    tokens = notes.tokens(r"global ?bs ?= ?(\d[\w.]*) tokens", r"(\d[\w.]*) tokens per batch", r"tokens_per_step=(\d+)")
    if tokens is not None:
        return max(1, round(tokens / seq_len))
    batch = (
        notes.count("gbs", "global-batch", "global-bs")
        or notes.found(r"\bGBS=(\d+)")
        or notes.found(r"total batch (\d+)")
    )
    if batch is not None:
        return batch
    per_rank = notes.count("batch-per-dp")
    if per_rank is not None and layout.dp is not None:
        return per_rank * layout.dp
    per_device = notes.tokens(r"(\d[\w.]*) tokens/device")
    if per_device is not None:
        return max(1, round(per_device * layout.devices / seq_len))
    return None


def _assumed_total(row: Row, layout: Layout, micro: int | None, steps: int | None, said: list[str]) -> int:
    ranks = layout.dp or max(1, layout.devices // ((layout.tp or 1) * (layout.pp or 1) * (layout.cp or 1)))
    if micro is not None and (steps is not None or (layout.pp or 1) == 1):
        if steps is None:
            said.append("global batch not stated: one micro-batch a step assumed")
        return ranks * micro * (steps or 1)
    if steps is not None:
        said.append("batch not stated: micro-batch 1 assumed")
        return ranks * steps
    usual = (
        ENCODER_RANK_SEQUENCES if re.search(r"bert|electra|bart", row.text("model"), re.IGNORECASE) else RANK_SEQUENCES
    )
    each = (micro or 1) * STAGE_MICRO_BATCHES * (layout.pp or 1) if (layout.pp or 1) > 1 else usual
    said.append(f"batch not stated: {each} sequences a data-parallel rank assumed")
    return ranks * each


def _from_accumulation(
    total: int, steps: int, layout: Layout, micro: int | None, said: list[str]
) -> tuple[int | None, int | None]:
    """dp and micro-batch from global batch / accumulation = dp * micro-batch, micro-batch 1 when dp must be small."""
    if total % steps:
        return None, micro
    both = total // steps
    devices = layout.devices
    if both >= devices and both % devices == 0:
        dp, found = devices, both // devices
    elif both < devices and devices % both == 0:
        dp, found = both, 1
    else:
        return None, micro
    if micro is not None and micro != found:
        return None, micro
    said.append(f"global batch / accumulation = {both}: dp {dp}, micro-batch {found}")
    return dp, found


def _divisible(total: int, micro: int | None, dp: int, said: list[str]) -> tuple[int, int | None]:
    """Batches that dp and the micro-batch divide, moved by no more than is needed."""
    unit = dp * (micro or 1)
    if total % unit == 0:
        return total, micro
    if total % dp == 0:
        rank = total // dp
        fitting = _largest_divisor(rank, micro or 1)
        said.append(f"micro-batch {micro} does not divide {rank} sequences a rank: {fitting}")
        return total, fitting
    nearest = max(unit, round(total / unit) * unit)
    if abs(nearest - total) > 0.25 * total:
        nearest, micro = max(dp, round(total / dp) * dp), 1 if micro is not None else None
    said.append(f"global batch {total} is no multiple of dp {dp} * micro-batch {micro or 1}: {nearest}")
    return nearest, micro


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is no more than a limit [1]."""
    found = 1
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            found = max(each for each in (found, small, number // small) if each <= limit)
    return found


def read_schedule(
    row: Row, notes: Notes, engine: TrainingProgram, layout: Layout, layers: int, said: list[str]
) -> dict[str, object]:
    """Model chunks a stage and schedule, as plan fields, where the pipeline degree is known."""
    pp = layout.pp
    if pp == 1:
        return {}
    if pp is None:
        return {} if engine.interleaving_open else {"chunks": 1, "schedule": "1f1b"}
    named = f"{row.text('engine')}; {notes.text}"
    per_chunk = notes.count("num-layers-per-virtual-pipeline-stage")
    if per_chunk is None:
        per_chunk = named_chunks(row) if is_test(engine) else engine.chunk_layers
    chunks, plan = notes.count("vp"), published_configuration(row)
    if chunks is None and plan is not None and (plan.tp, plan.pp) == (layout.tp, pp):
        chunks = plan.chunks
    if per_chunk is not None:
        chunks = max(1, layers // (pp * per_chunk))
    if chunks is not None:
        interleaved = chunks > 1
        return {"chunks": chunks, "schedule": "interleaved" if interleaved else "1f1b"}
    if re.search(r"zero.?bubble|\bzb", named, re.IGNORECASE):
        return {"chunks": 1, "schedule": "zb-h1"}
    if re.search(r"interleaved", named, re.IGNORECASE):
        chunks = next((each for each in range(2, layers // pp + 1) if layers % (pp * each) == 0), 1)
        said.append(
            f"interleaved schedule, chunks not stated: {chunks} a stage, the fewest that divide {layers} layers"
        )
        return {"chunks": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b"}
    if engine.interleaving_open:
        return {}
    return {"chunks": 1, "schedule": "1f1b"}
