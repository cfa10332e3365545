"""How full a pool of machines may be so that few requests wait long.

A pool has c slots (machines times the requests that each serves at once), each held for a mean service time s. Waiting
follows the M/M/c queue (Erlang 1917), scaled for other variability as by Allen and Cunneen (Allen 1990; how near such
scalings come is studied by Whitt 1993):

    P(W > w) = C(c, a) exp(-w (c - a) / (s V)),   a = arrival rate x s,   V = (Ca^2 + Cs^2) / 2

It is exact for V = 1 (Poisson arrivals, exponential service) and an approximation else.
"""

from __future__ import annotations

import math

from ridgeline.errors import InputError


def erlang_c(slots: int, offered: float) -> float:
    """Probability that an arrival finds every slot of an M/M/c queue held [1].

    The Erlang B recursion B(k) = a B(k-1) / (k + a B(k-1)), then C = B / (1 - (a/c)(1 - B)).

    Parameters
    ----------
    slots : int [1]
        c, at least 1.
    offered : float [1]
        a, the mean number of slots that the load holds; 1.0 is returned from c on.

    Raises
    ------
    InputError
        Fewer than one slot, or a negative load.

    Source: erlang1917.

    >>> round(erlang_c(2, 1.0), 6)
    0.333333
    """
    if slots < 1 or offered < 0.0:
        raise InputError(f"{slots} slots and an offered load of {offered:g}; at least 1 and 0 are needed")
    if offered >= slots:
        return 1.0
    blocked = 1.0
    for busy in range(1, slots + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return blocked / (1.0 - offered / slots * (1.0 - blocked))


def wait_tail(*, slots: int, offered: float, service_s: float, wait_s: float, variability: float = 1.0) -> float:
    """Probability that a request waits longer than `wait_s` [1].

    Parameters
    ----------
    variability : float [1]
        V, the mean of the squared coefficients of variation of arrivals and of service; 1 for M/M/c.

    Source: erlang1917, allen1990.

    >>> round(wait_tail(slots=1, offered=0.5, service_s=1.0, wait_s=2.0), 6)  # rho exp(-(1 - rho) w / s)
    0.18394
    """
    if offered >= slots:
        return 1.0
    if variability <= 0.0:
        return 0.0
    return erlang_c(slots, offered) * math.exp(-wait_s * (slots - offered) / (service_s * variability))


def utilisation_ceiling(
    *, slots: int, service_s: float, wait_s: float, epsilon: float, variability: float = 1.0
) -> float:
    """The largest share of its capacity that a pool may serve so that P(W > wait_s) <= epsilon [1].

    Grows with the pool: two machines side by side may be fuller than each alone.

    Parameters
    ----------
    service_s : float [s]
        Mean time for which a request holds its slot.
    epsilon : float [1]
        Share of requests that may wait longer.

    Raises
    ------
    InputError
        A number outside its domain.

    Domain: one queue in front of all slots, stationary arrivals. Source: allen1990.

    >>> round(utilisation_ceiling(slots=1, service_s=1.0, wait_s=0.0, epsilon=0.3), 9)
    0.3
    """
    if not 0.0 < epsilon < 1.0 or service_s <= 0.0 or wait_s < 0.0 or slots < 1:
        raise InputError(
            f"slots {slots}, service {service_s:g} s, wait {wait_s:g} s, epsilon {epsilon:g}: "
            "needs at least 1, above 0 s, at least 0 s, between 0 and 1"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = wait_tail(
            slots=slots, offered=middle * slots, service_s=service_s, wait_s=wait_s, variability=variability
        )
        low, high = (middle, high) if tail <= epsilon else (low, middle)
    return low


def ceilings(
    *, most: int, slots_each: int, service_s: float, wait_s: float, epsilon: float, variability: float = 1.0
) -> tuple[float, ...]:
    """`utilisation_ceiling` of pools of 1, 2, ... `most` machines of `slots_each` slots [1]."""
    return tuple(
        utilisation_ceiling(
            slots=machines * slots_each, service_s=service_s, wait_s=wait_s, epsilon=epsilon, variability=variability
        )
        for machines in range(1, most + 1)
    )


def up_probability(rented: int, needed: int, availability: float) -> float:
    """Probability that at least `needed` of `rented` independent machines are up [1].

    >>> round(up_probability(3, 2, 0.9), 6)  # 0.9^3 + 3 x 0.9^2 x 0.1
    0.972
    """
    down = 1.0 - availability
    return math.fsum(
        math.comb(rented, lost) * down**lost * availability ** (rented - lost) for lost in range(rented - needed + 1)
    )
