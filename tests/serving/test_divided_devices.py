"""A device divided between prompts and decode steps: by hand, within its bounds, and on a real model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds, stacked
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving import state
from ridgeline.serving.ends import LOW, table_at
from ridgeline.serving.engine import engine
from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.split import SplitTables, alone_s, best_share, memory_only, sided_share
from ridgeline.serving.traffic.traffic import Traffic, traffic

TIMES = st.floats(0.01, 10.0)


def flat(value: float, size: int = 2) -> Seconds:
    mid = np.full(size, value)
    return Seconds(mid=mid, low=mid, high=mid, compute=mid, memory=mid)


def rule_of(**numbers: float) -> Any:
    rule = np.zeros(1, dtype=state.RULE).view(np.recarray)
    for name, value in numbers.items():
        rule[name] = value
    return rule[0]


@pytest.fixture
def divided(numbered: Callable[..., Replay]) -> Callable[..., Replay]:
    """Every iteration waits `compute` and `memory`, a step `step_s` more for attention [s]."""

    def run(
        asked: Traffic,
        compute: float = 0.0,
        memory: float = 0.0,
        busy: float = 0.0,
        step_s: float = 0.0,
        **numbers: float,
    ) -> Replay:
        of_ranks = {"compute": compute, "memory": memory, "network": 0.0, "busy": busy}
        split = SplitTables(
            **{name: stacked([flat(value), flat(0.0), flat(0.0)]) for name, value in of_ranks.items()},
            **{f"head_{name}": flat(0.0) for name in of_ranks},
        )  # fmt: skip
        values = {"scheduler": state.PREFILL_FIRST, "split": 1, "memory_sms": 0.5, **numbers}
        return numbered(asked, lambda table: replace(table, split=split), {"step_s": step_s}, **values)

    return run


# by hand ---------------------------------------------------------------------------------------------


def test_a_prompt_beside_an_answer_by_hand(divided: Callable[..., Replay]) -> None:
    """Iterations of 2 s that wait for compute; half of the device is twice as slow.

    A: prompt from 0 to 2 on the whole device. Steps of 2 s end at 4 and 6. B comes at 5: its prompt has half the
    device from 5 to 9. A's step from 4 to 6 keeps the whole; the next, on the other half, lasts from 6 to 10. B joins
    the step that begins then, on the whole device: both are done at 12.
    """
    found = divided(traffic([0.0, 5.0], [8, 8], [5, 2]), compute=2.0, split_share=0.5)
    assert found.first_s.tolist() == [2.0, 9.0]
    assert found.end_s.tolist() == [12.0, 12.0]
    assert found.iterations == 2 + 4
    assert found.busy_s.tolist() == [12.0]  # one device, never idle
    assert found.prefill_s == 2.0 + 4.0
    assert found.decode_s == 2.0 + 2.0 + 4.0 + 2.0


def test_kernels_that_wait_for_memory_keep_their_pace_on_half_the_device(divided: Callable[..., Replay]) -> None:
    """As above with 2 s for memory, busy for 1: half the multiprocessors keep it as fast, both ask for half its rate.

    B's prompt lasts from 5 to 7; A's steps end at 4, 6, 8 and 10, B's only one at 10 as well.
    """
    found = divided(traffic([0.0, 5.0], [8, 8], [5, 2]), memory=2.0, busy=1.0, split_share=0.5)
    assert found.first_s.tolist() == [2.0, 7.0]
    assert found.end_s.tolist() == [10.0, 10.0]


def test_both_slow_down_where_they_ask_for_more_than_memory_gives(divided: Callable[..., Replay]) -> None:
    """2 s for memory, busy for 1.5, 3/4 of its rate: together 3/2 of it, so that 2 s last 3 beside each other.

    B's prompt from 5 to 8; A's third step from 6, beside it, to 9; both together from 9 to 11.
    """
    found = divided(traffic([0.0, 5.0], [8, 8], [5, 2]), memory=2.0, busy=1.5, split_share=0.5)
    assert found.first_s.tolist() == [2.0, 8.0]
    assert found.end_s.tolist() == [11.0, 11.0]


def test_attention_of_a_step_is_at_memory_all_the_time(divided: Callable[..., Replay]) -> None:
    """A step is 2 s of compute and 2 s of attention. On half the device: 4 + 2 s, at memory for a third of them.

    A: prompt to 2, steps to 6 and 10. B's prompt from 7, busy for 1 of its 4 s: 1 + 1/3 x 4 < 4, to 11. A's step from
    10 beside it: 6 s, of which 2 + 1/4 x 6 = 3.5 at memory: to 16. The last, of both, to 20.
    """
    words = {"compute": 2.0, "busy": 1.0, "step_s": 2.0, "split_share": 0.5}
    found = divided(traffic([0.0, 7.0], [8, 8], [5, 2]), **words)
    # memory in a step: attention 2 s and 1 s of the rest; 3 of 6 s beside B, whose 1 + 3/6 x 4 = 3 < 4
    assert found.first_s.tolist() == [2.0, 11.0]
    assert found.end_s.tolist() == [20.0, 20.0]


def test_full_caches_send_back_who_decodes_never_who_is_at_a_prompt(divided: Callable[..., Replay]) -> None:
    """Three blocks of 4 tokens: A is to grow to its third when B's prompt holds it: A gives way and starts over."""
    found = divided(traffic([0.0, 5.0], [4, 4], [6, 6]), compute=2.0, split_share=0.5, block_tokens=4, capacity=3)
    assert found.done.all()
    assert found.preempted.sum() >= 1
    assert found.preempted[1] == 0 or found.first_s[1] < found.end_s[0]


