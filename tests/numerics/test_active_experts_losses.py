"""Losses of layers that visit fewer experts: by hand, their order, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.numerics.active_experts import ActiveExpertLosses
from ridgeline.numerics.algorithm import Arrays, algorithm, drawn


def test_two_experts_by_hand() -> None:
    """Experts x and 2x of one number, shares 3/4 and 1/4: one gives 3/4 silu(1), both 1/4 2 silu(2) more."""
    one = ActiveExpertLosses(experts=2, top_k=2)
    weight, router, inputs = np.array([[1.0], [2.0]]), np.array([[np.log(3.0)], [0.0]]), np.ones((1, 1))

    def silu(x: float) -> float:
        return x / (1.0 + np.exp(-x))

    assert one.output(weight, router, inputs, 1)[0, 0] == pytest.approx(0.75 * silu(1.0))
    assert one.output(weight, router, inputs, 2)[0, 0] == pytest.approx(0.75 * silu(1.0) + 0.25 * 2.0 * silu(2.0))


def test_fewer_experts_lose_more() -> None:
    found = algorithm("active-expert-losses(experts=16,top_k=4)").run(drawn(64, 16, 256))
    assert found["loss_1"] > found["loss_2"] > found["loss_3"] > 0.0
    assert found["data_loss_1"] > found["data_loss_3"]


def test_what_is_refused() -> None:
    with pytest.raises(PlanError, match="top_k <= experts"):
        ActiveExpertLosses(experts=8, top_k=4).run(Arrays(weight=np.ones((4, 4)), inputs=np.ones((2, 4))))
