"""The cheapest strategy for each layer of a pipeline stage under a memory limit, by dynamic programming.

Shape letters: L layers, S strategies. A choice s_1 ... s_L costs the sum over layers of seconds[i, s_i], and of
relayout[s_{i-1}, s_i] between neighbours; its bytes add up to the limit at most. The best choice is found exactly: a
label is one way to choose the first layers, by the layout that the last one leaves; labels that another of their layout
beats in seconds and bytes are dropped, as are those whose Lagrangian bound of what must follow is not below the best
choice known. Memory is no grid: bytes are added as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_EXACT = 1e-12  # tolerance: relative, of sums of the same numbers in another order


@dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """What each strategy of each layer of a stage costs.

    `seconds`, `bytes` (L, S) [s, byte]; infinite seconds where a strategy is not allowed. `relayout` (S, S) [s] is the
    time to hand activations from a layer of one strategy to a layer of another, `enter` and `leave` (S,) [s] that at
    both ends of the stage.
    """

    seconds: Floats
    bytes: Floats
    relayout: Floats
    enter: Floats
    leave: Floats

    def of(self, used: Integers) -> LayerChoices:
        """The same with some of the strategies only."""
        return LayerChoices(
            seconds=self.seconds[:, used],
            bytes=self.bytes[:, used],
            relayout=self.relayout[np.ix_(used, used)],
            enter=self.enter[used],
            leave=self.leave[used],
        )

    def cost_s(self, chosen: Integers) -> float:
        """Seconds of one choice of strategies (L,) [s]."""
        own = self.seconds[np.arange(chosen.size), chosen].sum()
        between = self.relayout[chosen[:-1], chosen[1:]].sum() + self.enter[chosen[0]] + self.leave[chosen[-1]]
        return float(own + between)

    def held_bytes(self, chosen: Integers) -> float:
        """Bytes of one choice of strategies (L,) [byte]."""
        return float(self.bytes[np.arange(chosen.size), chosen].sum())


@dataclass(frozen=True, kw_only=True)
class ChosenLayers:
    """The cheapest choice of strategies (L,), its seconds [s], and the labels that were kept to find it [1]."""

    strategies: Integers
    seconds: float
    labels: int


def least_seconds(choices: LayerChoices, limit_bytes: float) -> float:
    """Lower bound of every choice within the limit, in closed form [s]: Lagrangian, no relayout counted."""
    prices, suffix = _suffix_bounds(choices)
    return float(np.max(suffix[:, 0] - prices * limit_bytes))


def cheapest_layers(choices: LayerChoices, limit_bytes: float, *, below_s: float = np.inf) -> ChosenLayers | None:
    """The cheapest choice within the limit, exactly; None where none fits, or none takes less than `below_s`."""
    layouts = _layouts(choices)
    used = _useful(choices, layouts)
    if used.size < choices.enter.size:
        some = cheapest_layers(choices.of(used), limit_bytes, below_s=below_s)
        return None if some is None else replace(some, strategies=used[some.strategies])
    prices, suffix = _suffix_bounds(choices)
    if np.max(suffix[:, 0] - prices * limit_bytes) >= below_s:
        return None
    if limit_bytes < choices.bytes.min(axis=1, initial=np.inf, where=np.isfinite(choices.seconds)).sum():
        return None
    best = _good_choice(choices, layouts, prices, limit_bytes)
    best_s = np.inf if best is None else choices.cost_s(best)
    if best_s >= below_s:
        best, best_s = None, below_s
    table = _Labels(choices, layouts, (prices, suffix), limit_bytes, best_s)
    found = table.run()
    chosen = best if found is None else found
    if chosen is None:
        return None
    return ChosenLayers(strategies=chosen, seconds=choices.cost_s(chosen), labels=table.kept)


def _suffix_bounds(choices: LayerChoices) -> tuple[Floats, Floats]:
    """Prices of a byte (K,) [s/byte], and the least priced seconds of layers i and after (K, L + 1) [s].

    A choice of layers i and after that holds R bytes takes at least suffix[k, i] - prices[k] R, for every k.
    """
    prices: set[float] = {0.0}
    for seconds, size in {(tuple(s), tuple(b)) for s, b in zip(choices.seconds, choices.bytes, strict=True)}:
        prices.update(_hull_prices(np.asarray(seconds), np.asarray(size)))
    each = np.array(sorted(prices))
    layers = (choices.seconds[None] + each[:, None, None] * choices.bytes[None]).min(axis=2)
    leave = float(choices.leave.min())
    suffix = np.concatenate((np.cumsum(layers[:, ::-1], axis=1)[:, ::-1], np.zeros((each.size, 1))), axis=1) + leave
    return each, suffix


def _hull_prices(seconds: Floats, size: Floats) -> list[float]:
    """Slopes of the lower hull of a layer's strategies [s/byte]: what a byte is worth between neighbours on it."""
    keep = np.flatnonzero(np.isfinite(seconds))
    order = keep[np.lexsort((seconds[keep], size[keep]))]
    hull: list[int] = []
    for one in order:
        if hull and seconds[one] >= seconds[hull[-1]]:
            continue
        while len(hull) > 1 and _slope(seconds, size, hull[-2], hull[-1]) <= _slope(seconds, size, hull[-1], one):
            hull.pop()
        hull.append(int(one))
    return [_slope(seconds, size, a, b) for a, b in pairwise(hull)]


