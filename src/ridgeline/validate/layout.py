"""Devices, degrees, batch and schedule of a row: what is stated, what follows from it, what is left to be chosen."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.published_plans import published_batch
from ridgeline.validate.notes import TrainingRow

RANK_SEQUENCES, ENCODER_RANK_SEQUENCES = 8, 32
"""Sequences of one data-parallel rank and step when a row gives no batch (assumed; rates depend on it weakly)."""
STAGE_MICRO_BATCHES = 4
"""Micro-batches for each pipeline stage when a row gives no accumulation (assumed: bubble of a fifth)."""
MODEL_PARALLEL_NODE = 8  # tensor parallelism stays in a node of eight (arXiv:2104.04473, takeaway 1)
LARGEST_WORLD = 10**6
_ACCUMULATION = ("ga", "gas", "grad-accum", "accumulate", "num-microbatches", "gradient-accumulation")
_DEGREES = ("tp", "pp", "cp", "dp", "ep")


@dataclass(frozen=True, kw_only=True)
class TrainingLayout:
    """Devices and degrees [1]; a degree is None where it is left to be chosen."""

    devices: int
    tp: int | None
    pp: int | None
    cp: int | None
    dp: int | None
    ep: int | None

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees that are known, by name [1]."""
        found = {name: getattr(self, name) for name in _DEGREES}
        return {name: value for name, value in found.items() if value is not None}

    def expert_width(self, told: TrainingRow) -> int | None:
        """Expert-tensor degree of the program [1]; None where it says nothing."""
        found = told.reading("expert_width")
        if found is None:
            return None
        return (self.tp or 1) if found.text == "tp" else int(found.number)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of one step and of one micro-batch [1]; the latter is None where it is left to be chosen."""

    global_batch: int
    micro_batch: int | None
    dp: int | None


def read_layout(told: TrainingRow, *, encoder: bool) -> TrainingLayout:
    """Devices and degrees, made to agree: dp follows from the others; contradictions are named.

    Encoders (BERT and kin) and programs that only shard states run on data parallelism alone. Raises `InputError` for
    rows that a reading refuses, and for degrees that do not divide the devices.
    """
    row, engine, said = told.row, told.engine, told.said
    refused = told.reading("refused")
    if refused is not None:
        raise InputError(refused.text, field=refused.key.partition(".")[2])
    degrees = {name: row.count(name) for name in _DEGREES}
    _open_degrees(told, degrees)
    degrees |= _published_degrees(told, degrees)
    shape = {name: degrees[name] or 1 for name in ("tp", "pp", "cp")}
    product = math.prod(shape.values())
    devices = _devices(told, product * (degrees["dp"] or 1), degrees)
    stages = "".join(str(stage) for stage in _without_pipelines(engine))
    sharded = bool(re.search(rf"(?<![\w.])[{stages}]\b|FSDP|FULL_SHARD", row.text("zero_stage"))) or encoder
    data_only = (engine.data_only or sharded) and degrees["pp"] is None
    if not data_only and all(degrees[name] is None for name in ("tp", "pp", "cp", "dp")):
        return TrainingLayout(devices=devices, tp=None, pp=None, cp=None, dp=None, ep=degrees["ep"])
    if degrees["dp"] is not None and product * degrees["dp"] > devices:
        said.append(f"stated tp*pp*cp*dp = {product * degrees['dp']} is not the {devices} devices")
        degrees["dp"] = None
        if devices % product:
            devices = product * max(1, devices // product)
            said.append(f"{devices} devices taken from the degrees")
    settled = data_only or (degrees["tp"] is not None and degrees["pp"] is not None)
    if settled or (degrees["dp"] is not None and product * degrees["dp"] == devices):
        if devices % product:
            raise InputError(f"tp*pp*cp = {product} does not divide n_devices = {devices}", field="tp")
        degrees |= {**shape, "dp": devices // product}
        ranks = shape["tp"] * shape["cp"] * (devices // product)
        if ranks % (degrees["ep"] or 1):
            said.append(f"stated ep {degrees['ep']} does not divide tp*cp*dp = {ranks}: left to be chosen")
            degrees["ep"] = None
    return TrainingLayout(devices=devices, **degrees)


def _open_degrees(told: TrainingRow, degrees: dict[str, int | None]) -> None:
    """Fills degrees that words of the row tell: experts of a test, Ulysses over all devices, a model-parallel size."""
    row, said = told.row, told.said
    if told.reading("unsaid_ep"):
        degrees["ep"] = degrees["ep"] or 1
    ulysses = re.search(r"ulysses", row.text("engine"), re.IGNORECASE)
    if ulysses and all(degrees[name] is None for name in ("tp", "cp", "dp")):
        degrees["cp"] = row.count("n_devices")
        said.append("Ulysses divides the sequence over all devices")
    model_parallel = told.notes.count("model-parallel-size")
    if model_parallel is not None and degrees["tp"] is None and degrees["pp"] is None:
        tensor = math.gcd(model_parallel, MODEL_PARALLEL_NODE)
        degrees |= {"tp": tensor, "pp": model_parallel // tensor}
        said.append(f"model-parallel size {model_parallel}: tp {tensor}, pp {degrees['pp']} (tp within a node)")


def _published_degrees(told: TrainingRow, degrees: dict[str, int | None]) -> dict[str, int | None]:
    """Degrees of published runs, or data and context for LoRA on devices that hold the 8-bit base."""
    devices, batch, plan = told.row.count("n_devices"), told.row.count("global_batch"), told.published
    if devices is None:
        return {}
    open_ = all(degrees[name] is None for name in ("tp", "pp", "cp", "dp"))
    if plan is not None and plan.tp and plan.pp and plan.cp and open_:
        width = plan.tp * plan.pp * plan.cp
        if devices % width == 0 and (batch or 0) % (devices // width) == 0:
            named = f"tp {plan.tp}, pp {plan.pp}, cp {plan.cp}"
            told.said.append(f"degrees not stated: {named} of the published code ({plan.name})")
            return {"tp": plan.tp, "pp": plan.pp, "cp": plan.cp, "dp": devices // width}
    dp = degrees["dp"] or batch
    if dp is None or batch is None or any(degrees[name] for name in ("tp", "pp", "cp")) or devices % dp:
        return {}
    if told.reading("holds_whole_base") is None:
        return {}
    told.said.append(f"LoRA on devices that hold the 8-bit base whole: dp {dp}, cp {devices // dp}, no tp or pp")
    return {"tp": 1, "pp": 1, "cp": devices // dp, "dp": dp}


def _without_pipelines(engine: TrainingProgram) -> list[int]:
    """ZeRO stages that tell of a row without pipelines: 3, and 2 where the framework's pipelines refuse it."""
    policy = framework_policy(engine.framework)
    return [3] if not policy.schedules or "gradients" in policy.sharding_in_pipelines else [2, 3]


