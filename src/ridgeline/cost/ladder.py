"""One question, three rungs: what an operator costs from a measured table, a fitted mechanism, or borrowed values.

The best rung that can answer does: the table inside what was measured, the fit of this device and library, the fits
of its relatives; where it is asked for, what the fits of all devices have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.cost.answer import ALL, Answer, Question, Rung, held_by_host
from ridgeline.cost.fitted import find_fits, from_fits
from ridgeline.errors import DomainError
from ridgeline.facts.fits import measured_devices
from ridgeline.facts.records import Accelerator


def price(question: Question, part: Accelerator, *, rungs: Sequence[Rung] = ALL) -> Answer:
    """The price of an operator on a device, from the best of `rungs` that can answer [s].

    Raises `DomainError` when none can: a family, format or device that nobody measured, or sizes outside a domain.
    """
    if Rung.TABLE in rungs:
        from ridgeline.cost.measured import measured

        found = measured(question, part)
        if found is not None:
            return held_by_host(found, question.issue_s)
    for rung in (Rung.FITTED, Rung.BORROWED, Rung.COMMON):
        if rung in rungs:
            fits = find_fits(question, part, rung)
            if fits:
                return held_by_host(from_fits(question, part, fits, rung), question.issue_s)
    asked = f" by {question.engine}" if question.engine else ""
    raise DomainError(
        f"{part.name}: no {question.family} in {question.form}{asked} was measured on it or its relatives;"
        f" ask for another format or library, or for a device that was: {', '.join(measured_devices(question.family))}"
    )
