"""Layers that are one kernel each, through which rows stream: SambaFlow on eight SN40L, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.step import StepTables

HIDDEN, WIDE, KEYS, LAYERS, RANKS = 4096.0, 14336.0, 1024.0, 32, 8


@pytest.fixture(scope="module")
def tables() -> StepTables:
    one = engine(load("llama-3.1-8b"), machine(cluster("8xSN40L")), deployed(engine="SambaFlow", tp=RANKS))
    return one.tables(longest_prompt=4096, longest=4160)


def test_few_rows_take_what_their_weights_do_at_the_stated_share_of_memory(tables: StepTables) -> None:
    """Of a layer 2 h (h + k) + 3 h f weights in 16 bits on eight devices, at 1.2e12 byte/s: nothing for starts."""
    weights = LAYERS * (2.0 * HIDDEN * (HIDDEN + KEYS) + 3.0 * HIDDEN * WIDE)
    assert tables.lane.mid[0] == pytest.approx(2.0 * weights / RANKS / 1.2e12, rel=0.02)


def test_many_rows_take_what_links_do_where_these_are_the_slowest(tables: StepTables) -> None:
    """Two reductions a layer and the embedding's: 2 x 7/8 of 2 h bytes a token, over the ring's rate."""
    last = int(np.argmax(tables.tokens))
    each = tables.lane.mid[last] / tables.tokens[last]
    rate = (2 * LAYERS + 1) * 2.0 * (RANKS - 1) / RANKS * 2.0 * HIDDEN / each
    assert 0.3 * 31.5e9 < rate < 31.5e9  # host's slots join the sockets where no link is known
    assert tables.lane.low[last] < tables.lane.mid[last] < tables.lane.high[last]
