"""Schedules of routed experts, and where experts lie, beside the baselines of the papers that they are from.

    PYTHONPATH=src python benchmarks/bench_experts.py

Writes experts.md beside this file; seconds on one core.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.seams.experts import ACROSS, LINK, Piece, RoutedLayer, finished_s
from ridgeline.seams.registry import listed
from ridgeline.seams.resolve import rewritten
from ridgeline.search.expert_placement import PlacementProblem, place, shares
from ridgeline.techniques.expert_exchanges.pipelined import AdaptivePipelining, NodeStreams
from ridgeline.techniques.expert_exchanges.sparse import exponent, materialized, power_law

HERE = Path(__file__).parent
DEGREES = range(1, 9)
FLOAT_BYTES = 4.0
IN_NODE = 4  # GPUs that divide an expert, by table 2
TUTEL, FSMOE = listed("adaptive-pipelining"), listed("node-streams")


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """Linear costs a + b x of FSMoE's figure 5 [ms; ms a byte, ms a FLOP], four GPUs a node.

    Those of gathers and scatters are per byte of the whole, from table 2's GPT2-XL (62.9 MB), as figure 5 does not say
    what it counts; figure 5 prints b of a gather and of an all-reduce on A with exponents that table 2 refutes by ten.
    """

    name: str
    lengths: tuple[int, ...]
    gemm: tuple[float, float]
    across: tuple[float, float]
    gather: tuple[float, float]
    scatter: tuple[float, float]
    reduce: tuple[float, float]


BEDS = (
    Testbed(
        name="A, 48 RTX A6000", lengths=(512, 1024, 2048), gemm=(4.26e-2, 2.29e-11), across=(0.287, 2.21e-7),
        gather=(0.337, (4.6 - 0.337) / 62.9e6), scatter=(0.395, (5.4 - 0.395) / 62.9e6), reduce=(0.511, 4.95e-7),
    ),
    Testbed(
        name="B, 32 RTX 2080 Ti", lengths=(256, 512, 1024), gemm=(9.24e-2, 4.42e-11), across=(0.175, 3.06e-7),
        gather=(0.032, (15.5 - 0.032) / 62.9e6), scatter=(0.0391, (15.7 - 0.0391) / 62.9e6), reduce=(0.0837, 5.99e-7),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Configured:
    """One of table 4's 1,458 layers and its dense part on a testbed [ms]; backward makes products twice."""

    forward: RoutedLayer
    backward: RoutedLayer
    dense: tuple[float, float]
    gradient: float


def routed(bed: Testbed, times: int, *, sent: float, rows: float, flop: float, products: int) -> RoutedLayer:
    """Routed experts of a layer whose products are made so many times over [ms]."""
    a, b = bed.gemm

    def cost(line: tuple[float, float], size: float) -> Callable[[float], float]:
        return lambda share: line[0] + line[1] * size * share

    return RoutedLayer(
        dispatch_s=cost(bed.across, sent), combine_s=cost(bed.across, sent), across_s=cost(bed.across, sent),
        inside_s=lambda _: 0.0, gather_s=cost(bed.gather, sent * IN_NODE), scatter_s=cost(bed.scatter, sent * IN_NODE),
        experts_s=cost((a * products * times, b * times), flop), launch_s=a * products * times, start_s=0.0, rows=rows,
    )  # fmt: skip


def configured(bed: Testbed) -> Iterator[Configured]:
    """All of table 4: batch, heads, length, width, inner width, capacity, kind of expert."""
    for batch, _, length, width, scale, factor, gated in itertools.product(
        (1, 2, 4), (8, 16, 32), bed.lengths, (1024, 2048, 4096), (2, 3, 4), (1.2, 2.4, 1.0), (False, True)
    ):
        tokens, products = batch * length, 3 if gated else 2
        rows = 2.0 * factor * tokens
        sizes = {
            "sent": rows / IN_NODE * width * FLOAT_BYTES,
            "rows": rows,
            "flop": 2.0 * rows * width * width * scale * products / IN_NODE,
        }
        linear = 8.0 * tokens * width * width / IN_NODE
        scores = 4.0 * batch * length * length * width / IN_NODE
        moved = sum(a + b * tokens * width * FLOAT_BYTES for a, b in (bed.gather, bed.scatter))
        forward, backward = ((4 * bed.gemm[0] + bed.gemm[1] * (linear + scores)) * times + moved for times in (1, 2))
        yield Configured(
            forward=routed(bed, 1, products=products, **sizes),
            backward=routed(bed, 2, products=products, **sizes),
            dense=(forward, backward),
            gradient=bed.reduce[0] + bed.reduce[1] * 4.0 * width * width / IN_NODE * FLOAT_BYTES,
        )


