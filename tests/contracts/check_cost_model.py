"""The contract that every mechanism of cost keeps, and `check_cost_model`, which says where one breaks it.

    check_cost_model(gemm_seconds, sizes=..., machine=..., roofline_s=..., ...)

A mechanism is a function of sizes (by name) and a machine that returns seconds, for numbers and for arrays. The
contract: it is deterministic; it broadcasts; it is finite and not negative; it never beats the roofline of the
datasheet; more work is never faster; a better machine is never slower; it refuses what lies outside its domain; it
names its evidence. A mechanism that is excused from a check says why in `exempt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.errors import DomainError
from ridgeline.facts.records import Evidence

Sizes = Mapping[str, Any]
Seconds = Callable[[Sizes, Machine], Any]
ROUNDING = 1 + 1e-12  # sums in another order


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One mechanism and what the contract needs to know of it.

    `roofline_s` [s] is worked out from the datasheet alone; `grows_with` names sizes of which twice as much is more
    work; `better` makes better machines by what is better; `outside` are sizes or machines that must be refused.
    """

    name: str
    seconds: Seconds
    sizes: tuple[Sizes, ...]
    roofline_s: Seconds
    grows_with: tuple[str, ...]
    better: Mapping[str, Callable[[Machine], Machine]]
    outside: tuple[Callable[[Machine], Any], ...] = ()
    evidence: Callable[[Machine], Iterable[Evidence]] = lambda machine: ()
    exempt: Mapping[str, str] = field(default_factory=dict)


def one(mechanism: Mechanism, sizes: Sizes, machine: Machine) -> float:
    """Seconds of one shape as a number [s]."""
    return float(np.asarray(mechanism.seconds(sizes, machine)))


def is_deterministic(mechanism: Mechanism, machine: Machine) -> None:
    """Twice the same question, twice the same answer to the bit."""
    for sizes in mechanism.sizes:
        assert one(mechanism, sizes, machine) == one(mechanism, dict(sizes), machine), sizes


def broadcasts(mechanism: Mechanism, machine: Machine) -> None:
    """An array of shapes is priced as each shape alone, and a grid as its rows."""
    names = list(mechanism.sizes[0])
    columns = {name: np.array([float(sizes[name]) for sizes in mechanism.sizes]) for name in names}
    together = np.broadcast_to(mechanism.seconds(columns, machine), (len(mechanism.sizes),))
    alone = [one(mechanism, sizes, machine) for sizes in mechanism.sizes]
    assert together.tolist() == alone
    grid = {name: column[:, None] for name, column in columns.items()}
    assert np.broadcast_to(mechanism.seconds(grid, machine), (len(alone), 1))[:, 0].tolist() == alone


def is_finite(mechanism: Mechanism, machine: Machine) -> None:
    """Every time is a finite number that is not negative."""
    for sizes in mechanism.sizes:
        seconds = one(mechanism, sizes, machine)
        assert np.isfinite(seconds), sizes
        assert seconds >= 0, sizes


def respects_the_roofline(mechanism: Mechanism, machine: Machine) -> None:
    """No shape is faster than its FLOP at the peak and its bytes at the bandwidth of the datasheet."""
    for sizes in mechanism.sizes:
        limit = float(np.asarray(mechanism.roofline_s(sizes, machine)))
        seconds = one(mechanism, sizes, machine)
        assert seconds * ROUNDING >= limit, f"{dict(sizes)}: {seconds:.6g} s is under its roofline {limit:.6g} s"


def grows_with_work(mechanism: Mechanism, machine: Machine) -> None:
    """Twice as much of any size is never faster."""
    for sizes in mechanism.sizes:
        base = one(mechanism, sizes, machine)
        for name in mechanism.grows_with:
            more = one(mechanism, {**sizes, name: 2 * sizes[name]}, machine)
            assert more * ROUNDING >= base, f"{dict(sizes)}: twice {name} takes {more:.6g} s, less than {base:.6g} s"


def profits_from_better_machines(mechanism: Mechanism, machine: Machine) -> None:
    """More bandwidth, more rate or less latency is never slower."""
    for sizes in mechanism.sizes:
        base = one(mechanism, sizes, machine)
        for what, improve in mechanism.better.items():
            seconds = one(mechanism, sizes, improve(machine))
            assert seconds <= base * ROUNDING, f"{dict(sizes)}: {what} takes {seconds:.6g} s, more than {base:.6g} s"


def refuses_outside_its_domain(mechanism: Mechanism, machine: Machine) -> None:
    """What it cannot price it refuses with a DomainError that says what is known."""
    assert mechanism.outside, "nothing is named that lies outside its domain; excuse it with a reason or name some"
    for ask in mechanism.outside:
        try:
            answer = ask(machine)
        except DomainError as error:
            if machine.device.accelerator.name not in str(error):
                raise AssertionError(f"the refusal does not name the device: {error}") from error
            continue
        raise AssertionError(f"answered {answer} outside its domain")


def names_its_evidence(mechanism: Mechanism, machine: Machine) -> None:
    """Every rate it rests on has a rung."""
    rungs = list(mechanism.evidence(machine))
    assert rungs
    assert all(isinstance(rung, Evidence) for rung in rungs)


CHECKS: tuple[Callable[[Mechanism, Machine], None], ...] = (
    is_deterministic,
    broadcasts,
    is_finite,
    respects_the_roofline,
    grows_with_work,
    profits_from_better_machines,
    refuses_outside_its_domain,
    names_its_evidence,
)


def check_cost_model(mechanism: Mechanism, machine: Machine) -> None:
    """Apply every check that the mechanism is not excused from; AssertionError names the first broken one."""
    unknown = mechanism.exempt.keys() - {check.__name__ for check in CHECKS}
    assert not unknown, f"{mechanism.name} is excused from checks that do not exist: {sorted(unknown)}"
    for check in CHECKS:
        if check.__name__ in mechanism.exempt:
            assert mechanism.exempt[check.__name__], f"{mechanism.name}: no reason for {check.__name__}"
            continue
        try:
            check(mechanism, machine)
        except AssertionError as error:
            raise AssertionError(f"{mechanism.name} on {machine.cluster.name}, {check.__name__}: {error}") from error
