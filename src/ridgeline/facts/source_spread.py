"""How far measurements of an operator lie from answers that do not come from them, from `data/source_spread.tsv`."""

from __future__ import annotations

from functools import cache

from ridgeline.facts.store import read_tsv

SHORT_S = 1e-4  # kernels below it are short
ANY, SHORT, LONG = "any", "short", "long"  # bands of predicted time
_OTHER = "other"


@cache
def _spreads() -> dict[tuple[str, str, str], tuple[float, float]]:
    return {
        (row["rung"], row["family"], row["band"]): (float(row["low"]), float(row["high"]))
        for row in read_tsv("source_spread.tsv")
    }


def source_spread(rung: str, family: str) -> tuple[float, float]:
    """Ends that hold 80 % of measured / predicted over other sources [1]: a family's, else of all families.

    `rung`: `tables` of the device itself, or values `borrowed` from others.
    """
    return _spreads().get((rung, family, ANY)) or _spreads()[rung, _OTHER, ANY]


def mechanism_spread(family: str, seconds: float) -> tuple[float, float] | None:
    """Ends that hold 80 % of measured / predicted by the mechanism over devices [1]; None if unknown.

    Kernels shorter than 100 microseconds stand apart where enough devices tell.
    """
    band = SHORT if seconds < SHORT_S else LONG
    return _spreads().get(("mechanism", family, band)) or _spreads().get(("mechanism", family, ANY))
