"""Whether steps of Megatron-LM's functional tests wait for their data, from the times of each step.

    git clone https://github.com/NVIDIA/Megatron-LM
    python benchmarks/megatron_data.py Megatron-LM

Tests of one model read the same samples in the same steps, whatever their layout. Where two tests are slow in the same
steps, what they read holds them, not what they compute. Prints the median rank correlation of two tests by kind of
machine, and for those on one tray of GB200 the time of a step for each sample that a data-parallel rank reads in it.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

FIRST, LAST, LEAST = 7, 49, 35  # steps that are compared, and how many of them a test must have
TRAY = 4  # devices of one


def steps_s(path: Path) -> dict[int, float]:
    """Time of each step [s]; empty where a file holds none."""
    try:
        times = json.loads(path.read_text())["iteration-time"]["values"]
    except (json.JSONDecodeError, KeyError):
        return {}
    return {int(step): s for step, s in times.items() if isinstance(s, float) and FIRST <= int(step) <= LAST}


def correlation(one: dict[int, float], other: dict[int, float]) -> float:
    """Rank correlation of two tests over the steps of both [1]."""
    both = sorted(one.keys() & other.keys())
    ranks = [np.argsort(np.argsort([test[step] for step in both])) for test in (one, other)]
    return float(np.corrcoef(ranks)[0, 1])


def samples(folder: Path) -> int:
    """Samples that a data-parallel rank of a test on one tray reads in a step [1]."""
    text = (folder / "model_config.yaml").read_text()

    def said(name: str) -> int:
        found = re.search(rf"--{name}: (\d+)", text)
        return int(found[1]) if found else 1

    degrees = (said(f"{name}-parallel-size") for name in ("tensor-model", "pipeline-model", "context"))
    return int(said("global-batch-size") * np.prod(list(degrees)) // TRAY)


def main() -> int:
    tests: dict[str, dict[Path, dict[int, float]]] = defaultdict(dict)
    for path in sorted(Path(sys.argv[1]).glob("tests/functional_tests/test_cases/gpt/*/golden_values_dev_dgx_*0.json")):
        device = path.stem.split("_")[-1]
        kind = device if device != "gb200" else "one tray" if path.parent.name.endswith("_1node") else "two trays"
        if len(found := steps_s(path)) >= LEAST:
            tests[kind][path.parent] = found
    for kind, those in tests.items():
        pairs = [correlation(*pair) for pair in itertools.combinations(those.values(), 2)]
        if len(those) > 2:
            print(f"{kind}: {len(those)} tests, rank correlation {statistics.median(pairs):.2f}")
    by_samples = defaultdict(list)
    for folder, steps in tests["one tray"].items():
        by_samples[samples(folder)].append(statistics.median(steps.values()))
    for count, medians in sorted(by_samples.items()):
        each = statistics.median(medians) / count
        print(f"{count} samples a step and rank: {len(medians)} tests, {each * 1e3:.0f} ms a sample")
    return 0


if __name__ == "__main__":
    sys.exit(main())
