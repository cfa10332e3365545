"""Watts of operators, fitted to the boards that public tables metered: what being busy draws, and what work draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.least_squares import held_errors, solver
from ridgeline.cost import questions
from ridgeline.cost.answer import Rung
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import from_fits
from ridgeline.cost.formats import form
from ridgeline.cost.mechanism import Array
from ridgeline.cost.samples import HELD_OUT, INTERVAL, Sample, family_tables, samples
from ridgeline.energy.power import Activity, board_w
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import POWER_SHARES, PowerFit
from ridgeline.facts.opdata import OpTable, read, systems

POWER = "power"  # the word for watts among operator families
FAMILIES = ("prefill", "decode", "experts")  # whose tables may hold a column of watts
_SCALE = 0.1  # residuals beyond 10 % count less and less
_QUANTILES = (0.1, 0.9)


@dataclass(frozen=True, kw_only=True)
class Metered:
    """Operators of one device that were metered: activity (N,) each, watts, and the fold of their shape block."""

    device: str
    activity: Activity
    watts: Array
    folds: NDArray[np.int64]
    source: str


def metered(device: str) -> Metered | None:
    """Every metered row of a device whose operator has a fit; None where no table has watts."""
    found = [part for table in _tables(device) for part in _rows(table)]
    if not found:
        return None
    columns = [np.concatenate([getattr(part.activity, name) for part in found]) for name in _COLUMNS]
    return Metered(
        device=device,
        activity=Activity(**dict(zip(_COLUMNS, columns, strict=True))),
        watts=np.concatenate([part.watts for part in found]),
        folds=np.concatenate([part.folds for part in found]),
        source=", ".join(dict.fromkeys(part.source for part in found)),
    )


_COLUMNS = ("compute_busy", "memory_busy", "wide_share", "narrow_share", "byte_share")


def _tables(device: str) -> Iterator[tuple[str, OpTable]]:
    for family in FAMILIES:
        for table in family_tables(family):
            if table.accelerator == device and (read(table, ("power",))["power"] > 0).any():
                yield family, table


def _rows(job: tuple[str, OpTable]) -> Iterator[Metered]:
    """Metered rows of a table by format, busy as their fit says and as fast as they were measured."""
    family, table = job
    for sample in samples(family, table, extra="power"):
        part, what = accelerator(sample.accelerator), form(sample.form)
        asked = sample.question(sample.kernel.split(" ")[0])
        fits = find_fits(asked, part, Rung.FITTED)
        if not fits:
            continue
        answer = from_fits(asked, part, fits, Rung.FITTED)
        flop, moved = work(sample)
        products = "bf16" if sample.form == "bf16_kv8" else what.matrix  # a narrow cache is widened as it is read
        share = flop / part.peak_flop_per_s[products] / sample.seconds
        narrow = form(products).input_bytes < form("bf16").input_bytes
        yield Metered(
            device=sample.accelerator,
            activity=Activity(
                compute_busy=np.asarray(answer.compute_s) / sample.seconds,
                memory_busy=np.asarray(answer.memory_s) / sample.seconds,
                wide_share=share * (not narrow),
                narrow_share=share * narrow,
                byte_share=moved / part.memory_bytes_per_s / sample.seconds,
            ),
            watts=sample.sizes["power"],
            folds=sample.folds,
            source=table.place,
        )


def work(sample: Sample) -> tuple[Array, Array]:
    """FLOP and bytes of the operators of a sample, each (N,)."""
    sizes = sample.sizes
    if sample.family == "experts":
        names = ("tokens", "hidden", "inner", "top_k", "experts")
        asked = questions.experts(
            *(sizes[name] for name in names), ranks=sizes["ranks"], skew=sizes["skew"], dtype=sample.form
        )
    else:
        heads = sizes["kv_heads"] * sizes["group"]
        cache = "fp8" if sample.form == "bf16_kv8" else ""
        products = "bf16" if cache else sample.form
        length = sizes["tokens" if sample.family == "prefill" else "context"]
        build = questions.prefill if sample.family == "prefill" else questions.decode
        asked = build(
            sizes["batch"], length, heads, sizes["kv_heads"], sizes["head_dim"], window=sizes["window"],
            dtype=products, cache_dtype=cache,
        )  # fmt: skip
    return np.broadcast_to(asked.flop, len(sample)), np.broadcast_to(asked.bytes, len(sample))


def fit_power(device: str) -> PowerFit | None:
    """The fit of one device's watts, judged on shape blocks that it has not seen; None where nobody metered it.

    Least squares of the logarithm (soft L1) over folds that neither judge nor set the interval.
    """
    least_squares, found = solver(), metered(device)
    if found is None:
        return None
    rated = accelerator(device).tdp_w
    if rated is None:
        return None
    inside = (found.folds != HELD_OUT) & (found.folds != INTERVAL)
    activity = found.activity.where(inside)

    def residuals(points: Array) -> Array:
        shares = dict(zip(POWER_SHARES, np.exp(points), strict=True))
        return np.asarray(np.log(board_w(rated, activity, shares) / found.watts[inside]))

    start = np.log(np.full(len(POWER_SHARES), 0.3))
    best = least_squares(residuals, start, loss="soft_l1", f_scale=_SCALE, bounds=(np.log(1e-3), np.log(10.0)))
    shares = {name: float(f"{value:.4g}") for name, value in zip(POWER_SHARES, np.exp(best.x), strict=True)}
    priced, held = board_w(rated, found.activity, shares), found.folds == HELD_OUT
    ratio = found.watts / priced
    low, high = np.quantile(ratio[found.folds == INTERVAL], _QUANTILES)
    return PowerFit(
        device=device,
        shares=shares,
        rows=int(inside.sum()),
        **held_errors(priced[held], found.watts[held]),
        held_covered=float(np.mean((ratio[held] >= low) & (ratio[held] <= high))),
        low=float(low),
        high=float(high),
        source=found.source,
        date=date.today().isoformat(),
    )


def power_rows(found: list[PowerFit]) -> Iterator[str]:
    """The lines of the table of watts, header first."""
    yield (
        "# Watts of operators as shares of the rated power, fitted by `ridgeline fit --family power` from public tables"
        " that metered the board; held_ are errors on shape blocks that the fit has not seen."
    )
    record = ("rows", "held_median", "held_p90", "held_bias", "held_covered", "low", "high")
    yield "\t".join(("device", *POWER_SHARES, *record, "source", "date"))
    for fit in found:
        numbers = (f"{getattr(fit, name):.4g}" if name != "rows" else str(fit.rows) for name in record)
        yield "\t".join(
            (fit.device, *(f"{fit.shares[name]:.4g}" for name in POWER_SHARES), *numbers, fit.source, fit.date)
        )


def refit_power(folder: Path) -> int:
    """Writes `power.tsv`, one row for each device that public tables metered; returns how many [1]."""
    found = [fit for fit in (fit_power(device) for device in sorted(systems().values())) if fit is not None]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "power.tsv").write_text("\n".join(power_rows(found)) + "\n", encoding="utf-8")
    return len(found)
