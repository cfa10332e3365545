"""2:4 sparsity: which two of each four numbers are kept, by rows or both ways, and by chance without bias.

Shape letters: m rows and n columns of a weight, N samples, G groups of four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import result_error
from ridgeline.seams.technique import param

_BATCH = 64  # samples of a step
_RATE = 0.25  # of the largest rate that full batches are stable at, half of it
Mask = NDArray[np.bool_]
Projection = Callable[[Floats], tuple[Floats, Mask]]
"""A dense weight (m, n) -> the sparse one that stands for it, and which numbers of it are kept."""


def groups(values: Floats) -> Floats:
    """Numbers in fours along the last axis (..., n / 4, 4); raises `InputError` where they are no multiple of four."""
    if values.shape[-1] % 4 or values.shape[0] % 4:
        raise InputError(f"a matrix of {values.shape[0]} x {values.shape[-1]}: 2:4 needs multiples of 4 both ways")
    return values.reshape(*values.shape[:-1], -1, 4)


def row_mask(weight: Floats) -> Mask:
    """The two largest magnitudes of each four along rows (m, n)."""
    each = np.abs(groups(weight))
    order = np.argsort(-each, axis=-1, kind="stable")
    kept = np.zeros(each.shape, dtype=bool)
    np.put_along_axis(kept, order[..., :2], True, axis=-1)
    return kept.reshape(weight.shape)


@cache
def patterns() -> NDArray[np.float64]:
    """The masks of a 4 x 4 block that keep two of each row and of each column, (90, 16)."""
    rows = [[float(place in pair) for place in range(4)] for pair in combinations(range(4), 2)]
    found = [np.concatenate(four) for four in product(rows, repeat=4) if np.all(np.sum(four, axis=0) == 2.0)]
    return np.array(found)


def transposable_mask(weight: Floats) -> Mask:
    """The mask that is 2:4 along rows and columns and keeps most magnitude (m, n): the best pattern of each block."""
    m, n = weight.shape
    groups(weight)
    blocks = np.abs(weight).reshape(m // 4, 4, n // 4, 4).swapaxes(1, 2).reshape(-1, 16)
    chosen = patterns()[np.argmax(blocks @ patterns().T, axis=1)]
    return np.asarray(chosen.reshape(m // 4, n // 4, 4, 4).swapaxes(1, 2).reshape(m, n) > 0)


def unbiased(values: Floats, draw: np.random.Generator) -> Floats:
    """Two of each four along rows, kept by chance and scaled so that their mean is the number itself.

    The first is kept with p_i = |a_i| / sum |a|, the second of the other three likewise; a kept number is divided by
    the probability that it is, p_i (1 + sum_j p_j / (1 - p_j), j other than i). Source: Chmiel et al. 2022
    (arXiv:2203.10991), as approximated in the authors' code.
    """
    each = groups(values)
    size = np.abs(each) + 1e-30
    p = size / size.sum(axis=-1, keepdims=True)
    odds = p / np.maximum(1.0 - p, 1e-30)
    kept_p = p * (1.0 + odds.sum(axis=-1, keepdims=True) - odds)
    noise = draw.gumbel(size=each.shape) + np.log(p)  # the two largest are draws without replacement
    order = np.argsort(-noise, axis=-1)[..., :2]
    kept = np.zeros(each.shape, dtype=bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return np.asarray(np.where(kept, each / np.minimum(kept_p, 1.0), 0.0).reshape(values.shape))


@dataclass(frozen=True, kw_only=True)
class TrainedMask:
    """What training by `fitted` ended with: loss over that of a zero weight, and mean share of masks that flipped."""

    loss: float
    last_flips: float


def fitted(arrays: Arrays, project: Projection, *, steps: int, decay: float = 0.0, prune: bool = True) -> TrainedMask:
    """Least squares of the layer's results by gradient steps on a dense weight whose `project`ion multiplies.

    The gradient of the projection is taken for that of the weight (straight through), made from an unbiased 2:4
    gradient of the results where `prune`; `decay` times what the mask leaves out is added to it. Flips are the share of
    a mask that changes in a step, over the last tenth of all steps.
    """
    draw, inputs = np.random.default_rng(arrays.seed), arrays.inputs
    rate = _RATE / float(np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1])
    weight = 0.5 * arrays.weight + draw.standard_normal(arrays.weight.shape) * float(np.std(arrays.weight)) * 0.5
    found, mask = project(weight)
    flips = []
    for _ in range(steps):
        batch = inputs[draw.integers(0, len(inputs), _BATCH)]
        left = (found - arrays.weight) @ batch.T / len(batch)
        gradient = (unbiased(left, draw) if prune else left) @ batch
        weight = weight - rate * (gradient + decay / rate * np.where(mask, 0.0, weight))
        before = mask
        found, mask = project(weight)
        flips.append(float(np.mean(before != mask)))
    loss = result_error(arrays, found) ** 2
    return TrainedMask(loss=loss, last_flips=float(np.mean(flips[-max(1, steps // 10) :])))


def masked(mask: Callable[[Floats], Mask]) -> Projection:
    """A weight times its mask: the hard threshold of straight-through training."""

    def project(weight: Floats) -> tuple[Floats, Mask]:
        kept = mask(weight)
        return np.where(kept, weight, 0.0), kept

    return project


def dense(weight: Floats) -> tuple[Floats, Mask]:
    """A weight as it is."""
    return weight, np.ones(weight.shape, dtype=bool)


@dataclass(frozen=True, kw_only=True)
class TransposableMask(ArrayAlgorithm):
    """Transposable 2:4 masks by the best of 90 patterns of each 4 x 4 block, masked decay and unbiased gradients.

    Measured: magnitude that the mask keeps, beside that of a mask by rows alone, which is the most that any can keep;
    error of results; how far the mean of `draws` unbiased 2:4 gradients is from the gradient, and how far one is; then
    least squares of the layer trained for `steps` with the mask found again in each: loss over that of no weight and
    flip rate (share of the mask that changes in a step) with masked `decay` and without, and loss of dense training.

    Checked: the patterns are 90 and the mask is no worse than any of them; means of gradients against the gradient.
    Left out: the order of layers, Adam.
    """

    key: ClassVar[str] = "transposable-mask"
    technique: ClassVar[str] = "transposable-sparsity"
    source: ClassVar[tuple[str, ...]] = ("sparse-pretraining-2024", "sparse-pretraining-code")
    decay: float = param(0.01, "1", "share of a masked weight that a step takes away", low=0.0, high=1.0)
    steps: int = param(100, "steps", "steps of training", low=1, high=100_000)
    draws: int = param(64, "draws", "unbiased gradients that are averaged", low=1, high=100_000)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Shares, errors, losses and flip rates."""
        weight, size = arrays.weight, np.abs(arrays.weight)
        both, rows = transposable_mask(weight), row_mask(weight)
        draw = np.random.default_rng(arrays.seed)
        cut = (arrays.inputs[: 4 * _BATCH] @ weight.T).T
        cut = cut[:, : cut.shape[1] // 4 * 4]
        drawn = [unbiased(cut, draw) for _ in range(self.draws)]
        norm = float(np.linalg.norm(cut))
        with_decay = fitted(arrays, masked(transposable_mask), steps=self.steps, decay=self.decay)
        without = fitted(arrays, masked(transposable_mask), steps=self.steps)
        return {
            "kept_share": float(size[both].sum() / size.sum()),
            "by_rows_kept_share": float(size[rows].sum() / size.sum()),
            "result_error": result_error(arrays, np.where(both, weight, 0.0)),
            "gradient_error": float(np.linalg.norm(drawn[0] - cut)) / norm,
            "mean_gradient_error": float(np.linalg.norm(np.mean(drawn, axis=0) - cut)) / norm,
            "loss": with_decay.loss,
            "loss_without_decay": without.loss,
            "dense_loss": fitted(arrays, dense, steps=self.steps, prune=False).loss,
            "flip_rate": with_decay.last_flips,
            "flip_rate_without_decay": without.last_flips,
        }
