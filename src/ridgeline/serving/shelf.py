"""Prices of served pieces that several deployments share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import Machine
from ridgeline.cost.seconds import Seconds
from ridgeline.cost.served import MEASURED_SKEW, ServedPrices
from ridgeline.facts.engine_kernels import by_batch
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Placement, of


@dataclass
class Shelf:
    """Prices that deployments on one machine, of one or two kinds of devices, share: a piece is asked once on a grid.

    `rungs_used` of shared prices tells what answered any of those deployments.
    """

    _prices: dict[Hashable, ServedPrices] = field(default_factory=dict)
    _found: dict[Hashable, Seconds] = field(default_factory=dict)

    def prices(
        self, machine: Machine, formats: Formats, deployment: Deployment, own: OwnKernels, *, prompts: bool
    ) -> tuple[Hashable, ServedPrices]:
        """What prices a deployment in these formats, and the key under which it is known.

        Backends of experts may have other kernels for iterations with `prompts`.
        """
        skew = MEASURED_SKEW if deployment.expert_skew is None else deployment.expert_skew
        skew = skew if of(deployment, Placement).imbalance is None else 0.0  # the fullest rank's rows are known
        kind = machine.cluster.accelerator.name
        backend, products = deployment.options.expert_backend, deployment.options.product_backend
        key = (
            kind, formats, deployment.engine, deployment.version, skew, own, backend, products,
            prompts and by_batch(backend),
        )  # fmt: skip
        if key not in self._prices:
            self._prices[key] = ServedPrices(
                machine, formats, engine=deployment.engine, version=deployment.version, skew=skew,
                own=own.with_products(deployment.engine, products), expert_backend=backend, prompts=prompts,
            )  # fmt: skip
        return key, self._prices[key]

    def get(self, key: Hashable, ask: Callable[[], Seconds]) -> Seconds:
        """The price under a key, asked for where it is not known yet [s]."""
        if key not in self._found:
            self._found[key] = ask()
        return self._found[key]