def with_gradient(pieces: list[Piece], stream: str, gradient: float, after: int) -> float:
    """The end of a schedule with a piece of gradients on a stream behind its first `after` pieces [ms]."""
    moved = [(on, took, [one + (one >= after) for one in waits]) for on, took, waits in pieces]
    return float(finished_s([*moved[:after], (stream, gradient, ()), *moved[after:]]))


def quickest(one: Configured, schedule: Callable[[RoutedLayer, int, float], float]) -> float:
    """A step where gradients go beside the dense part, and none, what is left or all among a layer's rows [ms]."""
    forward = one.dense[0] + min(schedule(one.forward, r, 0.0) for r in DEGREES)
    left = max(0.0, one.gradient - one.dense[1])
    ends = []
    for among in {0.0, left, one.gradient}:
        routed = min(schedule(one.backward, r, among) for r in DEGREES)
        ends.append(routed + max(one.dense[1], one.gradient - among))
    return forward + min(ends)


def flat(layer: RoutedLayer, pieces: int, gradient: float) -> float:
    """Exchanges of all kinds on one stream, gradients behind the rows that leave [ms]."""
    assert isinstance(TUTEL, AdaptivePipelining)
    made = list(TUTEL.schedule(layer, pieces))
    return with_gradient(made, LINK, gradient, pieces) if gradient else float(finished_s(made))


def nodes(layer: RoutedLayer, pieces: int, gradient: float) -> float:
    """FSMoE's three streams, gradients behind the rows that leave [ms]."""
    assert isinstance(FSMOE, NodeStreams)
    made = list(FSMOE.steps(layer, pieces))
    streams = with_gradient(made, ACROSS, gradient, pieces) if gradient else float(finished_s(made))
    return min(streams, flat(layer, pieces, gradient))


def tutel(one: Configured) -> tuple[float, float]:
    """PipeMoE with one degree for both phases, gradients at the end, or beside the dense part [ms]."""
    routed = min(flat(one.forward, r, 0.0) + flat(one.backward, r, 0.0) for r in DEGREES)
    return routed + sum(one.dense) + one.gradient, routed + one.dense[0] + max(one.dense[1], one.gradient)


def fsmoe_rows() -> list[str]:
    """Average speedups over Tutel on the 1,458 layers, as table 5 has them."""
    paper = {"Tutel-Improved": (1.09, 1.08), "FSMoE-No-IIO": (1.12, 1.16), "FSMoE": (1.18, 1.22)}
    found: dict[str, list[float]] = {name: [] for name in paper}
    worst = 0.0
    for bed in BEDS:
        ratios: dict[str, list[float]] = {name: [] for name in paper}
        for one in configured(bed):
            plain, improved = tutel(one)
            best = quickest(one, nodes)
            worst = max(worst, best / plain)
            for name, took in (("Tutel-Improved", improved), ("FSMoE-No-IIO", quickest(one, flat)), ("FSMoE", best)):
                ratios[name].append(plain / took)
        for name in paper:
            found[name].append(statistics.mean(ratios[name]))
    rows = [
        f"| {name} | {ours[0]:.2f}x | {theirs[0]:.2f}x | {ours[1]:.2f}x | {theirs[1]:.2f}x |"
        for name, ours, theirs in ((name, found[name], paper[name]) for name in paper)
    ]
    return [*rows, "", f"Of no layer is FSMoE's step longer than {worst:.3f} of Tutel's."]


