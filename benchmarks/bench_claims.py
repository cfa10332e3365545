"""What papers on serving report, beside what is predicted for the case they describe, as far as they describe it.

    PYTHONPATH=src python benchmarks/bench_claims.py

Each case compares two ways to serve on one machine, both predicted here; nothing of a paper's is fitted. Writes
`claims.md` beside it; no figure is asserted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster, with_secondary
from ridgeline.graph.load import load
from ridgeline.lower.pieces import ExpertAllToAll
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.seams.serving import Placement, instance_devices, of, other_devices, own_devices
from ridgeline.search.expert_service import AFFINITY, BALANCED, LINEAR, Loads, placed, routes_of
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import decode_parts, measure
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.step_pieces import Shelf
from ridgeline.serving.traffic.traffic import traffic

PAGE = Path(__file__).with_suffix("").with_name("claims.md")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SOON = (1.0, 2.0, 5.0)  # times the fastest step of any deployment, as bounds on a step


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One case: what a paper reports, what was compared here, and what came out."""

    paper: str
    reported: str
    case: str
    here: Callable[[], Iterator[str]]


def steps(
    model: str, on: str, context: int, grid: Iterator[tuple[str, Mapping[str, Any]]], common: Mapping[str, Any]
) -> list[tuple[str, float, float, int, str]]:
    """Each way and batch: seconds of a step, sequences and tokens/s a device, the words of the deployment."""
    where, shelf, found = machine(cluster(on)), Shelf(), []
    for kind, words in grid:
        try:
            one = engine(load(model), where, deployed(max_seqs=1024, **common, **words), shelf=shelf)
            room = one.capacity.cache_tokens
            table = one.tables(longest_prompt=2048, longest=2 * context)
        except (NoPlanError, PlanError):
            continue
        for batch in (size for size in BATCHES if size * context <= room):
            seconds = sum(decode_parts(one, table, float(batch), float(context)).values())
            whole = batch * one.deployment.dp
            rate = whole / seconds / instance_devices(one.deployment)
            found.append((kind, seconds, rate, whole, " ".join(f"{name} {value}" for name, value in words.items())))
    return found


def best(found: list[tuple[str, float, float, int, str]], plain: str, other: str) -> Iterator[str]:
    """Of each way the fastest step, and under bounds on a step the most tokens/s a device."""
    fastest = {kind: min(one[1] for one in found if one[0] == kind) for kind in (plain, other)}
    yield f"fastest step {1e3 * fastest[plain]:.1f} ms {plain}, {1e3 * fastest[other]:.1f} ms {other}"
    for bound in (min(fastest.values()) * times for times in SOON):
        most = {}
        for kind in (plain, other):
            kept = [one for one in found if one[0] == kind and one[1] <= bound]
            most[kind] = max(kept, key=lambda one: one[2]) if kept else None
        said = [
            f"{kind} {one[2]:.2f} tokens/s a device ({one[4]})" if one else f"{kind} none" for kind, one in most.items()
        ]
        yield f"steps up to {1e3 * bound:.1f} ms: {', '.join(said)}"


def helix() -> Iterator[str]:
    """Contexts of a million tokens divided over ranks, or whole on each of them."""
    context = 1_000_000

    def grid() -> Iterator[tuple[str, Mapping[str, Any]]]:
        for ways in (1, 2, 4, 8, 16, 32, 64):
            for tp in (size for size in (1, 2, 4, 8, 16, 32, 64) if size * ways <= 64):
                for ep in sorted({1, tp * ways}):
                    words = {"tp": tp, "dp": ways, "ep": ep}
                    yield "whole", words
                    yield from (
                        ("divided", {**words, "kv_ranks": ranks}) for ranks in (2, 4, 8, 16, 32, 64) if tp % ranks == 0
                    )

    common = {"weights": "nvfp4", "kv": "fp8", "token_budget": 8192}
    yield from best(steps("deepseek-v3", "64xGB200", context, grid(), common), "whole", "divided")


