"""The kernels that an engine's backend of experts runs, and how it sends tokens to them."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.cost.answer import Rung
from ridgeline.cost.fitted import find_fits
from ridgeline.cost.questions import Asked
from ridgeline.errors import DomainError
from ridgeline.facts.expert_backends import expert_backend, expert_backends
from ridgeline.facts.records import Accelerator


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

    @property
    def narrow(self) -> bool:
        """Whether tokens are cast to the experts' format before they are gathered, and their sums scattered."""
        return self._known is not None and self._known.exchange == "narrow"

    @property
    def quick(self) -> bool:
        """Whether it sends tokens in the way of few, which steps take."""
        return not (self.exchanges and self._prompts)

    def of(self, asked: Asked) -> tuple[Asked, Rung]:
        """The same asked of the backend's kernels, and the best rung that knows them; else unchanged."""
        known = self._known
        if known is not None and known.form == asked.question.form:
            family = known.prompts if self._prompts else known.steps
            named = replace(asked.question, family=family, kernel=known.kernel, engine=known.library)
            for rung in (Rung.FITTED, Rung.BORROWED):
                found = find_fits(named, self._part, rung)
                if any(fit.kernel.split(" ")[0] == known.kernel for fit in found):
                    return replace(asked, question=named), rung
        return asked, Rung.FITTED
