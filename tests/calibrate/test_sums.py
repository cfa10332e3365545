"""Sums of products from the tables of architectures that lent nothing: does the interval of a whole layer hold them?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

import numpy as np

from ridgeline.calibrate.rungs import judged_sample
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.formats import form
from ridgeline.cost.samples import Sample, family_tables, samples
from ridgeline.cost.seconds import Seconds
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import BANDS_S
from ridgeline.facts.opdata import OpTable

TOKENS = (8.0, 64.0, 1024.0, 8192.0)
HIDDEN = (2048.0, 4096.0, 5120.0, 8192.0)
WIDER = (2.67, 3.5, 4.0)  # of a layer's inner width over its hidden one
_NEAR = 0.3  # logarithm of a size over the one wanted, from which a table has no such product


def _newest() -> Iterator[tuple[Sample, OpTable]]:
    """bf16 and fp8 products of each device and engine, of the last table that has them."""
    tables = {(table.accelerator, table.engine): table for table in family_tables("gemm")}
    for table in tables.values():
        for name in ("bf16", "fp8"):
            for sample in samples("gemm", table, wanted=form(name)):
                yield sample.where(np.isin(sample.sizes["m"], TOKENS)), table


def _products(sample: Sample, table: OpTable) -> dict[tuple[float, float, float], tuple[float, Seconds]]:
    """Measured time and the answer of what other architectures have in common, by tokens, n and k [s]."""
    part = accelerator(sample.accelerator)
    judged = judged_sample(sample, table, Rung.COMMON, 0)
    asked = Question(family="gemm", sizes=sample.sizes, form=sample.form, engine=sample.engine)
    (fit,) = find_fits(asked, part, Rung.COMMON, apart=True)
    found = {}
    for index in np.flatnonzero(np.isfinite(judged.predicted)):
        mid, low, high = (np.array([column[index]]) for column in (judged.predicted, judged.low, judged.high))
        own = np.sqrt(1.0 - fit.shared[int(np.searchsorted(BANDS_S, mid[0], side="right"))])
        time = Seconds(
            mid=mid, low=low, high=high, compute=0.0 * mid, memory=0.0 * mid,
            below=own * (mid - low), above=own * (high - mid),
        )  # fmt: skip
        sizes = (float(sample.sizes["m"][index]), float(sample.sizes["n"][index]), float(sample.sizes["k"][index]))
        found[sizes] = float(judged.measured[index]), time
    return found


def _layers(known: dict[tuple[float, float, float], tuple[float, Seconds]]) -> Iterator[list[tuple[float, Seconds]]]:
    """Queries with keys and values, output, gate with up, down: of the sizes nearest to those of a model."""
    for tokens in TOKENS:
        here = np.array([sizes for sizes in known if sizes[0] == tokens])
        for hidden in HIDDEN if len(here) else ():
            for wide in (hidden * wider for wider in WIDER):
                wanted = [(1.5 * hidden, hidden), (hidden, hidden), (2 * wide, hidden), (hidden, wide)]
                apart = np.abs(np.log(here[None, :, 1:] / np.array(wanted)[:, None, :]))
                best = apart.sum(axis=2).argmin(axis=1)
                if len(set(best)) == len(wanted) and (apart[np.arange(4), best] < _NEAR).all():
                    yield [known[tuple(here[one])] for one in best]


def test_whole_layers_of_architectures_left_out_lie_inside_as_often_as_stated(wheel: None) -> None:
    """Each device, engine and format counts alike: 80 % of them, and more by ends that take all errors for shared."""
    held: list[tuple[float, float]] = []
    for sample, table in _newest():
        layers = list(_layers(_products(sample, table)))
        if not layers:
            continue
        shares = []
        for parts in layers:
            measured = sum(one for one, _ in parts)
            for times in ([time for _, time in parts], [time.alike for _, time in parts]):
                whole = reduce(add, times)
                shares.append(whole.low[0] <= measured <= whole.high[0])
        held.append((float(np.mean(shares[::2])), float(np.mean(shares[1::2]))))
    apart, together = np.mean(held, axis=0)
    assert len(held) > 40
    assert 0.75 < apart < 0.9
    assert together > apart