def _slope(seconds: Floats, size: Floats, less: int, more: int) -> float:
    return float((seconds[less] - seconds[more]) / max(size[more] - size[less], np.finfo(float).tiny))


def _good_choice(choices: LayerChoices, layouts: list[Integers], prices: Floats, limit_bytes: float) -> Integers | None:
    """A choice that fits, near the best: each layer at the lowest price that fits, then layer by layer at the next."""
    best: Integers | None = None
    for group in [np.arange(choices.seconds.shape[1]), *layouts]:
        seconds, size = choices.seconds[:, group], choices.bytes[:, group]
        if not np.isfinite(seconds).any(axis=1).all():
            continue
        before = np.zeros(0, dtype=np.int64)
        rows = np.arange(len(seconds))
        for price in (*prices, 1e6 * prices[-1] + 1.0):
            chosen = np.argmin(np.where(np.isfinite(seconds), seconds + price * size, np.inf), axis=1)
            held = size[rows, chosen].sum()
            if held <= limit_bytes:
                for layer in rows[: before.size].tolist():
                    more = size[layer, before[layer]] - size[layer, chosen[layer]]
                    if held + more <= limit_bytes:
                        chosen[layer], held = before[layer], held + more
                whole = group[chosen]
                if best is None or choices.cost_s(whole) < choices.cost_s(best):
                    best = whole
                break
            before = chosen
    return best


def _layouts(choices: LayerChoices) -> list[Integers]:
    """Strategies by layout: those that hand activations to all others alike."""
    table = np.concatenate(
        (choices.relayout, choices.relayout.T, choices.enter[:, None], choices.leave[:, None]), axis=1
    )
    _, layout = np.unique(table, axis=0, return_inverse=True)
    layout = layout.ravel()
    return [np.flatnonzero(layout == one) for one in range(layout.max() + 1)]


def _useful(choices: LayerChoices, layouts: list[Integers]) -> Integers:
    """Strategies that no other of their layout beats on every layer, in seconds and bytes; the first of equal ones."""
    kept: list[int] = []
    for group in layouts:
        seconds, size = choices.seconds[:, group], choices.bytes[:, group]
        for one in range(group.size):
            if not np.isfinite(seconds[:, one]).any():
                continue
            alike = ((seconds == seconds[:, [one]]) & (size == size[:, [one]])).all(axis=0)
            no_worse = ((seconds <= seconds[:, [one]]) & (size <= size[:, [one]])).all(axis=0)
            if not (no_worse & (~alike | (np.arange(group.size) < one))).any():
                kept.append(int(group[one]))
    return np.array(sorted(kept), dtype=np.int64)


