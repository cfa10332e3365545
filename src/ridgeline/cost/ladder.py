"""One question, three rungs: what an operator costs from a measured table, a fitted mechanism, or borrowed values.

The best rung that can answer does: the table inside what was measured, the fit of this device and library, the fits
of its relatives, what the fits of all devices have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.cost.answer import ALL, Cost, Question, Rung, held_by_host
from ridgeline.cost.fit_choice import CORES, device_only_fits, find_fits
from ridgeline.cost.fitted import from_fits
from ridgeline.cost.formats import form
from ridgeline.cost.host_times import issue_range_s
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import measured_devices
from ridgeline.facts.rates import similar_share
from ridgeline.facts.records import SPARSE, Accelerator
from ridgeline.facts.transfer import LINK_FAMILIES
from ridgeline.graph.workload import without_rate

_WIDEST_BYTES = 2.0  # of an element that kernels of serving engines take
FORMULAS = ("gemm", "prefill")  # families that formulas on sustained rates price as well


def price(question: Question, part: Accelerator, *, rungs: Sequence[Rung] = ALL) -> Cost:
    """The price of an operator on a device, from the best of `rungs` that can answer [s].

    By `Rung.DATASHEET` the device is one that nobody measured: others lend, and its rates are the datasheet's.
    Raises `DomainError` when none can: a family, format or device that nobody measured, or sizes outside a domain.
    """
    matrix = form(question.form).matrix
    if matrix.endswith(SPARSE) and matrix not in part.peak_flop_per_s:
        raise DomainError(without_rate(part.name, matrix, part.peak_flop_per_s))
    if Rung.DATASHEET in rungs:
        return price(question, replace(part, sustained={}), rungs=(Rung.BORROWED, Rung.COMMON))
    if Rung.TABLE in rungs:
        from ridgeline.cost.measured import measured

        found = measured(question, part)
        if found is not None:
            return held_by_host(found, question.issue_s, issue_range_s(), alone=question.alone)
    for rung in (Rung.FITTED, Rung.BORROWED, Rung.COMMON):
        if rung in rungs and (rung is not Rung.COMMON or _shared(question, part)):
            fits = (find_fits if question.engine else device_only_fits)(question, part, rung)  # of none: kernels alone
            if fits:
                answer = from_fits(question, part, fits, rung)
                return held_by_host(answer, question.issue_s, issue_range_s(), alone=question.alone)
    if not part.peak_flop_per_s:
        raise DomainError(without_rate(part.name, form(question.form).matrix, ()))
    asked = f" by {question.engine}" if question.engine else ""
    raise DomainError(
        f"{part.name}: no {question.family} in {question.form}{asked} was measured on it or its relatives;"
        f" ask for another format or library, or for a device that was: {', '.join(measured_devices(question.family))}"
    )


def _shared(question: Question, part: Accelerator) -> bool:
    """Whether what devices have in common is the best left: for kernels in formats that this one multiplies in.

    Links of one kind differ by more than their datasheets say, and products wider than 16 bits run on other units.
    16-bit inputs are multiplied as such, whatever their cache is held in. Families that the mechanism prices as well
    leave a device to it whose rate, or its kin's, somebody measured where no device of its vendor has fits: its kernels
    are its own. A device without any published matrix rate, a wafer of cores with their own memory, shares nothing.
    """
    what = form(question.form)
    if not part.peak_flop_per_s:
        return False
    wide = what.input_bytes > _WIDEST_BYTES and question.family not in CORES
    if wide or question.family in LINK_FAMILIES:
        return False
    if question.family in FORMULAS and similar_share(part, f"matrix.{what.matrix}") is not None:
        vendors = {accelerator(name).vendor for name in measured_devices(question.family)}
        if part.vendor not in vendors:
            return False
    return what.matrix in part.peak_flop_per_s or what.input_bytes >= _WIDEST_BYTES
