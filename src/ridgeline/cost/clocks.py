"""The clock that a board's power limit leaves to products among other work.

Letters: K products of a pass, c the share of the clock that short runs have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.mechanisms import constant

Array = NDArray[np.float64]
_HALVINGS = 20  # of the range of clocks: to a millionth


def clock_share(times_s: Array, heat: Array, other_s: Array, *, other_power: float) -> Array:
    """Share c of the clock of short runs at which products and what runs among them draw no more than the limit [1].

    Product k takes t_k at the clock of short runs and q_k times that where it alone sets the clock (its loaded rate):
    there it draws all of the limit, and at others by the cube of the clock,

        P_k(c) = max(P', idle + (1 - idle) (c q_k)^3)

    of the limit; other work o draws P' whatever the clock, as memory and links do. The mean of a pass is the limit's:

        sum_k (t_k / c) (P_k(c) - 1) = o (1 - P')

    and c is 1 where it is below. The limit acts within milliseconds, layers take less: a pass has one clock.

    Parameters
    ----------
    times_s : Array [s]
        (K, ...) t of each product.
    heat : Array [1]
        (K, ...) q of each product; cool ones are below 1.
    other_s : Array [s]
        (...) time of everything else of the pass that waits for memory or links.
    other_power : float [1]
        P', share of the limit.

    Domain: other_power below 1; attention is left out: it draws about what products do. Evidence: derived.
    """
    idle = constant("power.idle")
    loaded = (1.0 - idle) * heat * heat * heat

    def over(share: Array, t: Array, loaded: Array, other: Array) -> Array:
        power = np.maximum(other_power, idle + loaded * (share * share * share))
        return np.asarray(((power - 1.0) * t).sum(axis=0) - other * (1.0 - other_power) * share)

    found = np.ones(other_s.shape)
    hot = over(found, times_s, loaded, other_s) > 0.0
    if not hot.any():
        return found
    t, load, other = times_s[:, hot], loaded[:, hot], other_s[hot]
    low, high = 1.0 / heat[:, hot].max(axis=0), np.ones(other.shape)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = over(middle, t, load, other) > 0.0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    found[hot] = low
    return found
