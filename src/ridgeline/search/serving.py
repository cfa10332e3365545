"""The best way to serve a model on devices: every deployment of the grid replayed on the same traffic.

Nothing is ranked by means alone: each candidate is replayed with its own queues, and its quantiles are compared. A
replay ends early only where it is certain that the candidate is not among the best.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.fleet import idle_instance_w, instance_usd_per_h
from ridgeline.predict.serving import Operation
from ridgeline.report.aims import AIMS, unknown
from ridgeline.report.serving_search import Candidate, ServingSearch
from ridgeline.seams.serving import instance_devices
from ridgeline.search.capacity import least_of_two
from ridgeline.search.serving_candidates import Bench, Stopped, Tried, reason
from ridgeline.search.serving_space import CARBON, DOLLARS, GOODPUT, JOULES, ServingSpace, deployments, fleets
from ridgeline.serving.bounds import least_devices, least_spent, least_work
from ridgeline.serving.objective import ATTAINED, Objective
from ridgeline.serving.traffic.traffic import Traffic

_SPENT = (DOLLARS, JOULES, CARBON)  # aims that want fewer instances
_WALKED = 3  # fleets of two kinds of devices of which fewer instances are tried
_REFUSALS = 6  # reasons kept, most frequent first
_ROUND = 16  # candidates of a round, between which the least share that is worth a whole replay rises
MISSED = "stopped when more than 1 % of requests had missed the objective"
WORSE = "stopped when fewer could keep to the objective than in the best ones"


def search_serving(
    model: Model,
    cluster: Cluster,
    traffic: Traffic,
    objective: Objective,
    *,
    space: ServingSpace = ServingSpace(),  # noqa: B008  (immutable)
    top: int = 5,
    operation: Operation = Operation(router="least-loaded"),  # noqa: B008
    progress: Callable[[int, int], None] | None = None,
) -> ServingSearch:
    """The best deployments of a model on a cluster for traffic under an objective.

    Ranked by goodput, among those that keep to the objective by the space's `aim`, then devices, then TPOT; of those
    that miss it alike the one whose slowest percent comes nearest to it. `fewest` is the one with the fewest devices
    that still keeps to it; of dollars, joules and carbon the fewest instances of each shape are ranked too.
    Raises `NoPlanError` when none starts, or nothing is known of what the aim counts: a price, a rated power, a grid.
    """
    begun, aim = time.perf_counter(), space.aim
    bench = Bench(
        model=model, machine=operation.resolved or machine(cluster), cluster=cluster, traffic=traffic,
        objective=objective, router=operation.router, policies=operation.policies, energy=aim != GOODPUT,
    )  # fmt: skip
    refused: Counter[str] = Counter()
    closest: list[NoPlanError] = []
    longest = int(np.max(traffic.prompt_tokens + traffic.output_tokens))
    grid = deployments(model, cluster, space, longest=longest)
    shapes = list(_started(grid, bench, refused, closest, space.drafted))
    candidates = list(fleets(shapes, cluster, space, bench.get, traffic))
    if space.recipe is not None:
        candidates = list(_by_recipe(candidates, bench, refused, space.recipe))
    found, pruned = _replayed(candidates, bench, top, refused, progress)
    if not found:
        why = refused.most_common(1)[0][0] if refused else "no degrees divide the model"
        nearest = f"; the nearest: {closest[0]}" if closest else ""
        raise NoPlanError(f"no deployment of {model.name} can serve on {cluster.name}: {why}{nearest}")
    if all(_spent(one, aim) is None for one in found):
        raise NoPlanError(unknown(aim, cluster.name))
    ranked = sorted(found, key=lambda one: _order(one, objective, aim))
    fewer = _fewer(ranked, bench, each=aim in _SPENT, least=objective.least_share)
    least = min((one for one in (*ranked, *fewer) if _keeps(one)), key=lambda one: one.devices, default=None)
    fewer = fewer if aim in _SPENT else [one for one in fewer if one is least]
    ranked = sorted([*ranked, *fewer], key=lambda one: _order(one, objective, aim))
    shown = [bench.explained(ranked[0]), *ranked[1:top]]
    if least is not None:
        least = shown[0] if least is ranked[0] else bench.explained(least)
    return ServingSearch(
        ranked=tuple(shown),
        considered=len(found) + pruned.total(),
        pruned=dict(pruned.most_common()),
        refused=dict(refused.most_common(_REFUSALS)),
        fewest=least,
        assumed=tuple(dict.fromkeys(why for one in ranked[0].deployments for why in bench.get(one)[0].format_notes)),
        attainable={} if least is not None else attainable(found, objective),
        bound_devices=_bound(shapes, bench),
        bound_spent=_least_spent(shapes, bench, aim),
        aim=aim,
        seconds=time.perf_counter() - begun,
        title=f"{model.name} on {cluster.name}: {traffic.name}, {traffic.requests:,} requests",
        objective=objective,
    )


def _bound(shapes: Sequence[Deployment], bench: Bench) -> int | None:
    """The fewest devices with the time for the tokens of endless such traffic, of any fleet of these shapes [1].

    None where requests do not come at a rate, or a shape's techniques have no closed form.
    """
    traffic = bench.traffic
    span_s = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    if traffic.concurrency is not None or (traffic.after >= 0).any() or span_s <= 0.0:
        return None
    works = [(made, least_work(made, tables, traffic)) for made, tables in map(bench.get, shapes)]
    return least_devices(works, (traffic.requests - 1) / span_s)


def _least_spent(shapes: Sequence[Deployment], bench: Bench, aim: str) -> float | None:
    """The least that any fleet of these shapes takes of an aim: dollars of a request, joules or CO2e of a token.

    None of other aims, and where nothing is known of one shape.
    """
    if aim not in _SPENT or not shapes:
        return None
    cluster, traffic = bench.cluster, bench.traffic
    of_instance = instance_usd_per_h if aim == DOLLARS else idle_instance_w
    rates = [of_instance(cluster, one) for one in shapes]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    works = [least_work(made, tables, traffic) for made, tables in map(bench.get, shapes)]
    found = least_spent(list(zip(known, works, strict=True)), traffic)
    if aim == DOLLARS:
        return found / 3600.0
    grid = cluster.carbon_kg_per_j
    per_token = found / float(traffic.output_tokens.mean())
    return per_token if aim == JOULES else None if grid is None else per_token * grid.value


def _by_recipe(
    fleets: Sequence[tuple[Deployment, ...]],
    bench: Bench,
    refused: Counter[str],
    recipe: Callable[[tuple[Deployment, ...]], tuple[Deployment, ...]],
) -> Iterator[tuple[Deployment, ...]]:
    """Fleets as a recipe sets each, alike ones once; those that do not start are counted by reason."""
    for fleet in dict.fromkeys(map(recipe, fleets)):
        try:
            for one in fleet:
                bench.get(one)
        except (NoPlanError, PlanError) as error:
            refused[reason(error)] += 1
            continue
        yield fleet


def _started(
    grid: Iterator[Deployment],
    bench: Bench,
    refused: Counter[str],
    closest: list[NoPlanError],
    drafted: Callable[[Deployment], Deployment] | None,
) -> Iterator[Deployment]:
    """Deployments whose engine starts; the others are counted by reason, `closest` is that of the most devices."""
    most = 0
    for each in grid:
        one = each
        try:
            one = each if drafted is None else drafted(each)
            bench.get(one)
        except (NoPlanError, PlanError) as error:
            refused[reason(error)] += 1
            if isinstance(error, NoPlanError) and instance_devices(one) > most:
                most, closest[:] = instance_devices(one), [error]
            continue
        yield one


def _replayed(
    candidates: Sequence[tuple[Deployment, ...]],
    bench: Bench,
    top: int,
    refused: Counter[str],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[Candidate], Counter[str]]:
    """Candidates replayed to their end, among them the best `top`, and how many were not, by reason.

    First each is given up when it misses the objective for certain. Where too few keep to it, the others are taken
    again, those that lasted longest first, and given up when they cannot be among the best `top` any more.
    """
    settled = 0

    def told(more: int) -> None:
        nonlocal settled
        settled += more
        if progress is not None:
            progress(settled, len(candidates))

    found: list[Candidate] = []
    objective = bench.objective
    asked = objective.stated and top < len(candidates)
    stopped = _sorted_out(bench.all_tried(candidates, objective.least_share if asked else 0.0, told), found, refused)
    if _worth(found, top, objective) >= objective.least_share:
        return found, Counter({MISSED: len(stopped)} if stopped else {})
    stopped.sort(key=lambda one: -one.after_s)  # the order of the grid among equals
    worse = 0
    for start in range(0, len(stopped), _ROUND):
        fleets = [one.deployments for one in stopped[start : start + _ROUND]]
        worse += len(
            _sorted_out(bench.all_tried(fleets, _worth(found, top, objective), lambda _: None), found, refused)
        )
    return found, Counter({WORSE: worse} if worse else {})


def _sorted_out(results: Sequence[Tried], found: list[Candidate], refused: Counter[str]) -> list[Stopped]:
    """Adds candidates to the `found` and reasons to the `refused`; returns those whose replay was stopped."""
    found += [one for one in results if isinstance(one, Candidate)]
    refused.update(one for one in results if isinstance(one, str))
    return [one for one in results if isinstance(one, Stopped)]


def _worth(found: Sequence[Candidate], top: int, objective: Objective) -> float:
    """The share of requests that a candidate must keep to be among the best `top` [1]; 0 while any is."""
    kept = sorted((_share(one, objective) for one in found), reverse=True)
    return kept[top - 1] if len(kept) >= top else 0.0


def _share(one: Candidate, objective: Objective) -> float:
    """The share of requests by which a candidate is ranked [1]: no less than the objective needs where it is kept.

    Where an objective of more than bounds of every request is missed, no share ranks who is near to it: 0.
    """
    if one.metrics.kept:
        return objective.least_share
    whole = not objective.percentiles and objective.least_goodput_rps is None
    return min(one.metrics.attained or 0.0, objective.least_share) if whole else 0.0


def _keeps(one: Candidate) -> bool:
    return bool(one.metrics.kept)


def _far(one: Candidate, objective: Objective) -> float:
    """How far a candidate is from an objective: the most that one of its bounds is exceeded by [1]; 0 if it is kept."""
    if _keeps(one):
        return 0.0
    found = [_slowest(one, name) / bound for name, bound in objective.bounds.items()]
    at = zip(one.metrics.at_percentiles, objective.percentiles, strict=True)
    found += [value / bound.most_s for value, bound in at]
    if objective.least_goodput_rps is not None:
        found.append(objective.least_goodput_rps / one.good_rps if one.good_rps > 0.0 else np.inf)
    return max(found)


def _spent(one: Candidate, aim: str) -> float | None:
    """What an aim wants less of: seconds of a request, dollars of a good one, joules or CO2e of a token."""
    return 0.0 if aim == GOODPUT else AIMS[aim].fleet(one)


def _order(one: Candidate, objective: Objective, aim: str = GOODPUT) -> tuple[float, ...]:
    """Better first: goodput to within a percent, nearer to an objective that is missed, less of what the aim wants
    less of, fewer devices, queues that do not grow, a shorter TPOT, then TTFT.

    Of those that come out equal the one with the fewest limits of its own.
    """
    metrics = one.metrics
    limits = sum(each.options.token_budget is not None for each in one.deployments)
    limits += sum(each.options.max_seqs is not None for each in one.deployments)
    spent = _spent(one, aim)
    aimed = np.inf if spent is None else spent
    if metrics.kept is None:
        return (aimed, -metrics.output_tokens_per_s, float(one.devices), metrics.tpot.p50, limits)
    times = {name: _slowest(one, name) for name in ("tpot_s", "ttft_s")}
    rounded = 1.0 if metrics.kept else _share(one, objective)
    return (
        -rounded,
        _far(one, objective),
        aimed,
        float(one.devices),
        bool(metrics.overloaded),
        *times.values(),
        limits,
    )


def _slowest(one: Candidate, bound: str) -> float:
    """What the slowest percent of requests see of what a bound is about [s]; infinite where nothing was measured."""
    seen = float(getattr(one.metrics, bound.removesuffix("_s")).p99)
    return seen if np.isfinite(seen) else np.inf


def attainable(found: Sequence[Candidate], objective: Objective) -> dict[str, Candidate]:
    """Who comes nearest to each bound of an objective by itself, of all that were replayed to their end."""
    near = {name: min(found, key=lambda one, name=name: _slowest(one, name)) for name in objective.bounds}  # type: ignore[misc]
    for place, bound in enumerate(objective.percentiles):
        near[bound.key] = min(found, key=lambda one, place=place: one.metrics.at_percentiles[place])  # type: ignore[misc]
    return near


def _fewer(ranked: Sequence[Candidate], bench: Bench, *, each: bool, least: float = ATTAINED) -> list[Candidate]:
    """The fewest instances of a shape that keep to the objective, by bisection: where they make the fewest devices of
    all, or of `each` shape."""
    kept_to = [one for one in ranked if _keeps(one)]
    unlike = [one for one in kept_to if len({each.kind for each in one.deployments}) > 1]
    found = [less for one in unlike[:_WALKED] for less in _fewer_of_two(one, bench, least)]
    fewest = min((one.devices for one in (*kept_to, *found)), default=0)
    for one in kept_to:
        if len(one.deployments) > 1:
            continue
        (shape,) = one.deployments
        size = instance_devices(shape)
        if not each and size >= fewest:
            continue
        low, high, kept = 1, shape.instances, one
        while low < high:
            middle = (low + high) // 2
            if not each and middle * size >= fewest:
                high = middle
                continue
            tried = bench.tried((replace(shape, instances=middle),), least)
            if isinstance(tried, Candidate) and _keeps(tried):
                high, kept = middle, tried
            else:
                low = middle + 1
        if kept is not one and kept.devices == low * size and (each or kept.devices < fewest):
            fewest = min(fewest, kept.devices)
            found.append(kept)
    return found


def _fewer_of_two(one: Candidate, bench: Bench, least: float) -> list[Candidate]:
    """Fleets of fewer instances of either kind that keep to the objective: the least of one for each of the other."""
    known: dict[tuple[int, ...], Candidate | None] = {tuple(each.instances for each in one.deployments): one}

    def kept(counts: tuple[int, ...]) -> bool:
        if counts not in known:
            fleet = tuple(
                replace(each, instances=count) for each, count in zip(one.deployments, counts, strict=True) if count
            )
            tried = bench.tried(fleet, least)
            known[counts] = tried if isinstance(tried, Candidate) and _keeps(tried) else None
        return known[counts] is not None

    reached = [known[counts] for counts in least_of_two(one.deployments, kept)]
    return [found for found in reached if found is not None and found is not one]
