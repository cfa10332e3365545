"""Filling the slots of one layer, and exchanging slots while that lowers the cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.programs import Floats, Whole

SMALLEST_GAIN = 1e-12  # of the mean load: less is rounding
EMPTY = -1


@dataclass
class Effort:
    """Pairs of slots that a search may still compare [1]: counted, so that its answer is the same on every machine."""

    pairs: float

    @property
    def spent(self) -> bool:
        """Whether none is left."""
        return self.pairs <= 0


@dataclass(frozen=True, kw_only=True)
class LayerSlots:
    """One layer to fill: load of one replica of each expert (E), ranks and the slots of each."""

    loads: Floats
    ranks: int
    slots_per_rank: int

    def slot_loads(self, slots: Whole) -> Floats:
        """Load in each slot (R, S) [1]; 0 where it is empty."""
        return np.append(self.loads, 0.0)[slots]

    def held(self, slots: Whole) -> Whole:
        """How often each expert is on each rank (E + 1, R) [1]; the last row is 0, as empty slots may meet."""
        counts = np.zeros((self.loads.size + 1, self.ranks), dtype=np.int64)
        np.add.at(counts, (slots, np.arange(self.ranks)[:, None]), 1)
        counts[EMPTY] = 0
        return counts


def fill(layer: LayerSlots, members: Whole, *, cost: Floats | None = None) -> Whole:
    """Slots (R, S): replicas one by one, each to the least loaded rank that has room and does not hold the expert.

    Largest first. With a `cost` (E, R), those first that lose most elsewhere, each to its cheapest rank.
    """
    slots = np.full((layer.ranks, layer.slots_per_rank), EMPTY, dtype=np.int64)
    used, load = np.zeros(layer.ranks, dtype=np.int64), np.zeros(layer.ranks)
    weight = layer.loads if cost is None else cost.max(axis=1) - cost.min(axis=1)
    # An expert with replicas goes first among equals of fewer, so that a rank without it is still open.
    copies = np.bincount(members, minlength=layer.loads.size)
    order = np.lexsort((members, -weight[members], copies[members] == 1))
    for expert in members[order] if cost is not None else members[np.argsort(-weight[members], kind="stable")]:
        closed = (used == layer.slots_per_rank) | (slots == expert).any(axis=1)
        if closed.all():
            _make_room(slots, used, load, layer, int(expert))
            continue
        keys = load if cost is None else cost[expert] + 1e-9 * load
        rank = int(np.where(closed, np.inf, keys).argmin())
        slots[rank, used[rank]] = expert
        used[rank] += 1
        load[rank] += layer.loads[expert]
    return slots


def _make_room(slots: Whole, used: Whole, load: Floats, layer: LayerSlots, expert: int) -> None:
    """Places a replica whose open ranks all hold it: another expert moves to one of those and leaves its slot."""
    for rank in np.flatnonzero(used < layer.slots_per_rank):
        for other in np.argsort(load):
            if (slots[other] == expert).any():
                continue
            for place in range(layer.slots_per_rank):
                moved = int(slots[other, place])
                if not (slots[rank] == moved).any():
                    slots[rank, used[rank]], slots[other, place] = moved, expert
                    used[rank] += 1
                    load[rank] += layer.loads[moved]
                    load[other] += layer.loads[expert] - layer.loads[moved]
                    return


def even_out(layer: LayerSlots, start: Whole) -> Whole:
    """Slots (R, S) after the fullest rank has exchanged slots with others while that makes it less full."""
    slots = start.copy()
    loads, held = layer.slot_loads(slots), layer.held(slots)
    least = SMALLEST_GAIN * max(float(loads.sum()), 1e-300) / layer.ranks
    for _ in range(10 * slots.size):
        totals = loads.sum(axis=1)
        worst = int(totals.argmax())
        change = loads[worst][:, None, None] - loads  # (S, R, S): what leaves the fullest rank
        after = np.maximum(totals[worst] - change, totals[None, :, None] + change)
        mine = slots[worst]
        after[(held[mine] > 0)[:, :, None] | (held[slots, worst] > 0)[None]] = np.inf
        after[:, worst] = np.inf
        best = np.unravel_index(int(after.argmin()), after.shape)
        if after[best] >= totals[worst] - least:
            break
        _swap(slots, loads, held, (worst, int(best[0])), (int(best[1]), int(best[2])))
    return slots


def exchange(layer: LayerSlots, start: Whole, *, cost: Floats, load_cost: float, effort: Effort) -> Whole:
    """Slots (R, S) after exchanges, each the one that lowers load_cost x fullest load + traffic most.

    `cost` (E, R) is that of one replica of each expert on each rank, the other layers given.
    """
    slots = start.copy()
    loads, held = layer.slot_loads(slots), layer.held(slots)
    padded = np.vstack([cost, np.zeros(layer.ranks)])
    rank_of = np.repeat(np.arange(layer.ranks), layer.slots_per_rank)
    least = SMALLEST_GAIN * (load_cost * float(loads.sum()) / layer.ranks + float(np.abs(cost).max()) + 1e-300)
    for _ in range(10 * slots.size):
        if effort.spent:
            break
        effort.pairs -= slots.size**2
        members = slots.ravel()
        there = padded[members][:, rank_of]  # (N, N): a slot's expert on the rank of another slot
        moved = there - np.diag(there)[:, None]
        clash = held[members][:, rank_of] > 0
        gain = moved + moved.T + load_cost * _fullest_change(loads.ravel(), loads.sum(axis=1), rank_of)
        gain[clash | clash.T | (rank_of[:, None] == rank_of)] = np.inf
        best = int(gain.argmin())
        one, other = divmod(best, members.size)
        if gain[one, other] >= -least:
            break
        width = layer.slots_per_rank
        _swap(slots, loads, held, divmod(one, width), divmod(other, width))
    return slots


def _fullest_change(loads: Floats, totals: Floats, rank_of: Whole) -> Floats:
    """How the load of the fullest rank changes when two slots are exchanged (N, N) [1]."""
    top = np.argsort(-totals)[:3]
    others = np.full((totals.size, totals.size), 0.0)
    for rank in top[::-1]:  # the fullest rank that is neither of the two
        free = np.ones(totals.size, dtype=bool)
        free[rank] = False
        others[np.ix_(free, free)] = totals[rank]
    change = loads[:, None] - loads
    after = np.maximum(totals[rank_of][:, None] - change, totals[rank_of] + change)
    changed: Floats = np.maximum(after, others[np.ix_(rank_of, rank_of)]) - totals.max()
    return changed


def _swap(slots: Whole, loads: Floats, held: Whole, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Exchanges two slots and keeps loads and holdings in step."""
    for place, rank_from, rank_to in ((one, one[0], other[0]), (other, other[0], one[0])):
        expert = int(slots[place])
        if expert != EMPTY:
            held[expert, rank_from] -= 1
            held[expert, rank_to] += 1
    slots[one], slots[other] = int(slots[other]), int(slots[one])
    loads[one], loads[other] = float(loads[other]), float(loads[one])
