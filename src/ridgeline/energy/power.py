"""Joules and watts of a training step and of one operator, from what its devices are busy with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.mechanisms import POWER_SHARES, constant, power_of
from ridgeline.facts.rates import rated_w
from ridgeline.facts.records import Cluster
from ridgeline.lower.work import Number

# Which power state each part of the step time puts a device in.
_STATE = {
    "matrix": "matrix",
    "attention": "matrix",
    "memory": "memory",
    "launch": "idle",
    "bubble": "idle",
    "update": "memory",
}
_HELD, _HOST = "held", "host"


def hosts_w(cluster: Cluster, devices: float) -> float:
    """Power of hosts without their devices, for the devices that are used [W].

    P = idle power of a host * devices / devices of a host

    A device answers for its share of the host that it stands in, as its price by the hour does: one of the eight of a
    node that others share carries an eighth of the node. A whole node, or a machine in a file that says what it has, is
    counted whole. Evidence: assumed (`hosts.tsv`).
    """
    return cluster.host.idle_w * devices / cluster.host.devices


def step_energy_j(
    seconds_by_part: Mapping[str, float], cluster: Cluster, *, held: bool = False, used: int | None = None
) -> float:
    """Energy of one step of the whole cluster at the wall [J].

    E = PUE * (sum over parts of time * share of TDP * TDP * devices + power of hosts * time). Parts that
    are not named draw the link state; none draws more than a limit of the board below its TDP. Without a
    TDP the device's share is left out. With `held` the power limit sets the clock of products, so that they draw all of
    it. Devices beyond the `used` ones (None: all are used) draw the
    idle state.
    Source of the shares: rows power.* of the mechanism table. Evidence: measured shares, derived product.
    """
    return _overhead(cluster) * sum(_joules(seconds_by_part, cluster, held=held, used=used).values())


def _overhead(cluster: Cluster) -> float:
    """Energy of the building over that of its computers [1]."""
    return cluster.pue.value if cluster.pue is not None else 1.0


def above_idle_w(part: str, cluster: Cluster) -> float:
    """What a device in a part of a step draws beyond what it draws idle, at least [W]."""
    limit_w, rated = cluster.accelerator.tdp_w or 0.0, rated_w(cluster.accelerator) or 0.0
    levels = (min(constant(f"power.{state}") * rated, limit_w) for state in (_STATE.get(part, "link"), "idle"))
    return next(levels) - next(levels)


def least_energy_j(seconds: float, above_idle_j: float, cluster: Cluster) -> float:
    """Energy at the wall of a step no shorter than some seconds, with what its devices draw beyond idle [J].

    E = PUE * ((idle power * devices + power of hosts) * time + what is above idle). Lower bound of `step_energy_j`: no
    part of a step draws less than the idle state. Domain: all devices of one type.
    """
    idle_w = constant("power.idle") * (rated_w(cluster.accelerator) or 0.0)
    idle_w = min(idle_w, cluster.accelerator.tdp_w or 0.0)
    return _overhead(cluster) * ((idle_w * cluster.count + hosts_w(cluster, cluster.count)) * seconds + above_idle_j)


def step_power_range(
    seconds_by_part: Mapping[str, float], cluster: Cluster, *, held: bool = False, used: int | None = None
) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a step's mean power, over its value [1].

    With E the joules of a state and f the end of its range over its level, states and hosts err by themselves:

        1 -+ sqrt( sum (E (f - 1))^2 ) / sum E

    A state lies between the levels that were metered on different devices (rows power.*.low and power.*.high); what
    the limit holds draws no more than it. Domain: shares from 0 to 1.
    """
    joules = _joules(seconds_by_part, cluster, held=held, used=used)
    whole = sum(joules.values())
    ends = []
    for end, sign in (("low", -1.0), ("high", 1.0)):
        apart = [energy * (_end(state, end) - 1.0) for state, energy in joules.items()]
        ends.append(1.0 + sign * float(np.sqrt(np.square(apart).sum())) / whole if whole else 1.0)
    return ends[0], ends[1]


