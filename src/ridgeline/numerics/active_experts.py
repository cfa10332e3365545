"""What a layer of experts loses on arrays where each token visits fewer of them.

Shape letters: m rows and n columns of a weight, E experts, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class ActiveExpertLosses(ArrayAlgorithm):
    """LExI's losses of one layer: how far its output moves on random inputs where tokens visit 1, 2 to K - 1 experts.

    The weight's rows are E experts one below the other, each W^T silu(W x); a router of normal weights is drawn. Of k
    experts the loss is ||Y_k - Y_K|| / ||Y_K|| (Frobenius) over as many normal inputs as there are samples; beside it
    that over the samples themselves, which LExI does without.

    Checked: visits of all experts lose nothing; the sum over experts by hand; scale of the weights. Left out: gates and
    shared experts, and the model's own router.
    """

    key: ClassVar[str] = "active-expert-losses"
    technique: ClassVar[str] = "active-experts"
    source: ClassVar[tuple[str, ...]] = ("lexi",)
    experts: int = param(8, "experts", "experts of the layer", low=2, high=4096)
    top_k: int = param(4, "experts", "experts that a token visits now", low=2, high=256)
    shared_out: bool = param(False, "1", "shares of the chosen experts add up to 1")

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Loss at each number of experts on random inputs, and on the samples [1]; raises `PlanError`."""
        if self.top_k > self.experts or self.experts > len(arrays.weight):
            raise PlanError(
                f"{self.key}: top_k = {self.top_k} of {self.experts} experts in {len(arrays.weight)} rows; needs"
                " top_k <= experts <= rows"
            )
        draw = np.random.default_rng(arrays.seed)
        router = draw.standard_normal((self.experts, arrays.weight.shape[1])) / np.sqrt(arrays.weight.shape[1])
        found = {}
        for name, inputs in (("loss", draw.standard_normal(arrays.inputs.shape)), ("data_loss", arrays.inputs)):
            whole = self.output(arrays.weight, router, inputs, self.top_k)
            size = max(float(np.linalg.norm(whole)), 1e-300)
            for count in range(1, self.top_k):
                moved = self.output(arrays.weight, router, inputs, count) - whole
                found[f"{name}_{count}"] = float(np.linalg.norm(moved)) / size
        return found

    def output(self, weight: Floats, router: Floats, inputs: Floats, count: int) -> Floats:
        """What the layer gives for inputs (N, n) that visit `count` experts each (N, n)."""
        logits = inputs @ router.T
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        least = np.sort(shares, axis=1)[:, -count][:, None]
        shares = np.where(shares >= least, shares, 0.0)
        if self.shared_out:
            shares /= shares.sum(axis=1, keepdims=True)
        total = np.zeros_like(inputs)
        for share, part in zip(shares.T, np.array_split(weight, self.experts), strict=True):
            inner = inputs @ part.T
            total += share[:, None] * ((inner / (1.0 + np.exp(-np.clip(inner, -700.0, 700.0)))) @ part)
        return total
