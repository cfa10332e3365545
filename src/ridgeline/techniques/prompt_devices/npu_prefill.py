"""Prompts on a phone's NPU beside its CPU: chunks of a static shape, outliers apart, subgraphs out of order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.facts.records import OWN_HOST
from ridgeline.graph.ops import AttentionOp, GemmOp, Op
from ridgeline.seams.serving import PromptDevice
from ridgeline.seams.serving_technique import Instance
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.graph.model import Graph
    from ridgeline.seams.setting import Setting

NPU, CPU = 0, 1
_FLOAT_BYTES = 4.0
_WHOLE = 8  # chunks of which each number is scheduled; of more, so many from their middle, and fewer numbers


@dataclass(frozen=True, kw_only=True)
class Subgraph:
    """A task of one chunk on one processor: its time [s], and the tasks before it, by place."""

    processor: int
    seconds: float
    after: tuple[int, ...]


Part = tuple[float, float, float]
"""A product of a chunk, or what lies between two: time on the NPU, on the processor, for each chunk before it [s]."""
Layers = tuple[tuple[Part, ...], ...]


def schedule(tasks: Sequence[Subgraph], way: str) -> float:
    """When the last task ends [s], each processor taking ready tasks by one rule.

    'in_order': its own in their order, and nothing else; 'first_ready': that which was ready first; 'out_of_order':
    that whose end lets most time of the other processor begin (mllm-NPU), of equals that which was ready first.

    >>> chain = [Subgraph(processor=CPU, seconds=1.0, after=()), Subgraph(processor=NPU, seconds=2.0, after=(0,))]
    >>> schedule(chain, "out_of_order")
    3.0
    """
    followers: list[list[int]] = [[] for _ in tasks]
    missing = [len(set(one.after)) for one in tasks]
    for place, one in enumerate(tasks):
        for before in set(one.after):
            followers[before].append(place)
    ready_s: list[dict[int, float]] = [{}, {}]  # by processor: those that may begin, and since when
    order = [[place for place, one in enumerate(tasks) if one.processor == each][::-1] for each in (NPU, CPU)]

    def unlocks(place: int) -> float:
        return sum(
            tasks[one].seconds
            for one in followers[place]
            if missing[one] == 1 and tasks[one].processor != tasks[place].processor
        )

    def key(place: int) -> tuple[float, ...]:
        since = ready_s[tasks[place].processor][place]
        return (-unlocks(place), since, place) if way == "out_of_order" else (since, place)

    for place, count in enumerate(missing):
        if not count:
            ready_s[tasks[place].processor][place] = 0.0
    now_s, ending, busy = 0.0, list[tuple[float, int]](), [False, False]
    while any(ready_s) or ending:
        for processor, able in enumerate(ready_s):
            if busy[processor] or not able or (way == "in_order" and order[processor][-1] not in able):
                continue
            chosen = order[processor].pop() if way == "in_order" else min(able, key=key)
            del able[chosen]
            busy[processor] = True
            heappush(ending, (now_s + tasks[chosen].seconds, chosen))
        now_s = ending[0][0]
        while ending and ending[0][0] == now_s:
            _, ended = heappop(ending)
            busy[tasks[ended].processor] = False
            for follower in followers[ended]:
                missing[follower] -= 1
                if not missing[follower]:
                    ready_s[tasks[follower].processor][follower] = now_s
    return now_s


def subgraphs(layers: Layers, count: int, before: float) -> list[Subgraph]:
    """Tasks of `count` chunks of a prompt after those `before`, chunk after chunk, each after those it reads."""
    found, keys = list[Subgraph](), [list[int]() for _ in layers]
    for number in range(count):
        last: tuple[int, ...] = ()
        for layer, parts in enumerate(layers):
            for npu_s, cpu_s, past_s in parts:
                place, after = len(found), last
                if past_s:  # attention reads what products of chunks before it made
                    after = (*keys[layer], *last)
                    keys[layer] += last
                if npu_s:
                    found.append(Subgraph(processor=NPU, seconds=npu_s, after=last))
                if cpu_s or not npu_s:
                    found.append(Subgraph(processor=CPU, seconds=cpu_s + past_s * (before + number), after=after))
                last = tuple(range(place, len(found)))
    return found


@cache
def prompt_s(layers: Layers, way: str, count: int, before: int) -> float:
    """`count` chunks of a prompt after those `before` [s]; of many, those in their middle stand for all."""
    some = min(count, _WHOLE)
    return schedule(subgraphs(layers, some, before + (count - some) / 2), way) * count / some


def bound_s(tasks: Sequence[Subgraph]) -> float:
    """What no order is shorter than [s]: each processor's work, and the longest chain."""
    ends = list[float]()
    for one in tasks:
        ends.append(one.seconds + max((ends[before] for before in one.after), default=0.0))
    return max(*(sum(one.seconds for one in tasks if one.processor == which) for which in (NPU, CPU)), max(ends))