def _end(state: str, end: str) -> float:
    """The end of a state's range over its level [1]."""
    if state == _HELD:
        return constant("power.matrix") if end == "low" else 1.0
    level = 1.0 if state == _HOST else constant(f"power.{state}")
    return constant(f"power.{state}.{end}") / level


def _joules(
    seconds_by_part: Mapping[str, float], cluster: Cluster, *, held: bool, used: int | None
) -> dict[str, float]:
    """Energy of one step of the whole cluster by power state, without the building's overhead [J]."""
    limit_w, whole = cluster.accelerator.tdp_w or 0.0, sum(seconds_by_part.values())
    rated = rated_w(cluster.accelerator) or 0.0
    busy = cluster.count if used is None else used
    found = {_HOST: hosts_w(cluster, cluster.count) * whole}
    if busy < cluster.count:
        found["idle"] = whole * constant("power.idle") * rated * (cluster.count - busy)
    for part, seconds in seconds_by_part.items():
        state = _HELD if held and part == "matrix" else _STATE.get(part, "link")
        drawn_w = limit_w if state == _HELD else min(constant(f"power.{state}") * rated, limit_w)
        found[state] = found.get(state, 0.0) + seconds * drawn_w * busy
    return found


def operator_power_w(tdp_w: float, compute_share: float, memory_share: float) -> float:
    """Board power while a mix of operators runs, whose work is not told apart [W].

    P = TDP * min(1, idle + (matrix - idle) c + (memory - idle) m), with c and m the shares of the time in which the
    matrix units and the memory are busy. Domain: shares from 0 to 1; larger ones are taken as 1.
    Source of the levels: rows power.* of the mechanism table. Evidence: measured levels, derived mix.
    """
    idle, matrix, memory = (constant(f"power.{name}") for name in ("idle", "matrix", "memory"))
    share = idle + (matrix - idle) * min(1.0, compute_share) + (memory - idle) * min(1.0, memory_share)
    return tdp_w * min(1.0, share)


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What a board does while an operator runs, shares from 0 to 1 of its time or of the datasheet's rates.

    Arrays of one length, or numbers: units busy, memory busy, FLOP in 16 bits and in fewer, bytes.
    """

    compute_busy: Number
    memory_busy: Number
    wide_share: Number
    narrow_share: Number
    byte_share: Number

    def where(self, mask: NDArray[np.bool_]) -> Activity:
        """The rows of a mask."""
        return Activity(**{name: np.asarray(column)[mask] for name, column in vars(self).items()})


def board_w(rated_w: float, activity: Activity, shares: Mapping[str, float]) -> NDArray[np.float64]:
    """Board power while an operator runs [W].

    P = rated min(1, running_ + compute_ c + memory_ m + wide_flop_ f16 + narrow_flop_ f8 + byte_ b), c and m the
    shares of the time in which units and memory are busy, f and b the shares of the peak rates that useful FLOP and
    bytes reach: wide_flop_ rated / peak are the joules of a FLOP. Domain: shares from 0 to 1; larger ones are taken
    as 1; a board that would draw more than its rated power lowers its clocks.
    Evidence: measured where the device was metered, else derived.
    """
    parts = (1.0, *(np.minimum(1.0, np.asarray(column, dtype=float)) for column in vars(activity).values()))
    total = sum(shares[name] * part for name, part in zip(POWER_SHARES, parts, strict=True))
    return np.asarray(rated_w * np.minimum(1.0, total), dtype=float)


@dataclass(frozen=True, kw_only=True)
class Power:
    """Watts of a board with their 80 % interval."""

    mid_w: float
    low_w: float
    high_w: float


def kernel_power_w(device: str, rated_w: float, activity: Activity) -> Power:
    """Board power while one operator runs, with the ends of its 80 % interval [W]; none above the rated power.

    By the device's own fit, else by that of a device that was metered, at the same shares of the rated power.
    """
    fit = power_of(device)
    mid = float(board_w(rated_w, activity, fit.shares))
    return Power(mid_w=mid, low_w=mid * min(1.0, fit.low), high_w=min(mid * max(1.0, fit.high), rated_w))
