"""Which accelerators to rent for traffic under an objective: offers replayed on kinds of requests, then a program.

A bucket is a cell of prompt by answer lengths. What an instance of an offer can serve of it is the highest Poisson rate
of such requests at which nearly all keep to the objective, found by replays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.cost.machine import machine
from ridgeline.errors import InputError, NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engines import engine_policy
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.report.blocks import Block, Line, Printed, Table, blank, labelled, listed
from ridgeline.report.deployments import deployment_text
from ridgeline.report.text import money_text
from ridgeline.seams.serving import instance_devices
from ridgeline.search.rent import Option, Problem, Rent, mix_text
from ridgeline.search.rent_replay import Tried, rent_kept
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.engine import Engine, Policies, engine
from ridgeline.serving.metrics import measure
from ridgeline.serving.objective import ATTAINED, Objective
from ridgeline.serving.replay import replay_tables, tables_of
from ridgeline.serving.state import Array, Whole
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.arrivals import burst, poisson
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.units import whole_number

CELLS = 4  # of prompt lengths, and as many of answers, with about as many requests in each
PROBE, SEED = 400, 0  # requests of one replay of a bucket
_HALVINGS = 6  # of the interval in which the highest rate lies: 1.6 % of it


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Accelerators that can be rented: `limit` devices at most (None: any number), at `usd_per_h` each.

    `availability` is the probability that an instance of them is up [1].
    """

    accelerator: str
    limit: int | None
    usd_per_h: float
    availability: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Traffic by lengths: requests per second of each cell and its mean lengths [token], arrays (cells,)."""

    rates_per_s: Array
    prompt_tokens: Array
    output_tokens: Array
    rows: Whole  # cell of each request (N,)


@dataclass(frozen=True, kw_only=True)
class RentedFleet(Printed):
    """What to rent, and the mixes that were replayed, the one that is rented last; `most_per_s` (cells, options) is
    what one instance of each option can serve."""

    rent: Rent
    tried: tuple[Tried, ...]
    options: tuple[tuple[str, Deployment, Option], ...]
    buckets: Buckets
    refused: Mapping[str, str]
    seconds: float
    title: str
    objective: Objective

    def blocks(self, assumed: Sequence[str] = ()) -> list[Block]:
        """What `ridgeline plan --serve --rent` prints."""
        chosen = self.rent
        rented = [one for one in chosen.rented if one.rented]
        proof = "no mix costs less" if chosen.gap <= 0 else f"no mix costs more than {chosen.gap:.1%} less"
        kept = f"{self.tried[-1].attained:.1%} of requests keep to the objective"
        rows = [
            ("rent", mix_text(chosen.counts)),
            ("price", f"{money_text(chosen.cost_usd_per_hour)} an hour; at these rates {proof}"),
            ("replay", kept if self.objective.stated else "not overloaded"),
            ("headroom", f"the same mix of requests may grow {chosen.headroom:.2f} times on it"),
        ]
        each = {name: deployment_text(one) for name, one, _ in self.options}
        cells = tuple(
            (str(one.rented), one.option, each[one.option], f"{one.load / one.rented:.0%}",
             money_text(one.cost_usd_per_hour))
            for one in rented
        )  # fmt: skip
        columns = ("instances", "of", "each", "filled to", "an hour")
        missed = (
            f"{mix_text(one.counts)} at {money_text(one.usd_per_h)} an hour would do by the sum, its replay keeps"
            f" {one.attained:.1%}"
            for one in self.tried[:-1]
        )
        return [
            Line(text=self.title, hang=2),
            blank(),
            *labelled(rows),
            blank(),
            Table(columns=columns, rows=cells, right=frozenset({"instances", "filled to", "an hour"})),
            blank(),
            *listed(missed),
            *listed(f"left out {name}: {reason}" for name, reason in self.refused.items()),
            *listed(f"assumed: {text}" for text in assumed),
        ]


def offers_of(text: str, price: Callable[[str], float | None]) -> tuple[Offer, ...]:
    """Offers written as 'H100-SXM=16,L40S=8,A10G': names with the most devices that can be had [device].

    `price` gives an accelerator's price [USD/h]. Raises `InputError` for what is no offer, or has no price.
    """
    found = []
    for word in text.split(","):
        name, _, most = word.strip().partition("=")
        limit = whole_number(most)
        if not name or (most and not limit):
            raise InputError(f"'{word[:40]}' is no offer; write NAME or NAME=DEVICES, e.g. H100-SXM=16", field="--rent")
        part = cluster(f"1x{name}").accelerator.name
        usd = price(part)
        if usd is None:
            raise InputError(f"{part} has no price in the catalog; leave it out of the offers", field="--rent")
        found.append(Offer(accelerator=part, limit=limit, usd_per_h=usd))
    return tuple(found)


def buckets_of(traffic: Traffic, *, cells: int = CELLS) -> Buckets:
    """Requests by quantiles of prompt and of answer lengths; empty cells are left out.

    Raises `InputError` for traffic without a rate: a closed loop or a burst.
    """
    span = float(traffic.arrival_s[-1])
    if traffic.concurrency is not None or span <= 0:
        raise InputError("renting needs traffic with a rate; give --rate or a trace")
    rows = _cell(traffic.prompt_tokens, cells) * cells + _cell(traffic.output_tokens, cells)
    used, place = np.unique(rows, return_inverse=True)
    members = [rows == one for one in used]
    return Buckets(
        rates_per_s=np.array([mask.sum() for mask in members]) * (1.0 - 1.0 / traffic.requests) / span,
        prompt_tokens=np.array([traffic.prompt_tokens[mask].mean() for mask in members]),
        output_tokens=np.array([traffic.output_tokens[mask].mean() for mask in members]),
        rows=place.reshape(-1),
    )


def _cell(lengths: Any, cells: int) -> Any:
    edges = np.unique(np.quantile(lengths, np.arange(1, cells) / cells))
    return np.searchsorted(edges, lengths, side="left")


def rent_fleet(
    model: Model,
    offers: Sequence[Offer],
    traffic: Traffic,
    objective: Objective,
    *,
    stated: Mapping[str, Any] | None = None,
    policies: Policies = engine_policy,
    availability_target: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RentedFleet:
    """The cheapest mix of offers found that serves the traffic under the objective, in its own replay.

    An option is one instance of an offer: each degree within a node that holds the model. Raises `NoPlanError` where no
    offer can serve some requests, limits do not suffice, or no mix keeps to the objective.
    """
    begun = time.perf_counter()
    buckets = buckets_of(traffic)
    refused: dict[str, str] = {}
    made = [found for offer in offers for found in _options(model, offer, stated or {}, policies, traffic, refused)]
    rates = _rates(made, buckets, objective, progress)
    options, kept, engines = [], [], []
    for (offer, one, tables), most in zip(made, rates, strict=True):
        name = f"{instance_devices(one.deployment)}x{offer.accelerator}"
        if not (most > 0).any():
            refused[name] = "no request keeps to the objective on it"
            continue
        option = Option(
            name=name,
            accelerator=offer.accelerator,
            price_usd_per_hour=offer.usd_per_h * instance_devices(one.deployment),
            most_per_s=most,
            devices=instance_devices(one.deployment),
            availability=offer.availability,
        )
        options.append(option)
        kept.append((name, one.deployment, option))
        engines.append((one, tables))
    if not options:
        reason = next(iter(refused.values()), "no offer was given")
        raise NoPlanError(f"no offer serves {model.name} under the objective: {reason}")
    problem = Problem(
        options=tuple(options),
        rates_per_s=buckets.rates_per_s,
        limits={offer.accelerator: offer.limit for offer in offers if offer.limit is not None},
        availability_target=availability_target,
    )
    named = ",".join(one.accelerator + ("" if one.limit is None else f"={one.limit}") for one in offers)
    chosen, tried = rent_kept(problem, engines, traffic, buckets.rows, objective)
    return RentedFleet(
        rent=chosen, tried=tried, options=tuple(kept), buckets=buckets, refused=refused, objective=objective,
        seconds=time.perf_counter() - begun,
        title=f"{model.name}: {traffic.name}, {traffic.requests:,} requests, offers {named}",
    )  # fmt: skip


def _options(
    model: Model, offer: Offer, stated: Mapping[str, Any], policies: Policies, traffic: Traffic, refused: dict[str, str]
) -> list[tuple[Offer, Engine, StepTables]]:
    """Instances of an offer that start: within a node, one budget each."""
    devices = 8 if offer.limit is None or offer.limit >= 8 else 2 ** ((offer.limit or 1).bit_length() - 1)
    node = cluster(f"{devices}x{offer.accelerator}")
    where = machine(node)
    space = ServingSpace(token_budgets=(None,), max_seqs=(None,), pools=False, most_pp=1, fixed=stated)
    longest = int(np.max(traffic.prompt_tokens + traffic.output_tokens))
    found = []
    for one in deployments(model, node, space, longest=longest):
        try:
            made = engine(model, where, one, policies=policies)
            tables = tables_of([made], traffic)[0]
        except (NoPlanError, PlanError) as error:
            refused.setdefault(f"{instance_devices(one)}x{offer.accelerator}", str(error))
            continue
        found.append((offer, made, tables))
    return found


def _rates(
    made: Sequence[tuple[Offer, Engine, StepTables]],
    buckets: Buckets,
    objective: Objective,
    progress: Callable[[int, int], None] | None,
) -> list[Array]:
    """What one instance of each option can serve of each bucket alone [1/s]."""
    cells = len(buckets.rates_per_s)
    tasks = [(option, cell) for option in range(len(made)) for cell in range(cells)]

    def found(task: tuple[int, int]) -> float:
        _, one, tables = made[task[0]]
        lengths = round(buckets.prompt_tokens[task[1]]), round(buckets.output_tokens[task[1]])
        return most_per_s(one, tables, *lengths, objective)

    rates = np.zeros((len(made), cells))
    with ThreadPoolExecutor() as pool:
        for index, (task, rate) in enumerate(zip(tasks, pool.map(found, tasks), strict=True)):
            rates[task] = rate
            if progress is not None:
                progress(index + 1, len(tasks))
    return list(rates)


def most_per_s(one: Engine, tables: StepTables, prompt: int, output: int, objective: Objective) -> float:
    """The highest Poisson rate of equal requests at which 99 % keep to the objective on one instance [1/s].

    0 where one request alone does not. Above the rate of a saturated queue no rate can be sustained; below it the
    highest is found by halving.
    """
    lengths = Fixed(tokens=max(prompt, 1)), Fixed(tokens=max(output, 1))
    single = replace(one, deployment=replace(one.deployment, instances=1))

    stop = Stop.at(objective, PROBE) if objective.stated else None

    def kept(traffic: Traffic, stop: Stop | None = None) -> tuple[float, float]:
        found = replay_tables([single], [tables], traffic, router="least-loaded", stop=stop)
        if found.stopped:
            return 0.0, 0.0
        metrics = measure(found, traffic, objective)
        attained = metrics.attained if metrics.attained is not None else float(not metrics.overloaded)
        return attained, metrics.requests_per_s

    if kept(synthetic(burst(1), *lengths))[0] < 1.0:
        return 0.0
    high = kept(synthetic(burst(PROBE), *lengths))[1]
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        arrivals = poisson(middle, requests=PROBE, seed=SEED)
        if kept(synthetic(arrivals, *lengths), stop)[0] >= ATTAINED:
            low = middle
        else:
            high = middle
    return low
