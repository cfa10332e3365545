"""Local gradients against differences, FLOP by hand, and both ways of learning on one task."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.numerics.algorithm import Floats, algorithm, drawn
from ridgeline.numerics.mono_forward import _local, _propagated, local_gradients, softmax, step_flop

DRAW = np.random.default_rng(1)
X, Y = DRAW.standard_normal((6, 5)), np.eye(3)[DRAW.integers(0, 3, 6)]
WEIGHTS = [DRAW.standard_normal((4, 5)), DRAW.standard_normal((4, 4))]
HEAD = DRAW.standard_normal((3, 4))


def loss(weights: list[Floats], head: Floats) -> float:
    out = X
    for one in weights:
        out = np.maximum(out @ one.T, 0.0)
    return -float(np.mean(np.log(softmax(out @ head.T)[Y == 1.0])))


def changed(weights: list[Floats], head: Floats, place: int) -> Floats:
    """The gradient of one weight by central differences."""
    found = np.zeros_like(weights[place])
    for at in np.ndindex(found.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [one.copy() for one in weights]
            moved[place][at] += step
            ends.append(loss(moved, head))
        found[at] = (ends[0] - ends[1]) / 2e-6
    return found


def test_gradients_of_a_layer_are_those_of_its_own_loss() -> None:
    _, of_weight, _ = local_gradients(X, Y, WEIGHTS[0], HEAD)
    assert of_weight == pytest.approx(changed(WEIGHTS[:1], HEAD, 0), abs=1e-6)


def test_backpropagation_is_the_gradient_of_the_whole() -> None:
    found = _propagated(X, Y, WEIGHTS, [HEAD])
    for place in (0, 1):
        assert found[place] == pytest.approx(changed(WEIGHTS, HEAD, place), abs=1e-6)


def test_one_layer_learns_alike_either_way() -> None:
    local, whole = _local(X, Y, WEIGHTS[:1], [HEAD]), _propagated(X, Y, WEIGHTS[:1], [HEAD])
    assert all(np.allclose(one, two) for one, two in zip(local, whole, strict=True))


def test_flop_by_hand() -> None:
    """5 features, two layers of 4, 3 classes: 2 (20 x 2 + 16 x 3) + 72 by propagation, 2 (20 x 2 + 16 x 2) + 144."""
    assert step_flop([5, 4, 4], 3, local=False) == 2 * (20 * 2 + 16 * 3) + 6 * 4 * 3
    assert step_flop([5, 4, 4], 3, local=True) == 2 * (20 * 2 + 16 * 2) + 2 * 6 * 4 * 3


def test_it_learns_with_fewer_flop_and_less_held() -> None:
    found = algorithm("mono-forward(layers=4,classes=4)").run(drawn(64, 32, 800))
    assert found["accuracy"] > 0.5  # a quarter by chance
    assert found["backpropagation_accuracy"] > 0.5
    assert 2 / 3 < found["step_flop_ratio"] < 1.0
    assert found["held_ratio"] < 0.5
