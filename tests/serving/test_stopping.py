"""A replay that stops because its objective is missed, by hand and against replays that go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.serving import state
from ridgeline.serving.metrics import measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay
from ridgeline.serving.stopping import Stop, certain_misses, hopeless
from ridgeline.serving.traffic.traffic import Traffic, traffic

Replays = Callable[..., Replay]
NAN = float("nan")


def one(stage: int, *, came: float = 0.0, first: float = NAN, end: float = NAN, output: int = 11) -> np.ndarray:
    found = np.zeros((), dtype=state.REQUEST).view(np.recarray)
    for name, value in {"stage": stage, "came_s": came, "first_s": first, "end_s": end, "output": output}.items():
        found[name] = value
    return found


@pytest.mark.parametrize(
    ("request_", "bounds", "now_s", "missed"),
    [
        (one(state.NOT_ARRIVED), {"ttft_s": 0.0}, 9.0, 0),
        (one(state.REFUSED), {"ttft_s": 9.0}, 1.0, 1),
        (one(state.WAITING, came=1.0), {"ttft_s": 1.0}, 2.0, 0),  # the bound itself is kept
        (one(state.WAITING, came=1.0), {"ttft_s": 1.0}, 2.1, 1),  # no token yet, too late for one
        (one(state.DECODING, first=0.5), {"ttft_s": 1.0}, 99.0, 0),
        (one(state.DECODING, first=1.5), {"ttft_s": 1.0}, 1.5, 1),
        (one(state.DECODING, first=1.0), {"tpot_s": 0.1}, 2.0, 0),  # 1 s for ten tokens is the bound
        (one(state.DECODING, first=1.0), {"tpot_s": 0.1}, 2.1, 1),
        (one(state.DECODING, first=1.0, output=1), {"tpot_s": 0.1}, 99.0, 0),  # no gap to speak of
        (one(state.ENDED, first=1.0, end=2.0), {"tpot_s": 0.1, "latency_s": 2.0, "ttft_s": 1.0}, 99.0, 0),
        (one(state.ENDED, first=1.0, end=2.5), {"tpot_s": 0.1}, 99.0, 1),
        (one(state.ENDED, first=1.0, end=2.5), {"latency_s": 2.0}, 99.0, 1),
        (one(state.MOVING, first=1.0), {"latency_s": 2.0}, 2.5, 1),
        (one(state.PREFILLING), {}, 1e9, 0),
    ],
)
def test_a_certain_miss_by_hand(request_: np.ndarray, bounds: dict[str, float], now_s: float, missed: int) -> None:
    assert certain_misses(request_.reshape(1), Stop(**bounds, least=0.5).as_array(), now_s) == missed


def test_who_cannot_reach_the_share_any_more_is_hopeless() -> None:
    """Two of four missed: a half can still keep to the bound, more than a half cannot."""
    late, early = one(state.WAITING), one(state.DECODING, first=0.5)
    requests = np.array([late, early, late, early], dtype=state.REQUEST).view(np.recarray)
    for least, expected in ((0.4, False), (0.5, False), (0.51, True), (1.0, True)):
        assert hopeless(requests, Stop(ttft_s=1.0, least=least).as_array(), 5.0) is expected
    assert not hopeless(requests, Stop().as_array(), 5.0)


def drawn(seed: int) -> tuple[Traffic, dict[str, float], Stop]:
    draw = np.random.default_rng(seed)
    count = 300
    asked = traffic(
        np.sort(draw.uniform(0, 8, count)), draw.integers(1, 200, count), draw.integers(1, 100, count)
    )  # fmt: skip
    rule = {"max_seqs": float(draw.integers(2, 16)), "token_budget": float(draw.integers(64, 512)), "capacity": 200.0}
    bounds = [
        float(bound) if draw.random() < 0.7 else None for bound in (draw.uniform(0.01, 2), draw.uniform(0.003, 0.03))
    ]
    latency = float(draw.uniform(0.2, 3)) if draw.random() < 0.5 else None
    return asked, rule, Stop(ttft_s=bounds[0], tpot_s=bounds[1], latency_s=latency, least=float(draw.uniform(0.3, 1)))


def test_stopping_is_right_and_changes_nothing_else(replayed: Replays) -> None:
    """Over random fleets: who is stopped would have missed the share, who is not replays to the same last digit."""
    stopped = 0
    for seed in range(60):
        asked, rule, stop = drawn(seed)
        whole, brief = (
            replayed(
                asked,
                instances=2,
                router="least-loaded",
                lane_s=4e-3,
                token_s=8e-5,
                step_s=1e-3,
                stop=each,
                **rule,
            )
            for each in (None, stop)
        )
        goal = Objective(ttft_s=stop.ttft_s, tpot_s=stop.tpot_s, latency_s=stop.latency_s)
        attained = measure(whole, asked, goal).attained
        stopped += brief.stopped
        if brief.stopped:
            assert attained is not None
            assert attained < stop.least
            assert brief.span_s < whole.span_s
        else:
            assert np.array_equal(brief.end_s, whole.end_s, equal_nan=True)
            assert np.array_equal(brief.first_s, whole.first_s, equal_nan=True)
            assert brief.iterations == whole.iterations
    assert 15 < stopped < 45
