"""Sizes of nano-batches and their kernels' shares of the multiprocessors, searched for an operating point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, inf
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.facts.mechanisms import interference
from ridgeline.seams.serving import Instance
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param
from ridgeline.techniques.overlaps.nano_batches import NanoFlow

if TYPE_CHECKING:
    from ridgeline.lower.pieces import LayerKind, Piece

_KEPT = 8  # splits of the first stage whose shares the second looks for
_GAP = 1e-3  # of the least period, by which that of an order may be above it
_ORDERED = 2  # splits whose operations are put in order
_SIZES = 64  # of a first part that are compared
Chain = tuple[tuple[int, float], ...]  # operations by what they wait for: 0 compute, 1 memory, 2 links; seconds of each
Label = tuple[float, float, float]  # time, and what is left of the operation of either part [s]
Curve = tuple[tuple[float, float], ...]  # share that products give up, and speed of the other kernels for it


@dataclass(frozen=True, kw_only=True)
class SharedSpan:
    """`seconds` [s] in which products, memory's kernels and links hold such shares of the device [1]."""

    seconds: float
    compute: float
    memory: float
    network: float


@dataclass(frozen=True, kw_only=True)
class NanoSearch(NanoFlow):
    """NanoFlow's search: how many nano-batches of which sizes, and who holds which multiprocessors for how long.

    The operating point is an iteration of `tokens`, of which the share `prompts` is of prompts, the others decode at
    `context`. First, without interference, splits are ranked by the busiest resource and the longest part's chain:
    two parts of every size in steps of `step` tokens, and equal ones of up to `most` parts. Then, for the best of
    them, a linear program finds for how long which kernels run side by side and with which shares of the device: at
    most as many as there are parts, products at their share's speed, the others at the speed that the authors measured
    for what products give up (data/interference.tsv). The split of least time is taken for all iterations from
    `tokens` on, no faster than the program's schedule.

    Left out: the order of operations within a layer, which the paper's program finds as well; parts of one operation
    that are cut otherwise than another's.
    """

    key: ClassVar[str] = "nano-search"
    word: ClassVar[str] = ""
    in_words: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ("zhu2024nanoflow", "nanoflow-code")
    tokens: int = param(
        2048, "tokens", "tokens a rank of an iteration, from which on they are cut", low=2, high=1_000_000
    )
    prompts: float = param(0.5, "1", "share of them that is of prompts", high=1.0)
    context: int = param(768, "tokens", "cache of a sequence that decodes", low=1, high=10_000_000)
    step: int = param(128, "tokens", "sizes of nano-batches are multiples of it", low=1, high=100_000)
    most: int = param(4, "1", "most nano-batches of an iteration", low=2, high=16)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """As it is."""
        return (self.text,)

    def fractions(self, steps: Any) -> tuple[float, ...]:
        """The sizes found, as shares of an iteration [1]."""
        return tuple(size / self.tokens for size in _found(self, steps)[0])

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """Shares as of two nano-batches, and of each chain no less than what the schedule found takes."""
        sizes, seconds, work = _found(self, instance.steps)
        chain = max(max(sizes) / self.tokens, seconds / max(sum(work), 1e-30))
        return {**super().sharing(instance), "chain": chain}

    def told(self) -> str:
        """At which operating point."""
        return f"nano-batches as searched for {self.tokens:,} tokens"

    def splits(self) -> Iterator[tuple[int, ...]]:
        """Sizes of the nano-batches that are compared [token]: halves, and of others so many at most."""
        stride = self.step * max(1, ceil(self.tokens / (2 * self.step * _SIZES)))
        for first in range(stride, (self.tokens + 1) // 2, stride):
            yield first, self.tokens - first
        yield self.tokens // 2, self.tokens - self.tokens // 2
        for count in range(3, self.most + 1):
            if self.tokens % (count * self.step) == 0:
                yield (self.tokens // count,) * count

    def work(self, steps: Any, sizes: tuple[int, ...]) -> tuple[float, float, float]:
        """What the kernels of all nano-batches that wait for compute, memory and links take, each alone [s]."""
        import numpy as np

        from ridgeline.serving.host_experts import cores

        rows = np.array(sizes, dtype=float)
        compute, memory, network = (float(np.sum(part.mid[[0, 2]])) for part in list(steps.bound(rows))[:3])
        for count, core in cores(steps.served):
            decoding = np.maximum((1.0 - self.prompts) * rows, 1.0)
            at = np.full_like(rows, float(self.context))
            if self.prompts < 1.0:
                memory += count * float(np.sum(steps.prices.decode(core, decoding, at).mid))
            if self.prompts > 0.0:
                prompt = np.maximum(self.prompts * rows, 1.0)
                compute += count * float(np.sum(steps.prices.prefill(core, 1.0, prompt, 0.0 * rows).mid))
        return compute, memory, network

    def in_order(self, steps: Any, sizes: Sequence[int], work_s: Sequence[float], curves: tuple[Curve, Curve]) -> float:
        """The time of all layers, in each of which the operations of two parts are in their best order [s].

        Operations are scaled so that those of a resource add up to `work_s`: ends of the model are spread over layers.
        """
        orders = ("prompts", "decode") if 0.0 < self.prompts < 1.0 else ("prompts",)
        layers = {
            (kind.name, first): [self.chain(steps, kind, size, first=first) for size in sizes]
            for kind in steps.served.kinds for first in orders
        }  # fmt: skip
        known = [0.0, 0.0, 0.0]
        for kind in steps.served.kinds:
            for resource, seconds in (one for chain in layers[kind.name, "prompts"] for one in chain):
                known[resource] += kind.count * seconds
        scale = [work / own if own else 1.0 for work, own in zip(work_s, known, strict=True)]
        total = 0.0
        for kind in steps.served.kinds:
            best = inf
            for first in orders:
                chains = [tuple((k, scale[k] * s) for k, s in chain) for chain in layers[kind.name, first]]
                best = ordered((chains[0], chains[1]), curves, best)
            total += kind.count * best
        return total

    def chain(self, steps: Any, kind: LayerKind, size: int, *, first: str) -> Chain:
        """The operations of a layer over so many tokens in their order; of its mixers those of `first` come first."""
        import numpy as np

        from ridgeline.graph.ops import OpRole
        from ridgeline.lower.pieces import Core, Experts, Product, Reduce

        rows = np.array([float(size)])
        decode, prompt = (np.maximum(share * rows, 1.0) for share in (1.0 - self.prompts, self.prompts))
        sums = [piece for piece in kind.pieces if isinstance(piece, Reduce)]
        found: list[tuple[int, float]] = []
        for piece in kind.pieces:
            if isinstance(piece, Core):
                mixed = {
                    "prompts": (0, steps.prices.prefill(piece, 1.0, prompt, 0.0 * rows), self.prompts),
                    "decode": (1, steps.prices.decode(piece, decode, 0.0 * rows + self.context), 1.0 - self.prompts),
                }
                for name in sorted(mixed, key=lambda one: one != first):
                    resource, seconds, share = mixed[name]
                    found += [(resource, float(seconds.mid.ravel()[0]))] if share else []
            elif not isinstance(piece, Reduce):
                found += _operations(steps, piece, rows)
            if isinstance(piece, Experts) or (
                isinstance(piece, Product) and piece.role in (OpRole.OUTPUT, OpRole.DOWN)
            ):
                found += [one for each in sums[:1] for one in _operations(steps, each, rows)]
                sums = sums[1:]
        return _joined([*found, *(one for each in sums for one in _operations(steps, each, rows))])


def _operations(steps: Any, piece: Piece, rows: Any) -> Chain:
    """A piece over rows of tokens, by what it waits for [s]."""
    from ridgeline.lower.pieces import ElementwisePiece, ExpertAllToAll, Experts, Product, Reduce

    prices = steps.prices
    if isinstance(piece, Reduce):
        return ((2, float(prices.reduce(piece, rows, steps.deployment.tp).mid[0])),)
    if isinstance(piece, ExpertAllToAll):
        return ((2, float(prices.expert_all_to_all(piece, rows).mid[0])),)
    if isinstance(piece, Experts):
        found = steps.expert_prices.experts(piece, rows)
    elif isinstance(piece, Product):
        found = prices.product(piece, rows)
    elif isinstance(piece, ElementwisePiece):
        found = prices.stream(piece, rows)
    else:
        return ()
    return ((int(found.memory[0] >= found.compute[0]), float(found.mid[0])),)


def _joined(chain: Sequence[tuple[int, float]]) -> Chain:
    """Operations that follow each other and wait for the same, as one; the last with the next layer's first."""
    found: list[tuple[int, float]] = []
    for resource, seconds in chain:
        if found and found[-1][0] == resource:
            found[-1] = (resource, found[-1][1] + seconds)
        elif seconds > 0.0:
            found.append((resource, seconds))
    if len(found) > 1 and found[0][0] == found[-1][0]:
        _, last = found.pop()
        found[0] = (found[0][0], found[0][1] + last)
    return tuple(found)


def pair_speeds(first: int, second: int, curves: tuple[Curve, Curve]) -> list[tuple[float, float]]:
    """Speeds of two operations by their resources at the shares that were measured [1]; either may wait."""
    found = {(1.0, 0.0), (0.0, 1.0)}
    if first != second:
        lines = [((0.0, 0.0), (1.0, 1.0)), *curves]
        for share in {0.0, 1.0, *(x for x, _ in lines[first]), *(1.0 - x for x, _ in lines[second])}:
            found.add((_speed(lines[first], share), _speed(lines[second], 1.0 - share)))
    return [
        one for one in found if not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in found)
    ]


def _speed(curve: Curve, share: float) -> float:
    """Speed with a share of the device, on a straight line between those that were measured [1]."""
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= share <= high:
            return slow + (fast - slow) * (share - low) / (high - low)
    raise AssertionError(share)


def ordered(chains: tuple[Chain, Chain], curves: tuple[Curve, Curve], best: float = inf) -> float:
    """The least period of layers of two nano-batches that share a device, each a chain of operations, or `best` [s].

    When the first begins a layer, the second begins the operation that is best for that. From there labels (time, what
    is left of either's operation) advance to whichever ends first, at each pair of speeds; one that is nowhere less
    than another of the same operations is dropped, as is one that cannot beat the best period.

    >>> ordered((((0, 2.0), (1, 1.0)), ((0, 2.0), (1, 1.0))), (((0.0, 0.0), (0.5, 1.0), (1.0, 1.0)),) * 2)
    5.0
    """
    best = min(best, sum(seconds for chain in chains for _, seconds in chain))
    for turn in range(len(chains[1])):
        best = min(best, _period((chains[0], chains[1][turn:] + chains[1][:turn]), curves, best))
    return best


def _period(chains: tuple[Chain, Chain], curves: tuple[Curve, Curve], best: float) -> float:
    """The least time of both chains from a common start, or `best` if that is less [s]."""
    used = [1.0, *(min(x / speed for x, speed in curve if speed > 0.0) for curve in curves)]
    rest = [  # what operations from each on take, one after the other, and of the device's shares
        [(sum(s for _, s in chain[at:]), sum(used[k] * s for k, s in chain[at:])) for at in range(len(chain) + 1)]
        for chain in chains
    ]
    wholes = [(*(seconds for _, seconds in chain), 0.0) for chain in chains]
    labels: dict[tuple[int, int], list[Label]] = {(0, 0): [(0.0, chains[0][0][1], chains[1][0][1])]}
    speeds = {(a, b): pair_speeds(a, b, curves) for a in range(3) for b in range(3)}
    ends = (len(chains[0]), len(chains[1]))
    for one, two in sorted(product(range(ends[0] + 1), range(ends[1] + 1)), key=sum):
        kinds = [chain[at][0] if at < len(chain) else -1 for chain, at in zip(chains, (one, two), strict=True)]
        after = [rest[side][min(at + 1, ends[side])] for side, at in enumerate((one, two))]
        rates = [used[k] if k >= 0 else 0.0 for k in kinds]
        known = speeds[kinds[0], kinds[1]] if min(kinds) >= 0 else [(float(kinds[0] >= 0), float(kinds[1] >= 0))]
        for time, left, other in _undominated(labels.pop((one, two), []), wholes[0][one]):
            if (one, two) == ends:
                best = min(best, time)
                continue
            share = rates[0] * left + rates[1] * other
            least = max(left + after[0][0], other + after[1][0], share + after[0][1] + after[1][1])
            if time + least >= best * (1.0 - _GAP):
                continue
            for fast, slow in known:
                first, second = left / fast if fast else inf, other / slow if slow else inf
                span = min(first, second)
                new_left, new_other = left - span * fast, other - span * slow
                moved = [one, two]
                if first <= span * (1 + 1e-12):
                    moved[0], new_left = one + 1, wholes[0][one + 1]
                if second <= span * (1 + 1e-12):
                    moved[1], new_other = two + 1, wholes[1][two + 1]
                labels.setdefault((moved[0], moved[1]), []).append((time + span, new_left, new_other))
    return best


def _undominated(labels: Sequence[Label], whole: float) -> list[Label]:
    """Labels (time, what is left of either) of which none is sooner with no more left.

    One operation of a label has just begun: the first, of which the `whole` is left, or else the second.
    """
    found, least = [], [inf, inf]
    for label in sorted(labels):
        side = int(label[1] != whole)
        left = label[1] if side else label[2]
        if left < least[side]:
            least[side] = left
            found.append(label)
    return found


@lru_cache(maxsize=64)
def _found(one: NanoSearch, steps: Any) -> tuple[tuple[int, ...], float, tuple[float, float, float]]:
    """The best sizes [token], the least time of their schedule and the work of their kernels [s]."""
    curves = interference("memory"), interference("network")
    works = {sizes: one.work(steps, sizes) for sizes in one.splits()}

    def apart(sizes: tuple[int, ...]) -> float:
        return max(*works[sizes], max(sizes) / one.tokens * sum(works[sizes]))

    best = sorted(works, key=apart)[:_KEPT]
    timed = {sizes: max(apart(sizes), schedule(works[sizes], curves, len(sizes))[0]) for sizes in best}
    sizes = min(timed, key=lambda each: timed[each])
    if len(sizes) == 2:
        pairs = sorted((each for each in best if len(each) == 2), key=lambda each: timed[each])[:_ORDERED]
        timed = {each: max(timed[each], one.in_order(steps, each, works[each], curves)) for each in pairs}
        sizes = min(timed, key=lambda each: timed[each])
    return sizes, timed[sizes], works[sizes]


def schedule(
    work_s: tuple[float, float, float], curves: tuple[Curve, Curve], parts: int
) -> tuple[float, tuple[SharedSpan, ...]]:
    """The least time of kernels that share a device, and who holds which share of it meanwhile [s].

    minimise sum t_i  with  sum t_i v_ik >= w_k,  v = (r_c, P_m(r_m), P_n(r_n)),  r_c + r_m + r_n <= 1

    over phases i in which at most `parts` of products, memory's kernels and links run.

    Parameters
    ----------
    work_s : tuple [s]
        What each of the three takes alone.
    curves : tuple [1]
        P_m and P_n at their corners: shares, and the speed of memory's kernels and of links with them.
    parts : int [1]
        Nano-batches, each of which has one kernel at a time.

    >>> curves = ((0.0, 0.0), (0.5, 1.0), (1.0, 1.0)), ((0.0, 0.0), (0.1, 1.0), (1.0, 1.0))
    >>> time, phases = schedule((10.0, 4.0, 2.0), curves, 2)
    >>> round(time, 6)  # of products 2 beside memory and 1.8 beside the link, 6.2 alone
    12.2
    """
    from ridgeline.programs import Draft

    first, second = ({x for x, _ in curve} | {1.0 - x for x, _ in other} for curve, other in (curves, curves[::-1]))
    known = [
        ((rest, memory, network), (rest, _speed(curves[0], memory), _speed(curves[1], network)))
        for memory, network in product(sorted(first), sorted(second))
        for rest in {0.0, max(1.0 - memory - network, 0.0)}
        if memory + network <= 1.0 + 1e-12 and 0 < sum(share > 0.0 for share in (rest, memory, network)) <= parts
    ]
    draft = Draft()
    seconds = draft.variable(len(known), cost=1.0)
    for place, work in enumerate(work_s):
        draft.row((seconds, [speeds[place] for _, speeds in known]), low=work)
    found = draft.solve()
    assert found is not None
    taken = [
        SharedSpan(seconds=float(value), compute=shares[0], memory=shares[1], network=shares[2])
        for (shares, _), value in zip(known, found.values, strict=True)
        if value > 1e-12
    ]
    return found.objective, tuple(sorted(taken, key=lambda one: -one.seconds))
