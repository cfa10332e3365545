"""Replays traffic on a fleet of instances: the compiled clock, its bounds and its invariants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import DomainError, PlanError
from ridgeline.plan.deployment import Role
from ridgeline.seams.serving import Adapters, Router, applied, hooks_of, of, own_devices, router_of
from ridgeline.serving import loop, state
from ridgeline.serving.adapters import drawn
from ridgeline.serving.clock import BIN_LOW_S, BINS, BINS_A_FACTOR
from ridgeline.serving.compiling import Entered
from ridgeline.serving.engine import Engine
from ridgeline.serving.fleet_events import FleetEvents, failures_of, scale
from ridgeline.serving.fronts import Fronts
from ridgeline.serving.hooks import fill
from ridgeline.serving.queues import shortest_first
from ridgeline.serving.remote_kv import most_held
from ridgeline.serving.rule import pool_role, times_of
from ridgeline.serving.runs import catch_up_all
from ridgeline.serving.state import Array, Clock, Record, Records, Whole
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import FOREVER_S, Stop
from ridgeline.serving.traffic.traffic import Traffic, clients_of

# of a rank when nothing is left to do:
_EMPTY = (
    "used", "committed", "running", "waiting", "pinned", "unseen", "hosted", "fetching", "joining", "owes", "lent",
    "asking", "far", "guests",
)  # fmt: skip
_GOLDEN = 0.6180339887498949  # by definition, the golden section: its multiples fill the unit interval evenly
_run = Entered(loop.replay)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """What became of every request, arrays (R,), and what the fleet did.

    `came_s`, `first_s`, `end_s` [s] entering the system, first and last token; `done` who ended with all tokens,
    `refused` who could never run. `series` (T, 3) is cache blocks in use, waiting and running requests, the most in
    each stretch of `series_s` [s]. `longest_tokens` [token] are of the longest request that every instance serves.
    `served_by` is the deployment of each request's last rank, -1 of none.
    """

    came_s: Array
    first_s: Array
    end_s: Array
    prompt: Whole
    output: Whole
    done: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    hit_tokens: Whole
    preempted: Whole
    served_by: Whole
    span_s: float
    iterations: int
    runs: int
    preemptions: int
    moves: int
    busy_s: Array
    prefill_s: float
    decode_s: float
    mean_sequences: float
    mean_context: float
    histogram: Array
    series: Array
    series_s: float
    capacity_blocks: int
    failures: int
    starts: int
    up_s: Array
    paid_s: Array
    stopped: bool
    loads: int
    loans: int
    merges: int
    longest_tokens: int

    def itl_quantile(self, share: float) -> float:
        """Inter-token latency that `share` of all tokens after the first keep to [s]; nan without any."""
        total = float(self.histogram.sum())
        if total <= 0:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self.histogram), share * total))
        return float(BIN_LOW_S * np.exp((place + 0.5) / BINS_A_FACTOR))


def replay(engines: Sequence[Engine], traffic: Traffic, *, router: str = "") -> Replay:
    """Replays traffic on the instances of one or more deployments that serve one model.

    Instances whose role is prefill hand requests to those whose role is decode, over the link between them. Raises
    `NoPlanError` where an engine will not start, `PlanError` for a fleet that cannot serve.
    """
    return replay_tables(engines, tables_of(engines, traffic), traffic, router=router)


def tables_of(engines: Sequence[Engine], traffic: Traffic) -> list[StepTables]:
    """Each engine's tables for prompts and contexts of the traffic; engines that will not start raise first."""
    for one in engines:
        _ = one.capacity
    longest_prompt = int(np.max(traffic.prompt_tokens))
    longest = int(np.max(traffic.prompt_tokens + traffic.output_tokens))
    return [one.tables(longest_prompt=longest_prompt, longest=longest) for one in engines]