def test_a_share_that_is_chosen_is_the_best_of_sixteenths() -> None:
    """A prompt of 4 s of compute beside a step of 4 s at memory, busy for 2: what memory does not need."""
    rule = rule_of(memory_sms=0.5, link_sms=0.1)
    share = best_share(rule, (4.0, 0.0, 0.0, 0.0), (0.0, 4.0, 0.0, 2.0))
    assert share == 0.5  # more would slow the step as much as it speeds the prompt, less only slows the prompt

    def gets_on(x: float) -> float:
        return 4.0 / (4.0 / x) + 4.0 / (4.0 * max(1.0, 0.5 / (1.0 - x)))

    assert gets_on(share) == pytest.approx(max(gets_on(part / 16) for part in range(1, 16)))
    assert gets_on(share) == 1.5


def test_the_side_that_is_favoured_takes_what_the_other_can_spare() -> None:
    """A prompt of 4 s of compute, 4 / x, beside a step of 4 s at memory, 4 max(1, 0.5 / (1 - x)).

    A quarter longer: steps want 0.4 of the device, so prompts get 9/16; prompts want 0.8, so steps get 3/16. Not at all
    longer: steps want half of it; prompts all, which no share gives, so that they get the most there is.
    """
    found = {}
    for slack in (1.25, 1.0):
        rule = rule_of(memory_sms=0.5, link_sms=0.1, split_slack=slack)
        for filled in (False, True):
            found[slack, filled] = sided_share(rule, filled, (4.0, 0.0, 0.0, 0.0), (0.0, 4.0, 0.0, 0.0))
    assert found == {(1.25, False): 9 / 16, (1.25, True): 13 / 16, (1.0, False): 0.5, (1.0, True): 15 / 16}


def test_sides_change_as_the_cache_fills(divided: Callable[..., Replay]) -> None:
    """Iterations of 2 s of compute, either side at most four times as long: three quarters for who is favoured.

    A: prompt to 2, steps to 4 and 6. B comes at 5. Prompts favoured: B's from 5 for 2 / 0.75, A's step from 6 for 8 s,
    and both to 16. Steps favoured: B's prompt from 5 for 8 s; A's steps of 2 / 0.75 from 6, twice; B's step to 15.
    """
    asked = traffic([0.0, 5.0], [8, 8], [5, 2])
    words = {"compute": 2.0, "split_slack": 4.0, "block_tokens": 4, "capacity": 20}
    prompts = divided(asked, **words, split_fill=1.0)
    assert prompts.first_s.tolist() == pytest.approx([2.0, 5.0 + 8 / 3])
    assert prompts.end_s.tolist() == pytest.approx([16.0, 16.0])
    steps = divided(asked, **words, split_fill=0.25)  # B's two blocks and A's three are a quarter of 20
    assert steps.first_s.tolist() == pytest.approx([2.0, 13.0])
    assert steps.end_s.tolist() == pytest.approx([6.0 + 16 / 3, 15.0])
    just = divided(asked, **words, split_fill=0.26)
    assert just.end_s.tolist() == prompts.end_s.tolist()


