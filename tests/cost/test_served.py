"""Products of served layers: what is cast before them, and what comes narrow already."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.cost.served import Formats, ServedPrices
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import fits
from ridgeline.lower.inference import Product

H200 = machine(cluster("1xH200-SXM"))
ROWS = np.array([1.0, 64.0])
PIECE = Product(name="out", n=8192, k=1024)


def seconds(feed: str, static: bool, engine: str = "TensorRT-LLM") -> np.ndarray:
    prices = ServedPrices(H200, Formats(feed=feed, static=static), engine=engine)
    return prices.product(PIECE, ROWS).mid


def test_known_scales_spare_the_cast_that_rows_of_its_own_told() -> None:
    (fit,) = (f for f in fits("gemm") if (f.device, f.engine, f.form) == ("H200-SXM", "trtllm", "fp8"))
    spared = seconds("fp8", False) - seconds("fp8", True)
    values = fit.values
    row = values["cast_row_s_"] + 1024 * values["cast_element_s_"]  # one block of an SM, far more than its bytes take
    assert spared == pytest.approx(values["cast_start_s_"] + row, rel=0.02)
    assert (seconds("fp8", True) > 0).all()


@pytest.mark.parametrize("feed", ["bf16", "fp8_block", "nvfp4"])
def test_other_formats_are_cast_as_they_were(feed: str) -> None:
    assert (seconds(feed, True) == seconds(feed, False)).all()
