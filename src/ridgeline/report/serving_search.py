"""What a search over deployments found: the best first, what each costs, why others were not possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.plan.deployment import Deployment
from ridgeline.report.blocks import Block, Line, Printed, Table, blank, labelled, listed
from ridgeline.report.deployments import deployment_text
from ridgeline.report.evidence import Known, Sensitivity, steps_known, steps_what_if
from ridgeline.report.text import cost_text, latency_text, money_text, no_price
from ridgeline.seams.serving import all_devices
from ridgeline.serving.metrics import Metrics
from ridgeline.serving.objective import NAMES, Objective, objective_text


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One deployment, replayed."""

    deployments: tuple[Deployment, ...]
    metrics: Metrics
    usd_per_h: float | None
    cut: bool = False
    energy_j_per_token: float | None = None  # where a search asks for it
    carbon_kg_per_token: float | None = None  # likewise
    known: tuple[tuple[Known, ...], ...] = ()  # of a decode step and of a prompt, of those that are shown
    what_if: tuple[tuple[Sensitivity, ...], ...] = ()

    @property
    def devices(self) -> int:
        """Devices that it takes [1]."""
        return sum(all_devices(one) for one in self.deployments)

    @property
    def good_rps(self) -> float:
        """Requests per second that keep to the objective, or all of them without one [1/s]."""
        return self.metrics.goodput_rps if self.metrics.goodput_rps is not None else self.metrics.requests_per_s

    @property
    def good_per_usd(self) -> float | None:
        """Requests that keep to the objective for a dollar [1/USD]."""
        return None if not self.usd_per_h else self.good_rps * 3600.0 / self.usd_per_h


@dataclass(frozen=True, kw_only=True)
class ServingSearch(Printed):
    """What a search found: the best candidates first, how many were replayed, and why others were not.

    Of the `considered`, the `pruned` were replayed only until it was certain that they are not among the best.
    """

    ranked: tuple[Candidate, ...]
    considered: int
    pruned: Mapping[str, int]
    refused: Mapping[str, int]
    fewest: Candidate | None
    seconds: float
    title: str
    objective: Objective
    attainable: Mapping[str, Candidate]  # by bound (`ttft_s`), where none keeps to all: who comes nearest to it
    assumed: tuple[str, ...] = ()  # of the formats of the best
    bound_devices: int | None = (
        None  # that no fleet of the grid can do with less of; None where no closed form is known
    )

    aim: str = "goodput"
    bound_spent: float | None = None  # that no fleet of the grid takes less than of the aim; None where not known

    @property
    def missed(self) -> str:
        """That no deployment keeps to the objective, how near it can be come to, and by which; '' if one does."""
        missed = self.ranked[0].metrics.kept is False
        return missed_text(self.ranked[0], self.objective, self.attainable) if missed else ""

    def _bound(self) -> Iterator[str]:
        """How far the fewest devices, and what the best takes of the aim, can be from the best."""
        from ridgeline.report.aims import AIMS

        if self.bound_spent:
            spent, unit = AIMS[self.aim].fleet(self.ranked[0]), AIMS[self.aim].titles[1]
            times = "" if spent is None else f": the best takes at most {spent / self.bound_spent:.3g} times the least"
            yield f"no fleet of the grid takes less than {self.bound_spent:.3g} {unit} (closed form){times}"
        found, least = self.fewest, self.bound_devices
        if found is None or least is None:
            return
        if found.devices <= least:
            yield f"no fewer than {least} devices have the time for such traffic without end: none could do with less"
        else:
            yield (
                f"no fewer than {least} devices have the time for such traffic without end (closed form): the fewest"
                f" are at most {found.devices / least:.3g} times the best"
            )

    def blocks(self, assumed: Sequence[str] = (), *, fewest_alone: bool = False) -> list[Block]:
        """What `ridgeline plan --serve` prints; with `fewest_alone` that on the fewest devices is the best."""
        ranked = (self.fewest,) if fewest_alone and self.fewest is not None else self.ranked
        best, fewest = ranked[0], self.fewest
        rows = [("objective", f"NOT KEPT: {self.missed}")] if self.missed else []
        rows += [("best", fleet_text(best)), ("goodput", _goodput(best)), *_seen(best)]
        at = zip(self.objective.percentiles, best.metrics.at_percentiles, strict=True)
        rows += [(one.text, f"{latency_text(value)}, at most {latency_text(one.most_s)}") for one, value in at]
        if fewest is not None:
            kept = "" if fewest.metrics.attained is None else f", {fewest.metrics.attained:.1%} kept"
            rows.append(("fewest devices", f"{fewest.devices}: {fleet_text(fewest)}{kept}"))
        rows += [("bound", text) for text in self._bound()]
        rows += [("evidence", text) for text in steps_known(best.known)]
        return [
            Line(text=self.title, hang=2),
            blank(),
            *labelled(rows),
            blank(),
            Line(text="Best deployments", strong=True),
            search_table(ranked),
            *steps_what_if(best.what_if),
            blank(),
            Line(text=f"{self.considered:,} deployments replayed with their queues", indent=2),
            *listed(f"{count:,} of them {reason}" for reason, count in self.pruned.items()),
            *listed(f"{count:,} not possible: {reason}" for reason, count in self.refused.items()),
            *listed(f"assumed: {text}" for text in (*assumed, *self.assumed)),
        ]