def replay_tables(
    engines: Sequence[Engine],
    tables: Sequence[StepTables],
    traffic: Traffic,
    *,
    router: str = "",
    fronts: Fronts | None = None,
    fleet_events: FleetEvents | None = None,
    stop: Stop | None = None,
    hooks: Mapping[str, Callable[..., Any]] | None = None,
) -> Replay:
    """As `replay`, with the tables of each engine at hand; `fleet_events` says how instances come and go.

    Requests come in through any of `fronts`, one by default, and choose among instances by a `router`, the text
    of a technique, by default that of the first deployment. With `stop` it ends as soon as an objective is certainly
    missed, and says so (`stopped`). What `hooks` decide, compiled functions by name, is told in `serving.hooks`.
    """
    _check(engines)
    events, end = fleet_events or FleetEvents(), stop or Stop()
    times, places = times_of(engines, tables)
    rules = _rules(engines, tables, traffic, places)
    instances = _instances(engines, rules)
    whole = np.flatnonzero(instances["lane"] != state.ANSWERS)
    owner = np.repeat(whole, rules["ranks"][instances["kind"][whole]])
    _check_together(engines, rules, traffic, changes=events != FleetEvents())
    ranks = state.empty_ranks(owner)
    fleet = [one.deployment for one in engines]
    routing = router_of(fleet, router)
    scaled = events.autoscale.hooks() if events.autoscale else {}
    hooks = {**hooks_of(fleet), **routing.hooks(), **scaled, **(hooks or {})}
    if "order" in hooks:
        rules["shortest"] = 1
    elif rules["shortest"].any():
        hooks["order"] = shortest_first
    clients = clients_of(traffic) if rules["fair"].any() else None
    lists = state.empty_lists(
        len(ranks),
        rules,
        np.ascontiguousarray(traffic.prefix_start, dtype=np.int64),
        np.ascontiguousarray(traffic.prefix_blocks if rules["prefix_tokens"].any() else [], dtype=np.int64),
        0 if clients is None else int(clients.max()) + 1,
        of(engines[0].deployment, Adapters).count if rules["slots"].any() else 0,
        traffic.requests if rules["borrows"].any() else 0,
    )
    requests = _requests(traffic)
    clock = Clock(
        system=_system(traffic, routing, instances, events),
        requests=requests,
        ranks=ranks,
        instances=instances,
        rules=rules,
        times=times,
        coming=np.zeros(2 * traffic.requests + 2, dtype=state.COMING),
        turns=(fronts or Fronts()).first_turns(instances),
        histogram=np.zeros(BINS),
        series=np.zeros((state.SAMPLES, 4)),
        failures_s=failures_of(instances, events, [one.deployment.kind for one in engines]),
        stop=end.as_array(),
        **lists,
    )
    clock.system["by_priority"] |= rules["redraws"].any()
    if rules["slots"].any():
        requests["adapter"] = drawn(of(engines[0].deployment, Adapters), traffic.requests)
    if clients is not None:
        requests["client"] = clients
    requests["front_s"] = front_seconds(engines[0], traffic)
    for technique in applied(engines[0].deployment):
        requests["front_s"] += technique.front_seconds(engines[0], traffic)
    free = np.flatnonzero(traffic.after < 0)
    arrivals = free[: traffic.concurrency] if traffic.concurrency else free
    if "keeps" in hooks and not requests["goes_on"].any():
        raise PlanError(
            f"deployment: caches are held between turns, but no request of '{traffic.name}' is the next turn of a"
            " session; give --turns, or a trace with --sessions chained, or leave it out"
        )
    if clock.system["reads_cache"] or clock.system["period_s"] or rules["borrows"].any():
        hooks["books"] = catch_up_all
    fill(clock, hooks)
    span_s = _run(clock, arrivals, end.most_s)
    _invariants(clock, end.most_s)
    return _result(clock, span_s)


def _check_together(engines: Sequence[Engine], rules: Records, traffic: Traffic, *, changes: bool) -> None:
    """Raises `PlanError` for what is not modelled with a fleet that `changes`, of two kinds, or under this traffic."""
    if rules["split"].any() and changes:
        raise PlanError("deployment: split, but autoscale and failures are not modelled with it; leave them out")
    if (rules["borrows"].any() or rules["elastic"].any()) and (len(engines) > 1 or changes):
        raise PlanError(
            "deployment: borrows and elastic_tokens are modelled among instances that are alike and stay up; give one"
            " deployment, without autoscale and failures"
        )
    if rules["displaces"].any() and not rules["redraws"].any() and np.ptp(traffic.priority) == 0:
        raise PlanError(
            f"deployment: displaces, but all requests of '{traffic.name}' have the same priority; give a trace with a"
            " column priority, or leave it out"
        )