class _Labels:
    """Ways to choose the first layers, by the layout of the last one: seconds, bytes and where each came from."""

    def __init__(
        self,
        choices: LayerChoices,
        layouts: list[Integers],
        bounds: tuple[Floats, Floats],
        limit_bytes: float,
        best_s: float,
    ) -> None:
        self.choices, self.layouts, (self.prices, self.suffix) = choices, layouts, bounds
        self.limit_bytes, self.best_s = limit_bytes, best_s
        least = np.where(np.isfinite(choices.seconds), choices.bytes, np.inf).min(axis=1)
        self.after_bytes = np.concatenate((np.cumsum(least[::-1])[::-1][1:], [0.0]))
        self.trail: list[tuple[Integers, Integers]] = []  # of each layer: the label before, the strategy
        self.kept = 0

    def run(self) -> Integers | None:
        """The strategies of the cheapest choice under `best_s`; None where there is none."""
        seconds, size, layout = self._first()
        for layer in range(1, len(self.choices.seconds)):
            seconds, size, layout = self._next(layer, seconds, size, layout)
            if not seconds.size:
                return None
        leave = np.array([self.choices.leave[group[0]] for group in self.layouts])
        whole = seconds + leave[layout]
        if not whole.size or whole.min() >= self.best_s * (1 - _EXACT):
            return None
        return self._traced(int(np.argmin(whole)))

    def _first(self) -> tuple[Floats, Floats, Integers]:
        choices = self.choices
        found = [
            (choices.enter[group] + choices.seconds[0, group], choices.bytes[0, group], np.full(group.size, -1), group)
            for group in self.layouts
        ]
        return self._keep(0, found)

    def _next(self, layer: int, seconds: Floats, size: Floats, layout: Integers) -> tuple[Floats, Floats, Integers]:
        choices, found = self.choices, []
        heads = np.array([group[0] for group in self.layouts])
        for group in self.layouts:
            arrived = seconds + choices.relayout[heads[layout], group[0]]
            front = _front(arrived, size)
            at = (arrived[front, None] + choices.seconds[layer, group]).ravel()
            held = (size[front, None] + choices.bytes[layer, group]).ravel()
            found.append((at, held, np.repeat(front, group.size), np.tile(group, front.size)))
        return self._keep(layer, found)

    def _keep(
        self, layer: int, found: list[tuple[Floats, Floats, Integers, Integers]]
    ) -> tuple[Floats, Floats, Integers]:
        """Of each layout's labels those that can still become the best choice."""
        kept: list[tuple[Floats, Floats, Integers, Integers, Integers]] = []
        for number, (seconds, size, before, strategy) in enumerate(found):
            room = self.limit_bytes - size
            bound = seconds + np.max(
                self.suffix[:, layer + 1, None] - self.prices[:, None] * np.maximum(room, 0.0), axis=0
            )
            live = (room >= self.after_bytes[layer] - _EXACT * self.limit_bytes) & (bound < self.best_s * (1 - _EXACT))
            live = np.flatnonzero(live)
            live = live[_front(seconds[live], size[live])]
            kept.append((seconds[live], size[live], before[live], strategy[live], np.full(live.size, number)))
        seconds, size, before, strategy, layout = (np.concatenate(column) for column in zip(*kept, strict=True))
        self.trail.append((before, strategy))
        self.kept += seconds.size
        return seconds, size, layout

    def _traced(self, label: int) -> Integers:
        chosen = np.empty(len(self.trail), dtype=np.int64)
        for layer in range(len(self.trail) - 1, -1, -1):
            before, strategy = self.trail[layer]
            chosen[layer], label = strategy[label], int(before[label])
        return chosen


def _front(seconds: Floats, size: Floats) -> Integers:
    """Labels that no other beats in both seconds and bytes; the first of equal ones."""
    order = np.lexsort((seconds, size))
    least = np.minimum.accumulate(seconds[order])
    keep = np.concatenate(([True], least[1:] < least[:-1]))[: order.size]
    return np.asarray(order[keep])
