"""Instances that fail, are repaired, and are started and stopped by load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.serving import state
from ridgeline.serving.fleet_events import Autoscale, Failures, FleetEvents
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import traffic

Replays = Callable[..., Replay]


def test_a_failure_loses_caches_but_no_request(replayed: Replays) -> None:
    """Requests of 10 + 50 tokens, steps of 1 s and 50 ms a token, instances up for 40 s, down for 10 s on average."""
    asked = traffic(np.arange(40) * 5.0, np.full(40, 10), np.full(40, 50))
    options = {"instances": 3, "router": "least-loaded", "lane_s": 1.0, "token_s": 0.05}
    calm = replayed(asked, **options)
    fleet_events = FleetEvents(failures=Failures(mean_up_s=40.0, mean_down_s=10.0, seed=1))
    found = replayed(asked, **options, fleet_events=fleet_events)
    assert found.failures > 5
    assert found.done.all()
    assert found.preempted.sum() > 0  # of what a failure sent back
    assert (found.end_s - found.came_s).mean() > (calm.end_s - calm.came_s).mean()
    assert (found.up_s < found.span_s).any()


def test_a_fleet_that_is_wholly_down_waits_for_its_repair(replayed: Replays) -> None:
    asked = traffic([0.0], [4], [60])
    found = replayed(
        asked, lane_s=1.0, fleet_events=FleetEvents(failures=Failures(mean_up_s=20.0, mean_down_s=30.0, seed=3))
    )
    assert found.done.all()
    assert found.failures >= 1
    assert found.end_s[0] > 60.0  # one step a token, and the repairs


def test_load_starts_instances_and_stops_them(replayed: Replays) -> None:
    """Sixty requests at once for one instance that runs two at a time; four may be up, each start takes 5 s."""
    asked = traffic(np.r_[np.zeros(60), 400.0], np.full(61, 1), np.full(61, 10))
    options = {"instances": 4, "router": "least-loaded", "max_seqs": 2, "lane_s": 1.0}
    auto = Autoscale(rule="load-scaling(high=4.0,low=1.0)", period_s=2.0, start_s=5.0, fewest=1)
    found = replayed(asked, **options, fleet_events=FleetEvents(autoscale=auto))
    assert found.done.all()
    assert found.starts >= 3
    one = replayed(asked, **{**options, "instances": 1})
    assert one.starts == 0
    assert found.up_s.sum() < 4 * found.span_s  # those that were not needed were stopped again
    assert found.up_s[0] == pytest.approx(found.span_s, rel=0.5)


def test_rules_start_instances_when_their_signal_comes(replayed: Replays) -> None:
    """One request a second from 0.5 s on, each alone for 4 s (one token, steps of 4 s); looks every 3 s, starts of 3 s.

    At 3 s three came (0.5, 1.5, 2.5 s): two wait, three are there, the first token comes at 4.5 s. By queue (more than
    1) and by load (above 2) one is started at 3 s. By TTFT, near 5 s, the second, who came at 1.5 s, is late from 6.5 s
    on: at 9 s. By trend, a line with the number and mean time of three arrivals, even ones: the rate does not grow, so
    as by load.
    """
    asked = traffic(0.5 + np.arange(6.0), np.full(6, 1), np.full(6, 1))
    options = {"instances": 2, "router": "least-loaded", "max_seqs": 1, "lane_s": 4.0}
    paid = {}
    for rule in ("load-scaling(high=2,low=0)", "queue-scaling(queue=1,low=0)", "ttft-scaling(near=1,low=0)",
                 "trend-scaling(high=2,low=0)", "season-scaling(high=2,low=0)"):  # fmt: skip
        auto = Autoscale(rule=rule, ttft_s=5.0, period_s=3.0, start_s=3.0)
        found = replayed(asked, **options, fleet_events=FleetEvents(autoscale=auto))
        assert found.starts == 1
        paid[rule.partition("-")[0]] = found.span_s - found.paid_s[1]
    assert paid == pytest.approx({"load": 3.0, "queue": 3.0, "ttft": 9.0, "trend": 3.0, "season": 3.0})


def test_without_fleet_events_everything_is_up_all_the_time(replayed: Replays) -> None:
    found = replayed(traffic([0.0, 1.0], [4, 4], [4, 4]), instances=2, scheduler=state.PREFILL_FIRST, lane_s=1.0)
    np.testing.assert_allclose(found.up_s, found.span_s)
    assert (found.failures, found.starts) == (0, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"rule": "load-scaling(high=1,low=2)"}, "needs low < high"),
        ({"fewest": 0}, "needs period > 0"),
        ({"rule": "ttft-scaling"}, "say one, such as --slo ttft=1s"),
    ],
)
def test_scaling_that_cannot_be_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        Autoscale(**words)


def test_failures_need_times() -> None:
    with pytest.raises(PlanError, match="failures"):
        Failures(mean_up_s=0.0, mean_down_s=1.0)
