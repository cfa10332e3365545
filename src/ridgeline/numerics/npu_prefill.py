"""Prompts on a phone's NPU beside its CPU: chunks of a static shape, outliers apart, subgraphs out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu, cpu_constant
from ridgeline.graph.load import load
from ridgeline.graph.ops import AttentionOp, GemmOp, Op
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays
from ridgeline.seams.technique import param

NPU, CPU = 0, 1
_FLOAT_BYTES = 4.0
_WAYS = ("in_order", "first_ready", "out_of_order")


@dataclass(frozen=True, kw_only=True)
class Subgraph:
    """A task of one chunk on one processor: its time [s], and the tasks before it, by place."""

    processor: int
    seconds: float
    after: tuple[int, ...]


Rule = Callable[[int], tuple[float, ...]]


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
    ready_s = dict.fromkeys((place for place, count in enumerate(missing) if not count), 0.0)
    waiting = [[place for place, one in enumerate(tasks) if one.processor == processor] for processor in (NPU, CPU)]

    def unlocks(place: int) -> float:
        return sum(
            tasks[one].seconds
            for one in followers[place]
            if missing[one] == 1 and tasks[one].processor != tasks[place].processor
        )

    rules: dict[str, Rule] = {
        "in_order": lambda place: (place,), "first_ready": lambda place: (ready_s[place], place),
        "out_of_order": lambda place: (-unlocks(place), ready_s[place], place),
    }  # fmt: skip
    now_s, ending, busy = 0.0, list[tuple[float, int]](), [False, False]
    while any(waiting) or ending:
        for processor, queue in enumerate(waiting):
            able = [place for place in (queue[:1] if way == "in_order" else queue) if place in ready_s]
            if able and not busy[processor]:
                chosen = min(able, key=rules[way])
                queue.remove(chosen)
                busy[processor] = True
                heappush(ending, (now_s + tasks[chosen].seconds, chosen))
        now_s = ending[0][0]
        while ending and ending[0][0] == now_s:
            _, ended = heappop(ending)
            busy[tasks[ended].processor] = False
            for follower in followers[ended]:
                missing[follower] -= 1
                if not missing[follower]:
                    ready_s[follower] = now_s
    return now_s


def bound_s(tasks: Sequence[Subgraph]) -> float:
    """What no order is shorter than [s]: each processor's work, and the longest chain."""
    ends = list[float]()
    for one in tasks:
        ends.append(one.seconds + max((ends[before] for before in one.after), default=0.0))
    return max(*(sum(one.seconds for one in tasks if one.processor == which) for which in (NPU, CPU)), max(ends))


