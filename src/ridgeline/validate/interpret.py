"""A row of a training or memory table as a scenario: model, cluster, workload, stated plan fields, assumptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts import readings
from ridgeline.facts.benchmarks import kept_tokens, predicted_share
from ridgeline.facts.programs import TrainingProgram, training_program
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.networks import sample_tokens
from ridgeline.graph.translation import TRANSLATORS
from ridgeline.graph.workload import Task, Workload
from ridgeline.scenario.settings import COLUMN as SETTINGS
from ridgeline.scenario.settings import read_settings
from ridgeline.validate.hardware import Device, find_device
from ridgeline.validate.images import IMAGES, image_recipe, in_parts, network, read_image_model
from ridgeline.validate.layout import Layout, read_batch, read_layout, read_schedule
from ridgeline.validate.machines import Machines, machines, own_cluster, place
from ridgeline.validate.megatron_tests import expert_width, is_test, named_flags, named_machine, named_plan
from ridgeline.validate.models import read_model
from ridgeline.validate.names import plain_name, refuse_unsupported
from ridgeline.validate.notes import Notes, read_notes
from ridgeline.validate.published_plans import policy_of, published_exchanges
from ridgeline.validate.recipes import Recipe, read_recipe
from ridgeline.validate.rows import Row
from ridgeline.validate.samples import in_sequences


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """A row read as a scenario; `stated` holds the plan fields that are known, the others are to be chosen.

    `key` is equal for rows that ask the same of the predictor. `derived` marks models whose
    dimensions come from a parameter count alone.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    stated: Mapping[str, object]
    engine: TrainingProgram
    notes: Notes
    assumptions: tuple[str, ...]
    key: str = field(repr=False)
    derived: bool = False


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a row cannot be predicted; `engine` and `device` are named as far as they are known."""

    reason: str
    engine: str
    device: str


def interpret(row: Row, *, source: Machines | None = None) -> Interpretation | Refusal:
    """The scenario that a row describes, or why it cannot be told."""
    engine = training_program(row.text("engine"), row.text("source"))
    device = row.text("hardware") or "not stated"
    try:
        if row.problem is not None:
            raise InputError(row.problem)
        if network(row.text("model"), source=row.text("source")) is None:
            refuse_unsupported(row.text("model"))
        known = source or machines()
        own = own_cluster(row.text("hardware"), 1, known)
        if own is not None:
            found = Device(accelerator=own.accelerator, assumptions=())
        else:
            own_name = readings.reading("device_meant", **row.cells_of())
            cell = row.text("hardware") if own_name is None else own_name.text
            found = find_device(cell, known.accelerators(), known.usual)
        device = found.accelerator.name
        if row.text(SETTINGS):
            return _told(row, engine, found, known)
        return _scenario(row, engine, found, known)
    except RidgelineError as error:
        return Refusal(reason=str(error), engine=engine.name, device=device)


def _told(row: Row, engine: TrainingProgram, device: Device, source: Machines) -> Interpretation:
    """The scenario of a row that holds all of it, as `ridgeline measure --append` writes them."""
    told = read_settings(row.text(SETTINGS), name=row.text("model") or "own model")
    said = list(device.assumptions)
    devices = row.count("n_devices") or told.plan.devices
    cluster = own_cluster(row.text("hardware"), devices, source)
    if cluster is None:
        texts = (row.text("interconnect"), row.text("hardware"), "")
        cluster, wiring = place(device.accelerator, devices, texts, source)
        said += wiring
    return Interpretation(
        model=told.model,
        cluster=cluster,
        workload=told.workload,
        stated=vars(told.plan),
        engine=engine,
        notes=read_notes(row),
        assumptions=tuple(said),
        key=repr((row.text(SETTINGS), _machine_key(cluster))),
    )


def _scenario(row: Row, engine: TrainingProgram, device: Device, source: Machines) -> Interpretation:
    notes = read_notes(row)
    image = network(row.text("model"), source=row.text("source"))
    encoder = bool(re.search(r"bert|electra|\bbart\b", row.text("model"), re.IGNORECASE)) and not row.count("tp")
    encoder = encoder or image is not None
    row = row if image is None else in_parts(in_sequences(row, image), image)
    layout = read_layout(row, notes, engine, encoder=encoder)
    said = [*device.assumptions, *layout.assumptions]
    seq_len = sample_tokens(image) if image is not None else _seq_len(row, notes, said)
    width, stages = layout.tp or 1, layout.pp or 1
    flags = named_flags(row, notes, width=width) if is_test(engine) else {}
    recipe = read_recipe(row, notes, engine, device.accelerator)
    if image is not None:
        recipe = image_recipe(row, recipe, image)
        reading = read_image_model(row, image, recipe)
    else:
        reading = read_model(row, notes, seq_len=seq_len, stages=stages, width=width, known=flags)
    batch = read_batch(row, notes, engine, layout, seq_len=seq_len, images=None if image is None else IMAGES)
    said += [*reading.assumptions, *recipe.assumptions, *batch.assumptions]
    ran = named_machine(row, device.accelerator.name) if is_test(engine) else ""
    texts = (row.text("interconnect"), row.text("hardware"), row.text("notes"), ran)
    policy = policy_of(row, engine, stages=stages, said=said)
    cluster = own_cluster(row.text("hardware"), layout.devices, source)
    if cluster is None:
        cluster, wiring = place(device.accelerator, layout.devices, texts, source)
        said += wiring
    masked = predicted_share(row.text("model"), results=_published(row))
    if masked is not None:
        said.append(f"logits of masked positions alone, {masked:.0%} of the tokens")
    headless = readings.reading("headless", **row.cells_of())
    if headless is not None:
        said.append(f"no logits over the vocabulary: {headless.told}")
    translates = image in TRANSLATORS or readings.reading("has_encoder", **row.cells_of()) is not None
    workload = Workload(
        seq_len=seq_len,
        unpredicted=1.0 if headless is not None else 1.0 - masked if masked is not None else 0.0,
        global_batch=batch.global_batch,
        encoder_seq_len=_encoder_length(row, seq_len) if translates else None,
        **{**recipe.workload, "framework": policy},  # type: ignore[arg-type]
    )
    stated = _stated(row, notes, engine, layout, recipe, reading.model, said)
    if batch.micro_batch is not None:
        stated["micro_batch"] = batch.micro_batch
    if batch.dp is not None:
        stated["dp"] = batch.dp
    return Interpretation(
        model=reading.model,
        cluster=cluster,
        workload=workload,
        stated=stated,
        engine=engine,
        notes=notes,
        assumptions=tuple(dict.fromkeys(said)),
        key=repr((reading.key, _machine_key(cluster), workload, sorted(stated.items(), key=str))),
        derived=reading.derived,
    )


def _encoder_length(row: Row, seq_len: int) -> int:
    """Tokens that the encoder reads of one sequence [token]."""
    own = None if row.count("seq_len") is not None else readings.reading("encoder_seq_len", **row.cells_of())
    return seq_len if own is None else int(own.number)


def _published(row: Row) -> str:
    """Where a row was published, repository and file."""
    return f"{row.text('source')}; {row.text('source_where')}"


def _seq_len(row: Row, notes: Notes, said: list[str]) -> int:
    if row.asks_bytes and notes.says(r"not packed"):
        raise InputError("samples are not packed and their length is not stated", field="seq_len")
    stated = row.count("seq_len") or notes.count("mpe", "seq-len", "seq", "max-seq-len")
    kept = None if stated is None else kept_tokens(row.text("model"), results=_published(row), positions=stated)
    if kept is not None and kept != stated:
        said.append(f"padding is removed: {kept} of {stated} positions are computed (arXiv:2107.02027)")
        return kept
    if stated is not None:
        return stated
    whence = f"{row.text('engine')}; {row.text('source')}"
    name = f"{plain_name(row.text('model'))}; {row.text('model')}"
    usual = readings.reading("seq_len", runs=whence, model=name)
    if usual is not None:
        said.append(f"sequence length not stated: {usual.value} ({usual.told})")
        return int(usual.number)
    raise InputError("the sequence length is not stated", field="seq_len")


def _machine_key(cluster: Cluster) -> tuple[object, ...]:
    part = cluster.accelerator
    tiers = tuple((tier.name, tier.size, tier.bytes_per_s, tier.topology) for tier in cluster.tiers)
    return (
        part.name,
        part.memory_bytes,
        part.memory_bytes_per_s,
        part.tdp_w,
        cluster.count,
        cluster.host,
        tiers,
    )


def _stated(
    row: Row, notes: Notes, engine: TrainingProgram, layout: Layout, recipe: Recipe, model: Model, said: list[str]
) -> dict[str, object]:
    """Plan fields that the row states or its program fixes."""
    layers = len(model.graph.layers)
    stated: dict[str, object] = dict(recipe.plan)
    degrees = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "dp": layout.dp, "ep": layout.ep}
    stated |= {name: value for name, value in degrees.items() if value is not None}
    stated |= read_schedule(row, notes, engine, layout, layers, said)
    if is_test(engine):
        ranks = (layout.dp or 1) * (layout.cp or 1)
        stated |= named_plan(row, pp=layout.pp or 1, ranks=ranks, layers=layers, said=said)
    if layout.tp == 1:
        stated["sequence_parallel"] = False
    elif "sequence_parallel" not in stated and (layout.tp is not None or not engine.sequence_parallel):
        flagged = "sequence-parallel" in notes.switches or notes.says(r"sequence parallel|_sp\b")
        stated["sequence_parallel"] = bool(engine.sequence_parallel or flagged)
    if stated.get("recompute") != "full":
        stated.pop("recompute_layers", None)
    if re.search(r"ulysses", f"{row.text('engine')}; {notes.text}", re.IGNORECASE):
        stated["context_style"] = "ulysses"
    else:
        stated |= published_exchanges(row, said)
    stated |= _experts(row, engine, layout, model)
    if stated.get("offload_optimizer") and stated.get("zero") == 0 and recipe.workload["task"] is Task.PRETRAIN:
        stated.pop("zero")
    return stated


def _experts(row: Row, engine: TrainingProgram, layout: Layout, model: Model) -> dict[str, object]:
    """Expert degrees: 1 for dense models; Megatron-LM's tests divide experts by tp unless they say otherwise."""
    if not any(block.experts for block in model.graph.blocks.values()):
        return {"ep": 1, "etp": 1}
    if not is_test(engine) or layout.tp is None or layout.dp is None:
        return {}
    width = expert_width(row, layout.tp)
    ranks = layout.tp * (layout.cp or 1) * layout.dp
    return {"etp": width} if ranks % (width * (layout.ep or 1)) == 0 else {}
