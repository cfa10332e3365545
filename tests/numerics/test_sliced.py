"""Sliced weights by hand, turning against rounding, deletion against other rotations, the rewritten graph."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.graph.load import load
from ridgeline.graph.model import op_params
from ridgeline.graph.ops import GroupedGemmOp
from ridgeline.numerics.algorithm import algorithm, drawn
from ridgeline.numerics.sliced import normed, principal
from ridgeline.seams.resolve import rewritten


@pytest.mark.parametrize("seed", range(3))
def test_turning_changes_rounding_alone_and_deleting_less_than_columns(seed: int) -> None:
    found = algorithm("sliced").run(drawn(64, 64, 256, seed=seed))
    assert found["rotation_error"] < 1e-13
    assert found["least_result_error"] <= found["result_error"] < found["unturned_result_error"]
    assert algorithm("sliced(slicing=0)").run(drawn(64, 64, 256, seed=seed))["result_error"] < 1e-13


def test_no_rotation_leaves_more_variance_than_principal_directions() -> None:
    inputs, draw = normed(drawn(4, 32, 200).inputs), np.random.default_rng(1)
    values, turn = principal(inputs)
    best = float(np.sum((inputs @ turn[:, :8]) ** 2))
    assert best == pytest.approx(values[:8].sum())
    for _ in range(50):
        other, _ = np.linalg.qr(draw.standard_normal((32, 32)))
        assert np.sum((inputs @ other[:, :8]) ** 2) <= best


def test_weights_of_a_sliced_llama_by_hand() -> None:
    """d = 6,144 of 8,192: weights in and out at d, two d x d products a layer, table and head at d, norms at d."""
    model = load("llama-2-70b")
    sliced = rewritten(model, ("slicegpt",)).graph
    d, ffn, layers, vocab = 6144, 28672, 80, 32000
    attention = d * (8192 + 2 * 1024) + 8192 * d
    layer = attention + 3 * d * ffn + 2 * d * d + 2 * d
    assert sliced.hidden == d
    assert sliced.params == layers * layer + 2 * vocab * d + d


def test_a_tied_head_becomes_a_weight_of_its_own() -> None:
    sliced = rewritten(load("gpt2"), ("slicegpt(slicing=0.5)",)).graph
    head = next(op for op in sliced.head if op.name == "lm_head")
    assert op_params(head, 1) == 384 * sliced.vocab
    assert not sliced.tied_embeddings


def test_encoders_are_refused_and_experts_are_sliced() -> None:
    with pytest.raises(PlanError, match="no decoder"):
        rewritten(load("t5-base"), ("slicegpt",))
    block = next(iter(rewritten(load("mixtral-8x7b"), ("slicegpt",)).graph.blocks.values()))
    experts = [op for op in block.ops if isinstance(op, GroupedGemmOp)]
    assert [(op.k, op.n) for op in experts] == [(3072, 2 * 14336), (14336, 3072)]
