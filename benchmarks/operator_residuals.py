"""Residuals of the operator mechanisms on measured kernels: where the interval.* rows of the mechanism table come from.

python benchmarks/operator_residuals.py KERNELS.tsv [--datasheet]

Reads matrix products (m, n, k), fused attention and activation kernels from a truth table of kernels, prices each
with the mechanism, keeps those of at least 100 microseconds (training kernels), and prints the 10 %, 50 % and
90 % quantiles of measured / predicted, by family and for all.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from ridgeline.cost.attention import attention_cost
from ridgeline.cost.compute import gemm_cost, stream_cost
from ridgeline.cost.formats import ELEMENT_BYTES
from ridgeline.cost.machine import Device, device
from ridgeline.errors import RidgelineError
from ridgeline.facts.accelerators import accelerator
from ridgeline.lower.work import Attention, Gemm, Phase, Stream

FORMATS = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8"}
SHORTEST_S = 1e-4
LAYER_SHAPES = {
    "mlp_up_proj": lambda d: (d["tokens"], 2 * d["n_expanded_embd"] // d["tp"], d["n_embd"]),
    "mlp_down_proj": lambda d: (d["tokens"], d["n_embd"], d["n_expanded_embd"] // d["tp"]),
    "attn_post_proj": lambda d: (d["tokens"], d["n_embd"], d["n_embd"] // d["tp"]),
}


def numbers(shape: str) -> dict[str, int]:
    """The integers of a shape cell by name."""
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", shape)}


def product(row: dict[str, str]) -> tuple[int, int, int] | None:
    """m, n, k of a row that is a matrix product."""
    shape = numbers(row["shape"])
    if row["op"].startswith("gemm") and {"m", "n", "k"} <= shape.keys():
        return shape["m"], shape["n"], shape["k"]
    layer = row["op"].rpartition(": ")[2]
    return LAYER_SHAPES[layer](shape) if layer in LAYER_SHAPES and "tp" in shape else None


def predicted(row: dict[str, str], chip: Device, dtype: str) -> tuple[str, float, float] | None:
    """Family, predicted seconds and FLOP of a row, if a mechanism covers it."""
    found = product(row)
    if found is not None:
        m, n, k = found
        work = Gemm(name="", phase=Phase.FORWARD, m=m, n=n, k=k)
        cost = gemm_cost(work, chip, dtype=dtype, element_bytes=ELEMENT_BYTES[dtype])
        return "matrix product", float(cost.seconds), 2.0 * m * n * k
    shape = numbers(row["shape"])
    if row["op"] in ("attention forward: FlashAttention-2", "attention forward: FlashAttention-3"):
        causal = "causal=True" in row["shape"]
        s, b, h, d = shape["seq"], shape["batch"], shape["heads"], shape["head_dim"]
        work = Attention(
            name="", phase=Phase.FORWARD, sequences=b, heads=h, kv_heads=h, q_tokens=s, kv_tokens=s,
            mean_context=(s + 1) / 2 if causal else s, qk_dim=d, v_dim=d, fused=True,
        )  # fmt: skip
        cost = attention_cost(work, chip, dtype=dtype, kernel=f"flash{row['op'][-1]}")
        return "attention", float(cost.seconds), 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)
    if row["op"].endswith("mlp_act"):
        moved = 3 * shape["tokens"] * shape["n_expanded_embd"] // shape["tp"] * 2
        cost = stream_cost(Stream(name="", phase=Phase.FORWARD, bytes=moved), chip, dtype=dtype)
        return "elementwise", float(cost.seconds), 0.0
    return None


def seconds(row: dict[str, str], flop: float) -> float | None:
    """Measured seconds of a row."""
    value = float(row["value"])
    scale = {"ms": 1e-3, "us": 1e-6, "s": 1.0}.get(row["unit"])
    if scale is not None:
        return value * scale
    return flop / (value * 1e12) if row["unit"] == "TFLOP/s" and flop and value else None


def main() -> None:
    """Print the table."""
    only_datasheet = "--datasheet" in sys.argv
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        dtype = FORMATS.get(row["dtype"].split(" ")[0])
        try:
            if dtype is None:
                continue
            chip = device(accelerator(row["hardware"]), datasheet_only=only_datasheet)
            found = predicted(row, chip, dtype)
            measured = seconds(row, found[2]) if found else None
        except (RidgelineError, ValueError):
            continue
        if found and measured and measured >= SHORTEST_S:
            ratios[found[0]].append(measured / found[1])
    ratios["all"] = [ratio for family in list(ratios.values()) for ratio in family]
    print("family            rows   10 %   50 %   90 %   of measured / predicted")
    for family, values in ratios.items():
        low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
        print(f"{family:16s} {len(values):5d} {low:6.2f} {middle:6.2f} {high:6.2f}")


if __name__ == "__main__":
    main()
