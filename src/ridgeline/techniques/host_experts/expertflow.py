"""All experts computed on the device: those away are fetched ahead, as a predictor of routing paths says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.host_experts import HostedLayer, HostedSeconds
from ridgeline.seams.technique import param
from ridgeline.techniques.host_experts.hybrimoe import PopularExperts, taken_by_rank

if TYPE_CHECKING:
    from ridgeline.seams.host_experts import Array


@dataclass(frozen=True, kw_only=True)
class ExpertFlow(PopularExperts):
    """A predictor tells every layer's experts before the pass; the cache of the device is filled by it in time.

    Experts that it foretells cross the link while the layer before is computed; those that it misses are fetched when
    the router has spoken, and are waited for. Regrouping of tokens by path leaves a share `active` of the experts that
    tokens would take. The cache starts from the most popular experts, by rank^-skew or by `loads` of a trace of
    routing. The predictor, a transformer of `predictor_m` weights, goes over all tokens on the device before each pass.
    """

    key: ClassVar[str] = "expertflow"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("he2024expertflow",)
    foreseen: float = param(0.9, "1", "share of the experts that are taken which the predictor tells", high=1.0)
    active: float = param(
        1.0, "1", "share of the taken experts that is left when tokens are regrouped", low=0.01, high=1.0
    )

    predictor_m: float = param(60.0, "1e6 weights", "weights of the predictor (assumed: a small T5's)", high=1e6)

    def predictor_s(self, one: HostedLayer) -> Array:
        """A layer's part of the predictor's pass: at most its weights' share of an expert with all T tokens, (T,) [s].

        Experts took `device_s` for k T rows, or for more weights than one expert's.
        """
        experts = self.predictor_m * 1e6 / (one.row_flop / 2.0)
        return experts * one.device_s / one.top_k / one.layers

    def ranked(self, one: HostedLayer, chance: Array) -> HostedSeconds:
        """Predictor + max(device, foretold fetches - the rest of the layer before) + missed fetches [s]."""

        import numpy as np

        held = round(self.share * one.experts)
        taken = np.stack([taken_by_rank(chance, float(tokens))[0] for tokens in one.tokens])
        away = self.active * taken[:, held:].sum(axis=1)
        before = self.predictor_s(one)
        device = one.device_s * self.active
        missed = (1.0 - self.foreseen) * away * one.fetch_s
        link = away * one.fetch_s
        total = np.maximum(device, link - missed - one.other_s) + missed
        return HostedSeconds(device=device + before, host=0.0 * device, link=link, total=total + before)