def janus() -> Iterator[str]:
    """Experts on devices of their own, or on every device."""

    def grid() -> Iterator[tuple[str, Mapping[str, Any]]]:
        powers = (1, 2, 4, 8, 16, 32)
        for size in powers[1:]:
            yield "whole", {"dp": size, "ep": size}
            yield "whole", {"tp": size, "ep": size}
        for ways in powers:
            for devices in (size for size in powers if ways + size <= 32):
                for parts in (1, 2, 3, 4):
                    yield "apart", {"dp": ways, "expert_devices": devices, "micro_batches": parts}

    yield from best(steps("deepseek-v2", "32xH100-SXM", 1024, grid(), {"token_budget": 8192}), "whole", "apart")


def megascale() -> Iterator[str]:
    """Decode steps of Mixtral-8x22B on two kinds of devices, by what an hour of one costs in hours of the other."""
    context, bound_s = 730, 0.15
    fleet = with_secondary(cluster("16xH20"), cluster("16xg6e.48xlarge"))
    where, shelf = machine(fleet), Shelf()
    assert fleet.beside is not None
    first, second = fleet.accelerator.name, fleet.beside.cluster.accelerator.name
    powers = (1, 2, 4, 8, 16)
    grid = [{"kind": kind, "tp": tp, "ep": tp} for kind in (first, second) for tp in (4, 8)]
    grid += [
        {"kind": first, "expert_kind": second, "dp": ways, "expert_devices": devices, "micro_batches": parts}
        for ways in powers for devices in (4, 8) for parts in (2, 3, 4)
    ]  # fmt: skip
    found: list[tuple[str, float, int, int, Mapping[str, Any]]] = []
    for words in grid:
        try:
            one = engine(load("mixtral-8x22b"), where, deployed(max_seqs=1024, token_budget=8192, **words), shelf=shelf)
            room = one.capacity.cache_tokens
        except (NoPlanError, PlanError):
            continue
        table = one.tables(longest_prompt=1024, longest=2 * context)
        for batch in (size for size in BATCHES if size * context <= room):
            seconds = sum(decode_parts(one, table, float(batch), float(context)).values())
            if seconds <= bound_s:
                own, other = own_devices(one.deployment), other_devices(one.deployment)
                counts = (own, other) if words["kind"] == first else (0, own)
                way = "apart" if other else f"whole on {words['kind']}"
                found.append((way, batch * one.deployment.dp / seconds, *counts, words))
    for ratio in (1.0, 1.5, 2.0, 3.0):
        told = []
        for way in dict.fromkeys(one[0] for one in found):
            rates = [(rate / (here * ratio + there), words) for kind, rate, here, there, words in found if kind == way]
            rate, words = max(rates, key=lambda one: one[0])
            told.append(f"{way} {rate:.0f} ({' '.join(f'{k} {v}' for k, v in words.items() if 'kind' not in k)})")
        yield f"an hour of {first} at {ratio:g} of {second}: tokens/s for the price of one {second}: {', '.join(told)}"


def exflow() -> Iterator[str]:
    """Tokens that stay with their experts, by the share of an expert's tokens that goes on to one of the next layer."""
    model, on, layers, experts = load("mixtral-8x7b"), "4x4xA100-SXM", 32, 8
    where, routes, shelf = machine(cluster(on)), routes_of(load("mixtral-8x7b"), cluster(on)), Shelf()
    plain = deployed(dp=8, ep=8)
    draw = np.random.default_rng(0)
    orders = [draw.permutation(experts) for _ in range(layers - 1)]

    def seconds(words: Deployment) -> tuple[float, float]:
        one = engine(model, where, words, shelf=shelf)
        table = one.tables(longest_prompt=2048, longest=4096)
        exchanges = [
            count * one.steps.prices.expert_all_to_all(piece, np.array([8.0 * 64])).mid[0]
            for count, pieces in ((kind.count, kind.pieces) for kind in one.steps.served.kinds)
            for piece in pieces
            if isinstance(piece, ExpertAllToAll)
        ]
        return float(sum(exchanges)), sum(decode_parts(one, table, 64.0, 1024.0).values())

    usual = seconds(plain)
    for share in (0.0, 0.5, 0.9):
        flow = np.full((layers - 1, experts, experts), (1.0 - share) / experts)
        for layer, order in enumerate(orders):
            flow[layer, np.arange(experts), order] += share
        asked = Loads(loads=np.ones((layers, experts)), how=AFFINITY, flow=flow)
        one = placed(replaced(plain, tokens_stay=True), asked, experts, routes=routes)
        exchange, step = seconds(one)
        rows = of(one, Placement).rows
        yield (
            f"{share:.0%} go on to one expert: exchange {1 - exchange / usual[0]:.0%} shorter, a step of 64 a rank"
            f" {usual[1] / step:.2f}x as fast ({rows[0]:.2f} rows in a node, {rows[1]:.2f} beyond)"
        )


