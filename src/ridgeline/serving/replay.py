"""Replays traffic on a fleet of instances: the compiled clock, its bounds and its invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import DomainError, PlanError
from ridgeline.plan.deployment import Role, Router
from ridgeline.serving import state
from ridgeline.serving.clock import BIN_LOW_S, BINS, BINS_A_FACTOR, Times
from ridgeline.serving.engine import Engine, pool_role
from ridgeline.serving.loop import replay as _run
from ridgeline.serving.state import Array, Fleet, Instances, Pending, Record, Requests, Rules, Whole
from ridgeline.serving.traffic.traffic import Traffic

KINDS = 4  # deployments that one fleet may mix; the compiled loop has a place for so many
_ROUTERS = {Router.ROUND_ROBIN: 0, Router.LEAST_LOADED: 1, Router.PREFIX: 2}


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """What became of every request, arrays (R,), and what the fleet did.

    `came_s`, `first_s`, `end_s` [s] entering the system, first and last token; `done` who ended with all tokens,
    `refused` who could never run. `series` (T, 3) is cache blocks in use, waiting and running requests, the most in
    each stretch of `series_s` [s].
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

    def itl_quantile(self, share: float) -> float:
        """Inter-token latency that `share` of all tokens after the first keep to [s]; nan without any."""
        total = float(self.histogram.sum())
        if total <= 0:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self.histogram), share * total))
        return float(BIN_LOW_S * np.exp((place + 0.5) / BINS_A_FACTOR))


def replay(engines: Sequence[Engine], traffic: Traffic, *, router: Router | None = None, most_s: float = 1e9) -> Replay:
    """Replays traffic on the instances of up to four deployments that serve one model.

    Instances whose role is prefill hand requests to those whose role is decode, over the link between them. Raises
    `NoPlanError` where an engine will not start, `PlanError` for a fleet that cannot serve.
    """
    _check(engines)
    longest_prompt = int(np.max(traffic.prompt_tokens))
    longest = int(np.max(traffic.prompt_tokens + traffic.output_tokens))
    moves = any(one.deployment.role is not Role.WHOLE for one in engines)
    rules, times = [], []
    for one in engines:
        stride = one.deployment.instance_devices if moves else 0
        rules.append(one.rules(prefix_tokens=traffic.prefix_block_tokens, stride=stride))
        times.append(one.times(one.tables(longest_prompt=longest_prompt, longest=longest)))
    return replay_tables(
        engines, tuple(times), tuple(rules), traffic, router=router or engines[0].deployment.router, most_s=most_s
    )


def replay_tables(
    engines: Sequence[Engine],
    times: tuple[Times, ...],
    rules: tuple[Rules, ...],
    traffic: Traffic,
    *,
    router: Router,
    most_s: float = 1e9,
) -> Replay:
    """As `replay`, with tables and rules at hand: those of each engine, in order."""
    requests = _requests(traffic)
    instances = _instances(engines, rules)
    owner = np.concatenate(
        [np.full(rules[int(kind)].ranks, index, dtype=np.int64) for index, kind in enumerate(instances.kind)]
    )
    width = min(max(rule.max_seqs for rule in rules), traffic.requests)
    rules = tuple(rule._replace(max_seqs=min(rule.max_seqs, width)) for rule in rules)
    distinct = int(traffic.prefix_blocks.max()) + 1 if len(traffic.prefix_blocks) and rules[0].prefix_tokens else 1
    ranks = state.empty_ranks(owner, width, max(rule.period for rule in rules), distinct)
    concurrency = traffic.concurrency or 0
    waits = np.flatnonzero(traffic.after >= 0)
    free = np.flatnonzero(traffic.after < 0)
    pending = Pending(
        at_s=np.zeros(traffic.requests + 2),
        number=np.zeros(traffic.requests + 2, dtype=np.int64),
        request=np.zeros(traffic.requests + 2, dtype=np.int64),
        counts=np.array([0, 0, min(concurrency, traffic.requests)], dtype=np.int64),
    )
    if concurrency and len(waits):
        raise DomainError("a closed loop of sessions is not defined; give either concurrency or turns that wait")
    record = Record(
        histogram=np.zeros(BINS),
        counts=np.zeros(state.COUNTS, dtype=np.int64),
        series=np.zeros((state.SAMPLES, 4)),
        series_s=np.array([1.0]),
        sums=np.zeros(state.SUMS),
    )
    fleet = Fleet(
        router=_ROUTERS[router],
        concurrency=concurrency,
        by_priority=bool(np.ptp(traffic.priority) > 0),
        turns=np.zeros(3, dtype=np.int64),
    )
    arrivals = free[:concurrency] if concurrency else free
    padded = (*times, *([times[-1]] * (KINDS - len(times))))
    padded_rules = (*rules, *([rules[-1]] * (KINDS - len(rules))))
    span_s = _run(ranks, requests, instances, pending, record, padded, padded_rules, fleet, arrivals, most_s)
    _invariants(ranks, requests, record, rules, instances, most_s)
    return _result(requests, instances, record, rules, span_s)


def _check(engines: Sequence[Engine]) -> None:
    if not 1 <= len(engines) <= KINDS:
        raise PlanError(f"a fleet mixes 1 to {KINDS} deployments; got {len(engines)}")
    roles = {one.deployment.role for one in engines}
    if Role.WHOLE not in roles and roles != {Role.PREFILL, Role.DECODE}:
        raise PlanError("a fleet with a prefill pool needs a decode pool, and the other way round")
    if Role.WHOLE in roles and len(roles) > 1:
        raise PlanError("a fleet is either of whole instances or of a prefill and a decode pool")


