"""Rent: hand-worked fleets, exhaustive search on small problems, nearest changes."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ridgeline.errors import InputError, NoPlanError
from ridgeline.search.rent import Option, Problem, nearest_limits, rent
from ridgeline.search.rent_problem import up_probability

SMALL = Option(name="small", accelerator="S", price_usd_per_hour=1.0, most_per_s=[4.0, 1.0])
LARGE = Option(name="large", accelerator="L", price_usd_per_hour=3.0, most_per_s=[8.0, 8.0])


def problem(*options: Option, rates: list[float], **more: object) -> Problem:
    return Problem(options=options, rates_per_s=rates, **more)  # type: ignore[arg-type]


def test_short_requests_go_to_small_machines_and_long_ones_to_large() -> None:
    """8 short requests/s fill two small machines (2 USD), 8 long ones one large (3 USD); all on large would be 6."""
    answer = rent(problem(SMALL, LARGE, rates=[8.0, 8.0]))
    assert answer.counts == {"small": 2, "large": 1}
    assert answer.cost_usd_per_hour == pytest.approx(5.0)
    assert answer.bound_usd_per_hour == pytest.approx(5.0)
    assert answer.gap == 0.0
    assert answer.shares == pytest.approx(np.eye(2))
    assert answer.bucket_usd_per_hour == pytest.approx([2.0, 3.0])
    assert answer.headroom == pytest.approx(1.0)


def test_a_bucket_without_requests_changes_nothing() -> None:
    small = Option(name="small", accelerator="S", price_usd_per_hour=1.0, most_per_s=[4.0, 0.0])
    answer = rent(problem(small, rates=[8.0, 0.0]))
    assert answer.counts == {"small": 2}
    assert answer.shares == pytest.approx(np.array([[1.0], [0.0]]))


def test_an_even_fleet_keeps_headroom() -> None:
    """10 requests/s need two large machines, which serve 16: the load may grow by 1.6."""
    assert rent(problem(LARGE, rates=[5.0, 5.0])).headroom == pytest.approx(1.6)


def test_a_limit_moves_load_and_has_a_price() -> None:
    """Of 8 and 8 requests/s two large machines serve all (6 USD). Of 12 and 8, one small machine serves 4.

    By the relaxation one small machine more (1 USD) would spare half a large one (1.5 USD): 0.5 USD/h.
    """
    answer = rent(problem(SMALL, LARGE, rates=[8.0, 8.0], limits={"S": 1}))
    assert answer.cost_usd_per_hour == pytest.approx(6.0)
    bound = rent(problem(SMALL, LARGE, rates=[12.0, 8.0], limits={"S": 1}))
    assert bound.counts == {"small": 1, "large": 2}
    (binding,) = bound.binding
    assert (binding.accelerator, binding.used, binding.limit) == ("S", 1, 1)
    assert binding.price_usd_per_hour == pytest.approx(0.5)


def test_an_option_of_several_devices_uses_up_the_limit_by_its_devices() -> None:
    pair = Option(name="pair", accelerator="L", devices=2, price_usd_per_hour=6.0, most_per_s=[20.0, 20.0])
    answer = rent(problem(LARGE, pair, rates=[14.0, 14.0], limits={"L": 3}))
    assert answer.counts == {"large": 1, "pair": 1}


def test_an_infeasible_problem_tells_the_fewest_devices_more() -> None:
    asked = problem(SMALL, LARGE, rates=[8.0, 8.0], limits={"S": 1, "L": 1})
    assert nearest_limits(asked) in ({"L": 2}, {"S": 2})
    with pytest.raises(NoPlanError, match=r"nearest change: raise (L|S) from 1 to 2 devices"):
        rent(asked)
    with pytest.raises(NoPlanError, match=r"raise L from 0 to 1 devices"):
        rent(problem(SMALL, LARGE, rates=[4.0, 8.0], limits={"S": 1, "L": 0}))


def test_a_bucket_that_nothing_serves_is_named() -> None:
    blind = Option(name="blind", accelerator="S", price_usd_per_hour=1.0, most_per_s=[4.0, 0.0])
    with pytest.raises(NoPlanError, match=r"bucket 1 \(8 requests/s\): none of 1 options serves it"):
        rent(problem(blind, rates=[8.0, 8.0]))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"price_usd_per_hour": 0.0}, "price_usd_per_hour"),
        ({"devices": 0}, "devices"),
        ({"availability": 1.5}, "availability"),
        ({"most_per_s": [1.0]}, "most_per_s"),
        ({"most_per_s": [1.0, -1.0]}, "most_per_s"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_field(change: dict[str, object], word: str) -> None:
    given_option = {"name": "x", "accelerator": "X", "price_usd_per_hour": 1.0, "most_per_s": [1.0, 1.0]} | change
    with pytest.raises(InputError, match=word):
        problem(Option(**given_option), rates=[1.0, 1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("rates", [[0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0]])
def test_a_load_that_cannot_be_is_refused(rates: list[float]) -> None:
    with pytest.raises(InputError, match="at least 0 requests/s"):
        problem(LARGE, rates=rates)


def by_slices(asked: Problem) -> float:
    """The least price over every assignment of every slice to an option [USD/h]; infinite when none fits."""
    parts = asked.slices or 1
    best = math.inf
    for choice in product(range(len(asked.options)), repeat=asked.rate.size * parts):
        load = np.zeros(len(asked.options))
        for slice_, option in enumerate(choice):
            load[option] += asked.load[slice_ // parts, option] / parts
        if not np.isfinite(load).all():
            continue
        counts = [math.ceil(on - 1e-9) for on in load]
        used = dict.fromkeys(asked.limits, 0)
        for option, count in zip(asked.options, counts, strict=True):
            if option.accelerator in used:
                used[option.accelerator] += option.devices * count
        if all(used[name] <= asked.limits[name] for name in used):
            costs = (o.price_usd_per_hour * count for o, count in zip(asked.options, counts, strict=True))
            best = min(best, math.fsum(costs))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_slices_cost_what_exhaustive_search_finds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    options = tuple(
        Option(
            name=f"o{place}",
            accelerator="A" if place < 2 else "B",
            devices=place + 1,
            price_usd_per_hour=float(draw.uniform(1, 5)),
            most_per_s=draw.uniform(1, 9, 3) * (draw.random(3) > 0.15),
        )
        for place in range(3)
    )
    limits = {"A": int(draw.integers(1, 6))} if seed % 2 else {}
    asked = Problem(options=options, rates_per_s=draw.uniform(0.5, 6, 3), slices=2, limits=limits)
    expected = by_slices(asked)
    if math.isinf(expected):
        with pytest.raises(NoPlanError):
            rent(asked)
        return
    answer = rent(asked)
    assert answer.cost_usd_per_hour == pytest.approx(expected)
    assert answer.gap == 0.0
    any_share = rent(Problem(options=options, rates_per_s=asked.rates_per_s, limits=limits))
    assert any_share.cost_usd_per_hour <= expected + 1e-9
    assert any_share.relaxation_usd_per_hour <= any_share.cost_usd_per_hour + 1e-9


def two_fit(asked: Problem, capacity: tuple[float, float]) -> bool:
    """Whether two options of such capacities carry the load in any shares: the fractional knapsack of the first."""
    left, over = capacity[0], 0.0
    for first, second in sorted(asked.load.tolist(), key=lambda row: row[0] / row[1]):
        share = min(1.0, left / first)
        left -= share * first
        over += (1.0 - share) * second
    return over <= capacity[1] + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_any_shares_with_failures_cost_what_exhaustive_search_finds(seed: int) -> None:
    """Two options that may fail; every pair of counts is tried."""
    draw = np.random.default_rng(100 + seed)
    target = 0.99
    options = tuple(
        Option(
            name=f"o{place}",
            accelerator="AB"[place],
            price_usd_per_hour=float(draw.uniform(1, 5)),
            most_per_s=draw.uniform(2, 9, 3),
            availability=float(draw.uniform(0.9, 0.99)),
        )
        for place in range(2)
    )
    asked = Problem(options=options, rates_per_s=draw.uniform(1, 6, 3), availability_target=target)
    best = math.inf
    for needed in product(range(9), repeat=2):
        if two_fit(asked, (float(needed[0]), float(needed[1]))):
            for spare in product(range(5), repeat=2):
                rented = [n + k for n, k in zip(needed, spare, strict=True)]
                up = math.prod(
                    up_probability(m, n, o.availability) for m, n, o in zip(rented, needed, options, strict=True)
                )
                if up >= target:
                    best = min(best, sum(m * o.price_usd_per_hour for m, o in zip(rented, options, strict=True)))
    answer = rent(asked)
    assert answer.cost_usd_per_hour == pytest.approx(best)
    assert answer.availability >= target


def test_a_pool_of_two_needs_fewer_spares_than_two_pools() -> None:
    """At 0.99 a machine that is up 0.9 of the time needs one spare beside it: 1 - 0.1^2 = 0.99."""
    frail = Option(name="frail", accelerator="S", price_usd_per_hour=1.0, most_per_s=[1.0], availability=0.9)
    answer = rent(Problem(options=(frail,), rates_per_s=[1.0], availability_target=0.99))
    assert (answer.rented[0].needed, answer.rented[0].rented) == (1, 2)
    assert answer.availability == pytest.approx(0.99)
    two = rent(Problem(options=(frail,), rates_per_s=[2.0], availability_target=0.99))
    assert (two.rented[0].needed, two.rented[0].rented) == (2, 4)  # of 3, two are up with 0.972; of 4 with 0.9963
    assert two.availability == pytest.approx(0.9963)


def test_no_target_leaves_the_probability_as_it_is() -> None:
    frail = Option(name="frail", accelerator="S", price_usd_per_hour=1.0, most_per_s=[1.0], availability=0.9)
    assert rent(Problem(options=(frail,), rates_per_s=[2.0])).availability == pytest.approx(0.81)


def test_a_target_above_the_limit_names_the_devices() -> None:
    frail = Option(name="frail", accelerator="S", price_usd_per_hour=1.0, most_per_s=[1.0], availability=0.9)
    asked = Problem(options=(frail,), rates_per_s=[1.0], availability_target=0.99, limits={"S": 1})
    with pytest.raises(NoPlanError, match="raise S from 1 to 2 devices"):
        rent(asked)


def test_a_large_problem_cut_short_is_no_dearer_than_any_single_option_and_tells_its_gap() -> None:
    draw = np.random.default_rng(1)
    rates = draw.random(100)
    rates *= 300.0 / rates.sum()
    options = tuple(
        Option(
            name=f"o{place}",
            accelerator=f"o{place}",
            price_usd_per_hour=price,
            most_per_s=price * draw.uniform(0.5, 1.5, 100),
            availability=0.97,
        )
        for place, price in enumerate(draw.uniform(1, 10, 8))
    )
    alone = min(
        rent(Problem(options=(one,), rates_per_s=rates, availability_target=0.999)).cost_usd_per_hour for one in options
    )
    answer = rent(Problem(options=options, rates_per_s=rates, availability_target=0.999), time_limit_s=1.0)
    assert answer.cost_usd_per_hour <= alone
    assert answer.availability >= 0.999
    assert answer.relaxation_usd_per_hour <= answer.bound_usd_per_hour + 1e-6 <= answer.cost_usd_per_hour + 1e-5
    assert answer.gap < 0.3
    carried = (answer.shares * rates[:, None] / np.stack([one.most_per_s for one in options], 1)).sum(axis=0)
    for row, load in zip(answer.rented, carried, strict=True):
        assert load <= row.needed + 1e-6


@pytest.mark.parametrize("page", ["rent.md", "placement.md"])
def test_the_page_shows_what_its_example_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    code, rest = text.split("```python\n", 1)[1].split("```", 1)
    exec(code, {})
    assert capsys.readouterr().out == rest.split("```text\n", 1)[1].split("```", 1)[0]
