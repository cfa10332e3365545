"""Adapters by hand: who is among a batch, what they add and take, and which are loaded when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.seams.serving import Adapters, of
from ridgeline.serving.adapters import adapter_bytes, distinct, drawn, popularity
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import traffic

Replays = Callable[..., Replay]
LLAMA, ONE = load("llama-2-7b"), machine(cluster("1xA100-SXM-80GB"))


def tabled(**words: Any) -> tuple[Engine, StepTables]:
    made = engine(LLAMA, ONE, deployed(**words))
    return made, made.tables(longest_prompt=512, longest=1024)


def lora(one: Deployment) -> Adapters:
    return of(one, Adapters)


# popularity ------------------------------------------------------------------------------------------


def test_shares_of_a_power_law() -> None:
    """1, 1/2, 1/3, 1/4 of 25/12."""
    assert popularity(lora(deployed(adapters=4, adapter_skew=1.0))) == pytest.approx(np.array([12, 6, 4, 3]) / 25)
    assert popularity(lora(deployed(adapters=4))).tolist() == [0.25] * 4


def test_different_adapters_of_a_batch() -> None:
    """Of two adapters, 3/4 and 1/4, two sequences see 1 - 1/16 + 1 - 9/16 = 1.375; drawn batches agree."""
    shares = np.array([0.75, 0.25])
    assert float(distinct(shares, 2.0)) == pytest.approx(1.375)
    assert distinct(shares, np.array([0.0, 1.0])).tolist() == [0.0, 1.0]
    one = lora(deployed(adapters=20, adapter_skew=1.0))
    batches = drawn(one, 32 * 500).reshape(500, 32)
    seen = np.mean([len(set(batch)) for batch in batches])
    assert float(distinct(popularity(one), 32.0)) == pytest.approx(seen, rel=0.02)
    assert np.array_equal(drawn(one, 50), drawn(one, 100)[:50])


# what they add and take ------------------------------------------------------------------------------


def test_bytes_of_an_adapter_by_hand() -> None:
    """Llama-2-7B: q, k, v and o of 4096 by 4096 in 32 layers: 32 x 4 x 2 x 16 x 8192 byte at rank 16.

    Q, k and v are one product of three slices, each of which shrinks by itself.

    With the feed-forwards (4096 by 11008, three of them), 32 x 3 x 2 x 16 x 15104 byte more.
    """
    served = engine(LLAMA, ONE, deployed()).steps.served
    attention = 32 * 4 * 2 * 16 * 8192
    assert adapter_bytes(served, lora(deployed(adapters=1))) == pytest.approx(attention)
    both = adapter_bytes(served, lora(deployed(adapters=1, adapter_on="all")))
    assert both == pytest.approx(attention + 32 * 3 * 2 * 16 * 15104)
    assert adapter_bytes(served, lora(deployed(adapters=9, adapter_rank=64))) == pytest.approx(4 * attention)


def test_kept_adapters_take_memory_of_the_cache() -> None:
    def held(**words: Any) -> tuple[float, float]:
        found = engine(LLAMA, ONE, deployed(**words)).capacity
        return found.weights_bytes, found.cache_bytes

    plain, all_kept, some = held(), held(adapters=200), held(adapters=200, adapter_slots=10)
    each = adapter_bytes(engine(LLAMA, ONE, deployed()).steps.served, lora(deployed(adapters=1)))
    assert all_kept[0] - plain[0] == pytest.approx(200 * each)
    assert plain[1] - all_kept[1] == pytest.approx(200 * each)
    assert some[0] - plain[0] == pytest.approx(10 * each)


def test_what_adapters_add_to_a_decode_step() -> None:
    """At least the bytes of the adapters in the batch and of activations at the memory's rate; alike ones cost less."""
    plain = sum(decode_parts(*tabled(), 32.0, 512.0).values())
    took = {}
    for name, skew, count in (("one", 0.0, 1), ("skewed", 2.0, 64), ("even", 0.0, 64)):
        made, tables = tabled(adapters=count, adapter_skew=skew, adapter_on="all", adapter_rank=16)
        took[name] = sum(decode_parts(made, tables, 32.0, 512.0).values()) - plain
        asked = lora(made.deployment)
        read = float(distinct(popularity(asked), 32.0)) * adapter_bytes(made.steps.served, asked)
        assert took[name] > read / ONE.device.memory_bytes_per_s > 0.0
    assert took["one"] < took["skewed"] < took["even"]
    assert took["even"] < 4e-3


