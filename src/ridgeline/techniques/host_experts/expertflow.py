"""All experts computed on the device: those away are fetched ahead, as a predictor of routing paths says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.technique import param
from ridgeline.techniques.host_experts.hybrimoe import taken_by_rank


@dataclass(frozen=True, kw_only=True)
class ExpertFlow(HostExperts):
    """A predictor tells every layer's experts before the pass; the cache of the device is filled by it in time.

    Experts that it foretells cross the link while the layer before is computed; those that it misses are fetched when
    the router has spoken, and are waited for. Regrouping of tokens by path leaves a share `active` of the experts that
    tokens would take. The cache starts from the most popular experts, popularity falling as rank^-skew. The predictor's
    own time, before the pass and beside the pass before, is not counted.
    """

    key: ClassVar[str] = "expertflow"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("he2024expertflow",)
    skew: float = param(0.5, "1", "power by which the popularity of experts falls with their rank", high=4.0)
    foreseen: float = param(0.9, "1", "share of the experts that are taken which the predictor tells", high=1.0)
    active: float = param(
        1.0, "1", "share of the taken experts that is left when tokens are regrouped", low=0.01, high=1.0
    )

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """max(device, foretold fetches - the rest of the layer before) + missed fetches [s]."""

        import numpy as np

        held = round(self.share * one.experts)
        taken = np.stack([taken_by_rank(one, float(tokens), self.skew)[0] for tokens in one.tokens])
        away = self.active * taken[:, held:].sum(axis=1)
        device = one.device_s * self.active
        missed = (1.0 - self.foreseen) * away * one.fetch_s
        link = away * one.fetch_s
        total = np.maximum(device, link - missed - one.other_s) + missed
        return HostedSeconds(device=device, host=0.0 * device, link=link, total=total)
