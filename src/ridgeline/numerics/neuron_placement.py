"""Hot neurons on the device by PowerInfer's program, beside an equal share of every layer.

Shape letters: L layers, B batches of neurons of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param
from ridgeline.serving.hybrid_placement import placed_neurons


@dataclass(frozen=True, kw_only=True)
class NeuronPlacement(ArrayAlgorithm):
    """PowerInfer's program: which batches of neurons the device holds, so that most activations meet it.

    Batches of 64 neurons of every layer, most used first; the device has room for a `share` of all, and a layer has
    none there or at least `least` of its batches, from which sums over the link are worth it. Measured: uses that meet
    the device by the program, by the same share of every layer, and by the most used batches of all layers, both
    without those of layers that have too few. Uses of a layer's neurons are drawn: a `hot` part of them makes up 80 %
    of its uses on average, and more or less by layer (`uneven`). Checked: against every choice of small layers.
    """

    key: ClassVar[str] = "neuron-placement"
    source: ClassVar[tuple[str, ...]] = ("powerinfer", "powerinfer-solver")
    layers: int = param(48, "layers", "layers of the model", low=1, high=1000)
    batches: int = param(448, "batches", "batches of 64 neurons of a layer", low=2, high=100_000)
    share: float = param(0.25, "1", "of all batches that the device has room for", low=0.0, high=1.0)
    least: float = param(0.1, "1", "of a layer's batches that are worth the link", low=0.0, high=1.0)
    hot: float = param(0.26, "1", "of a layer's neurons that make up 80 % of its uses", low=0.01, high=0.8)
    uneven: float = param(0.5, "1", "standard deviation of the logarithm of that part from layer to layer", high=3.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Uses met on the device by the program, and by two plain rules [1]."""
        draw = np.random.default_rng(arrays.seed)
        uses = self._uses(draw)
        room, least = int(self.share * uses.size), max(1, int(self.least * self.batches))
        met = np.cumsum(np.concatenate([np.zeros((self.layers, 1)), uses], axis=1), axis=1)
        even = np.full(self.layers, int(self.share * self.batches))
        edge = np.sort(uses, axis=None)[::-1][max(room, 1) - 1]
        most = (uses >= edge).sum(axis=1) if room else np.zeros(self.layers, dtype=int)
        plain = {"even": even, "most_used": most}
        ways = {"program": placed_neurons(uses, room, least)} | {
            name: np.where(count < least, 0, count) for name, count in plain.items()
        }
        return {
            f"{name}_met": float(met[np.arange(self.layers), count.astype(int)].sum() / uses.sum())
            for name, count in ways.items()
        }

    def _uses(self, draw: np.random.Generator) -> Floats:
        """Uses of each batch, (L, B) [1], falling: of a share x of a layer's neurons x^p, with hot^p = 0.8."""
        hot = np.clip(self.hot * np.exp(self.uneven * draw.standard_normal(self.layers)), 0.005, 0.79)
        power = np.log(0.8) / np.log(hot)
        edges = np.linspace(0.0, 1.0, self.batches + 1)[None, :] ** power[:, None]
        return np.asarray(np.diff(edges, axis=1))
