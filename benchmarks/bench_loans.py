"""KV blocks that move between instances, beside instances that lend nothing, one wide instance, and eager loans.

    PYTHONPATH=src python benchmarks/bench_loans.py

Writes loans.md beside this file; a minute on one core.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import Replay, replay
from ridgeline.serving.traffic.traffic import Traffic, traffic

HERE = Path(__file__).parent
SEEDS, REQUESTS, SPAN_S, DEVICES = range(3), 2000, 80, 8
ON = f"{DEVICES}xA100-SXM-80GB"
MIXES = (
    (4_000, 50, 400, "bf16"), (60_000, 50, 400, "bf16"), (60_000, 500, 2_000, "bf16"), (200_000, 50, 400, "bf16"),
    (200_000, 50, 400, "fp8"),
)  # fmt: skip
WAYS = {
    "static instances": {"instances": DEVICES},
    "one instance, tp 8": {"tp": DEVICES},
    "eager loans": {"instances": DEVICES, "technique": ("remote-kv",)},
    "planned moves": {"instances": DEVICES, "technique": ("planned-remote-kv",)},
}
HEAD = f"""# Loans

KV blocks of long requests in the memory of other instances, moved where a plan gains tokens a second
(`planned-remote-kv`), beside the baselines of Infinite-LLM (claim 30): instances that lend nothing, and one instance
over all devices. *Eager loans* are `remote-kv`: whoever does not fit borrows at once. Written by `bench_loans.py`.

Llama-2-7B on {ON}, {REQUESTS:,} requests over {SPAN_S} s: nine in ten of 100 to 2,000 tokens, the others of a tenth of
the longest to the longest; mean of {len(SEEDS)} draws. Requests a second until the last ends, and of requests that are
served when nine in ten had ended and the mean time from arrival to end. All but the first mix are more than any of
these fleets keeps up with.

| longest prompt | answers | cache | fleet | requests/s | 90 % ended | mean latency | refused | loans | preempted |
|---|---|---|---|---|---|---|---|---|---|
"""
FOOT = """
On these mixes planned moves are not behind instances that lend nothing, which refuse requests longer than their cache.
Eager loans are: whoever borrows takes room that the lender's own next request needs, and preempts. One wide instance
pays for exchanges where answers are short. Moves are behind it in two mixes, for two reasons:

* Long answers: an instance that is left with a few of them at the end reads all weights for each step on one device,
  the wide one on eight. It shows in the last tenth.
* Prompts longer than an instance: one device computes such a prompt, for a minute where eight take eight seconds, and
  all that time its blocks keep other instances' own long prompts waiting. If this were not so, a cache of half the
  bytes, into which every prompt fits at the same arithmetic, would change little; it makes moves three times as fast
  and the quickest of all. Prompts computed by several instances (`elastic-sequence-parallel`) would mend it; the two
  are not modelled together yet.
"""


def mixed(seed: int, longest: int, least: int, most: int) -> Traffic:
    """Requests of which one in ten is long, with answers of `least` to `most` tokens."""
    draw = np.random.default_rng(seed)
    arrivals = np.sort(draw.uniform(0, SPAN_S, REQUESTS))
    long = draw.integers(longest // 10, longest, REQUESTS)
    prompts = np.where(draw.random(REQUESTS) < 0.9, draw.integers(100, 2000, REQUESTS), long)
    return traffic(arrivals, prompts, draw.integers(least, most, REQUESTS))


def row(mix: tuple[int, int, int, str], name: str, found: list[Replay]) -> str:
    """A fleet's means over the draws."""
    rate = np.mean([one.done.sum() / one.span_s for one in found])
    waits = np.mean([np.mean((one.end_s - one.came_s)[one.done]) for one in found])
    refused, loans, gave_way = (
        np.mean(each) for each in zip(*((one.refused.sum(), one.loans, one.preemptions) for one in found), strict=True)
    )
    longest, least, most, cache = mix
    late = np.mean([np.quantile(one.end_s[one.done], 0.9) for one in found])
    head = f"| {longest:,} | {least:,} to {most:,} | {cache} | {name} | {rate:.2f} | {late:,.0f} s | {waits:.1f} s |"
    return f"{head} {refused:,.0f} | {loans:,.0f} | {gave_way:,.0f} |\n"


def main() -> None:
    """Writes the page."""
    model, where, text = load("llama-2-7b"), machine(cluster(ON)), HEAD
    for mix in MIXES:
        for name, words in WAYS.items():
            fleet = engine(model, where, deployed(**words, kv=mix[3]))
            text += row(mix, name, [replay([fleet], mixed(seed, *mix[:3])) for seed in SEEDS])
    (HERE / "loans.md").write_text(text + FOOT)


if __name__ == "__main__":
    main()
