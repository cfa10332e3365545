"""A GPU's profile out of rows made up by a roofline: rates, fits and a step on it, without the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from ridgeline.calibrate.here import kernels as shapes
from ridgeline.calibrate.here.assemble import accelerator_of, fits_of, host_of, noise_of, tiers_of
from ridgeline.calibrate.here.devices import Found
from ridgeline.calibrate.here.kernels import attention_work, measured
from ridgeline.cost.ladder import price
from ridgeline.cost.questions import gemm
from ridgeline.facts.profiles import BenchmarkRow, Profile, profile_cluster, write_profile
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict

RATES = {"fp32": 50e12, "bf16": 700e12}
MEMORY, START_S = 3e12, 5e-6
FOUND = Found(
    kind="cuda", name="H100-SXM", count=1, vendor="NVIDIA", architecture="hopper", units=132, sockets=1,
    memory_bytes=85e9, cache_bytes=50 * 2.0**20, clock_hz=1.98e9, machine={}, versions={"torch": "2.13"},
)  # fmt: skip


def row(
    kind: str, form: str, sizes: shapes.Sizes, seconds: float, flop: float = 0.0, moved: float = 0.0
) -> BenchmarkRow:
    return measured(kind, form, sizes, [seconds] * 3, flop=flop, moved=moved)


@pytest.fixture(scope="module")
def rows() -> list[BenchmarkRow]:
    chance = np.random.default_rng(0)

    def took(flop: float, rate: float, moved: float) -> float:
        return float((START_S + max(flop / rate, moved / MEMORY)) * chance.lognormal(0, 0.03))

    found = []
    for form, rate in RATES.items():
        element = 4 if form == "fp32" else 2
        for sizes in [*shapes.products(4), *shapes.more_products(seed=1, scale=4)[:12]]:
            m, n, k = (sizes[name] for name in "mnk")
            flop, moved = 2 * m * n * k, element * (m * k + n * k + m * n)
            found.append(row("gemm", form, sizes, took(flop, rate, moved), flop, moved))
    for kind, plan in (("prefill", shapes.prompts(4)), ("decode", shapes.steps(4))):
        for sizes in plan:
            flop, moved = attention_work(kind, sizes)
            found.append(row(kind, "bf16", sizes, took(flop, 400e12, moved), flop, moved))
    for size in shapes.streams(FOUND.cache_bytes, FOUND.memory_bytes):
        for name, passes in (("triad", 3), ("copy", 2), ("read", 1)):
            found.append(row("stream", name, {"array_bytes": size}, passes * size / MEMORY, moved=passes * size))
    found.append(row("launch", "eager", {"kernels": 200}, 4e-6))
    found.append(row("launch", "graph", {"kernels": 200}, 1e-6))
    found.append(row("transfer", "h2d pinned", {"bytes": 2.0**26}, 2.0**26 / 50e9, moved=2.0**26))
    found.append(row("host_stream", "triad", {"array_bytes": 2.0**28}, 3 * 2.0**28 / 200e9, moved=3 * 2.0**28))
    found.append(row("reference", "fp32", {"m": 512, "n": 512, "k": 512}, 1e-5, flop=2 * 512.0**3))
    return found


def test_a_gpus_rows_become_a_profile_that_prices_products_and_steps(rows: list[BenchmarkRow], tmp_path: Path) -> None:
    part = accelerator_of(FOUND, rows, when="2026-01-01")
    host, tiers = host_of(FOUND, part, rows, tmp_path), tiers_of(FOUND, part, rows)
    assert part.memory_bytes_per_s == pytest.approx(MEMORY)
    assert part.host_bytes_per_s == pytest.approx(50e9)
    assert host.dram_bytes_per_s == pytest.approx(200e9)
    assert part.tdp_w == 700  # the catalog's, which no benchmark tells
    fits, left_out = fits_of(part, host, tiers, rows, FOUND.versions, "2026-01-01", kernel="cuda")
    assert {(fit.family, fit.form) for fit in fits} == {
        ("gemm", "fp32"), ("gemm", "bf16"), ("prefill", "bf16"), ("decode", "bf16"),
    }  # fmt: skip
    assert not left_out
    assert max(fit.held_median for fit in fits) < 0.15
    profile = Profile(
        kind="cuda", count=1, date="2026-01-01", budget_s=1.0, spent_s=1.0, machine={}, versions={"torch": "2.13"},
        accelerator=part, host=host, tiers=tiers, noise=noise_of(rows), fits=fits, samples=tuple(rows),
    )  # fmt: skip
    write_profile(tmp_path / "gpu.json", profile)
    own = profile_cluster(str(tmp_path / "gpu.json"))
    answer = float(price(gemm(4096, 4096, 4096).question, own.accelerator).seconds)
    assert answer == pytest.approx(START_S + 2 * 4096**3 / 700e12, rel=0.15)
    work = Workload(seq_len=2048, global_batch=4, precision="bf16-amp", execution="eager", framework="torch")
    model = load("llama-3.2-1b")
    step = predict(model, own, work, Plan(micro_batch=2)).step_time
    bound_s = 6 * model.graph.params * work.step_tokens / RATES["bf16"]
    assert bound_s < step.value < 4 * bound_s
