"""How rows ran where they do not say: as their makers published with the code (MLPerf Training, Google's recipes)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ridgeline.facts.frameworks import FrameworkPolicy, framework_policy
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.published_plans import PublishedPlan, published_plan
from ridgeline.facts.readings import reading, settings
from ridgeline.validate.rows import Row


def published_configuration(row: Row) -> PublishedPlan | None:
    """The configuration that the maker of a row published for it; None where none is known.

    Rows of MLPerf that name DeepSpeed ran the reference's code, not the makers'.
    """
    if re.search(r"deepspeed", row.text("engine"), re.IGNORECASE):
        return None
    submitter = row.text("source_where").partition("/")[0]
    return published_plan(
        row.text("model"),
        device=row.text("hardware"),
        results=row.text("source"),
        devices=row.count("n_devices") or 0,
        submitter=submitter,
        stated={name: row.count(name) for name in ("tp", "pp", "cp")},
    )


def published_sharding(row: Row) -> dict[str, object]:
    """How the published code shards states, as plan fields; empty where it says nothing."""
    plan, devices = published_configuration(row), row.count("n_devices") or 1
    if plan is None or plan.zero is None:
        return {}
    sharding: dict[str, object] = {"zero": plan.zero}
    if plan.zero_group is not None and plan.zero_group < devices and devices % plan.zero_group == 0:
        sharding["zero_group"] = plan.zero_group
    return sharding


def published_recompute(row: Row, said: list[str]) -> dict[str, object]:
    """What the published code computes again, as plan fields; empty where it says nothing."""
    plan = published_configuration(row)
    if plan is None or plan.recompute is None:
        return {}
    fields: dict[str, object] = {"recompute": plan.recompute}
    layers = ""
    if plan.recompute_layers is not None:
        fields["recompute_layers"] = plan.recompute_layers
        layers = f" in {plan.recompute_layers} layers"
    said.append(f"recompute not stated: {plan.recompute}{layers}, as the published code ({plan.name})")
    return fields


def published_exchanges(row: Row, said: list[str]) -> dict[str, object]:
    """How context ranks exchange and whether tensor ranks' exchanges hide under products, in the published code.

    As plan fields; empty where it says nothing.
    """
    plan = published_configuration(row)
    fields: dict[str, object] = {}
    if plan is not None and plan.context_style is not None:
        said.append(f"context ranks exchange by {plan.context_style} where there are any, as the published code")
        fields["context_style"] = plan.context_style
    if plan is not None and plan.overlap_tensor is not None:
        said.append(f"overlap_tensor {plan.overlap_tensor}, as the published code ({plan.name})")
        fields["overlap_tensor"] = plan.overlap_tensor
    return fields


def published_execution(row: Row, said: list[str]) -> str | None:
    """Whether the published code captured graphs: 'graph' or 'compiled'; None where it says nothing."""
    plan = published_configuration(row)
    if plan is None or plan.execution is None:
        return None
    if plan.execution != "graph":
        said.append(f"no CUDA graphs in the published configuration ({plan.name})")
    return plan.execution


def published_degrees(row: Row, degrees: dict[str, int | None], said: list[str]) -> dict[str, int | None]:
    """Degrees of published runs, or data and context for LoRA on devices that hold the 8-bit base."""
    devices, batch = row.count("n_devices"), row.count("global_batch")
    plan = published_configuration(row)
    open_ = all(degrees[name] is None for name in ("tp", "pp", "cp", "dp"))
    if plan is not None and plan.tp and plan.pp and plan.cp and open_ and devices is not None:
        width = plan.tp * plan.pp * plan.cp
        if devices % width == 0 and (batch or 0) % (devices // width) == 0:
            degrees_said = f"tp {plan.tp}, pp {plan.pp}, cp {plan.cp}"
            said.append(f"degrees not stated: {degrees_said} of the published code ({plan.name})")
            return {"tp": plan.tp, "pp": plan.pp, "cp": plan.cp, "dp": devices // width}
    whole = reading("holds_whole_base", **row.cells_of())
    if whole is None or devices is None or batch is None:
        return {}
    dp = degrees["dp"] or batch
    if any(degrees[name] is not None for name in ("tp", "pp", "cp")) or devices % dp:
        return {}
    said.append(f"LoRA on devices that hold the 8-bit base whole: dp {dp}, cp {devices // dp}, no tp or pp")
    return {"tp": 1, "pp": 1, "cp": devices // dp, "dp": dp}


def policy_of(row: Row, engine: TrainingProgram, *, stages: int, said: list[str]) -> FrameworkPolicy:
    """The policy of the row's framework as its program and flags change it; each rule's reason goes to `said`."""
    words = f"pipelined; {row.words}" if stages > 1 else row.words
    found: dict[str, Any] = dict(settings("runtime", said, **row.cells_of(engine.name, words=words)))
    published = published_configuration(row)
    if published is not None and published.mlp_input_bytes is not None:
        found["mlp_input_bytes"] = published.mlp_input_bytes
        said.append(f"activation functions keep their inputs in 8 bits, as the published code ({published.name})")
    if published is not None and published.weight_bytes is not None:
        found["weight_bytes"] = published.weight_bytes
        said.append(
            f"weights are held in {8 * published.weight_bytes:g} bits, as the published code ({published.name})"
        )
    return replace(framework_policy(engine.framework), **found)


def bytes_precision(row: Row, engine: TrainingProgram, precision: str, said: list[str]) -> str:
    """The recipe whose bytes a row that asks for bytes is counted in; other rows keep theirs."""
    found = reading("bytes_precision", program=engine.name, words=precision) if row.asks_bytes else None
    if found is None:
        return precision
    said.append(found.told)
    return found.text
