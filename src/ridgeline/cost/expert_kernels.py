"""The kernels that an engine's backend of experts runs, and how it sends tokens to them."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.cost.answer import Rung
from ridgeline.cost.fitted import find_fits
from ridgeline.cost.questions import Asked
from ridgeline.errors import DomainError
from ridgeline.facts.engine_kernels import expert_backend, expert_backends
from ridgeline.facts.records import Accelerator

WIDE_EXPERT_RANKS = 16  # two nodes (assumed): tokens go to the ranks of their experts alone, unless a backend gathers


class ExpertKernels:
    """The kernels of one engine's `backend` on a device, in one number format; '' those it was measured with.

    Pools of `prompts` sort long batches, others answer few tokens each in a step. Kernels that were not measured on the
    device are lent by its relatives rather than stood in for by others of its own. A backend whose kernels in a format
    nobody measured there changes nothing; raises `DomainError` for a word that is none.
    """

    def __init__(self, part: Accelerator, engine: str, backend: str, form: str, *, prompts: bool) -> None:
        if backend and backend not in expert_backends():
            raise DomainError(f"expert_backend = '{backend}': none of {', '.join(expert_backends())}")
        self._part, self._prompts = part, prompts
        self._known = expert_backend(engine, backend, form) if backend else None

    @property
    def exchanges(self) -> bool:
        """Whether the backend sends each token to the ranks of its experts only, however few ranks there are."""
        return self._known is not None and self._known.exchange == "deepep"

    def over(self, ranks: int) -> bool:
        """Whether so many ranks trade each token with those of its experts only, rather than gather all tokens."""
        gathers = self._known is not None and self._known.exchange == "gather"
        return self.exchanges or (ranks >= WIDE_EXPERT_RANKS and not gathers)

    @property
    def narrow(self) -> bool:
        """Whether tokens are cast to the experts' format before they are gathered, and their sums scattered."""
        return self._known is not None and self._known.exchange == "narrow"

    @property
    def quick(self) -> bool:
        """Whether it sends tokens in the way of few, which steps take."""
        return self._known is None or not self.exchanges or self._family == "wide_experts_decode"

    @property
    def _family(self) -> str:
        """The family of its kernels, of prompts or of steps; '' where they are those that were measured."""
        return "" if self._known is None else self._known.prompts if self._prompts else self._known.steps

    def of(self, asked: Asked) -> tuple[Asked, Rung]:
        """The same asked of the backend's kernels, and the best rung that knows them; else unchanged."""
        known = self._known
        if known is not None and known.form == asked.question.form:
            named = replace(asked.question, family=self._family, kernel=known.kernel, engine=known.library)
            for rung in (Rung.FITTED, Rung.BORROWED):
                found = find_fits(named, self._part, rung)
                if any(fit.kernel.split(" ")[0] == known.kernel for fit in found):
                    return replace(asked, question=named), rung
        return asked, Rung.FITTED