def _rules(
    engines: Sequence[Engine], tables: Sequence[StepTables], traffic: Traffic, places: Mapping[str, Sequence[int]]
) -> Records:
    """The rule of each engine, with the batch no wider than there are requests."""
    moves = any(
        one.deployment.role is not Role.WHOLE or any(technique.between for technique in applied(one.deployment))
        for one in engines
    )
    takers = [one for one in engines if one.deployment.role is Role.DECODE]
    rules = np.zeros(len(engines), dtype=state.RULE)
    for index, (one, table) in enumerate(zip(engines, tables, strict=True)):
        widest = max(own_devices(other.deployment) for other in (one, *takers))
        rules[index] = one.rule(
            table, prefix_tokens=traffic.prefix_block_tokens, stride=widest if moves else 0, takers=takers
        )
    for name, values in places.items():
        rules[name] = values
    rules["max_seqs"] = np.minimum(rules["max_seqs"], traffic.requests)
    return rules


def _system(traffic: Traffic, router: Router, instances: Records, fleet_events: FleetEvents) -> Record:
    concurrency = traffic.concurrency or 0
    if concurrency and (traffic.after >= 0).any():
        raise DomainError("a closed loop of sessions is not defined; give either concurrency or turns that wait")
    system = np.zeros((), dtype=state.SYSTEM)
    system["by_prefix"], system["concurrency"] = router.by_prefix, concurrency
    system["reads_cache"] = router.reads_cache and bool(router.hooks())
    system["long_tokens"] = router.long_tokens
    system["by_priority"], system["unstarted"] = np.ptp(traffic.priority) > 0, min(concurrency, traffic.requests)
    system["series_s"] = 1.0
    scale(system, instances, fleet_events.autoscale)
    return system


def _check(engines: Sequence[Engine]) -> None:
    if not engines:
        raise PlanError("a fleet needs at least one deployment; got none")
    roles = {one.deployment.role for one in engines}
    if Role.WHOLE not in roles and roles != {Role.PREFILL, Role.DECODE}:
        raise PlanError("a fleet with a prefill pool needs a decode pool, and the other way round")
    if Role.WHOLE in roles and len(roles) > 1:
        raise PlanError("a fleet is either of whole instances or of a prefill and a decode pool")


def _requests(traffic: Traffic) -> Records:
    requests = np.zeros(traffic.requests, dtype=state.REQUEST)
    for name in ("first_child", "next_child", "rank", "after", "before", "follows"):
        requests[name] = state.NOBODY
    for name in ("came_s", "first_s", "end_s"):
        requests[name] = np.nan
    requests["arrival_s"], requests["think_s"] = traffic.arrival_s, traffic.think_s
    requests["prompt"], requests["output"] = traffic.prompt_tokens, traffic.output_tokens
    requests["priority"], requests["needed"] = traffic.priority, traffic.prompt_tokens
    for request in np.flatnonzero(traffic.after >= 0)[::-1]:
        before = traffic.after[request]
        requests["next_child"][request] = requests["first_child"][before]
        requests["first_child"][before] = request
        if traffic.session[request] >= 0 and traffic.session[request] == traffic.session[before]:
            requests["follows"][request], requests["goes_on"][before] = before, 1
    return requests


def front_seconds(one: Engine, traffic: Traffic) -> Array:
    """Time from each person's request to the scheduler, the way back of the first token included [s].

    a + b * prompt tokens, times a share between 1/2 and 3/2 that goes evenly round: people and network are uneven, and
    requests that end together do not come back together.
    """
    uneven = 0.5 + np.modf(np.arange(traffic.requests) * _GOLDEN)[0]
    policy = one.policy
    return np.asarray((policy.request_host_s + policy.prompt_token_host_s * traffic.prompt_tokens) * uneven)


def _instances(engines: Sequence[Engine], rules: Records) -> Records:
    """Entries of the instances, in the order of deployments; a split one is two, prompts first."""
    entries = [
        (kind, lane)
        for kind, (one, rule) in enumerate(zip(engines, rules, strict=True))
        for _ in range(one.deployment.instances)
        for lane in ((state.PROMPTS, state.ANSWERS) if rule["split"] else (state.BOTH,))
    ]
    instances = np.zeros(len(entries), dtype=state.INSTANCE)
    instances["kind"], instances["lane"] = np.array(entries).T
    answers = instances["lane"] == state.ANSWERS
    sizes = np.where(answers, 0, rules["ranks"][instances["kind"]])
    instances["first_rank"] = np.cumsum(sizes) - np.where(answers, 1, sizes)
    instances["peer"] = state.NOBODY
    instances["peer"][answers] = np.flatnonzero(answers) - 1
    instances["peer"][np.flatnonzero(answers) - 1] = np.flatnonzero(answers)
    instances["next_s"], instances["up"] = np.inf, 1
    instances["starts_s"] = instances["fails_s"] = np.inf
    roles = np.array([pool_role(one.deployment) for one in engines])
    instances["gives"], instances["takes"] = roles[instances["kind"]].T
    instances["takes"][answers] = 0  # whoever comes, comes to the lane of prompts
    return instances


