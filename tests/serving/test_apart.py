"""Experts on devices of their own: by hand, against an event simulation, and on real models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import expert_devices
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.attention_ffn import AttentionFFNTables, expert_layers, micro_batches_s, reached_devices
from ridgeline.serving.ends import LOW, table_at
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_band, decode_parts, prefill_parts
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import traffic

TIMES = st.floats(0.01, 10.0)


def flat(value: float) -> Seconds:
    mid = np.full(2, value)
    return Seconds(mid=mid, low=mid, high=mid, compute=mid, memory=mid)


def alternating(attention_s: float, experts_s: float, send_s: float, micro: int, layers: int) -> float:
    """When the last of all micro-batches is back from the last layer, each resource serving who came first [s]."""
    free = [0.0] * 4
    ready = [0.0] * micro
    for _ in range(layers):
        for each in range(micro):
            now = ready[each]
            for place, whole in enumerate((attention_s, send_s, experts_s, send_s)):
                now = free[place] = max(now, free[place]) + whole / layers
            ready[each] = now
    return ready[-1]


# the bound -------------------------------------------------------------------------------------------


@given(a=TIMES, e=TIMES, s=TIMES, micro=st.integers(1, 6), layers=st.integers(1, 8))
def test_the_formula_is_what_happens(a: float, e: float, s: float, micro: int, layers: int) -> None:
    found = float(micro_batches_s(a, e, s, layers=layers, micro=micro))
    assert found == pytest.approx(alternating(a, e, s, micro, layers), rel=1e-12)
    assert found >= max(a + e + 2 * s, micro * max(a, e, s)) * (1 - 1e-12)


def test_the_formula_of_the_paper() -> None:
    """With enough micro-batches, M b >= r: t = (a + e + 2 s) / L + (M L - 1) b (MegaScale-Infer, section 4.1)."""
    layers, micro, a, e, s = 10, 4, 30.0, 28.0, 5.0
    assert micro * a >= a + e + 2 * s
    paper = (a + e + 2 * s) / layers + (micro * layers - 1) * a / layers
    assert float(micro_batches_s(a, e, s, layers=layers, micro=micro)) == pytest.approx(paper)


def test_devices_that_a_token_reaches() -> None:
    """8 experts of a token on 2 devices reach both but once in 128; one expert reaches one device."""
    assert reached_devices(2.0, 8.0) == pytest.approx(2.0 * (1 - 0.5**8))
    assert reached_devices(64.0, 1.0) == pytest.approx(1.0)


# by hand ---------------------------------------------------------------------------------------------


def apart(**words: float) -> Callable[[StepTables], StepTables]:
    return lambda table: replace(
        table,
        group=flat(words["experts_s"]),
        attention_ffn=AttentionFFNTables(send=flat(words["send_s"])),
        head=flat(0.5),
    )


def test_a_request_by_hand(numbered: Callable[..., Replay]) -> None:
    """Two layers, three micro-batches. Prompt: attention's side 4 + 6 / 3 = 6 s of one, experts 4, links 1.

    A round takes (6 + 4 + 2) / 2 = 6, the busiest 3, three of them 9: 9 + 6 + 2 x 3 = 21, and 0.5 of sampling. A step
    of one token is one micro-batch: 4 + 2, 4 and 1, two rounds of 6, 0.5 of sampling: 12.5. Twice.
    """
    numbers = {"micro_batches": 3, "expert_layers": 2}
    found = numbered(
        traffic([0.0], [8], [3]), apart(experts_s=4.0, send_s=1.0),
        {"lane_s": 4.0, "prompt_s": 6.0, "step_s": 2.0}, **numbers,
    )  # fmt: skip
    assert found.first_s.tolist() == [21.5]
    assert found.end_s.tolist() == [46.5]


def test_four_sequences_that_decode_are_three_micro_batches(numbered: Callable[..., Replay]) -> None:
    """Steps of 4 + 2 s of attention, 4 of experts, 1 of links: the prompt's 21 and then rounds of 9."""
    numbers = {"micro_batches": 3, "expert_layers": 2}
    found = numbered(
        traffic([0.0] * 4, [8] * 4, [2] * 4), apart(experts_s=4.0, send_s=1.0),
        {"lane_s": 4.0, "prompt_s": 6.0, "step_s": 2.0}, **numbers,
    )  # fmt: skip
    assert found.first_s.tolist() == [21.5] * 4
    assert found.end_s.tolist() == [43.0] * 4


# real models -----------------------------------------------------------------------------------------


@cache
def made(model: str, on: str, **words: Any) -> tuple[Engine, StepTables]:
    one = engine(load(model), machine(cluster(on)), deployed(**words))
    return one, one.tables(longest_prompt=2048, longest=4096)


