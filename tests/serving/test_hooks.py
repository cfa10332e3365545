"""Hooks of the clock, as a stranger's file would write them: a queue, a choice of who gives way, an eviction."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import Replays
from ridgeline.errors import PlanError
from ridgeline.serving import hooks
from ridgeline.serving.compiling import clocked
from ridgeline.serving.hooks import HOOKS
from ridgeline.serving.state import DECODING, NOBODY, PREFILLING
from ridgeline.serving.traffic.traffic import Traffic, traffic

KEPT = 16


@clocked
def shortest_remaining(requests, rule, request, other):
    mine = requests[request].needed + requests[request].output - requests[request].made
    return requests[other].needed + requests[other].output - requests[other].made > mine


@clocked
def heavy_hitters(requests, rule, request, tokens):
    return min(tokens, KEPT)


@clocked
def last_admitted(ranks, requests, rule, rank):
    return ranks[rank].run_last


@clocked
def first_admitted(ranks, requests, rule, rank):
    request = ranks[rank].run_first
    while request != NOBODY and requests[request].stage not in (PREFILLING, DECODING):
        request = requests[request].after
    return request


@clocked
def never_asked(requests, rule, request, other):
    return no_such_name  # noqa: F821


def random_traffic(seed: int, requests: int = 60) -> Traffic:
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(1, 100, requests), draw.integers(1, 40, requests)
    return traffic(np.sort(draw.uniform(0.0, 20.0, requests)), prompts, outputs)


def same(one: object, two: object) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in ("first_s", "end_s", "preempted"))


def test_the_shortest_that_remains_is_next(replayed: Replays) -> None:
    asked = traffic(np.zeros(4), [4, 4, 4, 4], [9, 5, 1, 3])
    found = replayed(asked, lane_s=1.0, max_seqs=1, hooks={"order": shortest_remaining})
    assert np.argsort(found.end_s).tolist() == [2, 3, 1, 0]
    assert replayed(asked, lane_s=1.0, max_seqs=1).end_s.tolist() == [9.0, 14.0, 15.0, 18.0]


@pytest.mark.parametrize("seed", range(5))
def test_what_remains_first_ends_sooner_on_average(replayed: Replays, seed: int) -> None:
    asked = random_traffic(seed)
    plain, hooked = (
        replayed(asked, lane_s=0.3, max_seqs=2, hooks=hooks) for hooks in ({}, {"order": shortest_remaining})
    )
    assert hooked.end_s.mean() < plain.end_s.mean()
    assert hooked.done.all()


@pytest.mark.parametrize("seed", range(5))
def test_a_hook_that_keeps_so_many_tokens_is_the_clocks_own_rule(replayed: Replays, seed: int) -> None:
    words = {"lane_s": 0.1, "context_s": 0.001, "capacity": 40}
    asked = random_traffic(seed)
    plain, ruled, hooked = (
        replayed(asked, **words, **more) for more in ({}, {"kept": KEPT}, {"hooks": {"held": heavy_hitters}})
    )
    assert same(hooked, ruled)
    assert not same(hooked, plain)
    assert hooked.end_s.sum() < plain.end_s.sum()


@pytest.mark.parametrize("seed", range(5))
def test_who_gives_way_is_the_hooks_choice(replayed: Replays, seed: int) -> None:
    words = {"lane_s": 0.5, "capacity": 24}
    asked = random_traffic(seed)
    plain, last, first = (
        replayed(asked, **words, hooks=hooks) for hooks in ({}, {"victim": last_admitted}, {"victim": first_admitted})
    )
    assert plain.preemptions > 0
    assert same(plain, last)
    assert not same(plain, first)
    assert first.done.all()


def test_hooks_compose_and_leave_no_trace_in_the_next_run(replayed: Replays) -> None:
    asked = random_traffic(7)
    words = {"lane_s": 0.3, "context_s": 0.001, "max_seqs": 2}
    before = replayed(asked, **words)
    both = replayed(asked, **words, hooks={"order": shortest_remaining, "held": heavy_hitters})
    assert not same(both, before)
    assert not same(both, replayed(asked, **words, hooks={"order": shortest_remaining}))
    assert same(before, replayed(asked, **words))


def test_a_hook_is_compiled_only_where_a_run_has_it_and_another_name_is_refused(replayed: Replays) -> None:
    asked = random_traffic(1)
    replayed(asked, lane_s=0.1)
    assert (never_asked.__code__,) not in hooks._entered
    with pytest.raises(PlanError, match=r"'orders'.*order, victim, held"):
        replayed(asked, lane_s=0.1, hooks={"orders": shortest_remaining})
    assert sorted(one.place for one in HOOKS.values()) == list(range(len(HOOKS)))
