"""Attention of unlike sequences divided by the links they need, and all else evenly over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, Round, SequenceCosts, SequenceGroup
from ridgeline.techniques.length_balance.packed import least_degree


@dataclass(frozen=True, kw_only=True)
class Hierarchical(LengthBalance):
    """Zeppelin: long sequences over machines, middle ones within one, short ones on one rank; the rest laid out evenly.

    In each micro-batch a sequence stays on one rank if its attention takes no longer there than an even share of all
    attention; else it has a machine, or as many machines as that takes, up to the number for which the micro-batch is
    the quickest. The widest go first, then the costliest, to where attention is free the soonest; a rank's attentions
    run one after another. Products and norms know nothing of sequences: tokens move to where all ranks have as many,
    and back, in each layer, and then take the same time everywhere. Its routing over all network cards of a machine is
    the plan's exchange `routed-ring`. Left out: overlap of the queues of one rank.
    """

    key: ClassVar[str] = "zeppelin"
    source: ClassVar[tuple[str, ...]] = ("zeppelin-2025",)

    def divide(self, lengths: Floats, costs: SequenceCosts) -> LengthDivision:
        """As few micro-batches as memory allows, of equal tokens, each divided by the hierarchy."""
        least_degree(float(lengths.max()), costs)
        count = max(1, ceil(float(lengths.sum()) / (costs.ranks * costs.tokens)))
        held: list[list[int]] = [[] for _ in range(count)]
        tokens = np.zeros(count)
        for place in np.argsort(-lengths, kind="stable").tolist():
            least = int(tokens.argmin())
            held[least].append(place)
            tokens[least] += lengths[place]
        return LengthDivision(rounds=tuple(self._best(lengths, part, costs) for part in held if part))

    def _best(self, lengths: Floats, part: list[int], costs: SequenceCosts) -> Round:
        """The quickest of the divisions that give one sequence a machine, two, four, ... at most."""
        node = min(costs.node, costs.ranks)
        levels = [1, *range(node, costs.ranks + 1, node)] if node > 1 else list(range(1, costs.ranks + 1))
        most = sorted({*(2**power for power in range(1, len(levels).bit_length())), len(levels)})
        rounds = [self._round(lengths, part, costs, levels[:count]) for count in most if count <= len(levels)]
        return min(rounds, key=lambda one: float(self.step_seconds(lengths, (one,), costs)[0]))

    def _round(self, lengths: Floats, part: list[int], costs: SequenceCosts, levels: list[int]) -> Round:
        node = min(costs.node, costs.ranks)
        even_s = sum(self._attention_s(float(lengths[place]), 1, costs) for place in part) / costs.ranks
        items = []
        for place in part:
            taken = [self._attention_s(float(lengths[place]), ranks, costs) for ranks in levels]
            at = next((i for i, one in enumerate(taken) if one <= even_s), int(np.argmin(taken)))
            items.append((taken[at], levels[at], place))
        ready, groups = np.zeros(costs.ranks), []
        for taken_s, ranks, place in sorted(items, key=lambda one: (-one[1], -one[0])):
            begins = sliding_window_view(ready, ranks)[:: min(ranks, node)].max(axis=1)
            first = int(begins.argmin()) * min(ranks, node)
            ready[first : first + ranks] = float(begins.min()) + taken_s
            groups.append(SequenceGroup(first=first, ranks=ranks, sequences=(place,)))
        return tuple(groups)

    @staticmethod
    def _attention_s(length: float, ranks: int, costs: SequenceCosts) -> float:
        """Attention and its exchange of one sequence [s]."""
        return max(0.0, float(costs.seconds(length, ranks)) - float(costs.linear_seconds(length / ranks)))

    def step_seconds(self, lengths: Floats, rounds: Sequence[Round], costs: SequenceCosts) -> Floats:
        """Attention of the busiest rank, then what is even over ranks, and laying tokens out anew."""
        taken = []
        for groups in rounds:
            ready, tokens = np.zeros(costs.ranks), np.zeros(costs.ranks)
            for group in groups:
                ranks = slice(group.first, group.first + group.ranks)
                length = float(lengths[list(group.sequences)].sum())
                ready[ranks] = ready[ranks].max() + self._attention_s(length, group.ranks, costs)
                tokens[ranks] += length / group.ranks
            even = float(tokens.mean())
            moved = float(costs.relaid_seconds(max(0.0, float(tokens.max()) - even)))
            linear = max(float(costs.linear_seconds(even)), float(costs.floor(1)))
            taken.append(float(ready.max()) + linear + moved)
        return np.array(taken)
