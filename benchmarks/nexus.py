"""Where Nexus' throughput comes from: latency a token of mixed prompts, by their order and the split of a device.

    python benchmarks/nexus.py

Llama-3.1-8B on one L20, lengths of the paper's mixed workload (`nexus-mixed`), vLLM 0.8.1. The paper's throughput is
the highest rate at which the mean over requests of latency / output tokens stays low.
"""

import numpy as np

import ridgeline
from ridgeline.serving.metrics import latencies

ORDER = {"queue": "shortest", "queue_patience": 15}
SPLIT = {"split": True, "split_slack": 1.3}
WAYS = {"vLLM": {}, "vLLM, shortest first": ORDER, "split": SPLIT, "split, shortest first (Nexus)": SPLIT | ORDER}
RATES = (1.0, 1.4, 1.8, 2.2, 2.6, 3.0)
MOST_S = 0.4  # of a token, in the mean


def measured(rate: float, words: dict) -> tuple[float, float, float]:
    """Mean latency a token, mean TTFT and mean gap [s]."""
    asked = {"on": "1xL20", "engine": "vllm 0.8.1", "trace": "nexus-mixed", "rate": rate, "requests": 600}
    found = ridgeline.simulate("llama-3.1-8b", **asked, **words).value.replay
    ttft, tpot, latency = latencies(found)
    return float(np.mean(latency / found.output)), float(np.mean(ttft)), float(np.nanmean(tpot))


def main() -> None:
    """Prints the table."""
    rates = " | ".join(f"{rate:g}/s" for rate in RATES)
    print(f"| | {rates} | rate at {MOST_S} s a token |\n|---|{'---|' * (len(RATES) + 1)}")
    for way, words in WAYS.items():
        rows = [measured(rate, words) for rate in RATES]
        each = [row[0] for row in rows]
        most = float(np.interp(MOST_S, each, RATES))
        cells = " | ".join(f"{one:.2f}, {ttft:.0f}, {1e3 * tpot:.0f}" for one, ttft, tpot in rows)
        print(f"| {way} | {cells} | {most:.2f}/s |")


main()
