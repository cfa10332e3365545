"""Stacks against exhaustive search on toys, and against `predict` on real scenarios."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.advise.cases import Change, TrialOutcome
from ridgeline.advise.stacks import Stacker
from ridgeline.cli.main import run
from ridgeline.errors import PlanError
from ridgeline.predict.step_interval import shared_error
from ridgeline.seams.technique import EXACT, accuracy

LOSSY = accuracy("somewhat", "adafactor-2018")
State = frozenset[str]


@dataclass
class Toy:
    """A time that each change multiplies by a factor, and a memory that it takes from; some exclude each other."""

    factors: dict[str, float]
    saves: dict[str, float]
    capacity: float = 1e9
    lossy: frozenset[str] = frozenset()
    apart: frozenset[frozenset[str]] = frozenset()
    needs: dict[str, str] = field(default_factory=dict)
    base: State = frozenset()
    bounds_nothing: bool = False
    simulated: int = 0

    def changes(self, on: State) -> Iterator[Change[State]]:
        for name in self.factors:
            quality = LOSSY if name in self.lossy else EXACT
            yield Change(
                words=name, slot=name, what="", put=lambda state, n=name: self._put(state, n), quality=quality,  # type: ignore[misc]
                refused="" if self.needs.get(name, name) in on | {name} else f"needs {self.needs[name]}",
            )  # fmt: skip

    def _put(self, state: State, name: str) -> State:
        found = state | {name}
        if self.needs.get(name, name) not in found:
            raise PlanError(f"{name} needs {self.needs[name]}")
        if any(pair <= found for pair in self.apart):
            raise PlanError(f"{name} does not go with what is there")
        return found

    def value(self, on: State) -> float:
        found = 100.0
        for name in on:
            found *= self.factors[name]
        return found

    def bound(self, on: State) -> TrialOutcome:
        memory = 1000.0 - sum(self.saves.get(name, 0.0) for name in on)
        return TrialOutcome(
            value=0.9 * self.value(on), memory_bytes=memory, excess_bytes=max(0.0, memory - self.capacity)
        )

    def closer(self, on: State) -> float:
        return 0.95 * self.value(on)

    def outcome(self, on: State) -> TrialOutcome:
        self.simulated += 1
        one = self.bound(on)
        return TrialOutcome(value=self.value(on), memory_bytes=one.memory_bytes, excess_bytes=one.excess_bytes)

    explained = outcome

    def range_of(self, before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
        return after.value / before.value, after.value / before.value

    def lists(self, change: Change[State]) -> bool:
        return False

    def programs(self, on: State) -> tuple[str, ...]:
        return ()


def stacked(toy: Toy) -> list[str]:
    stacker: Stacker[State] = Stacker(case=toy)
    return [one.change.words for one in stacker.stack(toy.outcome(toy.base))]


NAMES = ("a", "b", "c", "d", "e")


@settings(max_examples=60)
@given(st.lists(st.floats(0.5, 1.5), min_size=5, max_size=5))
def test_independent_factors_are_stacked_as_exhaustive_search_does(factors: list[float]) -> None:
    toy = Toy(factors=dict(zip(NAMES, factors, strict=True)), saves={})
    sets = (frozenset(some) for count in range(6) for some in itertools.combinations(NAMES, count))
    best = min(map(toy.value, sets))
    found = toy.value(frozenset(stacked(toy)))
    assert best * (1 - 1e-12) <= found <= best / 0.995**5 * (1 + 1e-12)  # steps under half a percent are left


def test_what_does_not_fit_is_led_by_memory_then_by_time() -> None:
    toy = Toy(factors={"small": 1.5, "fast": 0.5}, saves={"small": 600.0, "fast": -100.0}, capacity=550.0)
    assert stacked(toy) == ["small", "fast"]
    tight = Toy(factors={"small": 1.5, "fast": 0.5}, saves={"small": 600.0, "fast": -100.0}, capacity=450.0)
    assert stacked(tight) == ["small"]


def test_steps_that_compute_the_same_go_before_lossy_ones() -> None:
    toy = Toy(factors={"lossy": 0.5, "exact": 0.9}, saves={}, lossy=frozenset({"lossy"}))
    assert stacked(toy) == ["exact", "lossy"]
    saves = {"lossy": 900.0, "exact": 500.0}
    either = Toy(factors={"lossy": 1.0, "exact": 1.0}, saves=saves, capacity=500.0, lossy=frozenset({"lossy"}))
    assert stacked(either) == ["exact"]


def test_a_step_that_others_make_useless_is_taken_out() -> None:
    """`half` fits nothing alone; `all` does, and `half` costs time."""
    toy = Toy(factors={"half": 1.2, "all": 1.3}, saves={"half": 700.0, "all": 690.0}, capacity=311.0)
    assert stacked(toy) == ["all"] or stacked(toy) == ["half"]
    assert len(stacked(toy)) == 1


def test_what_bounds_rule_out_is_not_simulated() -> None:
    toy = Toy(factors=dict.fromkeys(NAMES, 1.2), saves={})
    stacker: Stacker[State] = Stacker(case=toy)
    base = toy.outcome(toy.base)
    found = stacker.alone(base)
    assert [one.bounded for one in found] == [True] * 5
    assert toy.simulated == 1


def test_two_that_help_only_together_are_found() -> None:
    toy = Toy(factors={"shards": 1.2, "streams": 0.5, "other": 0.9}, saves={}, needs={"streams": "shards"})
    assert stacked(toy) == ["other", "shards", "streams"]
    toy = Toy(factors={"shards": 1.2, "streams": 0.9}, saves={}, needs={"streams": "shards"})
    assert stacked(toy) == []


def test_changes_that_exclude_each_other_are_not_stacked() -> None:
    toy = Toy(factors={"a": 0.5, "b": 0.6}, saves={}, apart=frozenset({frozenset({"a", "b"})}))
    assert stacked(toy) == ["a"]


# intervals -----------------------------------------------------------------------------------------


def test_an_error_that_both_share_leaves_no_interval() -> None:
    one = {"matrix": 6.0, "link": 4.0}
    causes = [{"matrix": (0.8, 1.3)}, {"link": (0.5, 2.0)}]
    assert shared_error(one, {"matrix": 3.0, "link": 2.0}, causes) == pytest.approx((0.5, 0.5))
    low, high = shared_error(one, {"matrix": 6.0, "link": 2.0}, causes)
    # by hand: the link at 0.5 of its time: (6 + 1) / (6 + 2) = 0.875; at twice: (6 + 4) / (6 + 8) = 0.714
    # products at 0.8: (4.8 + 2) / (4.8 + 4) = 0.7727; at 1.3: (7.8 + 2) / (7.8 + 4) = 0.8305; middle 0.8
    assert low == pytest.approx(0.8 * (1 - ((1 - 0.7142857 / 0.8) ** 2 + (1 - 0.7727273 / 0.8) ** 2) ** 0.5), rel=1e-6)
    assert high == pytest.approx(0.8 * (1 + ((0.875 / 0.8 - 1) ** 2 + (0.8305085 / 0.8 - 1) ** 2) ** 0.5), rel=1e-6)


# real scenarios ------------------------------------------------------------------------------------


def asked(line: str) -> dict[str, Any]:
    out, words = io.StringIO(), shlex.split(line)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert run([*words, "--json"]) == 0
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


PLAN = "llama-3.1-8b --on 16xH100-SXM --pp 4 --zero 1 --recompute full --seq-len 8192 --global-batch 64"
PIPELINE = shlex.split(PLAN)


def test_the_stack_of_a_plan_is_what_predict_says_of_its_words() -> None:
    found = asked(f"advise {PLAN}")
    words = shlex.split(found["stack_words"])
    assert words
    told = dict(zip(PIPELINE[1::2], PIPELINE[2::2], strict=True))
    changed: dict[str, str | None] = {**told}
    place = 0
    while place < len(words):  # flags with values, and switches
        more = place + 1 < len(words) and not words[place + 1].startswith("--")
        changed[words[place]] = words[place + 1] if more else None
        place += 2 if more else 1
    line = [each for name, value in changed.items() for each in ((name,) if value is None else (name, value))]
    again = asked(f"predict {PIPELINE[0]} {shlex.join(line)}")
    assert again["step_time_s"]["value"] == pytest.approx(found["best"], rel=1e-9)
    base = asked(f"predict {PLAN}")
    assert base["step_time_s"]["value"] == pytest.approx(found["value"], rel=1e-9)
    assert found["stack_gain"]["value"] == pytest.approx(found["value"] / found["best"])
    assert found["stack_gain"]["low"] <= found["stack_gain"]["value"] <= found["stack_gain"]["high"]
    assert found["floor"] < found["best"]


def test_what_does_not_apply_has_a_reason_and_what_helps_is_ranked() -> None:
    found = asked("advise llama-3.1-8b --on 8xH100-SXM --zero 3 --seq-len 8192 --global-batch 64")
    assert "one pipeline stage" in found["refused"]["--schedule zb-h1"]
    gains = [one["gain"]["value"] for one in found["helps"]]
    assert gains == sorted(gains, reverse=True)
    assert all(one["gain"]["value"] > 1.0 for one in found["helps"])
    assert sum(one["share"] for one in found["limits"]) == pytest.approx(1.0, abs=0.02)


def test_serving_replays_its_best_stack() -> None:
    told = "--rate 8 --prompt 1024 --output 128 --slo ttft=500ms,tpot=25ms"
    found = asked(f"advise llama-3.1-8b --serve --on 2xH100-SXM {told}")
    assert found["objective"] == "goodput"
    assert found["value"] > 0.0
    assert found["best"] is None or found["best"] >= found["value"] * 0.999
    assert found["floor"] > found["value"]
    assert "requests" in found["load"]
