"""`simulate --find`: the highest rate, the fewest devices or the tightest objective that a deployment keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import steps
from ridgeline.api.simulating import MEASURED, fleet_events_of, fronts_of, operation_of, report_of, resolved
from ridgeline.errors import InputError, WorkloadError
from ridgeline.scenario.serving import ServingScenario

if TYPE_CHECKING:
    from ridgeline.search.capacity import CapacityQuestion, CapacityTrial, DevicesFound, ObjectiveFound, RateFound
    from ridgeline.serving.traffic.traffic import Traffic

RATE, DEVICES, SLO = "rate", "devices", "slo"
_SPAN_S, _FEWEST, _MOST = 600.0, 200, 50_000  # of a rate's traffic where nobody says how much of it
_REPLAYS = 14  # of a question, for its progress


def find(asked: ServingScenario, what: str, *, changes: bool = True) -> Answer:
    """The answer of a capacity question; raises `NoPlanError` where nothing keeps the objective."""
    from ridgeline.report.capacity import CapacityReport
    from ridgeline.report.serving_json import serving_as_dict
    from ridgeline.search.capacity import CapacityQuestion, fewest_devices, highest_rate, tightest_objective
    from ridgeline.serving.objective import Objective

    _check(asked, what)
    fleet, rate = asked.deployments, asked.traffic.get("rate", 0.0)
    with steps(f"finding the {_NOUNS[what]}") as told:
        on = CapacityQuestion(
            model=asked.model,
            machine=resolved(asked.cluster, MEASURED),
            objective=Objective.of(asked.traffic["slo"]),
            traffic_at=_traffic_of(asked, what),
            of="sessions" if "turns" in asked.traffic else "requests",
            operation=operation_of(
                asked, router=asked.router, fleet_events=fleet_events_of(asked), fronts=fronts_of(asked)
            ),
        )
        on.told = lambda text: told(text, min(1.0, on.replays / _REPLAYS))
        if what == RATE:
            found = highest_rate(on, fleet)
            rows, keys = _rate_rows(found, on.of)
            asked = replace(asked, traffic=_words_at(asked.traffic, found.best.rate_per_s))
        elif what == DEVICES:
            fewest = fewest_devices(on, fleet, rate or _rate_of(on.traffic_at(0.0)))
            rows, keys = _device_rows(fewest)
            asked = replace(asked, deployments=fewest.best.deployments)
        else:
            tightest = tightest_objective(on, fleet, rate or _rate_of(on.traffic_at(0.0)))
            rows, keys = _slo_rows(tightest, on)
    report = CapacityReport(
        rows=[*rows, ("replays", f"{on.replays}, queues and all")],
        keys={"find": what, **keys, "replays": on.replays},
        at=report_of(asked, changes=changes),
    )
    return Answer(lambda: {**report.keys, "at": serving_as_dict(report.at)}, report.blocks, value=report)


_NOUNS = {RATE: "highest rate", DEVICES: "fewest devices", SLO: "tightest objective"}


def _check(asked: ServingScenario, what: str) -> None:
    """Raises for words that a question of capacity needs, or has itself."""
    traffic = asked.traffic
    if not traffic.get("slo"):
        raise InputError(f"--find {what} needs an objective, e.g. --slo ttft=1s,tpot.p90=50ms", field="--slo")
    if what == RATE and "rate" in traffic:
        raise InputError("is what --find rate looks for; leave it out", field="--rate", value=traffic["rate"])
    if what == SLO and not {"ttft_s", "tpot_s", "latency_s", "percentiles"} & traffic["slo"].keys():
        raise InputError("names no latency whose bound could be tighter; add ttft.p99=1s", field="--slo")
    if what == RATE and ("concurrency" in traffic or traffic.get("arrivals") in ("burst", "closed")):
        raise InputError("says that requests do not come at a rate; leave it out, or --find slo", field="--find")
    if what == DEVICES and "instances" in asked.stated:
        raise InputError("are what --find devices looks for; leave it out", field="--instances")
    if what == DEVICES and len(asked.deployments) > 2:
        raise InputError("walks over two groups of instances at most", field="--find", value=what)
    if asked.draft is not None:
        said = "a draft's share of a step changes with the load; say draft_share instead"
        raise InputError(said, field="--draft-model")


def _words_at(words: Mapping[str, Any], rate_per_s: float) -> dict[str, Any]:
    """The words of traffic at a rate; where nobody says how much of it, ten minutes, at most 50,000 requests."""
    found = {**words, "rate": rate_per_s}
    if not {"requests", "duration", "trace"} & words.keys():
        found["requests"] = int(min(max(_FEWEST, rate_per_s * _SPAN_S), _MOST))
    return found


def _traffic_of(asked: ServingScenario, what: str) -> Any:
    """What gives the traffic of a rate [1/s]: that which is asked, or the same words at another rate."""
    from ridgeline.serving.traffic.asked import asked_traffic

    if what != RATE:
        same = asked_traffic(asked.traffic, asked.deployments)[0]
        return lambda _: same

    @cache
    def at(rate_per_s: float) -> Traffic:
        found = asked_traffic(_words_at(asked.traffic, rate_per_s), asked.deployments)[0]
        if found.requests < 2 or found.arrival_s[-1] <= 0:
            raise WorkloadError("one request, or all at once, have no rate; take another trace, or more requests")
        return found

    return at


def _rate_of(traffic: Traffic) -> float:
    """Requests a second over the time in which they come [1/s]; infinite where they come at once."""
    span_s = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    return (traffic.requests - 1) / span_s if span_s > 0 else float("inf")


def _probability(one: CapacityTrial) -> str:
    known = one.kept_probability
    return "" if known is None else f"; P(kept) {known:.1%} by the draw of the requests"


def _rate_rows(found: RateFound, of: str) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    best, beyond = found.best, found.beyond
    next_ = "more than the tokens of its requests allow" if beyond is None else f"misses: {beyond.missed}"
    gap = found.bound_per_s / best.rate_per_s - 1.0
    rows = [
        ("highest rate", f"{best.rate_per_s:.4g} {of}/s keep the objective{_probability(best)}"),
        ("beyond it", f"{found.beyond_per_s:.4g} {of}/s: {next_}"),
        (
            "bound",
            f"no objective allows more than {found.bound_per_s:.4g} {of}/s (closed form), {gap:.0%} above"
            if gap < float("inf")
            else "no closed form is known of these techniques",
        ),
    ]
    keys = {
        "of": of,
        "rate_per_s": best.rate_per_s,
        "kept_probability": best.kept_probability,
        "beyond_rate_per_s": found.beyond_per_s,
        "beyond_missed": None if beyond is None else beyond.missed,
        "bound_rate_per_s": found.bound_per_s if gap < float("inf") else None,
    }
    return rows, keys


def _device_rows(found: DevicesFound) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    from ridgeline.report.deployments import deployment_text

    best = found.best
    fleet = "; ".join(map(deployment_text, best.deployments))
    rows = [("fewest devices", f"{best.devices}: {fleet}{_probability(best)}")]
    rows += [(f"with {one.devices}", f"misses: {one.missed}") for one in found.less]
    rows.append(("bound", f"no fewer than {found.least_devices} devices have the time for these tokens (closed form)"))
    keys = {
        "devices": best.devices,
        "instances": [one.instances for one in best.deployments],
        "kept_probability": best.kept_probability,
        "less": [{"devices": one.devices, "missed": one.missed} for one in found.less],
        "bound_devices": found.least_devices,
    }
    return rows, keys


def _slo_rows(found: ObjectiveFound, on: CapacityQuestion) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    from ridgeline.report.text import latency_text
    from ridgeline.serving.objective import objective_text

    together = objective_text(found.scaled(on.objective))
    rows = [("tightest", f"{together}: all bounds times {found.factor:.4g}{_probability(found.trial)}")]
    for one in found.bounds:
        half = "" if one.half_s is None else f" +- {latency_text(one.half_s)}"
        alone = f"{latency_text(one.alone_s)}{half}" if one.alone_s < float("inf") else "none: the others are missed"
        rows.append((one.text, f"{alone}, the others as they are (asked: {latency_text(one.asked_s)})"))
    keys = {
        "factor": found.factor,
        "kept_probability": found.trial.kept_probability,
        "bounds": [
            {
                "slo": one.name,
                "asked_s": one.asked_s,
                "tightest_s": one.alone_s if one.alone_s < float("inf") else None,
                "half_width_s": one.half_s,
            }
            for one in found.bounds
        ],
    }
    return rows, keys
