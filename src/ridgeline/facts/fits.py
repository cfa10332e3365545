"""Parameters fitted to measured kernels: one row per device, library, format and kernel, one table per family.

`ridgeline fit` writes the tables of `data/fits/` from named public rows; this module reads them. What devices
without fits borrow is told in `lending`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.facts import store
from ridgeline.facts.casting import with_cast_queries
from ridgeline.facts.records import Evidence
from ridgeline.facts.rows import numbers
from ridgeline.facts.traits import kernel_traits
from ridgeline.facts.versions import nearest_version

FOLDER = "fits"
ENGINES = ("vllm", "sglang", "trtllm", "nccl", "oneccl")  # whose kernels answer when none is asked for
BORROWED = "borrowed from "
ALL_SHARED = (1.0, 1.0, 1.0)
BANDS_S = np.array((1e-5, 1e-4))  # residuals are kept apart below 10 us, to 100 us and above
# Columns of every table that are not parameters, in order.
KEYS = ("device", "engine", "version", "form", "kernel")
RECORD = ("rows", "held_median", "held_p90", "held_bias", "low", "high", "domain", "span", "source", "date")
TIMED = "timed"  # a column of families whose kernels engines choose by the model


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted values of one mechanism, with how well they hold on shapes that no fit has seen.

    `low` and `high` are the 10 % and 90 % quantiles of measured / predicted in each time band; `shared` is the part of
    their variance that all shapes have in common: all of it, where a fit is the device's own, since other boards and
    releases would differ alike and are not in it. `domain` bounds the sizes that this kernel is chosen for, (low, high,
    multiple); `span` the sizes measured, (low, high). `timed` are the models that the kernel was timed in, as values of
    the sizes `timed_by`: engines choose kernels by the model.
    """

    family: str
    device: str
    engine: str
    version: str
    form: str
    kernel: str
    values: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    shared: tuple[float, ...] = ALL_SHARED
    domain: Mapping[str, tuple[float, float, float]]
    span: Mapping[str, tuple[float, float]]
    source: str
    date: str
    timed_by: tuple[str, ...] = ()
    timed: tuple[tuple[float, ...], ...] = ()

    @property
    def kernel_device(self) -> str:
        """The device whose kernel it is: the first relative's where values are borrowed."""
        return self.source.removeprefix(BORROWED).split(", ")[0] if self.source.startswith(BORROWED) else self.device

    @property
    def width(self) -> float:
        """How much of the sizes the kernel is for, in factors of e [1]: those that need a multiple are narrower."""
        return sum(math.log(max(b, 1.0) / max(a, 1.0)) - math.log(step) for a, b, step in self.domain.values())

    @property
    def library(self) -> str:
        """Engine and version in people's words."""
        return f"{self.engine} {self.version}".strip()


@cache
def families() -> tuple[str, ...]:
    """Families that have a table of fits."""
    return store.names(FOLDER, ".tsv")


@cache
def fits(family: str) -> tuple[Fit, ...]:
    """Every fit of a family; none when it has no table."""
    if family not in families():
        return ()
    return tuple(_fit(family, row) for row in with_cast_queries(family, store.read_tsv(f"{FOLDER}/{family}.tsv")))


def _fit(family: str, row: Mapping[str, str]) -> Fit:
    values = {name: float(cell) for name, cell in row.items() if name not in (*KEYS, *RECORD, TIMED) and cell}
    names, *timed = (word.split(":") for word in row.get(TIMED, "").split() or [""])
    return Fit(
        family=family,
        **{name: row[name] for name in KEYS},
        values=MappingProxyType(values),
        rows=int(row["rows"]),
        held_median=float(row["held_median"]),
        held_p90=float(row["held_p90"]),
        held_bias=float(row["held_bias"]),
        low=numbers(row["low"]),
        high=numbers(row["high"]),
        shared=ALL_SHARED,
        domain={name: (a, b, c) for name, (a, b, c) in _ranges(row["domain"]).items()},
        span={name: (a, b) for name, (a, b) in _ranges(row["span"]).items()},
        source=row["source"],
        date=row["date"],
        timed_by=tuple(filter(None, names)),
        timed=tuple(tuple(map(float, word)) for word in timed),
    )


def _ranges(cell: str) -> dict[str, tuple[float, ...]]:
    words = (word.partition("=") for word in cell.split())
    return {name: tuple(float(number) for number in numbers.split(":")) for name, _, numbers in words}


