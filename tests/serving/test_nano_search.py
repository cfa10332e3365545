"""The search for nano-batches: schedules by hand and against their bound, sizes, and the iterations that follow."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import interference
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.registry import technique
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.nano import Overlap, overlapped_s
from ridgeline.techniques.overlaps.nano_search import Chain, NanoSearch, ordered, pair_speeds, schedule

TIMES = st.floats(0.01, 10.0)


def knees(memory: float, network: float):
    """Full speed from a share on, in proportion below it."""
    return ((0.0, 0.0), (memory, 1.0), (1.0, 1.0)), ((0.0, 0.0), (network, 1.0), (1.0, 1.0))


@cache
def served(text: str) -> Engine:
    words: dict[str, Any] = {"technique": (text,)} if text else {}
    one = deployed(tp=8, token_budget=2048, max_seqs=2048, chunked=True, **words)
    return engine(load("llama-2-70b"), machine(cluster("8xA100-SXM-80GB")), one)


def test_shares_of_a_schedule_by_hand() -> None:
    """4 s of memory on half of the device and 2 s of link on a tenth cost products 2 and 0.2 s."""
    seconds, phases = schedule((10.0, 4.0, 2.0), knees(0.5, 0.1), 2)
    assert seconds == pytest.approx(12.2)
    for phase in phases:
        assert phase.compute + phase.memory + phase.network <= 1.0 + 1e-9
        assert sum(share > 0.0 for share in (phase.compute, phase.memory, phase.network)) <= 2
    done = sum(phase.seconds * min(1.0, phase.memory / 0.5) for phase in phases)
    assert done == pytest.approx(4.0)


def test_one_part_has_one_kernel_at_a_time() -> None:
    assert schedule((3.0, 2.0, 1.0), knees(0.5, 0.1), 1)[0] == pytest.approx(6.0)


def test_measured_interference_costs_what_was_measured() -> None:
    """8 s of memory's kernels run at 0.8 beside products at 0.6: 10 s, and 4 of 10 s of products are left alone."""
    curves = interference("memory"), interference("network")
    assert schedule((10.0, 8.0, 0.0), curves, 2)[0] == pytest.approx(14.0)
    assert schedule((10.0, 0.0, 1.0), curves, 2)[0] == pytest.approx(11.0 - 1.0 + 1 / 3)  # 0.1 of products for 0.3


def test_three_parts_keep_three_kinds_busy_at_once() -> None:
    """Pairs: memory beside the link, products at 0.5 beside memory and at 0.9 beside the link, 0.4 / 1.4 s each.

    Three at once: products at 0.4 of their speed beside both.
    """
    two, _ = schedule((0.4, 1.0, 1.0), knees(0.5, 0.1), 2)
    three, _ = schedule((0.4, 1.0, 1.0), knees(0.5, 0.1), 3)
    assert two == pytest.approx(1.0 + 0.4 / 1.4)
    assert three == pytest.approx(1.0)


@given(compute=TIMES, memory=TIMES, network=TIMES, knee=st.floats(0.1, 1.0), link=st.floats(0.05, 0.5))
def test_no_schedule_beats_the_closed_bound(
    compute: float, memory: float, network: float, knee: float, link: float
) -> None:
    work = (compute, memory, network)
    bound = float(overlapped_s(*work, overlap=Overlap(memory_sms=knee, link_sms=link)))
    two, _ = schedule(work, knees(knee, link), 2)
    three, _ = schedule(work, knees(knee, link), 3)
    assert bound * (1 - 1e-9) <= two <= sum(work) * (1 + 1e-9)
    assert three <= two * (1 + 1e-9)


def test_the_search_finds_the_split_that_the_authors_search_found() -> None:
    """LLaMA-2-70B on 8 A100, 2,048 tokens: figure 6 of the paper has 768 and 1,280."""
    one, told = served("nano-search"), technique("overlaps", "nano-search")
    assert isinstance(told, NanoSearch)
    sizes = tuple(round(share * 2048) for share in told.fractions(one.steps))
    assert sizes == (768, 1280)
    curves, work = (interference("memory"), interference("network")), told.work(one.steps, sizes)
    found = told.in_order(one.steps, sizes, work, curves)
    assert schedule(work, curves, 2)[0] < found < sum(work)
    assert told.sharing(one)["chain"] == pytest.approx(found / sum(work))


