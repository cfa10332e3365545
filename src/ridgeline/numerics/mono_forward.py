"""Mono-Forward: each layer of a network learns from a classifier of its own, and no gradient passes between layers.

Shape letters: N samples, n features, m units of a layer, L layers, k classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param

_BETAS, _TINY = (0.9, 0.999), 1e-8  # of Adam


def local_gradients(x: Floats, y: Floats, weight: Floats, head: Floats) -> tuple[Floats, Floats, Floats]:
    """Of one layer relu(x W^T) (N, m) and its own head (k, m): its outputs, and gradients of both by cross entropy.

    >>> x, y = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]])
    >>> [each.round(2).tolist() for each in local_gradients(x, y, np.array([[2.0, 0.0]]), np.zeros((2, 1)))]
    [[[2.0]], [[0.0, 0.0]], [[-1.0], [1.0]]]
    """
    out = np.maximum(x @ weight.T, 0.0)
    error = (softmax(out @ head.T) - y) / len(x)
    return out, ((error @ head) * (out > 0.0)).T @ x, error.T @ out


def softmax(scores: Floats) -> Floats:
    """Probabilities of classes (N, k) [1]."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def step_flop(sizes: list[int], classes: int, *, local: bool) -> float:
    """Products of a training step of one sample through layers of `sizes` (n, m, m ...) [FLOP].

    Forward and the gradients of weights; back-propagation those of inputs of all layers but the first too, and one head
    with its three products; local learning a head for each layer.
    """
    pairs = list(pairwise(sizes))
    layers = sum(2.0 * one * two * (2 if local or place == 0 else 3) for place, (one, two) in enumerate(pairs))
    return layers + sum(3 * 2.0 * size * classes for size in (sizes[1:] if local else sizes[-1:]))


@dataclass(frozen=True, kw_only=True)
class MonoForward(ArrayAlgorithm):
    """Mono-Forward: a classifier on each layer tells it its error, so nothing is propagated back through the network.

    Measured, on samples whose classes a random network of one layer draws: the share of samples held out that is told
    right after as many steps of Adam by either way, alike weights at first; the FLOP of a step over those of
    back-propagation, and the activations that must be held at once. Energy goes with the first where steps are as many.
    Widths are those of the weight (m, n).

    Checked: gradients against differences; FLOP by hand. Left out: Forward-Forward and Cascaded Forward, early stopping
    (which decides how many epochs either way takes), convolutions.
    """

    key: ClassVar[str] = "mono-forward"
    source: ClassVar[tuple[str, ...]] = ("mono-forward-study",)
    layers: int = param(3, "layers", "hidden layers, each as wide as the weight has rows", low=1, high=64)
    classes: int = param(10, "1", "classes", low=2, high=10_000)
    steps: int = param(50, "steps", "steps of training, each on all samples", low=1, high=100_000)
    rate: float = param(3e-3, "1", "rate of Adam (assumed)", low=1e-9, high=10.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Accuracy by both ways, FLOP and held activations of local learning over those of back-propagation."""
        draw = np.random.default_rng(arrays.seed)
        units, features = arrays.weight.shape
        x = arrays.inputs / max(float(np.std(arrays.inputs)), 1e-300)
        teacher = np.maximum(x @ draw.standard_normal((features, units)), 0.0) @ draw.standard_normal(
            (units, self.classes)
        )
        y = np.eye(self.classes)[(teacher - teacher.mean(axis=0)).argmax(axis=1)]
        known, sizes = max(1, len(x) * 3 // 4), [features, *[units] * self.layers]
        first = [draw.standard_normal((m, n)) * np.sqrt(2.0 / n) for n, m in pairwise(sizes)]
        told = {
            local: self._accuracy(x, y, known, [one.copy() for one in first], local=local) for local in (True, False)
        }
        flop = {local: step_flop(sizes, self.classes, local=local) for local in (True, False)}
        held = max(one + two for one, two in pairwise(sizes)) + self.classes
        return {
            "accuracy": told[True],
            "backpropagation_accuracy": told[False],
            "step_flop_ratio": flop[True] / flop[False],
            "held_ratio": held / (sum(sizes) + self.classes),
        }

    def _accuracy(self, x: Floats, y: Floats, known: int, weights: list[Floats], *, local: bool) -> float:
        heads = [np.zeros((self.classes, one.shape[0])) for one in (weights if local else weights[-1:])]
        every, moments = [*weights, *heads], [(np.zeros_like(one), np.zeros_like(one)) for one in [*weights, *heads]]
        for step in range(1, self.steps + 1):
            found = (_local if local else _propagated)(x[:known], y[:known], weights, heads)
            for one, (mean, square), gradient in zip(every, moments, found, strict=True):
                mean += (1 - _BETAS[0]) * (gradient - mean)
                square += (1 - _BETAS[1]) * (gradient**2 - square)
                scale = np.sqrt(square / (1 - _BETAS[1] ** step)) + _TINY
                one -= self.rate * mean / (1 - _BETAS[0] ** step) / scale
        out = x[known:] if known < len(x) else x
        for weight in weights:
            out = np.maximum(out @ weight.T, 0.0)
        return float(np.mean((out @ heads[-1].T).argmax(axis=1) == y[-len(out) :].argmax(axis=1)))


def _local(x: Floats, y: Floats, weights: list[Floats], heads: list[Floats]) -> list[Floats]:
    """Gradients of all layers and heads, each layer's by its own head."""
    found, own = [], []
    for weight, head in zip(weights, heads, strict=True):
        x, of_weight, of_head = local_gradients(x, y, weight, head)
        found.append(of_weight)
        own.append(of_head)
    return [*found, *own]


def _propagated(x: Floats, y: Floats, weights: list[Floats], heads: list[Floats]) -> list[Floats]:
    """Gradients of all layers and the one head, by back-propagation."""
    outs = [x]
    for weight in weights:
        outs.append(np.maximum(outs[-1] @ weight.T, 0.0))
    error = (softmax(outs[-1] @ heads[0].T) - y) / len(x)
    of_head, back, found = error.T @ outs[-1], error @ heads[0], []
    for weight, before, after in zip(weights[::-1], outs[-2::-1], outs[:0:-1], strict=True):
        back = back * (after > 0.0)
        found.append(back.T @ before)
        back = back @ weight
    return [*found[::-1], of_head]