def measured_devices(family: str) -> tuple[str, ...]:
    """Devices that a family has fits for."""
    return tuple(sorted({fit.device for fit in fits(family)}))


_OWN: dict[str, tuple[tuple[Fit, ...], Mapping[str, Evidence]]] = {}  # fits of machines measured here, by device


def register_own(device: str, found: tuple[Fit, ...], evidence: Mapping[str, Evidence]) -> None:
    """Lets the fits of a machine's own profile answer for it, each family with its rung."""
    _OWN[device] = found, evidence


def own_evidence(family: str, device: str) -> Evidence | None:
    """The rung of a machine's own fits of a family; None where it has no profile or the profile no fit."""
    return _OWN[device][1].get(family) if device in _OWN else None


def named_kernels(found: Sequence[Fit], text: str) -> tuple[Fit, ...]:
    """The fits whose kernel's source the text names; all of them where it names none."""
    named = tuple(fit for fit in found if fit.kernel.split(" ")[0] in text.split())
    return named or tuple(found)


Reach = tuple[tuple[str, float], ...]  # sizes and the most that is asked of them


def own_fits(
    family: str,
    device: str,
    *,
    engine: str = "",
    version: str = "",
    form: str = "",
    kernels: str = "",
    reach: Reach = (),
    aside: bool = True,
) -> tuple[Fit, ...]:
    """Fits of a device itself: of the engine asked for, or of the first that has any, in the nearest version.

    The nearest is the newest that is not newer than `version`, else the oldest; without `version` the newest of those
    measured nearest to `reach`. Where `kernels` names any, theirs are the versions to choose from; where not, kernels
    that stand `aside` (`in_use`) are among them only if asked for.
    """
    everything = _OWN[device][0] if device in _OWN else fits(family)
    asked = (family, device, engine, version, form, kernels, reach, aside)
    of_what, found = _FOUND.get(asked, (None, ()))
    if of_what is not everything:  # a profile was registered since, or the tables were read anew
        known = [fit for fit in everything if (fit.family, fit.device, fit.form) == (family, device, form)]
        found = _nearest(known, engine, version, kernels, reach, aside)
        _FOUND[asked] = everything, found
    return found


_FOUND: dict[tuple[object, ...], tuple[object, tuple[Fit, ...]]] = {}  # what was looked through, and what was found


def _nearest(
    found: Sequence[Fit], engine: str, version: str, kernels: str, reach: Reach, aside: bool
) -> tuple[Fit, ...]:
    """Of fits in one format those of one engine and release."""
    engines = {fit.engine for fit in found}
    if engine and engine not in engines:
        return ()
    chosen = engine or preferred_engine(engines)
    of_engine = named_kernels([fit for fit in found if fit.engine == chosen], kernels)
    of_engine = of_engine if kernels or aside else in_use(of_engine)
    if reach and not version:
        least = min((_beyond(fit, reach) for fit in of_engine), default=0.0)
        of_engine = tuple(fit for fit in of_engine if _beyond(fit, reach) <= least)
    chosen_version = nearest_version({fit.version for fit in of_engine}, version)
    return tuple(fit for fit in of_engine if fit.version == chosen_version)


def in_use(found: Sequence[Fit]) -> tuple[Fit, ...]:
    """The fits without those of kernels that stand aside, which an engine runs for some checkpoints or nowhere.

    vLLM's of ModelOpt's checkpoints are such, and layers timed with norms as chains of PyTorch's kernels: the trait
    `aside` of `data/kernel_traits.tsv`.
    """
    return tuple(fit for fit in found if not _traits(fit).get("aside"))


def issued_eagerly(fit: Fit) -> bool:
    """Whether its table replayed no graph, so that the host issued each call: the trait `eager`."""
    return bool(_traits(fit).get("eager"))


def _traits(fit: Fit) -> Mapping[str, float]:
    return kernel_traits(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form)


def _beyond(fit: Fit, reach: Reach) -> float:
    """How far what is asked lies beyond what was measured, in factors of e [1]."""
    return sum(max(0.0, math.log(most / fit.span[name][1])) for name, most in reach if name in fit.span)


def preferred_engine(known: Iterable[str]) -> str:
    """The engine whose kernels stand for any: the first of `ENGINES` that is known, '' when none is known."""
    return min(known, key=lambda name: (ENGINES.index(name) if name in ENGINES else len(ENGINES), name), default="")
