"""Jobs on devices that come and go: hand-worked runs, chances against counts, every set of small pools."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ridgeline.cli.main import app
from ridgeline.errors import InputError
from ridgeline.facts.job_pools import job_pool, learned_scores, pool_names
from ridgeline.predict.job_pools import pool_world
from ridgeline.seams.assignment import JobAssignment, PoolDevices, PoolJob, PoolView
from ridgeline.seams.registry import technique
from ridgeline.techniques.assignments.learned import LearnedAssignment
from ridgeline.techniques.assignments.likeliest import LikeliestAssignment
from ridgeline.training.job_pool import PoolWorld, run_pool

RULES = (
    "greedy-assignment", "random-assignment", "round-robin-assignment", "least-used-assignment", "learned-assignment",
    "likeliest-assignment",
)  # fmt: skip


def rule(text: str) -> JobAssignment:
    found = technique("assignments", text)
    assert isinstance(found, JobAssignment)
    return found


def pool(speed, region, mtbf_s) -> PoolDevices:
    many = len(speed)
    return PoolDevices(
        speed=np.array(speed, dtype=float), memory_bytes=np.full(many, 24e9), region=np.array(region),
        mtbf_s=np.broadcast_to(np.asarray(mtbf_s, dtype=float), (many,)), repair_s=np.full(many, 10.0),
        inside_bytes_per_s=1e9, between_bytes_per_s=1e8,
    )  # fmt: skip


def job(number: int = 0, **said: object) -> PoolJob:
    usual = {
        "arrival_s": 0.0, "devices": 1, "work_s": 100.0, "memory_bytes": 1e9, "data_bytes": 1e9,
        "exchange_bytes": 1e9, "region": 0, "deadline_s": 1000.0, "high": False,
    }  # fmt: skip
    return PoolJob(number=number, **(usual | said))


def test_times_by_hand():
    devices = pool([1.0, 2.0, 2.0], [0, 0, 1], 1e9)
    assert devices.seconds(job(), (0,)) == 1 + 100
    assert devices.seconds(job(), (2,)) == 10 + 50  # data come from another region
    assert devices.seconds(job(devices=2), (0, 1)) == 1 + 1 + 100
    assert devices.seconds(job(devices=2), (1, 2)) == 10 + 10 + 50


@pytest.mark.parametrize("name", RULES)
def test_a_run_by_hand(name):
    # One device, absent from 150 s to 200 s: the first job ends at 101 s, the second is broken off and ends at 301 s.
    world = PoolWorld(devices=pool([1.0], [0], 1e9), jobs=(job(0), job(1)), absences=(((150.0, 200.0),),))
    found = run_pool(world, rule(name))
    assert (found.completed_share, found.broken, found.started) == (1.0, 1, 3)
    late = PoolWorld(devices=world.devices, jobs=(job(0), job(1, deadline_s=300.0)), absences=world.absences)
    if name not in ("likeliest-assignment", "learned-assignment"):  # which look at deadlines: the second goes first
        assert run_pool(late, rule(name)).completed_share == 0.5
    assert run_pool(late, rule("likeliest-assignment")).completed_share == 1.0


@given(st.integers(0, 50), st.sampled_from(["speed", "mtbf"]))
@settings(max_examples=40, deadline=None)
def test_the_choice_is_the_best_of_every_set_where_devices_differ_in_one_thing(seed, what):
    draw = np.random.default_rng(seed)
    speed = draw.uniform(0.5, 4.0, 6) if what == "speed" else np.ones(6)
    mtbf = draw.uniform(200.0, 5000.0, 6) if what == "mtbf" else np.full(6, 1000.0)
    devices = pool(speed, [0] * 6, mtbf)
    view = PoolView(now_s=0.0, devices=devices, free=np.ones(6, dtype=bool), used_s=np.zeros(6), turn=0, seed=0)
    asked = job(devices=2)
    likeliest = LikeliestAssignment()
    best = max(likeliest.chance(asked, one, view) for one in combinations(range(6), 2))
    assert likeliest.chance(asked, likeliest.choose(asked, view), view) == pytest.approx(best)


def test_the_chance_is_what_the_simulation_counts():
    draw = np.random.default_rng(3)
    devices, asked = pool([1.0, 1.0], [0, 0], 400.0), job(devices=2, deadline_s=150.0)
    seconds = devices.seconds(asked, (0, 1))
    ended = 0
    for _ in range(3000):
        absences = tuple(((float(draw.exponential(400.0)), 1e9),) for _ in range(2))
        ended += run_pool(PoolWorld(devices=devices, jobs=(asked,), absences=absences), rule("greedy-assignment")).completed_share == 1.0  # fmt: skip # noqa: E501
    assert ended / 3000 == pytest.approx(devices.survives((0, 1), seconds), abs=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_likeliest_beats_every_baseline(seed):
    world = pool_world(job_pool(f"reach-community(count=120,seed={seed})"))
    found = {name: run_pool(world, rule(name)) for name in RULES if name != "learned-assignment"}
    best = found.pop("likeliest-assignment")
    assert best.completed_share >= max(one.completed_share for one in found.values())
    assert best.high_completed_share >= max(one.high_completed_share for one in found.values())
    assert best.moves_s <= min(one.moves_s for one in found.values())


@pytest.mark.parametrize("seed", range(4))
def test_learned_beats_every_baseline_on_pools_it_never_saw(seed):
    """Trained on random pools; these are the ones that ship, with seeds of their own."""
    world = pool_world(job_pool(f"reach-community(per_h=60,count=120,seed={seed})"))
    learned = run_pool(world, rule("learned-assignment"))
    for name in RULES[:4]:
        other = run_pool(world, rule(name))
        assert learned.completed_share > other.completed_share
        assert learned.high_completed_share > other.high_completed_share
        assert learned.moves_s < other.moves_s


def test_a_learned_choice_by_hand(monkeypatch):
    """Devices by speed alone, sets by the mean logarithm of speed less 10 departures expected: stays outweigh speed."""
    weights = {
        "jobs": [1.0, 0, 0, 0, 0], "devices": [1.0, 0, 0, 0], "sets": [1.0, -10.0, 0, 0, 0, 0, 1.0, 0, 0, 0],
    }  # fmt: skip
    monkeypatch.setattr(LearnedAssignment, "weights", lambda self, of: np.array(weights[of]))
    devices = pool([2.0, 4.0, 1.0, 1.0], [0, 1, 1, 1], [1e4, 100.0, 1e5, 1e5])
    view = PoolView(now_s=0.0, devices=devices, free=np.ones(4, dtype=bool), used_s=np.zeros(4), turn=0, seed=0)
    learned, asked = rule("learned-assignment"), job()
    # alone: device 1 over all and in its region, 35 s of 100 s to stay; device 0 in its own, 51 s of 1e4 s
    assert learned.score(asked, (1,), view) == pytest.approx(1.0 - 10 * 35 / 100 + 2.0)
    assert learned.score(asked, (0,), view) == pytest.approx(1.0 - 10 * 51 / 1e4 + 1.0)
    assert learned.choose(asked, view) == (0,)
    assert learned.choose(job(deadline_s=50.0), view) == ()  # device 0 is too late, device 1 scores below waiting
    assert [one.number for one in learned.order([job(0), job(1, high=True)])] == [1, 0]


def test_the_learned_weights_are_those_of_the_training():
    """As many as the scores see; `benchmarks/train_assignment.py` writes the file."""
    assert [len(learned_scores(of)) for of in ("jobs", "devices", "sets")] == [5, 4, 10]


def test_more_reliable_devices_never_break_off_more():
    broken = [
        run_pool(pool_world(job_pool(f"reach-community(count=100,mtbf={mtbf})")), rule("greedy-assignment")).broken
        for mtbf in (0.5, 4, 1000)
    ]
    assert broken == sorted(broken, reverse=True)


def test_the_command_shows_every_rule():
    assert pool_names() == ("reach-community",)
    run = CliRunner().invoke(app, ["simulate", "reach-community(count=40)", "--json"])
    assert run.exit_code == 0, run.output
    assert [row["policy"] for row in json.loads(run.output)["rows"]] == list(RULES)
    with pytest.raises(InputError, match="reach-community"):
        job_pool("reach-community(speed=3)")
    with pytest.raises(InputError, match="no number"):
        job_pool("reach-community(per_h=many)")
