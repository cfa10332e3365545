"""How far measured times lie from the answers of a rung as a whole: tables with a fold hidden, borrowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.residuals import residual_bands
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fitted import find_fits, from_fits, model_of
from ridgeline.cost.measured import interpolated, table_interval
from ridgeline.cost.mechanism import Array
from ridgeline.cost.model_kernels import hybrid_alone
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import FOLDS, INTERVAL, Sample, block_keys, family_tables, hidden_folds, samples
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import BANDS_S
from ridgeline.facts.opdata import PACKAGE, OpTable, release
from ridgeline.facts.records import Accelerator
from ridgeline.facts.rung_intervals import rung_interval

DRAWN = 400  # kernels of one table, format and kernel
_HELD = 1.2  # of the time without the host, from which a kernel waits for it
TABULATED = 60  # of them for the table rung, which makes a grid for every combination of exact sizes
_EACH_FOLD = 120  # of them where several folds are hidden in turn
_HEADER = (
    "# How far the answers of a rung lie from measured times of shape blocks that no fit used. Written by"
    " `ridgeline fit --rungs`; ends as of rows drawn from all tables alike, median and p90 of the rows drawn.\n"
    + "\t".join(("family", "rung", "rows", "median", "p90", "low", "high", "source"))
)
JUDGED = (Rung.TABLE, Rung.FITTED, Rung.BORROWED, Rung.COMMON)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Measured and predicted times of kernels that a rung has not seen, and the interval it stated [s]."""

    family: str
    rung: Rung
    device: str
    engine: str
    form: str
    measured: Array
    predicted: Array  # NaN where the rung does not answer
    low: Array
    high: Array
    blocks: NDArray[np.int64]  # of shapes, whose errors are alike
    stands_for: float = 1.0  # rows of the tables for each that was drawn

    @property
    def reach(self) -> Array:
        """How far each end of the interval was moved out for sizes that no lender measured [1]."""
        known = np.asarray(rung_interval(self.family, self.rung.value).low)
        band = np.searchsorted(BANDS_S, np.nan_to_num(self.predicted), side="right")
        return np.asarray(self.predicted * known[band] / self.low)


def judge(family: str, *, fold: int = INTERVAL, drawn: int = DRAWN, seed: int = 0) -> Iterator[Judged]:
    """Every rung on rows of one fold, drawn at random from every table of a family.

    A table knows no fit: for its interval every fold but the one that judges is hidden in turn, since a fold of a small
    family holds few shape blocks, and errors of a block's shapes are alike.
    """
    for table in family_tables(family):
        for sample in samples(family, table):
            for rung in JUDGED:
                several = rung is Rung.TABLE and fold == INTERVAL
                for hidden in range(INTERVAL, FOLDS) if several else (fold,):
                    inside = np.flatnonzero(sample.folds == hidden)
                    if not len(inside):
                        continue
                    most = _EACH_FOLD if several else TABULATED if rung is Rung.TABLE else drawn
                    mask = np.zeros(len(sample), dtype=bool)
                    mask[np.random.default_rng(seed).permutation(inside)[:drawn][:most]] = True
                    found = judged_sample(sample.where(mask), table, rung, hidden)
                    yield replace(found, stands_for=len(inside) / int(mask.sum()))


def judged_sample(sample: Sample, table: OpTable, rung: Rung, fold: int) -> Judged:
    """The times of a sample by one rung; a table is asked with the fold hidden."""
    part = accelerator(sample.accelerator)
    question = Question(
        family=sample.family,
        sizes=sample.sizes,
        form=sample.form,
        engine=sample.engine,
        version=sample.version,
        kernel=sample.kernel,
        hybrid=hybrid_alone(sample.family, sample.accelerator, sample.engine, sample.kernel, sample.form),
    )
    predicted = low = high = np.full(len(sample), np.nan)
    if rung is Rung.TABLE:
        hidden = hidden_folds(sample.family, sample.sizes) == fold
        predicted = np.where(hidden, interpolated(question, part, table, hidden_fold=fold), np.nan)
        low, high = table_interval(sample.family, predicted)
    else:
        fits = find_fits(question, part, rung, apart=True)
        if fits:
            answer = from_fits(question, part, fits, rung)
            predicted, low, high = (np.asarray(x) for x in (answer.seconds, answer.low_s, answer.high_s))
        if fits and rung is Rung.COMMON:  # which knows of no host
            predicted = np.where(_held_by_host(question, part), np.nan, predicted)
    return Judged(
        family=sample.family,
        rung=rung,
        device=sample.accelerator,
        engine=sample.engine,
        form=sample.form,
        measured=sample.seconds,
        predicted=predicted,
        low=low,
        high=high,
        blocks=block_keys(sample.family, sample.sizes),
    )


def _held_by_host(question: Question, part: Accelerator) -> NDArray[np.bool_]:
    """Kernels whose time is the host's: their own fit takes them for clearly shorter where the host is left out."""
    fits = find_fits(question, part, Rung.FITTED)
    if not fits:
        return np.zeros((), dtype=bool)
    whole, alone = (
        np.asarray(
            model_of(question.family, question.form, part, fits, Rung.FITTED, hosted=hosted).seconds(question.sizes)
        )
        for hosted in (True, False)
    )
    return np.asarray(whole > _HELD * alone)


def rung_rows(family: str, found: Sequence[Judged]) -> Iterator[str]:
    """Lines of the table of rung intervals, for the rungs whose residuals are a family's.

    As of rows drawn from all tables alike: each counts for as many as it stands for.
    """
    for rung in (Rung.TABLE, Rung.BORROWED, Rung.COMMON):
        own = [one for one in found if one.rung is rung]
        if not own:
            continue
        measured = np.concatenate([one.measured for one in own])
        predicted = np.concatenate([one.predicted for one in own])
        blocks = np.concatenate([one.blocks for one in own])
        weights = np.concatenate([np.full(len(one.measured), one.stands_for) for one in own])
        reach = np.concatenate([one.reach for one in own])
        answered = np.isfinite(predicted)
        if not answered.any():
            continue
        ratios, priced = measured[answered] / predicted[answered], predicted[answered]
        low, high = residual_bands(ratios, priced, blocks[answered], weights[answered], reach[answered])
        error = np.abs(1 / ratios - 1)
        yield "\t".join(
            (
                family, rung.value, str(int(answered.sum())), f"{np.median(error):.4f}",
                f"{np.quantile(error, 0.9):.4f}", " ".join(f"{v:g}" for v in low), " ".join(f"{v:g}" for v in high),
                f"{PACKAGE} {release()}, {', '.join(READERS[family].tables)}",
            )
        )  # fmt: skip


def write_rungs(folder: Path, found: Mapping[str, Sequence[Judged]]) -> Path:
    """Writes the table of rung intervals, families in order; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fit_rungs.tsv"
    lines = [line for family, judged in found.items() for line in rung_rows(family, judged)]
    path.write_text("\n".join((_HEADER, *lines)) + "\n", encoding="utf-8")
    return path
