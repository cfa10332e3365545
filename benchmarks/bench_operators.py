"""Speed of operator prices, beside aiconfigurator's own lookup of the same shapes, in one run.

    python benchmarks/bench_operators.py        # writes benchmarks/operator_speed.md

`PEER_PYTHON` names an interpreter with aiconfigurator-core and what it requires; default: this one. The peer is asked
through its engine handle, one prepared question a call, which is its fastest way.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHAPES, SEED, TRIES = 2_000, 0, 3
BROADCAST, WARM = 1_000_000, 10_000
OUT = Path(__file__).with_name("operator_speed.md")


def shapes() -> list[tuple[int, int, int]]:
    """Products on and off the measured grid."""
    draw = random.Random(SEED)
    rows, widths, depths = (
        (1, 3, 20, 100, 700, 3000, 12000),
        (1024, 4096, 5000, 14336, 28672),
        (1024, 4096, 8192, 14336),
    )
    return [(draw.choice(rows), draw.choice(widths), draw.choice(depths)) for _ in range(SHAPES)]


def peer() -> None:
    """Prints what the peer takes: import, first answer, each answer."""
    begin = time.perf_counter()
    from aiconfigurator_core.sdk import common
    from aiconfigurator_core.sdk.engine import EngineHandle, build_ops_json
    from aiconfigurator_core.sdk.operations.gemm import GEMM
    from aiconfigurator_core.sdk.perf_database import get_database

    handle = EngineHandle.for_database(get_database("h100_sxm", "vllm", "0.24.0"))
    mode = common.GEMMQuantMode.bfloat16
    (m, n, k), *_ = shapes()
    one = build_ops_json([GEMM("gemm", 1.0, n, k, mode)])
    handle.evaluate_ops_json(one, is_context=True, batch_size=1, s=m, x=m)
    first, first_cpu = time.perf_counter() - begin, time.process_time()
    asked = [(m, build_ops_json([GEMM("gemm", 1.0, n, k, mode)])) for m, n, k in shapes()]
    for m, op in asked:  # as of ours, what each needs is at hand
        handle.evaluate_ops_json(op, is_context=True, batch_size=1, s=m, x=m)
    begin = time.perf_counter()
    found = [handle.evaluate_ops_json(op, is_context=True, batch_size=1, s=m, x=m)[0][1] * 1e-3 for m, op in asked]
    each = (time.perf_counter() - begin) / SHAPES
    print(json.dumps({"first_s": first, "first_cpu_s": first_cpu, "each_s": each, "seconds": found}))


def ours(rung: str) -> None:
    """Prints what one rung takes: import and first answer, each of a broadcast, and each answer after it.

    The first answer is plain Python's; a broadcast loads what compiles, outside the times.
    """
    begin = time.perf_counter()
    import numpy as np

    from ridgeline.cost.answer import Question, Rung
    from ridgeline.cost.fitted import fitted_model
    from ridgeline.cost.ladder import price
    from ridgeline.cost.questions import gemm
    from ridgeline.facts.accelerators import accelerator

    part = accelerator("H100-SXM")

    def asked(m: Any, n: Any, k: Any) -> Question:
        return gemm(m, n, k).by("vllm", "0.24.0").question

    every = shapes()
    price(asked(*every[0]), part, rungs=(Rung(rung),))
    answer: dict[str, Any] = {"first_s": time.perf_counter() - begin, "first_cpu_s": time.process_time()}
    m, n, k = (np.resize(np.array(column, dtype=float), BROADCAST) for column in zip(*every, strict=True))
    rungs = (Rung.TABLE, Rung.FITTED) if rung == "table" else (Rung.FITTED,)
    price(asked(m[:WARM], n[:WARM], k[:WARM]), part, rungs=rungs)
    questions = [asked(*one) for one in every]
    begin = time.perf_counter()
    if rung == "table":
        for one in questions:  # makes the grid of each width and depth
            price(one, part, rungs=rungs)
        begin = time.perf_counter()
        prices = [price(one, part, rungs=rungs) for one in questions]
        answer["each_s"] = (time.perf_counter() - begin) / SHAPES
        answer["seconds"] = [float(np.asarray(one.seconds)) for one in prices]
    else:
        for one in questions:
            price(one, part, rungs=rungs)
        answer["whole_s"] = (time.perf_counter() - begin) / SHAPES
        model = fitted_model(questions[0], part, Rung.FITTED)
        begin = time.perf_counter()
        answer["seconds"] = [model.seconds(one.sizes) for one in questions]
        answer["each_s"] = (time.perf_counter() - begin) / SHAPES
        begin = time.perf_counter()
        model.seconds({"m": m, "n": n, "k": k})
        answer["broadcast_s"] = (time.perf_counter() - begin) / BROADCAST
    print(json.dumps(answer))


def run(*words: str) -> dict[str, Any]:
    """The medians of a few runs in processes of their own."""
    python = os.environ.get("PEER_PYTHON", sys.executable) if words[0] == "peer" else sys.executable
    found = []
    for _ in range(TRIES):
        done = subprocess.run([python, __file__, *words], check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    numbers = {name for name in found[0] if name != "seconds"}
    return {name: statistics.median(one[name] for one in found) for name in numbers} | {"seconds": found[0]["seconds"]}


def main() -> None:
    """Runs everything and writes the table."""
    theirs, table, fitted = run("peer"), run("ours", "table"), run("ours", "fitted")
    near = statistics.median(abs(a / b - 1) for a, b in zip(table["seconds"], theirs["seconds"], strict=True))
    rows = (
        ("aiconfigurator-core 0.12.0, engine handle", theirs, theirs["each_s"]),
        ("ridgeline, measured tables, interval and source with it", table, table["each_s"]),
        ("ridgeline, fitted mechanism, interval and source with it", fitted, fitted["whole_s"]),
        ("ridgeline, fitted mechanism, the time alone", fitted, fitted["each_s"]),
        ("ridgeline, fitted mechanism, broadcast", fitted, fitted["broadcast_s"]),
    )
    lines = [
        "# Speed of operator prices",
        "",
        f"`python benchmarks/bench_operators.py`: {SHAPES:,} bf16 products on one H100, medians of {TRIES} processes,",
        f"{os.cpu_count()} cores.",
        "",
        "| program | import and first answer | its process's CPU | each | a second | against aiconfigurator |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {one['first_s']:.2f} s | {one['first_cpu_s']:.2f} s | {each * 1e6:.2f} us | {1 / each:,.0f} |"
            f" {theirs['each_s'] / each:.2f} x |"
            for name, one, each in rows
        ),
        "",
        "The first answer includes no compiler: it loads with the first few thousand shapes (0.6 s, once a process).",
        "All are asked for each shape once before: of tables a width and depth takes its grid only once.",
        "The broadcast runs on two threads, one call for all shapes; the other lines on one thread, a call a shape.",
        f"Between the two interpolations the median difference is {near:.1%}.",
    ]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        peer()
    elif sys.argv[1:2] == ["ours"]:
        ours(sys.argv[2])
    else:
        main()
