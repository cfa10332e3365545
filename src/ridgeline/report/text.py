"""A report in words and tables: the answer first, then the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ridgeline.facts.records import Cluster
from ridgeline.plan.plan import Plan
from ridgeline.report.as_json import run_totals
from ridgeline.report.blocks import Block, Line, Table, blank, labelled, listed, record_table
from ridgeline.report.evidence import known_text, what_if_lines
from ridgeline.report.report import OpRow, Report, StageMemory
from ridgeline.units import bytes_text, rate_text, time_text

_BAR, _NAMES = 40, 13  # columns of a memory bar, and of the names beside an answer
_J_PER_WH, _TOP_OPS = 3600.0, 24
_LEAST_SHARE = 5e-4  # of the step; what is less would print as 0.0%
_STAGES = 4  # with different memory, shown one by one


def money_text(value_usd: float) -> str:
    """An amount [USD] for people, e.g. '$1,234' or '$0.0123'."""
    return f"${value_usd:,.0f}" if value_usd >= 100 else f"${value_usd:.3g}"


def cost_text(usd_per_h: float, tokens_per_s: float) -> str:
    """The price of output tokens at a rate [token/s] on machines of a price [USD/h], for people."""
    each = money_text(usd_per_h / 3600.0 / tokens_per_s * 1e6)
    return f"{each} per million output tokens at {money_text(usd_per_h)} an hour"


def no_price(of: str) -> str:
    """Why there is no cost, and what to say."""
    return f"no price is known of {of}; say --price, e.g. 2.5 dollars a device and hour, or `price` in a cluster file"


def latency_text(value_s: float) -> str:
    """A latency [s] for people; '-' where none was measured."""
    return time_text(value_s) if math.isfinite(value_s) else "-"


def count_text(value: float) -> str:
    """A count [1] for people, as '70.6B' or '15T'."""
    return rate_text(value, "").replace(" ", "").replace("G", "B")


def energy_text(value_j: float) -> str:
    """An energy [J] for people, in watt-hours with an SI prefix."""
    return rate_text(value_j / _J_PER_WH, "Wh")


def carbon_text(value_kg: float) -> str:
    """An emission [kg CO2-equivalent] for people, e.g. '5.75 kg CO2e', '12.1 g CO2e' or '2,141 t CO2e'."""
    unit, size = ("t", 1e3) if value_kg >= 1e3 else ("kg", 1.0) if value_kg >= 0.1 else ("g", 1e-3)
    amount = value_kg / size
    return f"{amount:,.0f} {unit} CO2e" if amount >= 1e3 else f"{amount:.3g} {unit} CO2e"


def grid_text(cluster: Cluster) -> str:
    """What a kilowatt-hour emits where a cluster stands, e.g. 'at 480 g a kWh'; '' where that is not known."""
    grid = cluster.carbon_kg_per_j
    return "" if grid is None else f"at {grid.value * _J_PER_WH * 1e6:.0f} g a kWh"


def plan_text(plan: Plan) -> str:
    """A plan in one line: degrees above one, then every choice that is not the default."""
    degrees = [f"{name} {getattr(plan, name)}" for name in ("tp", "pp", "cp", "dp", "ep", "etp")]
    words = [text for text in degrees if not text.endswith(" 1")] or ["one device"]
    if plan.pp > 1 or plan.schedule != "1f1b":
        words.append(plan.schedule + (f" x{plan.chunks} chunks" if plan.chunks > 1 else ""))
    words.append(f"micro-batch {plan.micro_batch}")
    if plan.zero:
        words.append(f"ZeRO-{plan.zero}" + (f" over {plan.zero_group}" if plan.zero_group else ""))
    words.append(_recompute_text(plan))
    words += _switch_words(plan)
    words += plan.technique
    return ", ".join(words)


def _recompute_text(plan: Plan) -> str:
    layers = "" if plan.recompute_layers is None else f" on {plan.recompute_layers} layers per stage"
    return "no recompute" if plan.recompute == Plan.recompute else f"{plan.recompute} recompute{layers}"


def _switch_words(plan: Plan) -> Iterator[str]:
    if plan.sequence_parallel:
        yield "sequence parallel"
    if plan.cp > 1:
        yield f"{plan.context_style} context"
    if plan.offload_optimizer:
        yield "optimizer in host memory"
    if plan.offload_activations:
        yield "activations in host memory"
    if plan.offload_weights:
        yield "weights, gradients and optimizer in host memory"
    if plan.optimizer_in_backward:
        yield "optimizer in backward"
    if plan.loss != Plan.loss:
        yield f"{plan.loss} loss"
    if plan.layer_split is not None:
        yield "layers " + "/".join(map(str, plan.layer_split))
    if plan.dp * plan.cp > 1 and not plan.overlap_gradients:
        yield "gradient reduction exposed"
    if plan.zero == 3 and not plan.overlap_weights:
        yield "weight gathering exposed"
    if plan.tp > 1 and plan.overlap_tensor:
        yield "overlapped tensor collectives"


def title_text(report: Report) -> str:
    """What was asked, in one line."""
    work, graph = report.workload, report.model.graph
    size = f"{count_text(graph.params)} parameters"
    size += "" if graph.active_params == graph.params else f", {count_text(graph.active_params)} active"
    asked = f"{work.global_batch} sequences of {work.seq_len} tokens"
    if report.sample_tokens is not None:
        asked = f"{work.global_batch} samples" + (f" of {work.seq_len} tokens" if work.seq_len > 1 else "")
    return (
        f"{report.model.name} ({size}), {work.task.value}, on {report.cluster.name}: "
        f"{asked} per step, {work.precision}, {work.optimizer}"
    )


def answer_blocks(report: Report) -> Iterator[Block]:
    """The answer first: what a plan takes, what it costs, what limits it."""
    yield Line(text=title_text(report), strong=True, hang=2)
    yield blank()
    yield from labelled(list(_answer_rows(report)), _NAMES)
    if not report.fits:
        short = -min(stage.headroom_bytes for stage in report.memory)
        yield Line(text=f"DOES NOT FIT {bytes_text(short)} short on the fullest device", indent=2, strong=True)
    elif unsure := _unsure_fit(report):
        yield from labelled([("memory", unsure)], _NAMES)
    yield from labelled([("evidence", known_text(report.known, "the step time"))], _NAMES)


def _unsure_fit(report: Report) -> str:
    """That a plan fits, but the high end of its memory's interval does not; '' where both do."""
    over = [stage for stage in report.memory if stage.interval_bytes[1] > stage.capacity_bytes]
    if not over:
        return ""
    worst = max(over, key=lambda stage: stage.interval_bytes[1])
    return (
        "fits, but the high end of its 80 % interval does not: "
        f"{_gib(worst.interval_bytes[1])} of {_gib(worst.capacity_bytes)} GiB"
    )


