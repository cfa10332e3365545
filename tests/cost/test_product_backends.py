"""Products by an engine's backend that no table holds, against the public benchmark that says how fast they are."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost import questions
from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import machine
from ridgeline.cost.served import ServedPrices
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engine_kernels import product_backend, product_backends
from ridgeline.facts.store import read_tsv, sources

GB200 = machine(cluster("4xGB200"))
# m, n and us of gemm_fp8_nt_groupwise on a GB200, k = 7,168 (sglang, pull request 13528)
PUBLISHED = [
    (64, 24576, 69.9), (128, 24576, 125.2), (256, 24576, 223.5), (1024, 24576, 826.2), (2048, 24576, 1632.5),
    (1024, 576, 28.7), (2048, 576, 41.2), (4096, 576, 63.5),
]  # fmt: skip


def prices(engine: str, backend: str) -> ServedPrices:
    return ServedPrices(
        GB200, Formats(feed="fp8_block"), engine=engine, own=OwnKernels().with_products(engine, backend)
    )


@pytest.mark.parametrize(("m", "n", "us"), PUBLISHED)
def test_products_take_what_was_published(m: int, n: int, us: float) -> None:
    asked = questions.gemm(np.array([float(m)]), n, 7168, dtype="fp8_block", cast=False)
    found = prices("SGLang", "flashinfer_trtllm").ask(asked)
    assert found.mid[0] * 1e6 == pytest.approx(us, rel=0.30)
    assert found.low[0] * 1e6 < us < found.high[0] * 1e6


def test_other_formats_and_other_engines_keep_their_products() -> None:
    rows = np.array([2048.0])
    for engine, backend, dtype in (("SGLang", "flashinfer_trtllm", "bf16"), ("vLLM", "flashinfer_trtllm", "fp8_block")):
        asked = questions.gemm(rows, 24576, 7168, dtype=dtype)
        named, plain = prices(engine, backend).ask(asked), prices(engine, "").ask(asked)
        np.testing.assert_array_equal(named.mid, plain.mid)
        np.testing.assert_array_equal(named.high, plain.high)


def test_the_table_is_whole() -> None:
    assert [one.share for one in product_backends()] == [0.117]
    assert all(0 < one.least <= one.share <= one.most <= 1 for one in product_backends())
    assert all(row["source"].partition(",")[0] in sources() for row in read_tsv("product_backends.tsv"))
    assert product_backend("sglang", "deep_gemm") is None
