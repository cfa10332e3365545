"""SliceGPT on arrays: inputs turned to their principal directions, the least of which are deleted.

Shape letters: m rows and n columns of a weight, N samples, d columns that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import result_error
from ridgeline.seams.technique import param


def principal(inputs: Floats) -> tuple[Floats, Floats]:
    """Variances (n,) and principal directions (n, n) of inputs, the largest first: eigenvectors of X^T X."""
    values, turn = np.linalg.eigh(inputs.T @ inputs)
    return np.asarray(values[::-1]), np.asarray(turn[:, ::-1])


def normed(inputs: Floats) -> Floats:
    """Each sample over its root mean square (N, n), which no turn of it changes."""
    return np.asarray(inputs / np.sqrt(np.mean(inputs**2, axis=1, keepdims=True) + 1e-300))


@dataclass(frozen=True, kw_only=True)
class Sliced(ArrayAlgorithm):
    """SliceGPT: a layer behind an RMS norm, inputs and weights turned by PCA, then without `slicing` of the columns.

    Measured: error of results after turning alone (that of rounding); after deleting the least principal
    directions; after deleting as many columns unturned, those of least variance; the least that any projection of as
    many directions can leave, which sees the weight too; variance that is left, and weights left with the d x d matrix
    that a residual then needs over those of a square layer.

    Checked: invariance to rounding; that no other rotation leaves more variance; the floor against them. Left out: one
    layer's error in the next layer's directions.
    """

    key: ClassVar[str] = "sliced"
    technique: ClassVar[str] = "slicegpt"
    source: ClassVar[tuple[str, ...]] = ("slicegpt-2024", "slicegpt-code")
    slicing: float = param(0.25, "1", "share of columns that is deleted", low=0.0, high=0.95)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Errors of results, variance and weights that are left."""
        inputs, weight = normed(arrays.inputs), arrays.weight
        layer = Arrays(weight=weight, inputs=inputs, seed=arrays.seed)
        m, n = weight.shape
        left = max(1, int((1.0 - self.slicing) * n))
        values, turn = principal(inputs)
        exact = inputs @ weight.T
        turned = (normed(arrays.inputs @ turn)) @ (weight @ turn).T
        kept = turn[:, :left]
        columns = np.argsort(-np.sum(inputs**2, axis=0), kind="stable")[:left]
        plain = np.zeros_like(weight)
        plain[:, columns] = weight[:, columns]
        tail = np.linalg.svd(exact, compute_uv=False)[left:]
        return {
            "rotation_error": float(np.linalg.norm(turned - exact) / np.linalg.norm(exact)),
            "result_error": result_error(layer, weight @ kept @ kept.T),
            "unturned_result_error": result_error(layer, plain),
            "least_result_error": float(np.linalg.norm(tail) / np.linalg.norm(exact)),
            "variance_left": float(values[:left].sum() / values.sum()),
            "weights_left": (m * left + left * left) / (m * n),
        }