def _answer_rows(report: Report) -> Iterator[tuple[str, str]]:
    from ridgeline.report.footprint import footprint_rows

    step, run = report.step_time, run_totals(report)
    per_device = report.counts_per_s / report.plan.devices
    yield "plan", plan_text(report.plan)
    if report.idle_devices:
        count, one = report.cluster.count, report.idle_devices == 1
        what = "device is idle: it draws idle power and is" if one else "devices are idle: they draw idle power and are"
        why = f"; {report.idle_why}" if report.idle_why else ""
        yield "idle", f"{report.idle_devices} of {count} {what} paid for{why}"
    yield (
        "step time",
        f"{time_text(step.value)} (80 % interval {time_text(step.low)} to {time_text(step.high)}; "
        f"closed form {time_text(report.bound_s)} at the same prices)",
    )
    yield (
        "throughput",
        f"{report.counts_per_s:,.0f} {report.counts}/s, {per_device:,.0f} per device; "
        f"MFU {report.mfu:.1%}{_causal(report)}, HFU {report.hfu:.1%}",
    )
    part = report.cluster.accelerator
    hosts = "" if part.tdp_w is not None else f", of the hosts alone: no rated power is known of {part.name}"
    drawn = f"{rate_text(report.power_w, 'W')} at the wall, {energy_text(report.energy_j_per_step)} per step"
    yield "power", drawn + hosts
    if report.carbon_kg_per_step is not None:
        yield "carbon", f"{carbon_text(report.carbon_kg_per_step)} per step, {grid_text(report.cluster)}"
    yield (
        "cost",
        no_price(part.name) if report.usd_per_step is None else f"{money_text(report.usd_per_step)} per step",
    )
    if run["run_time_s"] is not None:
        assert report.workload.tokens is not None
        counted = f"{count_text(report.workload.tokens / (report.sample_tokens or 1))} {report.counts}"
        energy_j = run["run_energy_j"] or 0.0
        price = "" if run["run_usd"] is None else f", {money_text(run['run_usd'])}"
        carbon = "" if run["run_carbon_kg"] is None else f", {carbon_text(run['run_carbon_kg'])}"
        yield "whole run", f"{time_text(run['run_time_s'])} for {counted}, {energy_text(energy_j)}{price}{carbon}"
    if report.goodput is not None:
        yield "failures", report.goodput_text()
    yield from footprint_rows(report)
    yield "limited by", report.limit