def test_plain_tables_do_not_change() -> None:
    one, two = tabled()[1], tabled(adapters=3)[1]
    assert np.array_equal(one.decode.mid, two.decode.mid)
    assert (two.lane.mid > one.lane.mid).all()
    assert two.kernels == one.kernels + 2 * 2 * 32  # a shrink and an expand of qkv, and of the outputs


# loading ---------------------------------------------------------------------------------------------


def test_an_absent_adapter_is_loaded_before_its_request_runs(replayed: Replays) -> None:
    """A step of 1 s, loading 0.5 s, one slot: whoever needs another adapter waits for those that run with this one."""
    one = deployed(adapters=2, adapter_slots=1)
    assert drawn(lora(one), 8).tolist() == [1, 0, 0, 0, 1, 1, 1, 1]
    asked = traffic(np.zeros(8), np.full(8, 4), np.full(8, 2))
    found = replayed(asked, deployment=one, lane_s=1.0, slots=1, load_s=0.5)
    first = np.isin(np.arange(8), (0, 4, 5, 6, 7))
    assert found.end_s[first].tolist() == [2.5] * 5  # passed over: requests 1 to 3
    assert found.end_s[~first].tolist() == [5.0] * 3
    assert found.loads == 2
    both = replayed(asked, deployment=replaced(one, adapter_slots=2), lane_s=1.0, slots=2, load_s=0.5)
    assert both.end_s.tolist() == [3.0] * 8  # both loaded before the first step
    beside = replayed(asked, deployment=replaced(one, adapter_slots=2), lane_s=1.0, slots=2, load_s=0.5, beside=1)
    assert beside.end_s.tolist() == [2.0] * 8


def test_the_longest_unused_gives_way(replayed: Replays) -> None:
    """One at a time, adapters as drawn, three of them and two slots: every load of a list worked by hand."""
    one = deployed(adapters=3, adapter_slots=2)
    order, kept, loads = drawn(lora(one), 40), [], 0
    for adapter in order.tolist():
        loads += adapter not in kept
        kept = [*(other for other in kept if other != adapter), adapter][-2:]
    asked = traffic(10.0 * np.arange(40), np.full(40, 4), np.full(40, 2))
    found = replayed(asked, deployment=one, lane_s=1.0, slots=2, load_s=0.5)
    assert 10 < loads < 30
    assert found.loads == loads
    assert float((found.first_s - found.came_s).sum()) == pytest.approx(40 * 1.0 + 0.5 * loads)


def test_time_to_load_is_bytes_over_the_link() -> None:
    made, tables = tabled(adapters=8, adapter_slots=2)
    each = adapter_bytes(made.steps.served, lora(made.deployment))
    rule = made.rule(tables)
    assert float(rule["load_s"]) == pytest.approx(each / ONE.cluster.host.device_bytes_per_s)
    assert int(rule["slots"]) == 2
    assert int(tabled()[0].rule(tables)["slots"]) == 0


def test_adapters_on_routed_experts_are_refused() -> None:
    words = deployed(tp=8, adapters=2, adapter_on="all")
    made = engine(load("mixtral-8x7b"), machine(cluster("8xA100-SXM-80GB")), words)
    with pytest.raises(PlanError, match="routed experts are not modelled"):
        _ = made.capacity


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"adapters": -1}, "adapters = -1 adapters, needs 1 to"),
        ({"adapters": 2, "adapter_rank": 256}, "adapter_rank = "),
        ({"adapters": 2, "adapter_skew": 5.0}, "adapter_skew = "),
        ({"adapters": 2, "adapter_slots": 3}, "needs 1 to the number of adapters, 2"),
        ({"adapter_slots": 1}, "is about adapters"),
        ({"adapters": 2, "adapter_on": "head"}, "needs one of attention, all"),
        ({"adapters": 2, "nano_tokens": 64}, "adapters"),
    ],
)
def test_what_cannot_be_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**words)