def test_what_each_pool_holds_is_the_whole_model() -> None:
    """Mixtral on one attention device and four of experts: the same bytes as on one device, but for nothing."""
    one, _ = made("mixtral-8x7b", "8xH100-SXM", expert_devices=4)
    held = one.capacity.weights_bytes + 4 * one.capacity.experts_bytes
    assert held == pytest.approx(2.0 * 46_702_792_704, rel=0.001)  # parameters of the published checkpoint
    layers = expert_layers(one.steps.served)
    assert [(count, piece.ranks, piece.count) for count, piece in layers] == [(32, 4, 8)]
    assert one.capacity.experts_bytes == 32 * 2 * 3 * 4096 * 14336 * 2  # two experts a device, three matrices
    assert one.capacity.cache_tokens > 300_000  # none of the experts' bytes on attention's device


def test_parts_of_an_iteration_add_up_to_it() -> None:
    one, tables = made("mixtral-8x7b", "8xH100-SXM", dp=4, expert_devices=4, micro_batches=2)
    parts = decode_parts(one, tables, 64.0, 1000.0)
    assert set(parts) == {"attention's devices", "experts' devices", "links", "other micro-batches", "sampling", "host"}
    at = list(tables.tokens).index(64.0)
    assert tables.attention_ffn is not None
    attention = parts["attention's devices"]
    whole = float(
        micro_batches_s(attention, tables.group.mid[at], tables.attention_ffn.send.mid[at], layers=32, micro=2)
    )
    assert sum(parts.values()) - parts["sampling"] - parts["host"] == pytest.approx(whole)
    assert parts["other micro-batches"] >= 0.0
    assert "experts' devices" in prefill_parts(one, tables, 512.0)
    band = decode_band(one, tables, 64.0, 1000.0)
    assert 0.0 < band.low < 1.0 < band.high
    low = table_at(tables, LOW)
    assert low.attention_ffn is not None
    assert (low.attention_ffn.send.mid < tables.attention_ffn.send.mid).all()


def test_a_micro_batch_is_priced_as_the_tokens_that_it_has() -> None:
    """Two micro-batches of 128 tokens are each what one of 64 is: tables over T hold those of T / M."""
    _, two = made("mixtral-8x7b", "8xH100-SXM", dp=4, expert_devices=4, micro_batches=2)
    _, one = made("mixtral-8x7b", "8xH100-SXM", dp=4, expert_devices=4, micro_batches=1)
    whole, half = list(two.tokens).index(128.0), list(one.tokens).index(64.0)
    assert two.lane.mid[whole] == pytest.approx(one.lane.mid[half])
    assert two.group.mid[whole] == pytest.approx(one.group.mid[half])
    assert two.attention_ffn is not None
    assert one.attention_ffn is not None
    assert two.attention_ffn.send.mid[whole] == pytest.approx(one.attention_ffn.send.mid[half])


def test_more_expert_devices_hold_more_and_take_less_time() -> None:
    steps = []
    for devices in (1, 2, 4):
        _, tables = made("mixtral-8x7b", "8xH200-SXM", dp=4, expert_devices=devices, weights="fp8")
        steps.append(float(tables.group.mid[list(tables.tokens).index(256.0)]))
    assert steps[0] > steps[1] > steps[2]


def test_experts_that_do_not_fit_are_told() -> None:
    with pytest.raises(NoPlanError, match=r"its experts take .* of each of 1 devices"):
        _ = engine(load("mixtral-8x7b"), machine(cluster("8xH100-SXM")), deployed(expert_devices=1)).capacity


@pytest.mark.parametrize(
    ("model", "words", "reason"),
    [
        ("mixtral-8x7b", {"expert_devices": 3}, "does not divide 8 experts"),
        ("llama-3.1-8b", {"expert_devices": 2}, "has no experts"),
    ],
)
def test_devices_that_cannot_hold_experts_are_refused(model: str, words: dict[str, int], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        engine(load(model), machine(cluster("8xH100-SXM")), deployed(**words))


@pytest.mark.parametrize("words", [{"pp": 2}, {"ep": 2, "tp": 2}, {"draft_tokens": 2}, {"split": True}, {"kv_kept": 8}])
def test_what_is_not_modelled_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="expert_devices"):
        deployed(expert_devices=2, **words)


def test_a_search_tries_every_number_of_expert_devices() -> None:
    eight = cluster("8xH100-SXM")
    grid = list(deployments(load("mixtral-8x7b"), eight, ServingSpace(pools=False, fixed={"apart": True, "tp": 1})))
    assert {(one.dp, expert_devices(one)) for one in grid} == {
        (dp, count) for dp in (1, 2, 4, 8) for count in (1, 2, 4, 8) if dp + count <= 8
    }
    assert {(one.pp, one.ep) for one in grid} == {(1, 1)}
    assert not list(deployments(load("llama-3.1-8b"), eight, ServingSpace(pools=False, fixed={"apart": True, "tp": 1})))
