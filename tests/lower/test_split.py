"""Layers over pipeline places: by hand, and against every split there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.lower.split import balanced_split, even_split


@pytest.mark.parametrize(
    ("layers", "places", "expected"),
    [
        (8, 4, (2, 2, 2, 2)),
        (9, 4, (2, 3, 2, 2)),  # the extra layer avoids both ends
        (10, 4, (2, 3, 3, 2)),
        (11, 4, (3, 3, 3, 2)),  # the last place, with the head, gets fewest
        (5, 2, (3, 2)),
        (7, 1, (7,)),
        (3, 3, (1, 1, 1)),
        (3, 4, (1, 1, 1, 0)),  # the last place has the head alone,
        (3, 5, (0, 1, 1, 1, 0)),  # and the first the embedding
        (1, 1, (1,)),
    ],
)
def test_even_split_spares_the_ends(layers: int, places: int, expected: tuple[int, ...]) -> None:
    assert even_split(layers, places) == expected


def test_too_many_places_are_refused_with_the_limit() -> None:
    with pytest.raises(PlanError, match=r"3 layers over 6 pipeline places .* use at most 5"):
        even_split(3, 6)
    with pytest.raises(PlanError, match="use at most 4"):
        balanced_split([1.0, 1.0], 5, first_seconds=0.0, last_seconds=0.0)
    assert balanced_split([1.0, 1.0], 4, first_seconds=0.0, last_seconds=0.0) == (0, 1, 1, 0)


@given(st.integers(1, 200), st.integers(1, 40))
def test_even_split_is_whole_and_even(layers: int, places: int) -> None:
    if layers < places - 2:
        return
    counts = even_split(layers, places)
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def slowest(seconds: Sequence[float], counts: Sequence[int], first: float, last: float) -> float:
    """Seconds of the slowest place when the ends weigh too."""
    places, start = [], 0
    for count in counts:
        places.append(sum(seconds[start : start + count]))
        start += count
    places[0] += first
    places[-1] += last
    return max(places)


def best_of_all(seconds: Sequence[float], places: int, first: float, last: float) -> float:
    """The fastest slowest place over every way to cut the layers."""
    found = []
    for cuts in combinations(range(1, len(seconds)), places - 1):
        ends = (0, *cuts, len(seconds))
        counts = [b - a for a, b in pairwise(ends)]
        found.append(slowest(seconds, counts, first, last))
    return min(found)


def test_a_heavy_head_takes_layers_off_the_last_place() -> None:
    # 8 layers of 1 s and a head of 2 s over 2 places: (5, 3) makes both 5 s
    assert balanced_split([1.0] * 8, 2, first_seconds=0.0, last_seconds=2.0) == (5, 3)


def test_heavy_layers_stand_alone() -> None:
    assert balanced_split([1, 1, 1, 6, 1, 1, 1], 3, first_seconds=0.0, last_seconds=0.0) == (3, 1, 3)


@settings(deadline=None, max_examples=300)
@example(seconds=[5.0, 2.0, 4.0, 9.0, 5.0, 5.0], places=4, first=1.0, last=3.0)  # (3, 1, 1, 1): 12, 9, 5 and 8 s
@example(seconds=[9.0, 4.0, 9.0, 7.0, 8.0], places=3, first=3.0, last=2.0)  # (2, 2, 1): 16, 16 and 10 s
@given(
    seconds=st.lists(st.floats(0.1, 10.0) | st.integers(1, 9).map(float), min_size=1, max_size=9),
    places=st.integers(1, 5),
    first=st.floats(0.0, 20.0),
    last=st.floats(0.0, 20.0),
)
def test_balanced_split_is_the_best_of_all(seconds: list[float], places: int, first: float, last: float) -> None:
    if len(seconds) < places:
        return
    counts = balanced_split(seconds, places, first_seconds=first, last_seconds=last)
    assert sum(counts) == len(seconds)
    assert len(counts) == places
    assert min(counts) >= 1
    best = best_of_all(seconds, places, first, last)
    assert slowest(seconds, counts, first, last) == pytest.approx(best, rel=1e-9)