def tutel_rows() -> list[str]:
    """A layer of 4 experts on 16 A100 by capacity: DP with gathered experts, EP + DP, EP + MP, and the best of them."""
    ways = {"DP (r 0)": (1, 1), "EP + DP (r 1)": (4, 1), "EP + MP (r 2)": (4, 2), "EP + MP (r 4)": (4, 4)}
    rows = []
    for inner in (2048, 16384):
        graph = from_dims(
            layers=1, hidden=2048, heads=1, head_dim=8, vocab=8, positions="none", bias=False, experts=4, top_k=2,
            expert_ffn=inner,
        )  # fmt: skip
        for capacity in (1.0, 2.0, 4.0, 8.0):
            took = []
            for ep, etp in ways.values():
                job = Workload(seq_len=1024, global_batch=64, precision="fp16", expert_capacity=capacity)
                plan = Plan(dp=16, ep=ep, etp=etp, zero=3, micro_batch=4, technique=("adaptive-pipelining",))
                one = Predictor(rewritten(graph, plan.technique), cluster("16xA100-SXM-80GB"), job)
                took.append(1e3 * one.evaluate(plan).timeline.makespan_s)
            best = int(np.argmin(took))
            cells = " | ".join(f"**{each:.1f}**" if place == best else f"{each:.1f}" for place, each in enumerate(took))
            rows.append(f"| {inner:,} | {capacity:g} | {cells} |")
    return ["| inner width | capacity | " + " | ".join(ways) + " |", "|---|---|" + "---|" * len(ways), *rows]


