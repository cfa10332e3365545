"""Sessions whose caches are kept, forgotten or moved to the host end as the slow simulator says, to the last digits."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from reference_serving import Fleet
from test_serving_reference import Case, FakeEngine, random_case

from ridgeline.plan.deployment import Role
from ridgeline.serving import loop, state
from ridgeline.serving import replay as replay_room
from ridgeline.serving.compiling import clocked
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.traffic.traffic import Traffic, traffic

BATCHES, CASES = 10, 50
HOW_LONG_S = (0.0, 0.02, 0.2, math.inf)


@clocked
def keeps(clock: state.Clock, rule: state.Record, rank: int, request: int) -> float:
    """A hook: by a request's number not at all, briefly, for longer, or until the next turn."""
    turn = request % 4
    if turn == 3:
        return math.inf
    return 0.02 if turn == 1 else 0.1 * turn


@dataclass
class SessionCase(Case):
    """A fleet under sessions, with caches kept or not."""

    kept: bool = False

    def compiled(self) -> Replay:
        hooks = {"keeps": keeps} if self.kept else {}
        return replay_tables(self.engines, self.tables, self.traffic, router=self.router, hooks=hooks)  # type: ignore[arg-type]

    def plain(self) -> Fleet:
        fleet = super().fleet()
        for one in fleet.asked:
            before = int(self.traffic.after[one.number])
            one.follows = before
            if before >= 0:
                fleet.asked[before].goes_on = True
        if self.kept:
            fleet.keeps = lambda one: HOW_LONG_S[one.number % 4]
        return fleet.run()


def sessions(draw: np.random.Generator, size: int) -> Traffic:
    """Chains of turns, each of which begins with all that the one before read and wrote, and a shared beginning."""
    prompts, outputs, after, lists, session, arrival = [], [], [], [], [], []
    known: dict[tuple[int, ...], int] = {}
    start_s, shared = 0.0, int(draw.integers(0, 2 * size))
    for number in range(int(draw.integers(2, 6))):
        context, before = shared, -1
        start_s += draw.exponential(0.03)
        path: tuple[int, ...] = (-1,) * (shared // size)
        for _ in range(int(draw.integers(1, 5))):
            prompt, output = context + int(draw.integers(1, 17)), int(draw.integers(1, 17))
            context = prompt + output
            path = (*path, *((number,) * (-(-context // size) - len(path))))
            ids = [known.setdefault((*path[: place + 1], place), len(known)) for place in range(context // size)]
            prompts.append(prompt)
            outputs.append(output)
            after.append(before)
            session.append(number)
            arrival.append(start_s)
            lists.append(ids)
            before = len(prompts) - 1
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    waits = np.array(after)
    return traffic(
        arrival, prompts, outputs, after=waits, session=np.array(session),
        think_s=np.where(waits < 0, 0.0, draw.exponential(0.1, len(prompts))), prefix_start=starts,
        prefix_blocks=np.array([one for ids in lists for one in ids], dtype=np.int64), prefix_block_tokens=size,
    )  # fmt: skip


def session_case(seed: int) -> SessionCase:
    draw = np.random.default_rng((seed, 11))
    case = random_case(seed)
    while any(
        one.values.get("split") or one.values.get("kept") or one.deployment.role is not Role.WHOLE
        for one in case.engines
    ):
        case = random_case(int(draw.integers(10**6)))
    size = int(case.engines[0].values["block_tokens"]) * int(draw.integers(1, 3))
    asked = sessions(draw, size)
    away = int(draw.integers(1, 12)) * (draw.random() < 0.6)
    engines: list[FakeEngine] = case.engines
    for one in engines:
        block = int(one.values["block_tokens"])
        one.values |= {
            "prefix_tokens": size // block * block, "host_blocks": away, "displaces": 0, "redraws": 0, "fair": 0,
            "late_results": 0,
            "capacity": -(-int(draw.integers(36, 100)) // block), "shortest": 0,
        }  # fmt: skip
    return SessionCase(
        engines=engines, tables=case.tables, traffic=replace(asked, name="sessions"), router=case.router,
        kept=bool(draw.random() < 0.7 and (asked.after >= 0).any()),
    )  # fmt: skip


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    """What differs in one batch of cases, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = session_case(seed)
        fast, slow = case.compiled(), case.plain()
        for name in ("came_s", "first_s", "end_s"):
            theirs = np.array([getattr(one, name) for one in slow.asked])
            if not np.allclose(getattr(fast, name), theirs, rtol=1e-9, atol=0.0, equal_nan=True):
                wrong.append(f"case {seed}: {name}")
        counted = {"preempted": "preempted", "hit": "hit_tokens"}
        for mine, theirs in counted.items():
            if [getattr(one, mine) for one in slow.asked] != getattr(fast, theirs).tolist():
                wrong.append(f"case {seed}: {theirs}")
        if slow.iterations != fast.iterations:
            wrong.append(f"case {seed}: iterations")
        happened = {
            "kept": slow.kept > 0,
            "hit": any(one.hit for one in slow.asked),
            "hit output": any(
                one.hit > slow.asked[one.follows].prompt for one in slow.asked if one.follows >= 0 and not one.preempted
            ),
            "from the host": any(rank.returned for each in slow.instances for rank in each.ranks),
            "preempted": any(one.preempted for one in slow.asked),
            "several instances": len(slow.instances) > 1,
            "given up": any(rank.given_up for each in slow.instances for rank in each.ranks),
        }
        seen.update(name for name, true in happened.items() if true)
    return wrong, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_sessions_end_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {
        "kept": 200, "hit": 300, "hit output": 200, "from the host": 40, "preempted": 15, "several instances": 150,
        "given up": 40,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


def test_the_clock_compiled_is_the_clock_in_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions run by Python over records of NumPy, to the last bit."""

    def plain(clock: state.Clock, arrivals: np.ndarray, most_s: float) -> float:
        return loop.replay(state.plain(clock), arrivals, most_s)

    for seed in range(30):
        case = session_case(seed)
        compiled = case.compiled()
        with monkeypatch.context() as patch:
            patch.setattr(replay_room, "_run", plain)
            for name, value in vars(case.compiled()).items():
                assert np.array_equal(value, getattr(compiled, name), equal_nan=True), f"case {seed}: {name}"