@dataclass(frozen=True, kw_only=True)
class NpuPrefill(PromptDevice):
    """Products of prompts run on a phone's NPU in 8 bits, the rest on its CPU, chunk after chunk and out of order.

    Prompts of a phone (`--on 1xSnapdragon-8-Gen-3-16gb`) or another computer without a GPU, each whole in an iteration
    of its own; tokens are decoded by the CPU, in the format that `weights` says. The NPU's graphs have one shape, so a
    prompt is cut into chunks, the last one padded. Each product is a subgraph of the NPU; what lies between two
    products (norms, attention, activations) is one of the CPU. Attention of a chunk waits for keys and values of all
    before it. An NPU multiplies with one scale a tensor, so the `outliers` are multiplied in float on the CPU at the
    same time, in the `shadowed` share of layers that need it. A processor takes next what lets most time of the other
    one begin; `order` names simpler rules.

    Rates of the CPU are those that `predict` has of it. In 8 bits the NPU of a Snapdragon 8 Gen 3 takes 0.9 ms for a
    product of which the CPU takes 4.2 ms (its authors), and of prompts `predict` makes 0.4 TOP/s on this CPU: 1.9
    TOP/s. Checked: every order of small graphs, and the bound of any order. Left out: graph building (it is done
    before), the phone's GPU in place of its CPU, memory that both share, throttling, power.
    """

    key: ClassVar[str] = "npu-prefill"
    source: ClassVar[tuple[str, ...]] = ("mllm-npu", "mllm-npu-slides")
    chunk: int = param(256, "tokens", "of one static graph", low=1, high=100_000)
    npu_op_per_s: float = param(1.9e12, "op/s", "products of the NPU in 8 bits", low=1e9, high=1e15)
    outliers: float = param(0.003, "1", "channels of a product that are outliers", low=0.0, high=1.0)
    shadowed: float = param(0.15, "1", "layers whose outliers are multiplied (assumed)", low=0.0, high=1.0)
    order: str = param(
        "out_of_order", "", "which subgraph a processor takes", choices=("out_of_order", "first_ready", "in_order")
    )  # fmt: skip

    def applies(self, setting: Setting) -> str:
        """Devices that are no processors."""
        part = setting.cluster.accelerator
        return _beside(part.name) if part.architecture != OWN_HOST else super().applies(setting)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: which machines have an NPU is not in the catalog."""
        return ()

    def unfit(self, instance: Instance) -> str:
        """Devices that are no processors, and layers that are no products of one weight."""
        part = instance.machine.cluster.accelerator
        if part.architecture != OWN_HOST:
            return _beside(part.name)
        ops = (op for block in instance.model.graph.blocks.values() for op in block.ops)
        if any(not isinstance(op, GemmOp) and op.params > 1_000_000 for op in ops):
            return f"needs a dense decoder; {instance.model.name} has layers that are no products of one weight"
        return ""

    def retimed(self, steps: Any, tables: Any) -> Any:
        """Tokens take the processor's time in steps alone; a prompt takes that of its schedule."""
        import numpy as np

        from ridgeline.cost.seconds import banded, nothing

        most, counts = tables.pasts[-1], [1]
        while counts[-1] * self.chunk < most:
            counts.append(counts[-1] + max(1, counts[-1] // _WHOLE))
        edges, pasts = np.array(counts) * float(self.chunk), np.array([0.0, most / 2.0, most])
        grid = np.unique([1.0, *edges, *(edges + 1.0)])
        chunks, before = (np.ceil(one / self.chunk).astype(int) for one in (grid, pasts))
        layers = self.layers(steps.model.graph, steps.machine.device)
        known = {
            (count, past): prompt_s(layers, self.order, count, past)
            for count in set(chunks.tolist()) for past in set(before.tolist())
        }  # fmt: skip
        seconds = np.array([[known[count, past] for past in before.tolist()] for count in chunks.tolist()])
        found, none = banded("interval.derived", seconds, seconds, 0.0 * seconds), nothing(tables.tokens.shape)
        return replace(
            tables, lane=none, group=tables.lane + tables.group, prompt_group=none, chunks=grid, pasts=pasts,
            first=found, each=found, group_name="weights and links", prompt_name="NPU and processor",
        )  # fmt: skip

    def layers(self, graph: Graph, device: Any) -> Layers:
        """The parts of each layer on the NPU and a processor (`cost.machine.Device`)."""
        found = list[tuple[Part, ...]]()
        for layer, name in enumerate(graph.layers):
            shadowed = (layer + 1) * self.shadowed // 1 > layer * self.shadowed // 1
            found.append(tuple(self._parts(graph.blocks[name].ops, device, self.outliers if shadowed else 0.0)))
        return tuple(found)

    def _parts(self, ops: Sequence[Op], device: Any, outliers: float) -> Iterator[Part]:
        per_s = device.matrix_rate("fp32")
        for product, group in groupby(ops, lambda op: isinstance(op, GemmOp)):
            between_s = past_s = 0.0
            for op in group:
                if isinstance(op, GemmOp):
                    flop = 2.0 * self.chunk * op.k * op.n
                    yield flop / self.npu_op_per_s, outliers * flop / per_s, 0.0
                elif isinstance(op, AttentionOp):
                    pair_s = 2.0 * op.heads * (op.qk_dim + op.v_dim) / per_s
                    past_s += pair_s * self.chunk**2
                    between_s += pair_s * self.chunk * (self.chunk + 1) / 2
                else:
                    moved = getattr(op, "read", 0.0) + getattr(op, "write", 0.0)
                    between_s += moved * self.chunk * _FLOAT_BYTES / device.memory_bytes_per_s
            if not product:
                yield 0.0, between_s, past_s


def _beside(name: str) -> str:
    return f"is of an NPU beside a processor, not beside {name}"
