"""Dynamic sampling: more prompts than are trained on, without the groups whose responses are all right or all wrong."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ridgeline.facts.records import Fact
from ridgeline.seams.rollout import Generated, Requests, RolloutCollection, Serve
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class DynamicSampling(RolloutCollection):
    """Generates `factor` times the prompts of an iteration and drops groups whose rewards are equal (DAPO).

    Such groups have no advantage and no gradient. The rest, as many as an iteration needs, is trained on; DAPO's script
    generates three times its training batch at once. Groups that are dropped are as long as those that are kept here.
    Left out: a second batch where too few groups are left.
    """

    key: ClassVar[str] = "dynamic-sampling"
    source: ClassVar[tuple[str, ...]] = ("dapo-2025",)
    quality: ClassVar[Fact | None] = None
    factor: float = param(3.0, "1", "prompts generated over prompts trained on", low=1.0, high=64.0)

    def collect(self, asked: Requests, serve: Serve) -> Generated:
        """One replay of all requests, those that are dropped among them."""
        many = round(self.factor * len(asked.output))
        order = np.resize(np.arange(len(asked.output)), many)
        found = serve(Requests(prompt=asked.prompt[order], output=asked.output[order]))
        places = ((np.arange(len(asked.output)) + 1) * many) // len(asked.output) - 1
        return replace(found, ready_s=found.ready_s[places])
