"""Rate of grouped products of experts over that of plain ones: `matrix.grouped_` of data/mechanisms.tsv.

    PYTHONPATH=src python benchmarks/grouped_products.py

Published times of torch._grouped_mm in bf16 (CUTLASS, one kernel for all groups), each over the price of the same tiles
at the rate of plain products under load. Prints each row, the share by source, and what each source is off by the share
of the others. Left out: 128,000 rows a group on H200 (pytorch/pytorch pull request 156203), which no training step has
and which reach the plain rate, and what the host's call hides (B200, 33 us and less).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ridgeline.cost.formats import FORMS
from ridgeline.cost.machine import machine
from ridgeline.cost.price_list import formula_cost
from ridgeline.facts.clusters import cluster
from ridgeline.lower.work import Gemm, Phase


@dataclass(frozen=True, kw_only=True)
class Timed:
    """`groups` products of `rows` rows on average, k deep and n wide, in `measured_s` [s]."""

    source: str
    device: str
    groups: int
    rows: float
    n: int
    k: int
    measured_s: float
    uneven: bool = True


AO, TORCH, CUTEDSL = (
    "pytorch/ao pull requests 2490, 2756",
    "pytorch/pytorch issue 163425",
    "pytorch/pytorch pull request 169336",
)
ROWS = (
    Timed(source=AO, device="H100-SXM", groups=16, rows=512, n=8192, k=5120, measured_s=1.31e-3),
    Timed(source=AO, device="H100-SXM", groups=16, rows=512, n=5120, k=8192, measured_s=1.26e-3),
    Timed(source=AO, device="H100-SXM", groups=16, rows=1040, n=8192, k=5120, measured_s=2.331e-3),
    Timed(source=AO, device="H100-SXM", groups=16, rows=1040, n=5120, k=8192, measured_s=2.424e-3),
    Timed(source=TORCH, device="H200-SXM", groups=32, rows=1024, n=2048, k=6144, measured_s=1.45e-3),
    Timed(source=TORCH, device="H200-SXM", groups=32, rows=1024, n=6144, k=2048, measured_s=1.47e-3),
    Timed(source=TORCH, device="H200-SXM", groups=32, rows=2048, n=2048, k=6144, measured_s=2.71e-3),
    Timed(source=TORCH, device="H200-SXM", groups=32, rows=2048, n=6144, k=2048, measured_s=2.77e-3),
    Timed(source=CUTEDSL, device="B200-SXM", groups=4, rows=512, n=8192, k=4096, measured_s=129.056e-6, uneven=False),
    Timed(source=CUTEDSL, device="B200-SXM", groups=4, rows=512, n=4096, k=8192, measured_s=131.04e-6, uneven=False),
    Timed(source=CUTEDSL, device="B200-SXM", groups=4, rows=512, n=16384, k=4096, measured_s=237.6e-6, uneven=False),
    Timed(source=CUTEDSL, device="B200-SXM", groups=4, rows=256, n=16384, k=16384, measured_s=520.256e-6, uneven=False),
)


def share(row: Timed) -> float:
    """The price at the rate of plain products over the measured time [1]."""
    on = machine(cluster(f"1x{row.device}")).device
    work = Gemm(
        name="experts", phase=Phase.FORWARD, m=row.rows, n=row.n, k=row.k, count=row.groups, uneven=row.uneven,
        routed=True, together=row.groups,
    )  # fmt: skip
    return float(np.asarray(formula_cost(work, on, FORMS["bf16"], loaded=True).seconds)) / row.measured_s


def main() -> None:
    """Print shares by row and by source, and each source left out."""
    found: dict[str, list[float]] = {}
    for row in ROWS:
        found.setdefault(row.source, []).append(share(row))
        size = f"{row.groups} x {row.rows:g} x {row.n} x {row.k}"
        print(f"{row.device:9} {size:28} {1e3 * row.measured_s:9.3f} ms  {found[row.source][-1]:.2f}  {row.source}")
    means = {source: prod(shares) ** (1.0 / len(shares)) for source, shares in found.items()}
    for source, mean in means.items():
        others = [one for name, one in means.items() if name != source]
        rest = prod(others) ** (1.0 / len(others))
        print(f"{source}: {mean:.2f}, the others {rest:.2f}, off by {mean / rest - 1.0:+.0%}")
    print(f"matrix.grouped_ {prod(means.values()) ** (1.0 / len(means)):.2f}")


if __name__ == "__main__":
    main()
