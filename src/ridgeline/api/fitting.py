"""The command `fit`: parameters of the mechanisms, refitted from public operator tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ridgeline.api.answer import Answer
from ridgeline.api.progress import tell
from ridgeline.calibrate.power import POWER, refit_power
from ridgeline.calibrate.refit import refit
from ridgeline.calibrate.rungs import JUDGED, judge, write_rungs
from ridgeline.cost.readers import READERS
from ridgeline.errors import UnknownNameError
from ridgeline.report.blocks import Table


def fit(given: SimpleNamespace) -> Answer:
    """Writes a table of fits per family, or with `rungs` the intervals of the rungs that answer from them."""
    out, families, known = given.out, tuple(given.families or ()), (*READERS, POWER)
    for name in families:
        if name not in known:
            raise UnknownNameError("operator family", name, known, hint=f"known: {', '.join(known)}")
    if given.rungs:
        return _judge(Path(out), families or tuple(READERS))
    timed = tuple(name for name in families if name != POWER)
    counts = refit(Path(out), families=timed, processes=given.processes, done=_told) if timed or not families else {}
    if POWER in families or not families:
        counts[POWER] = refit_power(Path(out))
    rows = tuple((family, str(count), f"{out}/{family}.tsv") for family, count in counts.items())
    table = Table(columns=("family", "fits", "table"), rows=rows)
    return Answer(lambda: {"folder": out, "fits": counts}, lambda: [table])


def _judge(folder: Path, families: tuple[str, ...]) -> Answer:
    found = {family: tuple(judge(family)) for family in families}
    path = write_rungs(folder, found)
    rows: list[dict[str, Any]] = []
    for family, judged in found.items():
        for rung in JUDGED:
            ratios = np.concatenate(
                [np.empty(0), *(one.predicted / one.measured for one in judged if one.rung is rung)]
            )
            answered = np.isfinite(ratios)
            error = np.abs(ratios[answered] - 1)
            if len(error):
                told = {"family": family, "rung": rung.value, "rows": len(ratios), "answered": int(answered.sum())}
                rows.append(told | {"median_ape": float(np.median(error)), "p90_ape": float(np.quantile(error, 0.9))})
    cells = tuple(
        (row["family"], row["rung"], "{answered} of {rows}".format(**row),
         f"{row['median_ape']:.1%}", f"{row['p90_ape']:.1%}")
        for row in rows
    )  # fmt: skip
    table = Table(columns=("family", "rung", "answered", "median", "p90"), rows=cells)
    return Answer(lambda: {"table": str(path), "rows": rows}, lambda: [table])


def _told(place: str, at: int, total: int) -> None:
    tell(f"{at}/{total}  {place}")