def _devices(told: TrainingRow, product: int, degrees: dict[str, int | None]) -> int:
    row, engine, said = told.row, told.engine, told.said
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
    usual, refused = engine.devices, told.reading("devices_refused")
    if usual is None or refused is not None:
        raise InputError(refused.text if refused else "the number of devices is not stated", field="n_devices")
    ranks, ep = (degrees["tp"] or 1) * (degrees["cp"] or 1), degrees["ep"] or 1
    node = told.reading("test_node")
    usual = usual if node is None else int(node.number)
    width = TrainingLayout(devices=usual, **degrees).expert_width(told)
    if width is not None:
        devices = product * max(1, usual // product, math.ceil(ep * width / ranks))
    else:
        needed = product * math.ceil(ep / ranks)
        devices = usual if usual % product == 0 and usual >= needed else needed * math.ceil(usual / needed)
    said.append(f"n_devices not stated: {devices} assumed ({engine.name})")
    return devices


def read_batch(told: TrainingRow, layout: TrainingLayout, *, seq_len: int, images: int | None = None) -> Batch:
    """Global and micro batch from cells, accumulation in notes, tokens a step, or a said assumption.

    `images` is what a device takes of an image classifier's batch when a row gives none; their steps have one part.
    """
    row, engine, said = told.row, told.engine, told.said
    steps = told.notes.count(*_ACCUMULATION)
    micro = _micro(told, layout)
    if engine.local_batch and micro is not None and micro != row.count("micro_batch"):
        steps = steps or layout.pp  # the local batch is that of a step, all of its micro-batches together
    total, dp = _total(told, layout, seq_len), layout.dp
    if total is None and engine.step_tokens is not None:
        total = max(1, round(engine.step_tokens / seq_len))
        said.append(f"batch not stated: {total} sequences ({engine.name}: {engine.step_tokens:.3g} tokens a step)")
    if images is not None and total is None:
        total = (micro or images) * layout.devices
        if micro is None and row.asks_bytes:
            why = "the batch is not stated, and what images hold is in proportion to it"
            raise InputError(why, field="micro_batch")
        if micro is None:
            said.append(f"batch not stated: {images} images a device assumed")
    if images is not None:
        steps = steps or 1
    if total is None:
        total = _assumed_total(told, layout, micro, steps)
    if dp is None and steps is not None and layout.tp is None and layout.pp is None:
        dp, micro = _from_accumulation(told, total, steps, layout, micro)
    if engine.single_micro_batch and micro is None and dp is not None:
        steps = steps or 1
    if micro is None and steps is not None and dp is not None and total % (steps * dp) == 0:
        micro = total // (steps * dp)
    if dp is not None:
        total, micro = _divisible(total, micro, dp, said)
    return Batch(global_batch=total, micro_batch=micro, dp=dp)


def _micro(told: TrainingRow, layout: TrainingLayout) -> int | None:
    row, engine, said = told.row, told.engine, told.said
    micro, tp, pp = row.count("micro_batch"), layout.tp or 1, layout.pp or 1
    if micro is None:
        plan = told.published
        if plan is not None and (plan.tp, plan.pp) == (layout.tp, layout.pp):
            return plan.micro_batch
        own = published_batch(
            row.text("model"), devices=layout.devices, device=row.text("hardware"), precision=row.text("precision"),
            results=row.place,
        )  # fmt: skip
        if own is not None:
            said.append(f"batch not stated: {own} a device, from the program's scripts")
            return own
        return 1 if row.text("metric").startswith("max_seq") else None
    if engine.whole_job_batch and layout.devices > 1:
        said.append(f"micro-batch cell {micro} is that of all {layout.devices} devices")
        return max(1, micro // layout.devices)
    if tp > 1 and told.reading("sequences_each_device"):
        said.append(f"batches are counted a device: {tp} devices of one replica run {micro * tp}")
        return micro * tp
    if engine.local_batch and pp > 1 and micro % pp == 0:
        said.append(f"local batch {micro} runs as {pp} micro-batches (torchtitan's default: one a stage)")
        return micro // pp
    return micro


def _total(told: TrainingRow, layout: TrainingLayout, seq_len: int) -> int | None:
    """Sequences of one step, when any cell or note states them."""
    notes, stated = told.notes, told.row.count("global_batch")
    if stated is not None:
        return stated
    tokens = notes.tokens(r"global ?bs ?= ?(\d[\w.]*) tokens", r"(\d[\w.]*) tokens per batch", r"tokens_per_step=(\d+)")
    if tokens is not None:
        return max(1, round(tokens / seq_len))
    named = notes.count("gbs", "global-batch", "global-bs")
    batch = named or notes.found(r"\bGBS=(\d+)") or notes.found(r"total batch (\d+)")
    if batch is not None:
        return batch
    per_rank = notes.count("batch-per-dp")
    if per_rank is not None and layout.dp is not None:
        return per_rank * layout.dp
    per_device = notes.tokens(r"(\d[\w.]*) tokens/device")
    return None if per_device is None else max(1, round(per_device * layout.devices / seq_len))


def _assumed_total(told: TrainingRow, layout: TrainingLayout, micro: int | None, steps: int | None) -> int:
    said, pp = told.said, layout.pp or 1
    ranks = layout.dp or max(1, layout.devices // ((layout.tp or 1) * pp * (layout.cp or 1)))
    if micro is not None and (steps is not None or pp == 1):
        if steps is None:
            said.append("global batch not stated: one micro-batch a step assumed")
        return ranks * micro * (steps or 1)
    if steps is not None:
        said.append("batch not stated: micro-batch 1 assumed")
        return ranks * steps
    encoder = re.search(r"bert|electra|bart", told.row.text("model"), re.IGNORECASE)
    usual = ENCODER_RANK_SEQUENCES if encoder else RANK_SEQUENCES
    each = (micro or 1) * STAGE_MICRO_BATCHES * pp if pp > 1 else usual
    said.append(f"batch not stated: {each} sequences a data-parallel rank assumed")
    return ranks * each


def _from_accumulation(
    told: TrainingRow, total: int, steps: int, layout: TrainingLayout, micro: int | None
) -> tuple[int | None, int | None]:
    """dp and micro-batch from global batch / accumulation = dp * micro-batch, micro-batch 1 when dp must be small."""
    both, devices = total // steps, layout.devices
    if total % steps or (both % devices if both >= devices else devices % both):
        return None, micro
    dp, found = (devices, both // devices) if both >= devices else (both, 1)
    if micro is not None and micro != found:
        return None, micro
    told.said.append(f"global batch / accumulation = {both}: dp {dp}, micro-batch {found}")
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
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return max(each for each in (*small, *(number // each for each in small)) if each <= limit)


def read_schedule(told: TrainingRow, layout: TrainingLayout, layers: int) -> dict[str, object]:
    """Model chunks a stage and schedule, as plan fields, where the pipeline degree is known."""
    pp, notes, plan = layout.pp, told.notes, told.published
    open_ = {} if told.engine.interleaving_open else {"chunks": 1, "schedule": "1f1b"}
    if pp is None or pp == 1:
        return {} if pp else open_
    named = f"{told.row.text('engine')}; {notes.text}"
    own = told.reading("chunk_layers")
    per_chunk = notes.count("num-layers-per-virtual-pipeline-stage")
    per_chunk = per_chunk or (told.engine.chunk_layers if own is None else int(own.number))
    chunks = notes.count("vp")
    if chunks is None and plan is not None and (plan.tp, plan.pp) == (layout.tp, pp):
        chunks = plan.chunks
    if per_chunk is not None:
        chunks = max(1, layers // (pp * per_chunk))
    if chunks is None and re.search(r"zero.?bubble|\bzb", named, re.IGNORECASE):
        return {"chunks": 1, "schedule": "zb-h1"}
    if chunks is None and re.search(r"interleaved", named, re.IGNORECASE):
        chunks = next((each for each in range(2, layers // pp + 1) if layers % (pp * each) == 0), 1)
        told.said.append(
            f"interleaved schedule, chunks not stated: {chunks} a stage, the fewest that divide {layers} layers"
        )
    if chunks is None:
        return open_
    overlapped = chunks > 1 and told.reading("expert_overlap") is not None
    return {"chunks": chunks, "schedule": "combined-1f1b" if overlapped else "interleaved" if chunks > 1 else "1f1b"}