def fleet_text(found: Candidate) -> str:
    """A fleet in one line."""
    return "; ".join(deployment_text(one) + _limits(one) for one in found.deployments)


def _limits(one: Deployment) -> str:
    words = [f"budget {one.options.token_budget}"] if one.options.token_budget else []
    words += [f"batch {one.options.max_seqs}"] if one.options.max_seqs else []
    return f" {', '.join(words)}" if words else ""


def search_table(ranked: Sequence[Candidate]) -> Table:
    """The best deployments, one a row."""
    rows: list[tuple[str, ...]] = []
    energy = ("J/token", "g/M tokens") if any(one.energy_j_per_token is not None for one in ranked) else ()
    for place, one in enumerate(ranked, start=1):
        metrics = one.metrics
        spent = (one.energy_j_per_token, None if one.carbon_kg_per_token is None else one.carbon_kg_per_token * 1e9)
        joules = ["-" if each is None else f"{each:.3g}" for each in spent[: len(energy)]]
        kept = "-" if metrics.attained is None else f"{metrics.attained:.1%}"
        dollars = "-" if one.good_per_usd is None else f"{one.good_per_usd:,.0f}"
        overloaded = " OVERLOADED" if metrics.overloaded else ""
        slowest = (latency_text(metrics.ttft.p99), latency_text(metrics.tpot.p99))
        cells = (str(one.devices), f"{one.good_rps:.3g}", dollars, *joules, kept, *slowest)
        if rows and rows[-1][1:-1] == cells:  # comes out as the one above
            first, shown = rows[-1][0].partition("-")[0], rows[-1][-1]
            rows[-1] = (f"{first}-{place}", *cells, f"{shown}, or {fleet_text(one)}{overloaded}")
        else:
            rows.append((str(place), *cells, fleet_text(one) + overloaded))
    columns = ("#", "devices", "good/s", "per $", *energy, "kept", "TTFT p99", "TPOT p99", "deployment")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[:-1]))


def missed_text(best: Candidate, objective: Objective, attainable: Mapping[str, Candidate]) -> str:
    """That nothing keeps to an objective, how near each of its bounds can be come to and by which deployment."""
    most = {one.key: place for place, one in enumerate(objective.percentiles)}
    slowest = ", ".join(
        f"{NAMES[name.removesuffix('_s')]} {latency_text(getattr(one.metrics, name.removesuffix('_s')).p99)}"
        f" by {fleet_text(one)}"
        for name, one in attainable.items()
        if name not in most
    )
    least = ", ".join(
        f"{objective.percentiles[most[name]].text} {latency_text(one.metrics.at_percentiles[most[name]])}"
        f" by {fleet_text(one)}"
        for name, one in attainable.items()
        if name in most
    )
    share = f"{objective.least_share:.0%} of requests to " if objective.bounds else ""
    attained = "" if best.metrics.attained is None else f", the best keeps {best.metrics.attained:.1%}"
    nearest = f"; the least of the slowest 1 %: {slowest}" if slowest else ""
    nearest += f"; the least {least}" if least else ""
    return (
        f"no deployment keeps {share}{objective_text(objective)}{attained}{nearest}; take more devices, narrower"
        " weights and caches (--quantize), or a wider objective (--slo)"
    )


def _seen(best: Candidate) -> list[tuple[str, str]]:
    """What users of the best see, and what a token costs."""
    metrics = best.metrics
    kinds = (("TTFT", metrics.ttft), ("TPOT", metrics.tpot))
    rows = [
        (name, f"{latency_text(each.p50)} median, {latency_text(each.p99)} of the slowest 1 %") for name, each in kinds
    ]
    rate = metrics.output_tokens_per_s
    tokens = (
        f"{metrics.requests_per_s:.3g} requests/s, {rate:,.0f} output tokens/s ({rate / best.devices:,.0f} per device)"
    )
    rows.append(("throughput", tokens))
    if best.usd_per_h and rate:
        rows.append(("cost", cost_text(best.usd_per_h, rate)))
    if best.usd_per_h is None:
        rows.append(("cost", no_price("these devices")))
    return rows


def _goodput(best: Candidate) -> str:
    dollars = "" if best.good_per_usd is None else f", {best.good_per_usd:,.0f} for a dollar"
    price = f" ({money_text(1e6 / best.good_per_usd)} per million requests)" if best.good_per_usd else ""
    kept = "" if best.metrics.attained is None else f"; {best.metrics.attained:.1%} of requests keep to the objective"
    return f"{best.good_rps:.3g} requests/s, {best.good_rps / best.devices:.3g} per device{dollars}{price}{kept}"
