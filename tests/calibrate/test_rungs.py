"""Rungs judged on rows that no fit used: which kernels answer for them."""

from __future__ import annotations

import numpy as np

from ridgeline.calibrate.rungs import judged_sample
from ridgeline.cost.answer import Rung
from ridgeline.cost.formats import form
from ridgeline.cost.samples import INTERVAL, family_tables, samples


def test_rows_of_kernels_for_hybrid_models_are_judged_by_these(wheel: None) -> None:
    """SGLang's Triton kernels for heads of 256 on B200, which those for heads of 192 miss by half."""
    (table,) = (one for one in family_tables("decode", "B200-SXM") if (one.engine, one.version) == ("sglang", "0.5.14"))
    (sample,) = (one for one in samples("decode", table, wanted=form("bf16")) if one.kernel == "triton d256")
    shown = sample.where(sample.folds == INTERVAL)
    for rung in (Rung.FITTED, Rung.BORROWED):
        judged = judged_sample(shown, table, rung, INTERVAL)
        assert np.nanmedian(np.abs(judged.predicted / judged.measured - 1)) < 0.2