def moetuner() -> Iterator[str]:
    """Experts in order, placed for their loads, and for loads and traffic, where tokens stay with them."""
    layers, experts, draw = 32, 8, np.random.default_rng(1)
    loads, flow = np.ones((layers, experts)), np.zeros((layers - 1, experts, experts))
    loads[0] = draw.permutation(np.arange(1.0, experts + 1) ** -0.5)
    for layer in range(layers - 1):
        drawn = draw.permutation(np.arange(1.0, experts + 1) ** -0.5)
        passed = 0.5 * np.eye(experts)[draw.permutation(experts)] + 0.5 * drawn / drawn.sum()
        flow[layer] = loads[layer][:, None] * passed
        loads[layer + 1] = flow[layer].sum(axis=0)
    for name, on in (("one node", "4xH100-SXM"), ("two nodes", "2x2xA100-SXM")):
        where, routes, steps_s = machine(cluster(on)), routes_of(load("mixtral-8x7b"), cluster(on)), {}
        for how in (LINEAR, BALANCED, AFFINITY):
            asked = Loads(loads=loads, how=how, flow=flow)
            words = deployed(dp=4, ep=4, tokens_stay=True, weights="fp8" if on.startswith("4") else "int8_wo")
            one = engine(load("mixtral-8x7b"), where, placed(words, asked, experts, routes=routes))
            table = one.tables(longest_prompt=2048, longest=4096)
            steps_s[how] = sum(decode_parts(one, table, 64.0, 1024.0).values())
        yield (
            f"{name}: a step of 64 a rank, placed for loads {steps_s[LINEAR] / steps_s[BALANCED]:.3f}x as fast as in"
            f" order, for loads and traffic {steps_s[LINEAR] / steps_s[AFFINITY]:.3f}x"
        )