@dataclass(frozen=True, kw_only=True)
class NpuPrefill(ArrayAlgorithm):
    """Products of a prompt run on a phone's NPU in 8 bits, the rest on its CPU, chunk after chunk and out of order.

    The NPU's graphs have one shape, so a prompt is cut into chunks, the last one padded. Each product is a subgraph of
    the NPU; what lies between two products (norms, attention, activations) is one of the CPU. Attention of a chunk
    waits for keys and values of all before it. An NPU multiplies with one scale a tensor, so the `outliers` are
    multiplied in float on the CPU at the same time, in the `shadowed` share of layers that need it. Measured: tokens a
    second and joules where the processors take subgraphs in order, as they get ready, or by what lets the other one
    begin; the bound of any order, and the CPU alone. Checked: every order of small graphs.

    Rates are those of a Snapdragon 8 Gen 3. The CPU's in float are of `ridgeline catalog processors`. In 8 bits the NPU
    takes 0.9 ms for a product of which the CPU takes 4.2 ms (its authors), and of llama.cpp's prompts `predict` makes
    0.4 TOP/s on this CPU: 1.9 TOP/s. Left out: graph building (it is done before), the words' head, memory that the
    processors share, throttling.
    """

    key: ClassVar[str] = "npu-prefill"
    source: ClassVar[tuple[str, ...]] = ("mllm-npu", "mllm-npu-slides", "arm-boards")
    model: str = param("qwen1.5-1.8b", "", "a decoder of the catalog")
    prompt: int = param(1024, "tokens", "prompt", low=1, high=100_000)
    chunk: int = param(256, "tokens", "of one static graph", low=1, high=100_000)
    npu_op_per_s: float = param(1.9e12, "op/s", "products of the NPU in 8 bits", low=1e9, high=1e16)
    times: float = param(4.7, "1", "products of the NPU over those of the CPU, in 8 bits", low=0.01, high=1000.0)
    outliers: float = param(0.003, "1", "channels of a product that are outliers", low=0.0, high=1.0)
    shadowed: float = param(0.15, "1", "layers whose outliers are multiplied (assumed)", low=0.0, high=1.0)
    npu_w: float = param(3.0, "W", "power of a busy NPU (assumed)", low=0.01, high=1000.0)
    cpu_w: float = param(6.0, "W", "power of a busy CPU (assumed)", low=0.01, high=1000.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Tokens a second of each order, energy [J], and the share of the time in which the NPU idles [1]."""
        tasks = self.tasks()
        took = {way: schedule(tasks, way) for way in _WAYS}
        busy = [sum(one.seconds for one in tasks if one.processor == which) for which in (NPU, CPU)]
        alone_s = sum(busy) + busy[NPU] * (self.times - 1.0)
        ours_j = busy[NPU] * self.npu_w + busy[CPU] * self.cpu_w
        return {
            **{f"{way}_tokens_per_s": self.prompt / seconds for way, seconds in took.items()},
            "bound_tokens_per_s": self.prompt / bound_s(tasks), "cpu_tokens_per_s": self.prompt / alone_s,
            **{f"{way}_npu_idle_share": 1.0 - busy[NPU] / seconds for way, seconds in took.items()},
            "speedup": alone_s / took["out_of_order"], "energy_j": ours_j, "cpu_energy_j": alone_s * self.cpu_w,
            "energy_ratio": alone_s * self.cpu_w / ours_j, "subgraphs": float(len(tasks)),
        }  # fmt: skip

    def tasks(self) -> list[Subgraph]:
        """Subgraphs of all chunks, chunk after chunk, each after those it reads."""
        graph = load(self.model).graph
        layers = [graph.blocks[name].ops for name in graph.layers]
        if any(not isinstance(op, GemmOp) and op.params > 1_000_000 for ops in layers for op in ops):
            raise PlanError(f"{self.model} has layers that are no products of one weight; take a dense decoder")
        found, keys = list[Subgraph](), dict[int, list[int]]()
        for number in range(-(-self.prompt // self.chunk)):
            last: tuple[int, ...] = ()
            for layer, ops in enumerate(layers):
                shadow = (layer + 1) * self.shadowed // 1 > layer * self.shadowed // 1
                for group in _between_products(ops):
                    last = self._put(found, group, last, keys.setdefault(layer, []), number, shadow)
        return found

    def _put(
        self,
        found: list[Subgraph],
        group: Sequence[Op],
        last: tuple[int, ...],
        keys: list[int],
        number: int,
        shadow: bool,
    ) -> tuple[int, ...]:
        """Adds one product, with its outliers beside it, or what lies between two; what the next comes after."""
        first, place = group[0], len(found)
        if isinstance(first, GemmOp):
            flop = 2.0 * self.chunk * first.k * first.n
            found.append(Subgraph(processor=NPU, seconds=flop / self.npu_op_per_s, after=last))
            if not shadow or not self.outliers:
                return (place,)
            found.append(Subgraph(processor=CPU, seconds=self.outliers * flop / _float_rate(), after=last))
            return (place, place + 1)
        seconds, after = 0.0, set(last)
        for op in group:
            if isinstance(op, AttentionOp):
                after |= set(keys)  # of the chunks before, whose keys it reads
                keys += last
                pairs = self.chunk * (number * self.chunk + (self.chunk + 1) / 2)
                seconds += 2.0 * pairs * op.heads * (op.qk_dim + op.v_dim) / _float_rate()
            else:
                moved = getattr(op, "read", 0.0) + getattr(op, "write", 0.0)
                seconds += moved * self.chunk * _FLOAT_BYTES / _memory_rate()
        found.append(Subgraph(processor=CPU, seconds=seconds, after=tuple(sorted(after))))
        return (place,)


def _between_products(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Operators one by one where they are products, else as many as stand between two."""
    group = list[Op]()
    for op in ops:
        if isinstance(op, GemmOp):
            if group:
                yield group
            yield [op]
            group = []
        else:
            group.append(op)
    if group:
        yield group


def _float_rate() -> float:
    """Products of the phone's CPU in float [FLOP/s]."""
    return cpu("Snapdragon-8-Gen-3").peak_flop_per_s("fp32") * cpu_constant("product.vector")


def _memory_rate() -> float:
    """Traffic of its memory [byte/s]."""
    return cpu("Snapdragon-8-Gen-3").memory.value * cpu_constant("stream.lpddr")