def test_the_operations_of_a_layer() -> None:
    """A norm, products, attention before or after that of prompts, sums of both halves of the layer."""
    one, told = served("nano-search"), technique("overlaps", "nano-search")
    assert isinstance(told, NanoSearch)
    kind = one.steps.served.kinds[0]
    for first in ("prompts", "decode"):
        chain = told.chain(one.steps, kind, 1024, first=first)
        assert [resource for resource, _ in chain] == [1, 0, 1, 0, 1, 0, 2, 1, 0, 1, 0, 2]
    work = told.work(one.steps, (1024,))
    layers = [kind.count * sum(seconds for of, seconds in chain if of == resource) for resource in range(3)]
    assert layers == pytest.approx(work, rel=0.03)  # but for the ends of the model


def every_order(chains: tuple[Chain, Chain], curves: Any) -> float:
    """The least period by trying everything: where the second begins, who waits, which shares."""

    def least(ahead: list[tuple[int, float]], behind: list[tuple[int, float]]) -> float:
        if not ahead or not behind:
            return sum(seconds for _, seconds in ahead + behind)
        found = []
        for fast, slow in pair_speeds(ahead[0][0], behind[0][0], curves):
            span = min(x[0][1] / speed for x, speed in ((ahead, fast), (behind, slow)) if speed)
            rest = []
            for left, speed in ((ahead, fast), (behind, slow)):
                more = left[0][1] - span * speed
                rest.append([(left[0][0], more), *left[1:]] if more > 1e-12 else left[1:])
            found.append(span + least(rest[0], rest[1]))
        return min(found)

    first, second = (list(chain) for chain in chains)
    return min(least(first, second[turn:] + second[:turn]) for turn in range(len(second)))


LAYERS = st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 5.0)), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(one=LAYERS, two=LAYERS)
def test_the_order_is_that_of_trying_everything(one: Chain, two: Chain) -> None:
    curves = interference("memory"), interference("network")
    found, best = ordered((one, two), curves), every_order((one, two), curves)
    assert best * (1 - 1e-9) <= found <= best * (1 + 1.1e-3)
    work = [sum(seconds for kind, seconds in one + two if kind == resource) for resource in range(3)]
    assert found >= schedule((work[0], work[1], work[2]), curves, 2)[0] * (1 - 1e-9)


def test_an_order_by_hand() -> None:
    """Products of 4 s and attention of 8 s in either part: the second is half a layer behind.

    Attention runs at 0.8 beside products at 0.6: products end after 4 / 0.6 s with 8 - 0.8 x 4 / 0.6 s of attention
    left, which goes on alone; the other half of the layer is the same.
    """
    curves = interference("memory"), interference("network")
    layer: Chain = ((0, 4.0), (1, 8.0))
    assert ordered((layer, layer), curves) == pytest.approx(2 * (4 / 0.6 + 8 - 0.8 * 4 / 0.6))


def test_splits_cover_every_size_and_equal_parts() -> None:
    found = list(NanoSearch(tokens=1024, step=256).splits())
    assert found == [(256, 768), (512, 512), (256, 256, 256, 256)]


def test_parts_of_an_iteration_are_iterations_of_their_sizes() -> None:
    """Kernels of 2,048 tokens cut by the search: those of 768 and of 1,280, one after the other."""
    plain, cut = (served(text).tables(longest_prompt=512, longest=1024) for text in ("", "nano-search"))
    assert cut.nano is not None
    at = list(cut.tokens).index(2048.0)
    nano = cut.nano
    found = sum(part.mid[[0, 2], at].sum() for part in (nano.compute, nano.memory, nano.network))
    rows = np.array([768.0, 1280.0])
    whole = np.interp(rows, plain.tokens, plain.lane.mid + plain.experts(prompts=True).mid).sum()
    assert found == pytest.approx(whole, rel=0.02)


def test_searched_iterations_are_sooner_than_serial_ones() -> None:
    one, two = served(""), served("nano-search")
    serial, found = (
        sum(decode_parts(each, each.tables(longest_prompt=512, longest=1024), 2048.0, 768.0).values())
        for each in (one, two)
    )
    assert found < 0.9 * serial