def _causal(report: Report) -> str:
    """The MFU that counts attended pairs alone, where that reads otherwise."""
    text = f"{report.causal_mfu:.1%}"
    return "" if text == f"{report.mfu:.1%}" else f" ({text} of attended pairs)"


def share_blocks(report: Report) -> Iterator[Block]:
    """What a step spends its time on."""
    rows = [
        (share.label, share.kind, time_text(share.seconds), f"{share.seconds / report.step_time.value:.1%}")
        for share in report.shares
        if share.seconds >= _LEAST_SHARE * report.step_time.value
    ]
    if rows:
        yield Line(text="Where the step time goes", strong=True)
        yield Table(columns=("part", "kind", "time", "share"), rows=tuple(rows), right=frozenset({"time", "share"}))
        yield blank()


def memory_bar(stage: StageMemory, letters: dict[str, str], capacity_columns: int = _BAR) -> str:
    """One device's memory as a bar: a letter per category, dots for what is free, '!' past the end."""
    bar, total = "", 0.0
    for name, size in stage.categories.items():
        total += size
        end = min(total / stage.capacity_bytes, 2.0)  # what lies past twice the capacity is not drawn
        bar += letters[name] * (round(capacity_columns * end) - len(bar))
    over = len(bar) > capacity_columns
    return f"[{bar[:capacity_columns].ljust(capacity_columns, '.')}]" + ("!" if over else "")


def _bar_letters(stages: Sequence[StageMemory]) -> dict[str, str]:
    """A letter per category: its own initial while free, else the next free letter of its name."""
    letters: dict[str, str] = {}
    for stage in stages:
        for name in stage.categories:
            free = [letter for letter in name.upper() if letter.isalpha() and letter not in letters.values()]
            letters.setdefault(name, free[0] if free else "?")
    return letters


def _distinct(stages: Sequence[StageMemory]) -> list[tuple[str, StageMemory]]:
    """Stages with equal memory told once, under the numbers of the first and the last in a row."""
    groups: list[tuple[int, int, StageMemory]] = []
    for stage in stages:
        if groups and dict(groups[-1][2].categories) == dict(stage.categories):
            groups[-1] = (groups[-1][0], stage.stage, groups[-1][2])
        else:
            groups.append((stage.stage, stage.stage, stage))
    return [(str(first) if first == last else f"{first}-{last}", stage) for first, last, stage in groups]


def _shown(groups: list[tuple[str, StageMemory]]) -> tuple[list[tuple[str, StageMemory]], list[float]]:
    """The first, the fullest and the last of many stages, and the totals of those left out [byte]."""
    if len(groups) <= _STAGES:
        return groups, []
    fullest = max(range(len(groups)), key=lambda place: groups[place][1].total_bytes)
    kept = {0, fullest, len(groups) - 1}
    rest = [stage.total_bytes for place, (_, stage) in enumerate(groups) if place not in kept]
    return [groups[place] for place in sorted(kept)], rest


