"""Strategies for each layer: the dynamic programme against every combination, and its bound."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.search.layerwise import ChosenLayers, LayerChoices, cheapest_layers, least_seconds


def drawn(seed: int, layers: int, strategies: int, *, alike: bool) -> LayerChoices:
    random = np.random.default_rng(seed)
    rows = 1 if alike else layers
    layout = random.integers(0, 2, strategies)
    between = random.uniform(0.0, 0.5, (2, 2)) * (1 - np.eye(2))
    return LayerChoices(
        seconds=np.repeat(random.uniform(0.5, 2.0, (rows, strategies)), layers // rows, axis=0),
        bytes=np.repeat(random.integers(1, 30, (rows, strategies)).astype(float), layers // rows, axis=0),
        relayout=between[layout][:, layout],
        enter=between[0][layout],
        leave=between[layout][:, 0],
    )


def exhaustive(choices: LayerChoices, limit: float) -> float:
    layers, strategies = choices.seconds.shape
    every = (np.array(one) for one in product(range(strategies), repeat=layers))
    return min((choices.cost_s(one) for one in every if choices.held_bytes(one) <= limit), default=np.inf)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.floats(0.0, 1.1))
def test_no_combination_is_cheaper(seed: int, layers: int, strategies: int, alike: bool, tight: float) -> None:
    choices = drawn(seed, layers, strategies, alike=alike)
    low, high = choices.bytes.min(axis=1).sum(), choices.bytes.max(axis=1).sum()
    limit = float(np.floor(low + tight * (high - low)))
    found, least = cheapest_layers(choices, limit), exhaustive(choices, limit)
    assert isinstance(found, ChosenLayers)
    assert found.seconds == pytest.approx(least, rel=1e-9)
    assert choices.held_bytes(found.strategies) <= limit
    assert least_seconds(choices, limit) <= least * (1 + 1e-9)


def test_nothing_fits_and_nothing_is_quicker() -> None:
    choices = drawn(1, 4, 3, alike=True)
    assert cheapest_layers(choices, 0.0) is None
    found = cheapest_layers(choices, 1e9)
    assert found is not None
    assert cheapest_layers(choices, 1e9, below_s=found.seconds) is None


def test_two_kinds_of_layers_share_the_memory_by_what_a_byte_buys() -> None:
    """Two layers where 10 bytes buy 1 s, two where they buy 3 s: room for 20 more goes to the latter."""
    choices = LayerChoices(
        seconds=np.array([[2.0, 1.0], [2.0, 1.0], [5.0, 2.0], [5.0, 2.0]]),
        bytes=np.tile([10.0, 20.0], (4, 1)),
        relayout=np.zeros((2, 2)),
        enter=np.zeros(2),
        leave=np.zeros(2),
    )
    found = cheapest_layers(choices, 60.0)
    assert found is not None
    assert found.strategies.tolist() == [0, 0, 1, 1]
    assert found.seconds == 8.0


def test_a_change_of_layout_costs_more_than_it_saves() -> None:
    """The second strategy is 1 s quicker on a layer, but 1.5 s each way: with room for two such layers, they meet."""
    far = np.array([[0.0, 1.5], [1.5, 0.0]])
    choices = LayerChoices(
        seconds=np.tile([3.0, 1.0], (4, 1)), bytes=np.tile([1.0, 2.0], (4, 1)), relayout=far, enter=far[0], leave=far[0]
    )
    found = cheapest_layers(choices, 6.0)
    assert found is not None
    chosen = found.strategies
    assert sorted(chosen.tolist()) == [0, 0, 1, 1]
    assert found.seconds == pytest.approx(3 + 3 + 1 + 1 + 3.0)
    assert np.count_nonzero(np.diff(chosen)) <= 2


def test_many_layers_and_strategies_take_little_time() -> None:
    choices = drawn(7, 96, 48, alike=True)
    limit = float(np.median(choices.bytes)) * 96 * 0.4
    found = cheapest_layers(choices, limit)
    assert found is not None
    assert found.labels < 200_000