def degree_rows() -> list[str]:
    """Average gain of the best degree and exchange over each static choice, on Tutel's 243 layers."""
    widths, scales = (1024, 2048, 4096), (4096, 16384, 65536)
    gains: dict[int, dict[int, list[float]]] = {}
    for count in (16, 64, 256):
        told = gains.setdefault(count, {1: [], 2: [], 4: [], 8: []})
        for local, hidden, inner, tokens in itertools.product((1, 2), widths, widths, scales):
            graph = from_dims(
                layers=1, hidden=hidden, heads=1, head_dim=8, vocab=8, positions="none", bias=False,
                experts=local * count, top_k=2, expert_ffn=inner,
            )  # fmt: skip
            took = {}
            for pieces in (0, *told):
                key = f"adaptive-pipelining(pieces={pieces})" if pieces else "adaptive-pipelining"
                job = Workload(seq_len=1024, global_batch=count * tokens // 1024, precision="fp16")
                plan = Plan(dp=count, ep=count, zero=1, micro_batch=tokens // 1024, technique=(key,))
                stages = Predictor(rewritten(graph, (key,)), cluster(f"{count}xA100-SXM-80GB"), job)
                took[pieces] = stages.evaluate(plan).timeline.makespan_s
            for pieces, one in told.items():
                one.append(took[pieces] / took[0])
    return [
        f"| {count} | " + " | ".join(f"{100 * (statistics.mean(one) - 1):.1f} %" for one in told.values()) + " |"
        for count, told in gains.items()
    ]


def placement_rows() -> list[str]:
    """Rows of the fullest of 32 ranks over the mean's, 64 experts, by power of loads and how they are placed."""
    rows = []
    for capacity in (2.0, 4.0, 8.0, 16.0):
        loads = power_law(64, exponent(64, 32, capacity))
        balanced = place(PlacementProblem(loads=loads[None], ranks=32, slots_per_rank=2)).imbalance
        copied = place(PlacementProblem(loads=loads[None], ranks=32, slots_per_rank=3, redundant=32)).imbalance
        ours = [materialized(loads, 32, 4, spread=spread, room=spread)[0] for spread in (1, 4, 16)]
        cells = " | ".join(f"{each:.2f}" for each in (capacity, balanced, copied, *ours))
        rows.append(f"| {100 * loads[0]:.0f} % | {cells} |")
    return rows


HOPS = {4: 17.495347692691237, 8: 22.166013704896926}  # of 31, in names of files of YJHMITWEB/ExFlow, solutions/


def mixtral_affinity(seed: int) -> np.ndarray:
    """What passes from expert to expert of Mixtral 8x7B (31, 8, 8), as unlike chance as ExFlow's placements.

    Tokens of an expert go to its successor, to either of its pair, or anywhere, with the shares at which the best
    placements on 8 and 4 GPUs leave the hops that ExFlow's authors published; who succeeds whom is drawn.
    """
    stay = {ranks: 1.0 - hops / 31.0 for ranks, hops in HOPS.items()}
    bound = (stay[4] - 0.25) / 0.75  # shares of successor and pair together
    successor = 2.0 * (stay[8] - (1.0 - bound) / 8.0) - bound
    draw, chain, flow = np.random.default_rng(seed), np.arange(8), []
    for _ in range(31):
        after = draw.permutation(8)
        same = np.zeros((8, 8))
        pair = np.zeros((8, 8))
        for one in range(8):
            same[chain[one], after[one]] = 1.0
            pair[chain[one], [after[one], after[one ^ 1]]] = 0.5
        flow.append((successor * same + (bound - successor) * pair + (1.0 - bound) / 8.0) / 8.0)
        chain = after
    return np.array(flow)


def affinity_rows() -> list[str]:
    """Hops of a token in its 31 passages, experts in order and placed for affinity, beside ExFlow's published ones."""
    rows = []
    for ranks in (4, 8):
        ours, took = [], 0.0
        for seed in range(5):
            flow = mixtral_affinity(seed)
            began = time.process_time()
            problem = PlacementProblem(
                loads=np.full((32, 8), 1 / 8), ranks=ranks, slots_per_rank=8 // ranks, traffic=flow, load_cost=0.0,
                inside_cost=1.0, between_cost=1.0,
            )  # fmt: skip
            answer = place(problem, pairs=1.5e9)
            took += time.process_time() - began
            held = shares(answer.slots, 8)
            ours.append(31.0 - sum(float(np.trace(held[at].T @ flow[at] @ held[at + 1])) for at in range(31)))
        order = 31.0 * (1.0 - 1.0 / ranks)
        told = f"{statistics.mean(ours):.2f} | {100 * (1 - statistics.mean(ours) / order):.0f} %"
        rows.append(f"| {ranks} | {order:.2f} | {told} | {HOPS[ranks]:.2f} | {took / 5:.2f} s |")
    return rows


def main() -> None:
    """Runs everything and writes the page."""
    began = time.process_time()
    text = f"""# Experts

Schedules of routed experts, and where experts lie, beside the baselines of their papers. Written by `bench_experts.py`.

## FSMoE: between nodes, within nodes, products, gradients

The 1,458 layers of FSMoE's table 4 on the linear costs that its authors measured (figure 5; gathers and scatters by
table 2): average speedup over Tutel with PipeMoE, whose gradients go after backward. *Tutel-Improved* sends them beside
the dense part; *No-IIO* beside all of the layer, with rows' exchanges on one stream; *FSMoE* is `node-streams`. Degrees
1 to 8, of both phases alike for Tutel and apart for the others.

| schedule | testbed A, 48 RTX A6000 | paper | testbed B, 32 RTX 2080 Ti | paper |
|---|---|---|---|---|
{chr(10).join(fsmoe_rows())}

The paper measured less of what streams within and between nodes gain: on both testbeds the rows of either cross the
same PCIe slots, which the linear costs do not tell.

## Tutel: degrees of pipelining

Average gain of the best of 1, 2, 4 and 8 pieces, flat or in two steps, over a static number of pieces; one layer,
top-2, on A100, 1 and 2 experts a GPU, widths of 1,024 to 4,096, 4,096 to 65,536 tokens a GPU (54 of the paper's 81
layers at each scale; experts that GPUs divide are below).

| GPUs | over 1 | over 2 | over 4 | over 8 |
|---|---|---|---|---|
{chr(10).join(degree_rows())}

## Tutel: switching parallelism

A step [ms] of one layer of 4 experts, 2,048 wide, on 16 A100, 4,096 tokens a GPU, ZeRO-3, by what each expert has of
slots over its share. No way is best at all widths and capacities, which is what switching is for.

{chr(10).join(tutel_rows())}

## Hecate: hot experts on all ranks

Rows of the fullest rank over the mean's of 64 experts on 32 ranks of 4 nodes, loads by a power law. *In order* is
expert parallelism; *balanced* exchanges experts between ranks as SmartMoE does, with a *replica* a rank as FlexMoE,
both by `search.expert_placement` with the loads known; Hecate's algorithms with so many experts gathered to all ranks.

| largest load | in order | balanced | a replica more | 1 gathered | 4 | 16 |
|---|---|---|---|---|---|---|
{chr(10).join(placement_rows())}

## ExFlow and MoETuner: experts where tokens come from

Hops of a token of Mixtral 8x7B from rank to rank in its 31 passages between layers. ExFlow's authors publish no traces,
but the hops that their best placements leave of their own: affinity is drawn so that the best placement leaves just
these, and who succeeds whom by chance, five times. *In order* is the placement of vLLM, DeepSpeed and Megatron-LM;
MoETuner minimises the same hops beside the fullest rank's load, which is even here.

| GPUs | in order | by affinity | fewer | the best, published by ExFlow | search |
|---|---|---|---|---|---|
{chr(10).join(affinity_rows())}
"""
    (HERE / "experts.md").write_text(text, encoding="utf-8")
    print(text, f"{time.process_time() - began:.0f} s of processor")


if __name__ == "__main__":
    main()