def _requests(traffic: Traffic) -> Requests:
    count = traffic.requests

    def whole(value: int = 0) -> Whole:
        return np.full(count, value, dtype=np.int64)

    first_child, next_child = whole(state.NOBODY), whole(state.NOBODY)
    for request in np.flatnonzero(traffic.after >= 0)[::-1]:
        before = traffic.after[request]
        next_child[request], first_child[before] = first_child[before], request
    return Requests(
        arrival_s=np.ascontiguousarray(traffic.arrival_s, dtype=float),
        prompt=np.ascontiguousarray(traffic.prompt_tokens, dtype=np.int64),
        output=np.ascontiguousarray(traffic.output_tokens, dtype=np.int64),
        priority=np.ascontiguousarray(traffic.priority, dtype=np.int64),
        prefix_start=np.ascontiguousarray(traffic.prefix_start, dtype=np.int64),
        prefix_blocks=np.ascontiguousarray(traffic.prefix_blocks, dtype=np.int64),
        first_child=first_child,
        next_child=next_child,
        think_s=np.ascontiguousarray(traffic.think_s, dtype=float),
        stage=np.zeros(count, dtype=np.int32),
        rank=np.full(count, state.NOBODY, dtype=np.int32),
        came_s=np.full(count, np.nan),
        first_s=np.full(count, np.nan),
        end_s=np.full(count, np.nan),
        ready=whole(),
        needed=np.array(traffic.prompt_tokens, dtype=np.int64),
        made=whole(),
        since=whole(),
        length=whole(),
        until=whole(),
        shared=whole(),
        hit=whole(),
        reserved=whole(),
        preempted=whole(),
        after=whole(state.NOBODY),
        before=whole(state.NOBODY),
    )


def _instances(engines: Sequence[Engine], rules: Sequence[Rules]) -> Instances:
    kind = np.concatenate(
        [np.full(one.deployment.instances, index, dtype=np.int64) for index, one in enumerate(engines)]
    )
    sizes = np.array([rules[int(index)].ranks for index in kind], dtype=np.int64)
    roles = np.array([pool_role(engines[int(index)].deployment) for index in kind], dtype=np.int32)
    count = len(kind)
    return Instances(
        kind=kind,
        first_rank=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
        next_s=np.full(count, np.inf),
        begun_s=np.zeros(count),
        at=np.zeros(count, dtype=np.int32),
        steps=np.zeros(count, dtype=np.int64),
        up=np.ones(count, dtype=np.int32),
        gives=np.ascontiguousarray(roles[:, 0]),
        takes=np.ascontiguousarray(roles[:, 1]),
        load=np.zeros(count, dtype=np.int64),
        busy_s=np.zeros(count),
        link_free_s=np.zeros(count),
        stalled_s=np.zeros(count),
        iterations=np.zeros(count, dtype=np.int64),
    )


def _invariants(
    ranks: state.Ranks, requests: Requests, record: Record, rules: Sequence[Rules], instances: Instances, most_s: float
) -> None:
    """What must hold after every replay: requests end or are refused, no block is lost or lent twice."""
    ended = requests.stage == state.ENDED
    settled = ended | (requests.stage == state.REFUSED)
    if most_s >= 1e9 and not settled.all():
        raise AssertionError(f"{int((~settled).sum())} requests neither ended nor were refused")
    if settled.all() and (ranks.used.any() or ranks.committed.any() or ranks.running.any() or ranks.waiting.any()):
        raise AssertionError("cache blocks are still in use after the last request")
    limit = max(rule.capacity for rule in rules)
    if record.counts[state.PEAK_BLOCKS] > limit:
        raise AssertionError(f"{record.counts[state.PEAK_BLOCKS]} blocks were in use of {limit}")
    if not (requests.made[ended] == requests.output[ended]).all():
        raise AssertionError("a request ended with other than its tokens")
    if (requests.end_s[ended] < requests.first_s[ended]).any() or (requests.first_s < requests.came_s).any():
        raise AssertionError("time went backward")


def _result(requests: Requests, instances: Instances, record: Record, rules: Sequence[Rules], span_s: float) -> Replay:
    decode_s = float(record.sums[state.DECODE_S])
    sequence_s = float(record.sums[state.SEQUENCE_S])
    return Replay(
        came_s=requests.came_s,
        first_s=requests.first_s,
        end_s=requests.end_s,
        prompt=requests.prompt,
        output=requests.output,
        done=requests.stage == state.ENDED,
        refused=requests.stage == state.REFUSED,
        hit_tokens=requests.hit,
        preempted=requests.preempted,
        span_s=float(span_s),
        iterations=int(record.counts[state.ITERATIONS]),
        runs=int(record.counts[state.RUNS]),
        preemptions=int(record.counts[state.PREEMPTIONS]),
        moves=int(record.counts[state.MOVES]),
        busy_s=instances.busy_s,
        prefill_s=float(record.sums[state.PREFILL_S]),
        decode_s=decode_s,
        mean_sequences=sequence_s / decode_s if decode_s else 0.0,
        mean_context=float(record.sums[state.CONTEXT_S]) / sequence_s if sequence_s else 0.0,
        histogram=record.histogram,
        series=record.series[:, :3],
        series_s=float(record.series_s[0]),
        capacity_blocks=int(sum(rules[int(kind)].capacity * rules[int(kind)].ranks for kind in instances.kind)),
    )
