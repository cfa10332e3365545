"""The command `fit`: parameters of the mechanisms, refitted from public operator tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from ridgeline.calibrate.power import POWER, refit_power
from ridgeline.calibrate.refit import refit
from ridgeline.calibrate.rungs import JUDGED, judge, write_rungs
from ridgeline.cost.readers import READERS
from ridgeline.errors import UnknownNameError
from ridgeline.report.blocks import Table, show

_WIDTH = 100  # columns when piped


def fit(out: str, families: tuple[str, ...], *, processes: int, rungs: bool, as_json: bool) -> None:
    """Writes a table of fits per family, or with `rungs` the intervals of the rungs that answer from them."""
    known = (*READERS, POWER)
    for name in families:
        if name not in known:
            raise UnknownNameError("operator family", name, known, hint=f"known: {', '.join(known)}")
    if rungs:
        _judge(Path(out), families or tuple(READERS), as_json=as_json)
        return
    timed = tuple(name for name in families if name != POWER)
    counts = refit(Path(out), families=timed, processes=processes, done=_told) if timed or not families else {}
    if POWER in families or not families:
        counts[POWER] = refit_power(Path(out))
    if as_json:
        print(json.dumps({"folder": out, "fits": counts}, indent=1))
    else:
        rows = tuple((family, str(count), f"{out}/{family}.tsv") for family, count in counts.items())
        show([Table(columns=("family", "fits", "table"), rows=rows)], sys.stdout, width=_WIDTH)


def _judge(folder: Path, families: tuple[str, ...], *, as_json: bool) -> None:
    found = {family: tuple(judge(family)) for family in families}
    path = write_rungs(folder, found)
    rows = []
    for family, judged in found.items():
        for rung in JUDGED:
            ratios = np.concatenate(
                [np.empty(0), *(one.predicted / one.measured for one in judged if one.rung is rung)]
            )
            answered = np.isfinite(ratios)
            error = np.abs(ratios[answered] - 1)
            if len(error):
                rows.append(
                    {
                        "family": family,
                        "rung": rung.value,
                        "rows": len(ratios),
                        "answered": int(answered.sum()),
                        "median_ape": float(np.median(error)),
                        "p90_ape": float(np.quantile(error, 0.9)),
                    }
                )
    if as_json:
        print(json.dumps({"table": str(path), "rows": rows}, indent=1))
        return
    cells = tuple(
        (
            str(row["family"]),
            str(row["rung"]),
            f"{row['answered']} of {row['rows']}",
            f"{row['median_ape']:.1%}",
            f"{row['p90_ape']:.1%}",
        )
        for row in rows
    )
    show([Table(columns=("family", "rung", "answered", "median", "p90"), rows=cells)], sys.stdout, width=_WIDTH)


def _told(place: str, at: int, total: int) -> None:
    print(f"{at}/{total}  {place}", file=sys.stderr, flush=True)
