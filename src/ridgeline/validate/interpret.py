"""A row of a training or memory table as a scenario: model, cluster, workload, stated plan fields, assumptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.benchmarks import kept_tokens, predicted_share, ran_on
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.programs import TrainingProgram, training_program
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.networks import sample_tokens
from ridgeline.graph.translation import TRANSLATORS
from ridgeline.graph.workload import Task, Workload
from ridgeline.scenario.settings import COLUMN as SETTINGS
from ridgeline.scenario.settings import read_settings
from ridgeline.validate.hardware import NamedDevice, find_device
from ridgeline.validate.images import IMAGES, image_recipe, in_parts, in_sequences, network, read_image_model
from ridgeline.validate.layout import TrainingLayout, read_batch, read_layout, read_schedule
from ridgeline.validate.machines import Machines, machines, own_cluster, place
from ridgeline.validate.models import program_flags, read_model
from ridgeline.validate.notes import Notes, TrainingRow, plain_name, read_notes, refuse_unsupported
from ridgeline.validate.recipes import Recipe, policy_of, read_recipe
from ridgeline.validate.rows import Row


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
    engine = training_program(row.text("engine"), row.text("source"), model=row.text("model"))
    device = row.text("hardware") or "not stated"
    try:
        if row.problem is not None:
            raise InputError(row.problem)
        image = network(row.text("model"), source=row.text("source"))
        if image is None:
            refuse_unsupported(row.text("model"))
        known = source or machines()
        found = _device(row, known)
        device = found.accelerator.name
        if row.text(SETTINGS):
            return _told(row, engine, found, known)
        row = row if image is None else in_parts(in_sequences(row, image), image)
        told = TrainingRow(row=row, notes=read_notes(row), engine=engine, device=found.accelerator)
        told.said.extend(found.assumptions)
        return _scenario(told, image, known)
    except RidgelineError as error:
        return Refusal(reason=str(error), engine=engine.name, device=device)


def _device(row: Row, known: Machines) -> NamedDevice:
    own = own_cluster(row.text("hardware"), 1, known)
    if own is not None:
        return NamedDevice(accelerator=own.accelerator, assumptions=())
    meant = reading("device_meant", **row.cells_of())
    found = find_device(row.text("hardware") if meant is None else meant.text, known.accelerators(), known.usual)
    return found if meant is None or not meant.told else replace(found, assumptions=(meant.told,))


def _cluster(
    row: Row, device: NamedDevice, devices: int, source: Machines, *texts: str
) -> tuple[Cluster, tuple[str, ...]]:
    """The devices of a row in the machine that its cells and `texts` name or imply, and what that assumes."""
    own = own_cluster(row.text("hardware"), devices, source)
    if own is not None:
        return own, ()
    return place(device.accelerator, devices, (row.text("interconnect"), row.text("hardware"), *texts), source)


def _told(row: Row, engine: TrainingProgram, device: NamedDevice, source: Machines) -> Interpretation:
    """The scenario of a row that holds all of it, as `ridgeline measure --append` writes them."""
    told = read_settings(row.text(SETTINGS), name=row.text("model") or "own model")
    cluster, wiring = _cluster(row, device, row.count("n_devices") or told.plan.devices, source, "")
    return Interpretation(
        model=told.model,
        cluster=cluster,
        workload=told.workload,
        stated=vars(told.plan),
        engine=engine,
        notes=read_notes(row),
        assumptions=(*device.assumptions, *wiring),
        key=repr((row.text(SETTINGS), _machine_key(cluster))),
    )


def _scenario(told: TrainingRow, image: str | None, source: Machines) -> Interpretation:
    row, said = told.row, told.said
    bert = re.search(r"bert|electra|\bbart\b", row.text("model"), re.IGNORECASE) and not row.count("tp")
    layout = read_layout(told, encoder=bool(bert) or image is not None)
    seq_len = _seq_len(told) if image is None else sample_tokens(image)
    width, stages = layout.tp or 1, layout.pp or 1
    recipe = read_recipe(told)
    if image is not None:
        recipe = image_recipe(told, recipe, image)
        model = read_image_model(told, image, recipe)
    else:
        flags = program_flags(told, width=width)
        model = read_model(row, told.notes, seq_len=seq_len, stages=stages, width=width, known=flags)
    batch = read_batch(told, layout, seq_len=seq_len, images=None if image is None else IMAGES)
    said += model.assumptions
    policy = policy_of(told, stages=stages)
    ran = ran_on(row.text("source_where"), told.device.name) or ""
    device = NamedDevice(accelerator=told.device, assumptions=())
    cluster, wiring = _cluster(row, device, layout.devices, source, row.text("notes"), ran)
    said += wiring
    masked = predicted_share(row.text("model"), results=row.place)
    if masked is not None:
        said.append(f"logits of masked positions alone, {masked:.0%} of the tokens")
    headless = reading("headless", **row.cells_of())
    if headless is not None:
        said.append(f"no logits over the vocabulary: {headless.told}")
    translates = image in TRANSLATORS or told.reading("has_encoder") is not None
    workload = Workload(
        seq_len=seq_len,
        unpredicted=1.0 if headless is not None else 1.0 - masked if masked is not None else 0.0,
        global_batch=batch.global_batch,
        encoder_seq_len=_encoder_length(told, seq_len) if translates else None,
        **{**recipe.workload, "framework": policy},  # type: ignore[arg-type]
    )
    stated = _stated(told, layout, recipe, model.model)
    stated |= {name: value for name in ("micro_batch", "dp") if (value := getattr(batch, name)) is not None}
    return Interpretation(
        model=model.model,
        cluster=cluster,
        workload=workload,
        stated=stated,
        engine=told.engine,
        notes=told.notes,
        assumptions=tuple(dict.fromkeys(said)),
        key=repr((model.key, _machine_key(cluster), workload, sorted(stated.items(), key=str))),
        derived=model.derived,
    )


def _encoder_length(told: TrainingRow, seq_len: int) -> int:
    """Tokens that the encoder reads of one sequence [token]."""
    own = None if told.row.count("seq_len") is not None else told.reading("encoder_seq_len")
    return seq_len if own is None else int(own.number)


def _seq_len(told: TrainingRow) -> int:
    row, notes, said = told.row, told.notes, told.said
    if row.asks_bytes and notes.says(r"not packed"):
        raise InputError("samples are not packed and their length is not stated", field="seq_len")
    stated = row.count("seq_len") or notes.count("mpe", "seq-len", "seq", "max-seq-len")
    kept = None if stated is None else kept_tokens(row.text("model"), results=row.place, positions=stated)
    if kept is not None and kept != stated:
        said.append(f"padding is removed: {kept} of {stated} positions are computed (arXiv:2107.02027)")
        return kept
    if stated is not None:
        return stated
    name = f"{plain_name(row.text('model'))}; {row.text('model')}"
    usual = reading("seq_len", runs=f"{row.text('engine')}; {row.text('source')}", model=name)
    if usual is None:
        raise InputError("the sequence length is not stated", field="seq_len")
    said.append(f"sequence length not stated: {usual.value} ({usual.told})")
    return int(usual.number)


def _machine_key(cluster: Cluster) -> tuple[object, ...]:
    part = cluster.accelerator
    tiers = tuple((tier.name, tier.size, tier.bytes_per_s, tier.topology) for tier in cluster.tiers)
    own = (part.name, part.memory_bytes, part.memory_bytes_per_s, part.tdp_w)
    return (*own, cluster.count, cluster.host, tiers)


def _stated(told: TrainingRow, layout: TrainingLayout, recipe: Recipe, model: Model) -> dict[str, object]:
    """Plan fields that the row states or its program fixes."""
    engine, notes = told.engine, told.notes
    layers = len(model.graph.layers)
    stated: dict[str, object] = {**recipe.plan, **layout.degrees, **read_schedule(told, layout, layers)}
    stated |= _named_plan(told, layout, layers)
    if layout.tp == 1:
        stated["sequence_parallel"] = False
    elif "sequence_parallel" not in stated and (layout.tp is not None or not engine.sequence_parallel):
        flagged = "sequence-parallel" in notes.switches or notes.says(r"sequence parallel|_sp\b")
        stated["sequence_parallel"] = bool(engine.sequence_parallel or flagged)
    if stated.get("recompute") != "full":
        stated.pop("recompute_layers", None)
    if re.search(r"ulysses", f"{told.row.text('engine')}; {notes.text}", re.IGNORECASE):
        stated["context_style"] = "ulysses"
    else:
        stated |= _published_exchanges(told)
    stated |= _experts(told, layout, model)
    if stated.get("offload_optimizer") and stated.get("zero") == 0 and recipe.workload["task"] is Task.PRETRAIN:
        stated.pop("zero")
    return stated


def _named_plan(told: TrainingRow, layout: TrainingLayout, layers: int) -> dict[str, object]:
    """Plan fields that words of a row name: groups that share states, layers of the first and the last stage."""
    found: dict[str, object] = dict(told.settings("plan"))
    groups, ends = int(str(found.pop("zero_groups", 1))), int(str(found.pop("end_layers", 0)))
    ranks, pp = (layout.dp or 1) * (layout.cp or 1), layout.pp or 1
    if groups > 1 and ranks % groups == 0:
        found["zero_group"] = ranks // groups
    if ends and pp > 2 and (layers - 2 * ends) % (pp - 2) == 0:
        found["layer_split"] = (ends, *[(layers - 2 * ends) // (pp - 2)] * (pp - 2), ends)
    return found


def _published_exchanges(told: TrainingRow) -> dict[str, object]:
    """How context ranks exchange and whether tensor ranks' exchanges hide under products, in the published code."""
    plan, fields = told.published, dict[str, object]()
    if plan is not None and plan.context_style is not None:
        told.said.append(f"context ranks exchange by {plan.context_style} where there are any, as the published code")
        fields["context_style"] = plan.context_style
    if plan is not None and plan.overlap_tensor is not None:
        told.said.append(f"overlap_tensor {plan.overlap_tensor}, as the published code ({plan.name})")
        fields["overlap_tensor"] = plan.overlap_tensor
    return fields


def _experts(told: TrainingRow, layout: TrainingLayout, model: Model) -> dict[str, object]:
    """Expert degrees: 1 for dense models, and where a program divides no experts and none are stated; the expert-tensor
    degree that a program has by default, where it divides."""
    if not any(block.experts for block in model.graph.blocks.values()):
        return {"ep": 1, "etp": 1}
    if told.row.count("ep") is None and not framework_policy(told.engine.framework).expert_parallel:
        return {"ep": 1, "etp": 1}
    width = layout.expert_width(told)
    if width is None or layout.tp is None or layout.dp is None:
        return {}
    ranks = layout.tp * (layout.cp or 1) * layout.dp
    return {"etp": width} if ranks % (width * (layout.ep or 1)) == 0 else {}
