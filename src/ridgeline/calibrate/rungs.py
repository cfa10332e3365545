"""How far measured times lie from the answers of a rung as a whole: tables with a fold hidden, borrowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.least_squares import FEWEST, residual_bands, shared_moments
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fit_choice import find_fits, hybrid_alone
from ridgeline.cost.fitted import from_fits, model_of
from ridgeline.cost.formats import judged_form
from ridgeline.cost.measured import interpolated, table_interval
from ridgeline.cost.mechanism import Array
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import FOLDS, INTERVAL, Sample, block_keys, family_tables, hidden_folds, samples
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import BANDS_S
from ridgeline.facts.opdata import PACKAGE, OpTable, release
from ridgeline.facts.records import Accelerator
from ridgeline.facts.transfer import ALL_FORMS, rung_interval

DRAWN = 400  # kernels of one table, format and kernel
_HELD = 1.2  # of the time without the host, from which a kernel waits for it
TABULATED = 60  # of them for the table rung, which makes a grid for every combination of exact sizes
_STRANGERS = 3  # devices, or architectures, whose kernels in a format tell how far a stranger's lie
_EACH_FOLD = 120  # of them where several folds are hidden in turn
_HEADER = (
    "# How far the answers of a rung lie from measured times of shape blocks that no fit used. Written by"
    " `ridgeline fit --rungs`; ends as of rows drawn from all tables alike, median and p90 of the rows drawn;"
    " shared as of kernels alike.\n"
    + "\t".join(("family", "rung", "form", "rows", "median", "p90", "low", "high", "shared", "source"))
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
    beside: NDArray[np.int64]  # of sizes that a model's operators of a step have in common, by octaves
    stated_form: str = ALL_FORMS  # whose interval was stated
    stands_for: float = 1.0  # rows of the tables for each that was drawn

    @property
    def reach(self) -> Array:
        """How far each end of the interval was moved out for sizes that no lender measured [1]."""
        known = np.asarray(rung_interval(self.family, self.rung.value, self.stated_form).low)
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
    hybrid = hybrid_alone(sample.family, sample.accelerator, sample.engine, sample.kernel, sample.form)
    question = sample.question(sample.kernel, hybrid=hybrid)
    predicted = low = high = np.full(len(sample), np.nan)
    stated_form = ALL_FORMS
    if rung is Rung.TABLE:
        hidden = hidden_folds(sample.family, sample.sizes) == fold
        predicted = np.where(hidden, interpolated(question, part, table, hidden_fold=fold), np.nan)
        low, high = table_interval(sample.family, predicted)
    else:
        fits = find_fits(question, part, rung, apart=True)
        if fits:
            stated_form = judged_form(sample.form, fits[0].form)
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
        beside=_beside(sample),
        stated_form=stated_form,
    )


def _beside(sample: Sample) -> NDArray[np.int64]:
    """A number for the octaves of the sizes that shape blocks do not name, as of the tokens of products."""
    reader = READERS[sample.family]
    names = [name for name in reader.smooth if name not in reader.blocks]
    octaves = {name: np.rint(np.log2(np.maximum(sample.sizes[name], 1.0))).astype(float) for name in names}
    return block_keys(sample.family, octaves, names) if names else np.zeros(len(sample), dtype=np.int64)


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

    As of rows drawn from all tables alike: each counts for as many as it stands for. Borrowed and common answers have
    one for each format too, of which kernels of `_STRANGERS` devices, or architectures, were judged.
    """
    for rung in (Rung.TABLE, Rung.BORROWED, Rung.COMMON):
        own = [one for one in found if one.rung is rung and np.isfinite(one.predicted).any()]
        if not own:
            continue
        yield _row(family, rung, ALL_FORMS, own)
        forms = sorted({one.form for one in own}) if rung is not Rung.TABLE else []
        for name in forms if len(forms) > 1 else []:
            alike = [one for one in own if one.form == name]
            strangers = {one.device if rung is Rung.BORROWED else accelerator(one.device).architecture for one in alike}
            if len(alike) >= FEWEST and len(strangers) >= _STRANGERS:
                yield _row(family, rung, name, alike)


def _row(family: str, rung: Rung, form_name: str, own: Sequence[Judged]) -> str:
    """One line of the table of rung intervals."""
    measured, predicted, blocks, reach = (
        np.concatenate([getattr(one, name) for one in own]) for name in ("measured", "predicted", "blocks", "reach")
    )
    weights = np.concatenate([np.full(len(one.measured), one.stands_for) for one in own])
    answered = np.isfinite(predicted)
    ratios, priced = measured[answered] / predicted[answered], predicted[answered]
    low, high = residual_bands(ratios, priced, blocks[answered], weights[answered], reach[answered])
    error = np.abs(1 / ratios - 1)
    return "\t".join(
        (
            family, rung.value, form_name, str(int(answered.sum())), f"{np.median(error):.4f}",
            f"{np.quantile(error, 0.9):.4f}", " ".join(f"{v:g}" for v in low), " ".join(f"{v:g}" for v in high),
            " ".join(f"{v:.2f}" for v in _shared(own)), f"{PACKAGE} {release()}, {', '.join(READERS[family].tables)}",
        )
    )  # fmt: skip


def _shared(found: Sequence[Judged]) -> tuple[float, ...]:
    """Of the variance of a rung's errors what shapes of one kernel share, by band of predicted time [1].

    Kernels count alike, since each has drawn its shared error once. All is shared where nothing tells.
    """
    shares = []
    for a, b in pairwise((0.0, *BANDS_S, np.inf)):
        moments = []
        for one in found:
            inside = np.isfinite(one.predicted) & (one.predicted >= a) & (one.predicted < b)
            if inside.sum() >= FEWEST:
                logs = np.log(one.measured[inside] / one.predicted[inside])
                moments.append(shared_moments(logs, one.blocks[inside], one.beside[inside]))
        known = np.array([both for both in moments if both is not None])
        shares.append(min(1.0, max(0.0, known[:, 0].sum() / known[:, 1].sum())) if len(known) else 1.0)
    return tuple(shares)


def write_rungs(folder: Path, found: Mapping[str, Sequence[Judged]]) -> Path:
    """Writes the table of rung intervals, families in order; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fit_rungs.tsv"
    lines = [line for family, judged in found.items() for line in rung_rows(family, judged)]
    path.write_text("\n".join((_HEADER, *lines)) + "\n", encoding="utf-8")
    return path