@given(c=TIMES, m=TIMES, other_c=TIMES, other_m=TIMES)
def test_side_by_side_is_never_worse_than_taking_turns_where_memory_suffices(
    c: float, m: float, other_c: float, other_m: float
) -> None:
    """With nothing at memory's rate the best share gets on at least as fast as one after the other."""
    rule = rule_of(memory_sms=0.5)
    x = best_share(rule, (c, m, 0.0, 0.0), (other_c, other_m, 0.0, 0.0))
    gets_on = (c + m) / alone_s(rule, c, m, 0.0, x) + (other_c + other_m) / alone_s(rule, other_c, other_m, 0.0, 1 - x)
    assert gets_on >= 1.0 - 1e-9


def test_memory_is_never_busy_longer_than_its_kernels() -> None:
    found = memory_only(replace(flat(2.0), memory=np.array([1.0, 3.0]), low=np.full(2, 1.5)))
    assert (found.mid.tolist(), found.low.tolist()) == ([1.0, 2.0], [1.0, 1.5])


# a real model ----------------------------------------------------------------------------------------


def test_tables_of_a_divided_device_are_those_of_the_whole_sorted() -> None:
    where = machine(cluster("1xA100-SXM-80GB"))
    one = engine(load("llama-3.1-8b"), where, deployed(split=True))
    tables = one.tables(longest_prompt=1024, longest=2048)
    assert tables.split is not None
    rows = tables.split.compute.mid + tables.split.memory.mid + tables.split.network.mid
    assert rows[0] + rows[1] == pytest.approx(tables.lane.mid + tables.group.mid)
    assert (tables.split.busy.mid <= rows + 1e-12).all()
    head = tables.split.head_compute.mid + tables.split.head_memory.mid + tables.split.head_network.mid
    assert head == pytest.approx(tables.head.mid)
    low = table_at(tables, LOW)
    assert low.split is not None
    assert (low.split.compute.mid <= tables.split.compute.mid).all()
    assert one.rule(tables)["scheduler"] == state.PREFILL_FIRST


def test_prompts_come_sooner_than_in_turns_and_answers_do_not_stall() -> None:
    """One device, prompts of 4,000 tokens beside answers of 300: TTFT falls, and so does the longest gap."""
    from ridgeline.serving.metrics import measure
    from ridgeline.serving.traffic.arrivals import poisson
    from ridgeline.serving.traffic.asked import synthetic
    from ridgeline.serving.traffic.lengths import Fixed

    where, asked = (
        machine(cluster("1xA100-SXM-80GB")),
        synthetic(poisson(1.5, requests=150, seed=3), Fixed(tokens=4000), Fixed(tokens=300)),
    )
    found = {}
    for split in (False, True):
        one = engine(load("llama-3.1-8b"), where, deployed(split=split, token_budget=4096))
        tables = one.tables(longest_prompt=4000, longest=4300)
        again = replay_tables([one], [tables], asked, router="round-robin")
        found[split] = measure(again, asked)
        assert again.done.all()
        assert 0 < again.busy_s[0] <= again.span_s
    assert found[True].itl.p99 < 0.6 * found[False].itl.p99


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"split": True, "pp": 2}, "pp"),
        ({"split": True, "dp": 2}, "dp"),
        ({"split": True, "nano_tokens": 8}, "nano_tokens"),
        ({"split": True, "displaces": True}, "displaces"),
        ({"split": True, "role": Role.PREFILL}, "a pool"),
        ({"split": True, "preemption": "swap"}, "preemption swap"),
        ({"split": True, "split_share": 1.0}, "split_share = 1.0, needs 0.01 to 0.99"),
        ({"split_share": 0.5}, "say split as well"),
        ({"split_slack": 1.5}, "say split as well"),
        ({"split": True, "split_slack": 0.5}, "split_slack = 0.5, needs 1 to 100"),
        ({"split": True, "split_slack": 1.5, "split_share": 0.5}, "leave split_share out"),
        ({"split": True, "split_fill": 0.5}, "say split_slack as well"),
    ],
)
def test_what_cannot_be_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        deployed(**words)


def test_engines_that_swap_or_start_together_are_not_divided() -> None:
    where = machine(cluster("1xA100-SXM-80GB"))
    with pytest.raises(PlanError, match="is static"):
        engine(load("llama-3.1-8b"), where, deployed(split=True, engine="Transformers"))


def test_instances_that_come_and_go_are_not_divided(numbered: Callable[..., Replay]) -> None:
    auto = FleetEvents(autoscale=Autoscale(rule="load-scaling(high=2,low=1)"))
    with pytest.raises(PlanError, match="autoscale and failures are not modelled"):
        numbered(traffic([0.0], [1], [1]), lambda table: table, {}, fleet_events=auto, split=1)