def _invariants(clock: Clock, most_s: float) -> None:
    """What must hold after every replay: requests end or are refused, no block is lost or lent twice."""
    ranks, requests, system, rules = clock.ranks, clock.requests, clock.system, clock.rules
    ended = requests["stage"] == state.ENDED
    settled = ended | (requests["stage"] == state.REFUSED)
    if most_s >= FOREVER_S and not system["stopped"] and not settled.all():
        raise AssertionError(f"{int((~settled).sum())} requests neither ended nor were refused")
    if settled.all() and any(ranks[name].any() for name in _EMPTY):
        left = {name: int(ranks[name].sum()) for name in _EMPTY}
        raise AssertionError(f"blocks or requests are left after the last request: {left}")
    if system["peak_blocks"] > rules["capacity"].max():
        raise AssertionError(f"{system['peak_blocks']} blocks were in use of {rules['capacity'].max()}")
    if not (requests["made"][ended] == requests["output"][ended]).all():
        raise AssertionError("a request ended with other than its tokens")
    first, last = requests["first_s"], requests["end_s"]
    if (last[ended] < first[ended]).any() or (first < requests["came_s"]).any():
        raise AssertionError("time went backward")


def _result(clock: Clock, span_s: float) -> Replay:
    requests, instances, rules, counted = clock.requests, clock.instances, clock.rules, clock.system
    decode_s, sequence_s = float(counted["decode_s"]), float(counted["sequence_s"])
    instances = instances[instances["lane"] != state.ANSWERS]
    kinds = instances["kind"]
    return Replay(
        came_s=requests["came_s"].copy(),
        first_s=requests["first_s"].copy(),
        end_s=requests["end_s"].copy(),
        prompt=requests["prompt"].copy(),
        output=requests["output"].copy(),
        done=requests["stage"] == state.ENDED,
        refused=requests["stage"] == state.REFUSED,
        hit_tokens=requests["hit"].copy(),
        preempted=requests["preempted"].copy(),
        served_by=_served_by(clock),
        span_s=float(span_s),
        iterations=int(counted["iterations"]),
        runs=int(counted["runs"]),
        preemptions=int(counted["preemptions"]),
        moves=int(counted["moves"]),
        busy_s=instances["busy_s"].copy(),
        prefill_s=float(counted["prefill_s"]),
        decode_s=decode_s,
        mean_sequences=sequence_s / decode_s if decode_s else 0.0,
        mean_context=float(counted["context_s"]) / sequence_s if sequence_s else 0.0,
        histogram=clock.histogram,
        series=_filled(clock.series),
        series_s=float(counted["series_s"]),
        capacity_blocks=int((rules["capacity"] * rules["ranks"])[kinds].sum()),
        failures=int(counted["failures"]),
        starts=int(counted["starts"]),
        up_s=instances["up_s"] + np.where(instances["up"] > 0, span_s - instances["up_since_s"], 0.0),
        paid_s=instances["paid_s"]
        + np.where(instances["paid_since_s"] >= 0.0, span_s - instances["paid_since_s"], 0.0),
        stopped=bool(counted["stopped"]),
        loads=int(counted["loads"]),
        loans=int(counted["loans"]),
        merges=int(counted["merges"]),
        longest_tokens=int(min(most_held(clock, rule) * rule["block_tokens"] for rule in rules.view(np.recarray))),
    )


def _served_by(clock: Clock) -> Whole:
    """The deployment whose rank each request was at last, -1 where it was at none."""
    rank = clock.requests["rank"]
    return np.where(rank >= 0, clock.instances["kind"][clock.ranks["instance"][np.maximum(rank, 0)]], -1)


def _filled(series: Array) -> Array:
    """The series of all stretches: one in which nothing began, which the clock did not visit, is as the one before."""
    places = np.where(series[:, 3] > 0, np.arange(len(series)), 0)
    return series[np.maximum.accumulate(places), :3]
