"""Ways to divide sequences of unlike lengths: what every one keeps, by hand, and beside every division there is."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from ridgeline.errors import NoPlanError
from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, SequenceGroup, length_balance
from ridgeline.seams.registry import names
from ridgeline.techniques.length_balance.flexible import buckets
from ridgeline.techniques.length_balance.packed import best_fit


@dataclass(frozen=True)
class Law:
    """A sequence of s tokens takes (s + s^2 / 10) / d seconds, and an exchange of s / 20 on more ranks than one."""

    ranks: int = 8
    node: int = 4
    tokens: float = 10.0
    exchange: float = 0.05
    smallest_s: float = 0.0

    def seconds(self, lengths: ArrayLike, degree: ArrayLike) -> Floats:
        s, d = np.asarray(lengths, dtype=float), np.asarray(degree, dtype=float)
        return np.asarray((s + s**2 / 10) / d + np.where(d > 1, self.exchange * s, 0.0))

    def linear_seconds(self, tokens: ArrayLike) -> Floats:
        return np.asarray(tokens, dtype=float)

    def moved_seconds(self, tokens: ArrayLike) -> Floats:
        return np.asarray(tokens, dtype=float) * 2.0

    def relaid_seconds(self, tokens: ArrayLike) -> Floats:
        return np.asarray(tokens, dtype=float) * 0.1

    def floor(self, degree: ArrayLike) -> Floats:
        return np.full(np.shape(degree), self.smallest_s)


ALL = names("length_balance")
STEPS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def taken(technique: LengthBalance, lengths: Floats, division: LengthDivision, costs: Law) -> float:
    return float(technique.step_seconds(lengths, division.rounds, costs).sum())


@pytest.mark.parametrize("key", ALL)
@settings(max_examples=25, deadline=None)
@given(drawn=STEPS)
def test_every_sequence_is_computed_once_on_ranks_that_there_are(key: str, drawn: list[int]) -> None:
    technique, lengths, costs = length_balance(key), np.array(drawn, dtype=float), Law()
    division = technique.divide(lengths, costs)
    groups = [group for one in division.rounds for group in one]
    assert sorted(place for group in groups for place in group.sequences) == list(range(len(lengths)))
    assert all(group.first >= 0 and group.first + group.ranks <= costs.ranks for group in groups)
    step_s = taken(technique, lengths, division, costs)
    assert division.bound_s <= step_s * (1 + 1e-9)
    if key != "zeppelin":  # its tokens are laid out evenly
        assert all(
            group.moved or lengths[list(group.sequences)].sum() <= group.ranks * costs.tokens + 1e-9 for group in groups
        )


@pytest.mark.parametrize("key", ALL)
@settings(max_examples=25, deadline=None)
@given(drawn=STEPS)
def test_slower_sequences_are_never_quicker(key: str, drawn: list[int]) -> None:
    technique, lengths = length_balance(key), np.array(drawn, dtype=float)
    division = technique.divide(lengths, Law())
    assert taken(technique, lengths, division, Law(exchange=0.5)) >= taken(technique, lengths, division, Law()) - 1e-9


def test_groups_that_share_a_rank_follow_each_other_and_rounds_wait() -> None:
    technique, lengths, costs = length_balance("packed"), np.array([4.0, 2.0, 2.0]), Law()
    first = (SequenceGroup(first=0, ranks=1, sequences=(0,)), SequenceGroup(first=1, ranks=1, sequences=(1,)))
    both = (*first, SequenceGroup(first=0, ranks=2, sequences=(2,)))
    # 4 + 1.6 s on rank 0; then 2.4 / 2 + 0.1 on both
    assert technique.step_seconds(lengths, [first], costs) == pytest.approx([5.6])
    assert technique.step_seconds(lengths, [both, first], costs) == pytest.approx([5.6 + 1.3, 5.6])


def test_packs_have_the_degree_of_the_longest() -> None:
    division = length_balance("packed").divide(np.array([35.0, 5.0, 9.0, 30.0]), Law())
    assert [[group.ranks for group in one] for one in division.rounds] == [[4, 4]]
    assert sorted(sorted(group.sequences) for one in division.rounds for group in one) == [[0, 1], [2, 3]]
    with pytest.raises(NoPlanError, match="needs 4"):
        length_balance("packed(degree=2)").divide(np.array([35.0]), Law())
    with pytest.raises(NoPlanError, match=r"81 tokens needs 8\.1 ranks, the plan has 8"):
        length_balance("packed").divide(np.array([81.0]), Law())


def test_best_fit_fills_the_fullest_pack() -> None:
    assert best_fit(np.array([6.0, 5.0, 4.0, 3.0, 2.0]), 10.0) == [[0, 2], [1, 3, 4]]


def every_division_s(lengths: Floats, costs: Law) -> float:
    """The least time of one micro-batch over all groups of powers of two, sequence by sequence."""
    shapes = [[]]  # type: list[list[int]]
    for degree in (4, 2, 1):
        shapes = [
            [*shape, *[degree] * count] for shape in shapes
            for count in range((costs.ranks - sum(shape)) // degree + 1)
        ]  # fmt: skip
    least = np.inf
    for shape in filter(None, shapes):
        for given_ in product(range(len(shape)), repeat=len(lengths)):
            held, busy = [0.0] * len(shape), [0.0] * len(shape)
            for length, group in zip(lengths, given_, strict=True):
                held[group] += length
                busy[group] += float(costs.seconds(length, shape[group]))
            if all(one <= degree * costs.tokens for one, degree in zip(held, shape, strict=True)):
                least = min(least, max(busy))
    return float(least)


@pytest.mark.parametrize("drawn", [(20, 6, 5, 3), (9, 9, 9, 9), (30, 2, 2, 1), (12, 11, 4, 1), (7, 6, 5, 4)])
def test_the_program_is_as_good_as_every_division(drawn: tuple[int, ...]) -> None:
    technique, lengths, costs = length_balance("flexsp(more=0)"), np.array(drawn, dtype=float), Law(ranks=4, node=4)
    division = technique.divide(lengths, costs)
    if len(division.rounds) > 1:
        pytest.skip("memory needs more than one micro-batch")
    least = every_division_s(lengths, costs)
    assert division.bound_s <= least * (1 + 1e-9)
    assert taken(technique, lengths, division, costs) <= least * 1.02


def test_unlike_degrees_beat_one_degree_where_lengths_are_unlike() -> None:
    lengths, costs = np.array([60.0] + [2.0] * 60), Law(exchange=0.3)
    times = {}
    for key in ALL:
        technique = length_balance(key)
        times[key] = taken(technique, lengths, technique.divide(lengths, costs), costs)
    assert times["flexsp"] < 0.8 * times["packed"]
    assert times["bytescale"] < times["packed"]


def test_activations_move_where_computation_hides_them() -> None:
    lengths = np.array([40.0, *[8.0] * 40])
    moved = length_balance("bytescale").divide(lengths, Law()).rounds[0]
    kept = length_balance("bytescale(offload=False)").divide(lengths, Law()).rounds[0]
    wide = {group.sequences: group.ranks for group in moved}[0,], {group.sequences: group.ranks for group in kept}[0,]
    assert wide == (3, 4)  # 40 / 3 tokens: 66.7 + 2 s hide all of 26.7 s; an even share is 85 s, 200 s on one rank


def test_buckets_round_up_the_fewest_tokens() -> None:
    lengths = np.array([1.0, 2.0, 10.0, 11.0, 11.0, 50.0])
    assert buckets(lengths, 3).tolist() == [0, 0, 1, 1, 1, 2]
    assert buckets(lengths, 9).tolist() == [0, 1, 2, 3, 3, 4]
    draw = np.random.default_rng(3)
    many = np.sort(draw.integers(1, 40, 12)).astype(float)
    best = buckets(many, 3)
    lost = sum(float((many[best == one].max() - many[best == one]).sum()) for one in range(3))
    values = np.unique(many)
    for cuts in product(values, repeat=2):
        of = np.searchsorted(np.sort(np.array(cuts)), many)
        assert lost <= sum(float((many[of == one].max() - many[of == one]).sum()) for one in np.unique(of)) + 1e-9