def memory_blocks(report: Report) -> Iterator[Block]:
    """What each stage holds, as bars."""
    if not report.memory:
        return
    letters = _bar_letters(report.memory)
    shown, rest = _shown(_distinct(report.memory))
    rows = [
        (f"{letter} {name}", *(_gib(stage.categories.get(name, 0.0)) for _, stage in shown))
        for name, letter in letters.items()
    ] + [("total", *(_gib(stage.total_bytes) for _, stage in shown))]
    rows.append(("80 % interval", *(" to ".join(map(_gib, stage.interval_bytes)) for _, stage in shown)))
    if any(stage.reserved_share for _, stage in shown):
        rows.append(("reserved", *(_gib(stage.reserved_bytes) for _, stage in shown)))
    rows.append(("free", *(_gib(stage.headroom_bytes) for _, stage in shown)))
    columns = ("GiB", *(f"stage {number}" for number, _ in shown))
    yield Line(text=f"Peak memory per device, of {bytes_text(report.memory[0].capacity_bytes)}", strong=True)
    yield Table(columns=columns, rows=tuple(rows), right=frozenset(columns[1:]))
    for number, stage in shown:
        yield Line(text=f"stage {number:<7} {memory_bar(stage, letters)}", indent=2)
    if rest:
        yield Line(text=f"the stages between hold {bytes_text(min(rest))} to {bytes_text(max(rest))}", indent=2)
    yield blank()


def _gib(value_bytes: float) -> str:
    return f"{value_bytes / 2**30:.2f}"


def _ops(report: Report) -> Iterator[Block]:
    ranked = sorted(report.ops, key=lambda row: -(row.forward_s + row.backward_s) * row.layers)
    shown = set(map(id, ranked[:_TOP_OPS]))
    rows = [row for row in report.ops if id(row) in shown]
    if not rows:
        return
    rest = len(report.ops) - len(rows)
    yield Line(text="Operators of one rank and one micro-batch, per layer", strong=True)
    yield record_table(rows, _OP_CELLS, "operator", "bound by", "evidence")
    if rest > 0:
        yield Line(text=f"and {rest} smaller ones; --json has them all", indent=2)
    yield blank()


_OP_CELLS: dict[str, Callable[[OpRow], str]] = {
    "operator": lambda row: f"{row.block}.{row.op}",
    "layers": lambda row: str(row.layers),
    "forward": lambda row: time_text(row.forward_s),
    "backward": lambda row: time_text(row.backward_s),
    "work": lambda row: rate_text(row.flop, "FLOP"),
    "traffic": lambda row: bytes_text(row.bytes),
    "bound by": lambda row: row.bound,
    "evidence": lambda row: row.evidence.label.removesuffix(" elsewhere"),
}


def reason_blocks(report: Report, assumed: Sequence[str]) -> Iterator[Block]:
    """What would change the answer, what was assumed, and sources."""
    if report.evidence:
        yield Line(text="Evidence behind the numbers", strong=True)
        rows = tuple((name, evidence.label) for name, evidence in report.evidence.items())
        yield Table(columns=("mechanism", "lowest rung"), rows=rows)
        yield blank()
    yield from listed(what_if_lines(report.what_if, "step time"), "What would change the answer")
    yield from listed([*assumed, *report.assumptions], "Assumed")
    yield from listed(report.sources, "Sources")


def report_blocks(report: Report, *, assumed: Sequence[str] = ()) -> list[Block]:
    """The answer to `predict`: numbers, memory, shares, operators, reasons."""
    found = [
        *answer_blocks(report),
        blank(),
        *memory_blocks(report),
        *share_blocks(report),
        *_ops(report),
        *reason_blocks(report, assumed),
    ]
    return found[:-1] if found[-1] == blank() else found
