"""Charts of answers that are a few bars: diffusion, offload, unlike devices and lengths, rent, jobs, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, scattered
from ridgeline.pages.drawing import FAINT, HUES, Figure
from ridgeline.report.lengths import LengthsReport
from ridgeline.report.mixed import MixedReport
from ridgeline.report.offloaded import TIERS, OffloadReport, PolicyReport, Spent
from ridgeline.report.operator import OperatorCost
from ridgeline.report.text import money_text
from ridgeline.units import bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from ridgeline.predict.sampling import SamplingCost
    from ridgeline.search.renting import RentedFleet
    from ridgeline.training.job_pool import PoolOutcome

_WHISKERS = "Whiskers are 80 % intervals."


def of_pictures(cost: SamplingCost) -> Charts:
    """Charts of `predict` of diffusion: a batch, one step of it, memory of a device."""
    steps = cost.seconds - cost.words_s - cost.pixels_s - cost.copied_s
    batch = {"words": cost.words_s, "steps": steps, "pixels": cost.pixels_s, "copies from host": cost.copied_s}
    told = f"evidence: {cost.evidence.label}"
    held = {name: part.weights_bytes for name, part in cost.memory.parts.items() if cost.memory.offload == "none"} or {
        "the fullest moment": cost.memory.peak_bytes
    }
    held |= {"operands": max(cost.memory.peak_bytes - sum(held.values()), 0.0)}
    return {
        "time": lambda: _whole("time", "Time of a batch", batch, (cost.seconds, cost.low_s, cost.high_s), told),
        "step": lambda: _each("step", "One step on one device", cost.parts, told),
        "memory": lambda: _held("memory", [("device", held)], cost.memory.capacity_bytes),
    }


def of_offload(report: OffloadReport) -> Charts:
    """Charts of `predict --serve --offload`: times, what flows in a step and when, where weights lie."""
    held = {"on a device": report.device_bytes, "in host memory or on disk": report.host_bytes}
    return {
        "time": lambda: _phases(report),
        "step": lambda: _busy("step", "Who is busy in one step", report.step),
        "prompts": lambda: _busy("prompts", "Who is busy in the prompts", report.first),
        "weights": lambda: _each("weights", "Where the weights lie", held, report.technique, bytes_text),
    }


def of_policy(report: PolicyReport) -> Charts:
    """Charts of `plan --serve --offload`: who is busy in prompts and outputs, what lies where."""

    def tiers() -> Figure:
        most = max(report.usable_bytes) or 1.0
        rows = [
            Bar(name=tier, told=f"{bytes_text(peak)} of {bytes_text(room)}", parts=((peak / most, HUES[0], tier),),
                ghost=room / most)
            for tier, peak, room in zip(TIERS, report.peak_bytes, report.usable_bytes, strict=True) if room > 0
        ]  # fmt: skip
        return bars("memory", "Memory by tier", rows, note="Grey is what there is.")

    return {
        "prompts": lambda: _each("prompts", "Who is busy in a block's prompts", report.prefill, "prompts"),
        "outputs": lambda: _each("outputs", "Who is busy in a block's outputs", report.decode, "outputs"),
        "memory": tiers,
    }


def of_mixed(found: Sequence[MixedReport]) -> Charts:
    """Charts of a step on unlike devices: plans, who computes how long, memory."""
    best = found[0]

    def busy() -> Figure:
        rows = [
            Bar(
                name=f"{one.devices} x {one.device}", told=f"busy {one.busy:.0%}; {one.limit}" if one.limit else "",
                parts=((one.busy * best.step_s, HUES[place % len(HUES)], f"{one.device}: {one.sequences} sequences,"
                        f" {one.micro_batches} micro-batches of {one.micro_batch}\n{one.limit}"),),
            )
            for place, one in enumerate(best.uses)
        ]  # fmt: skip
        links = (best.exchange_share * best.step_s, HUES[7], "links")
        rows.append(Bar(name="links", told=f"busy {best.exchange_share:.0%}", parts=(links,)))
        return bars("busy", "Who is busy in a step", rows, mark=best.step_s, note="The line is the end of the step.")

    def memory() -> Figure:
        most = [
            Bar(name=one.device, told=f"{bytes_text(one.memory_bytes)} of {bytes_text(one.capacity_bytes)}",
                parts=((one.memory_bytes, HUES[0], f"{one.device}: {one.state_share:.1%} of all states"),),
                ghost=one.capacity_bytes)
            for one in best.uses
        ]  # fmt: skip
        return bars("memory", "Memory of the fullest device", most, note="Grey is the capacity.")

    def name(one: MixedReport) -> str:
        plan = one.plan
        told = f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}, zero {plan.zero}, micro-batch {plan.micro_batch}"
        return ", ".join([told, *([] if plan.recompute == "none" else [plan.recompute]), *plan.technique])

    ends = [(name(one), (one.step_s, one.low_s, one.high_s)) for one in found]
    return {"time": lambda: _ranked("time", "Time of a step", ends), "busy": busy, "memory": memory}


def of_lengths(found: Sequence[LengthsReport]) -> Charts:
    """Charts of a step whose sequences have unlike lengths: ways to divide them, and groups of ranks."""
    best = found[0]
    ends = [(one.plan.length_balance, (one.step_s, one.low_s, one.high_s)) for one in found]
    tokens = {
        f"{one.groups} groups of {one.degree}: {one.shortest:,.0f} to {one.longest:,.0f} tokens": one.tokens
        for one in best.degrees
    }
    waits = [
        Bar(name=one.plan.length_balance, told=f"{one.waiting:.0%}", parts=((one.waiting, HUES[1], "waiting"),))
        for one in found
    ]
    return {
        "time": lambda: _ranked("time", "Time of a step", ends),
        "waiting": lambda: bars("waiting", "Ranks' time spent waiting for the slowest", waits),
        "groups": lambda: _each("groups", "Tokens by groups of ranks", tokens, "tokens", lambda n: f"{n:,.0f}"),
    }


def of_rent(found: RentedFleet) -> Charts:
    """Charts of `plan --serve --rent`: the price, how full each option is, mixes that were replayed."""
    rented = [one for one in found.rent.rented if one.rented]

    def price() -> Figure:
        parts = [
            (one.cost_usd_per_hour, HUES[place % len(HUES)],
             f"{one.rented} x {one.option}: {money_text(one.cost_usd_per_hour)} an hour")
            for place, one in enumerate(rented)
        ]  # fmt: skip
        total = found.rent.cost_usd_per_hour
        rows = [Bar(name="all", told=f"{money_text(total)} an hour", parts=tuple(parts))]
        rows += [Bar(name=part[2].partition(":")[0], told=money_text(part[0]), parts=(part,)) for part in parts]
        least = found.rent.bound_usd_per_hour
        note = f"The line: no mix costs less than {money_text(least)} an hour."
        return bars("price", "Price of the fleet", rows, mark=least, note=note)

    filled = [
        Bar(name=f"{one.rented} x {one.option}", told=f"{one.load / one.rented:.0%}",
            parts=((one.load / one.rented, HUES[place % len(HUES)], one.option),))
        for place, one in enumerate(rented)
    ]  # fmt: skip
    return {"price": price, "load": lambda: bars("load", "How full each option is", filled, mark=1.0)}


def of_jobs(found: Sequence[PoolOutcome]) -> Charts:
    """The chart of a pool of jobs: what ends in time under each rule."""
    rows = [
        Bar(name=one.policy, told=f"{one.completed_share:.0%} in time, of priority {one.high_completed_share:.0%}",
            parts=((one.completed_share, HUES[0], f"{one.policy}: {one.broken} of {one.started} broken off"),))
        for one in found
    ]  # fmt: skip
    return {"jobs": lambda: bars("jobs", "Jobs that end in time", rows)}


def _whole(
    name: str, title: str, parts: Mapping[str, float], ends: tuple[float, float, float], told: str
) -> Figure:  # fmt: skip
    """A time with its interval in one bar, then its parts."""
    value, low, high = ends
    shown = [
        (seconds, HUES[place % len(HUES)], f"{part}: {time_text(seconds)}, {seconds / value:.0%}\n{told}")
        for place, (part, seconds) in enumerate(parts.items())
        if seconds > 0
    ]
    rows = [Bar(name="batch", told=time_text(value), parts=tuple(shown), interval=(low, high))]
    rows += [
        Bar(name=tip.partition(":")[0], told=f"{time_text(size)}, {size / value:.0%}", parts=((size, colour, tip),))
        for size, colour, tip in shown
    ]
    return bars(name, title, rows, note=f"80 % interval {time_text(low)} to {time_text(high)}.")


def _each(
    name: str, title: str, parts: Mapping[str, float], told: str, text: Callable[[float], str] = time_text
) -> Figure | None:  # fmt: skip
    """A bar a part, the largest first."""

    kept = sorted(((size, part) for part, size in parts.items() if size > 0), reverse=True)
    rows = [
        Bar(name=part, told=text(size), parts=((size, HUES[place % len(HUES)], f"{part}: {text(size)}\n{told}"),))
        for place, (size, part) in enumerate(kept)
    ]
    return bars(name, title, rows) if rows else None


def _held(name: str, devices: Iterable[tuple[str, Mapping[str, float]]], capacity: float) -> Figure:
    rows, names = [], dict[str, str]()
    for device, parts in devices:
        for part in parts:
            names.setdefault(part, HUES[len(names) % len(HUES)])
        cells = tuple((size, names[part], f"{part}: {bytes_text(size)}") for part, size in parts.items() if size > 0)
        rows.append(Bar(name=device, told=f"{bytes_text(sum(parts.values()))} of {bytes_text(capacity)}", parts=cells))
    legend = [(colour, part) for part, colour in names.items()]
    return bars(name, "Memory of a device, at least", rows, mark=capacity, legend=legend, note="The line: capacity.")


def _ranked(name: str, title: str, found: Sequence[tuple[str, tuple[float, float, float]]]) -> Figure:
    rows = [
        Bar(name=one, told=time_text(value), interval=(low, high),
            parts=((value, FAINT if place else HUES[0], f"{one}: {time_text(value)}"),))
        for place, (one, (value, low, high)) in enumerate(found)
    ]  # fmt: skip
    return bars(name, title, rows, note=_WHISKERS)


def _phases(report: OffloadReport) -> Figure:
    rest = report.step.times(report.output_tokens - 1)
    told = f"{report.technique}; evidence: {report.evidence.label}"
    whole = report.latency
    parts = {"all prompts": report.first.total, f"{report.output_tokens - 1} further tokens": rest.total}
    return _whole("time", "A batch from prompts to last token", parts, (whole.total, whole.low, whole.high), told)


_SIDES = {
    "disk": "disk (NVMe), reads", "link": "host link (PCIe), copies", "host": "host, products and copies",
    "sync": "calls between both", "device": "device, kernels",
}  # fmt: skip


def _busy(name: str, title: str, spent: Spent) -> Figure:
    """Sides of a phase, from the disk to the device; the line is its end, as sides run side by side."""
    rows = [
        Bar(name=text, told=f"{time_text(spent.parts[side])}, {spent.parts[side] / (spent.total or 1.0):.0%}",
            parts=((spent.parts[side], HUES[place], f"{text}: busy for {time_text(spent.parts[side])}"),))
        for place, (side, text) in enumerate(_SIDES.items()) if spent.parts.get(side, 0.0) > 0
    ]  # fmt: skip
    low, high = time_text(spent.low), time_text(spent.high)
    note = f"The line is its end, {time_text(spent.total)} ({low} to {high}); sides overlap."
    return bars(name, title, rows, mark=spent.total, note=note)


_TERA = 1e12


def of_operators(found: list[OperatorCost]) -> Charts:
    """Charts of `op`."""
    return {"time": lambda: _times(found), "roofline": lambda: _roofline(found)}


def _tip(one: OperatorCost) -> str:
    ends = f"80 % interval {time_text(one.low_s)} to {time_text(one.high_s)}"
    source = f" ({one.source})" if one.source else ""
    return f"{one.machine}: {time_text(one.seconds)}, {ends}\nbound by {one.bound}; {one.evidence.label}{source}"


def _times(found: list[OperatorCost]) -> Figure:
    rows = [
        Bar(
            name=one.machine, told=time_text(one.seconds), interval=(one.low_s, one.high_s),
            parts=((one.seconds, HUES[place % len(HUES)], _tip(one)),),
        )
        for place, one in enumerate(found)
    ]  # fmt: skip
    return bars("time", "Time with its 80 % interval", rows)


def _roofline(found: list[OperatorCost]) -> Figure | None:
    placed = [one for one in found if min(one.flop, one.bytes, one.seconds, one.compute_s, one.memory_s) > 0]
    if not placed:
        return None
    points, roofs = [], []
    for place, one in enumerate(placed):
        colour, peak, rate = HUES[place % len(HUES)], one.flop / one.compute_s, one.bytes / one.memory_s
        at, ridge = one.flop / one.bytes, peak / rate
        points.append(Point(x=at, y=one.flop / one.seconds, tip=_tip(one), colour=colour))
        low, high = min(at, ridge) / 4, max(at, ridge) * 4
        name = f"{one.machine}, {rate_text(peak, 'FLOP/s')}"
        roofs.append(Curve(name=name, places=[(low, low * rate), (ridge, peak), (high, peak)], colour=colour))
    sides = (
        Side(title="FLOP per byte of memory traffic", told=lambda value: f"{value:g}", scale="log"),
        Side(title="attained TFLOP/s", told=lambda value: f"{value / _TERA:g}", scale="log"),
    )
    return scattered("roofline", "Under the roofs of the datasheets", points, sides, curves=roofs)
