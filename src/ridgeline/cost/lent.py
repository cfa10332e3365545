"""What changes of a fit from the devices that lend it to the one that borrows: power, memory, host, pace of cores."""

from __future__ import annotations

import numpy as np

from ridgeline.cost.host_times import host_slowness
from ridgeline.cost.mechanism import device_vector
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import BORROWED, Fit
from ridgeline.facts.rates import OF_STENCIL, power_clock, similar_share
from ridgeline.facts.records import Accelerator


def power_scaled(fit: Fit, part: Accelerator, matrix: str) -> float:
    """A borrowed share of the peak rate on a device with more or less power for each FLOP than its lenders [1].

    By `power_clock`, at the power that the device is allowed. Lenders without a rated power or rate change nothing.
    """
    share = fit.values["matrix_share_"]
    lenders = _lenders(fit)
    known = [_watts_a_flop(one, matrix) for one in (part, *lenders)]
    if not all(known):
        return share
    theirs = float(np.exp(np.mean(np.log(known[1:]))))
    return min(share * power_clock(known[0], theirs), 1.0)


def memory_scaled(fit: Fit, part: Accelerator, known: float) -> float:
    """A borrowed share of the memory bandwidth on a device whose memory gives more or less of its datasheet [1].

    By the shares that one memory-bound program reaches on the device, or in the middle of its like, and on the lenders
    of its vendor: inline ECC takes a part of what GDDR of data centres reads, which GeForce cards have not. Where
    nobody ran it on one of them, `known`. Source: data/sustained.tsv (key 'hbm.lbm'). Evidence: derived.
    """
    lenders = _lenders(fit) if fit.source.startswith(BORROWED) else []
    shares = [similar_share(one, OF_STENCIL) for one in (part, *lenders)]
    if not lenders or any(one.vendor != part.vendor for one in lenders) or None in shares:
        return known
    here, *theirs = (fact.value for fact in shares if fact is not None)
    return min(1.0, fit.values["memory_share_"] * here / float(np.exp(np.mean(np.log(theirs)))))


def slower_host(fit: Fit, part: Accelerator) -> float:
    """Time of a device's host to issue operators, against the geometric mean of its lenders' hosts [1].

    Modules that are issued eagerly take as long on four x86 hosts, whatever hangs on them, and half as long again on
    Grace: `host_slowness`.
    """
    return host_slowness(part) / float(np.exp(np.mean([np.log(host_slowness(one)) for one in _lenders(fit)])))


def faster(fit: Fit, part: Accelerator) -> float:
    """16-bit matrix rate of one SM of a device, against the geometric mean of its lenders' [1].

    SMs are built in balance: what memory and L2 bring to one, and what its neighbours share of it, keeps pace with its
    matrix unit. Over the fits of products the ratio explains two fifths of the spread between architectures.
    """
    return _sm_flop_per_s(part) / float(np.exp(np.mean([np.log(_sm_flop_per_s(one)) for one in _lenders(fit)])))


def _lenders(fit: Fit) -> list[Accelerator]:
    """The devices that a borrowed fit is from."""
    return [accelerator(name) for name in fit.source.removeprefix(BORROWED).split(", ")]


def _sm_flop_per_s(part: Accelerator) -> float:
    sms, *_, plain = device_vector(part, "bf16")
    return float(plain / sms)


def _watts_a_flop(part: Accelerator, matrix: str) -> float:
    return (part.tdp_w or 0.0) / part.peak_flop_per_s[matrix] if part.peak_flop_per_s.get(matrix) else 0.0
