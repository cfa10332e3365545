"""Sizes of nano-batches and their kernels' shares of the multiprocessors, searched for an operating point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from ridgeline.facts.mechanisms import interference
from ridgeline.seams.serving import Instance
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param
from ridgeline.techniques.overlaps.nano_batches import NanoFlow

_KEPT = 8  # splits of the first stage whose shares the second looks for
_SIZES = 64  # of a first part that are compared
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

    known = [
        ((rest, memory, network), (rest, memory_speed, network_speed))
        for memory, memory_speed in curves[0]
        for network, network_speed in curves[1]
        for rest in {0.0, max(1.0 - memory - network, 0.0)}
        if memory + network <= 1.0 and 0 < sum(share > 0.0 for share in (rest, memory, network)) <= parts
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