def infinite() -> Iterator[str]:
    """Requests of which some are long: instances that borrow room of each other, or not, and wider ones."""
    draw = np.random.default_rng(0)
    count, instances = 240, 8
    where = machine(cluster(f"{instances}xA100-SXM"))
    ways: tuple[Mapping[str, Any], ...] = (
        {"instances": instances}, {"instances": instances, "borrows": True}, {"tp": instances},
    )  # fmt: skip
    for longest in (60_000, 200_000, 500_000):
        prompts = draw.integers(200, 4_000, count)
        rare = draw.random(count) < 0.05
        prompts[rare] = draw.integers(longest // 2, longest, int(rare.sum()))
        asked = traffic(np.zeros(count), prompts, draw.integers(50, 400, count))
        told = []
        for words in ways:
            one = engine(load("llama-2-7b"), where, deployed(**words))
            table = one.tables(longest_prompt=int(prompts.max()), longest=int(prompts.max()) + 400)
            found = replay_tables([one], [table], asked, router="least-loaded")
            told.append((measure(found, asked).total_tokens_per_s, int(found.refused.sum()), found.loans))
        plain, borrowed, wide = told
        yield (
            f"5 % of {longest // 2:,} to {longest:,} tokens: {borrowed[0] / wide[0]:.2f}x the tokens/s of one instance"
            f" over all devices, {borrowed[2]} loans; {plain[1]} requests do not fit alone, {borrowed[1]} with loans"
        )


def loongserve() -> Iterator[str]:
    """Prompts of very different lengths: instances that merge for long ones, or not, one over all, and pools."""
    draw, count = np.random.default_rng(0), 300
    where = machine(cluster("8xA100-SXM"))
    prompts = draw.integers(4, 2_300, count)
    long = draw.random(count) < 0.3
    prompts[long] = np.exp(draw.uniform(np.log(2_700), np.log(200_000), int(long.sum()))).astype(int)
    answers, gaps = draw.integers(20, 400, count), draw.exponential(1.0, count)
    pools = [deployed(tp=4, role=role) for role in (Role.PREFILL, Role.DECODE)]
    ways = {
        "merged": [deployed(tp=2, instances=4, elastic_tokens=4096)],
        "the same instances apart": [deployed(tp=2, instances=4)],
        "one of 8, chunked": [deployed(tp=8)],
        "pools of 4": pools,
    }
    for rate in (0.5, 1.0, 2.0):
        asked = traffic(np.cumsum(gaps) / rate, prompts, answers)
        found = {}
        for name, fleet in ways.items():
            engines = [engine(load("llama-2-7b"), where, one) for one in fleet]
            tables = [one.tables(longest_prompt=200_000, longest=200_400) for one in engines]
            done = replay_tables(engines, tables, asked, router="least-loaded")
            spent = (done.end_s - done.came_s) / (done.prompt + done.output)
            found[name] = (measure(done, asked).ttft.mean, float(np.nanmean(spent)), int(done.refused.sum()))
        first, token, _ = found.pop("merged")
        told = (
            f"{name} {other[0] / first:.2f}x the TTFT, {other[1] / token:.2f}x the latency a token"
            + (f" ({other[2]} refused)" if other[2] else "")
            for name, other in found.items()
        )
        yield f"{rate:g}/s, against merged: {'; '.join(told)}"


CLAIMS = (
    Claim(
        paper="Helix (arXiv:2507.07120)",
        reported="up to 1.5x lower time per token at a fixed batch, 32x larger batches under a bound (DeepSeek-R1)",
        case="DeepSeek-V3 in nvfp4, 8-bit cache, up to 64 GB200, contexts of 1,000,000",
        here=helix,
    ),
    Claim(
        paper="MegaScale-Infer (arXiv:2504.02263), two kinds of devices",
        reported="up to 1.86x throughput for the price with attention on H20 and experts on L40S",
        case="Mixtral-8x22B in 16 bits, contexts of 730, steps up to 150 ms, up to 16 of each (no public price of H20)",
        here=megascale,
    ),
    Claim(
        paper="ExFlow (arXiv:2401.08383)",
        reported="up to 67% less time of routing between GPUs, up to 2.2x throughput, GPT models of 8 to 64 experts",
        case="Mixtral-8x7B on 8 A100 in nodes of 4, contexts of 1,024, made-up traffic between experts",
        here=exflow,
    ),
    Claim(
        paper="MoETuner (arXiv:2502.06643)",
        reported="9.3 % faster in one node, 17.5 % over several, by placement for load and traffic",
        case="Mixtral-8x7B in 8 bits, tokens that stay, 4 H100 or two nodes of 2 A100; made-up loads and traffic",
        here=moetuner,
    ),
    Claim(
        paper="Infinite-LLM (arXiv:2401.02669)",
        reported="1.03-2.4x throughput, 2-19x longer contexts on 2 to 32 A100",
        case="Llama-2-7B on 8 A100, 240 requests of 200-4,000 tokens at once, some long",
        here=infinite,
    ),
    Claim(
        paper="LoongServe (arXiv:2404.09526)",
        reported="up to 3.85x throughput against chunked prefill, 5.81x against prefill-decode disaggregation",
        case="Llama-2-7B on 8 A100, 70 % of prompts of 4-2,300 tokens, 30 % of 2,700-200,000; all on average",
        here=loongserve,
    ),
    Claim(
        paper="Janus (Zhang and others, 2025)",
        reported="up to 3.9x throughput a device under a bound on each token",
        case="DeepSeek-V2 in 16 bits on up to 32 H100, contexts of 1,024",
        here=janus,
    ),
)


def main() -> None:
    """Runs every case and writes the page."""
    lines = [
        "# Claims of papers",
        "",
        "Written by `bench_claims.py`: both sides of each comparison are predicted here for the case as the paper",
        "describes it; nothing is fitted to it. Where less comes out, `docs/serving/` says what is missing.",
    ]
    for claim in CLAIMS:
        begun = time.perf_counter()
        found = list(claim.here())
        lines += ["", f"## {claim.paper}", "", f"Reported: {claim.reported}.", f"Here: {claim.case}.", ""]
        lines += [f"- {line}" for line in found]
        print(f"{claim.paper}: {time.perf_counter() - begun:.1f} s", flush=True)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
