"""Parameters fitted to measured kernels: one row per device, library, format and kernel, one table per family.

`ridgeline fit` writes the tables of `data/fits/` from named public rows; this module reads them. What devices
without fits borrow is told in `lending`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ridgeline.facts import store
from ridgeline.facts.engine_kernels import nearest_version
from ridgeline.facts.mechanisms import kernel_traits
from ridgeline.facts.records import Evidence

FOLDER = "fits"
ENGINES = ("vllm", "sglang", "trtllm", "nccl", "oneccl")  # whose kernels answer when none is asked for
BORROWED = "borrowed from "
ALL_SHARED = (1.0, 1.0, 1.0)
BANDS_S = np.array((1e-5, 1e-4))  # residuals are kept apart below 10 us, to 100 us and above
# Columns of every table that are not parameters, in order.
KEYS = ("device", "engine", "version", "form", "kernel")
RECORD = ("rows", "held_median", "held_p90", "held_bias", "low", "high", "domain", "span", "source", "date")
_CASTS, _ASKED = "fp8", "bf16_kv8"  # products in 8 bits, and what is asked where only the cache is said to be narrow
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
    return read_fits(family, f"{FOLDER}/{family}.tsv")


def read_fits(family: str, table: str) -> tuple[Fit, ...]:
    """The fits of a family in a table of `data/`."""
    rows = with_cast_queries(family, store.read_tsv(table))
    return store.records(Fit, rows, lambda row: {"family": family, **_more(row)})


def _more(row: store.TableRow) -> Mapping[str, Any]:
    """What a row of fits holds beside its record: parameters, the sizes it was measured at and is chosen for."""
    values = {name: float(cell) for name, cell in row.items() if name not in (*KEYS, *RECORD, TIMED) and cell}
    names, *timed = (word.split(":") for word in row.get(TIMED, "").split() or [""])
    return {
        "values": MappingProxyType(values),
        "domain": _ranges(row["domain"]),
        "span": _ranges(row["span"]),
        "timed_by": tuple(filter(None, names)),
        "timed": tuple(tuple(map(float, word)) for word in timed),
    }


def _ranges(cell: str) -> dict[str, tuple[float, ...]]:
    words = (word.partition("=") for word in cell.split())
    return {name: tuple(map(float, ends.split(":"))) for name, _, ends in words}


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


class FitsAsked(NamedTuple):
    """Which fits of a family and device are asked for: of one engine, release and format, of `kernels` by name.

    With `reach` those measured nearest to it; without `aside` none that engines run for some checkpoints or nowhere.
    """

    engine: str = ""
    version: str = ""
    form: str = ""
    kernels: str = ""
    reach: Reach = ()
    aside: bool = True


def own_fits(family: str, device: str, **how: Any) -> tuple[Fit, ...]:
    """Fits of a device itself (`FitsAsked`): of the engine asked for, or of the first that has any, nearest version.

    The nearest is the newest that is not newer than `version`, else the oldest; without `version` the newest of those
    measured nearest to `reach`. Where `kernels` names any, theirs are the versions to choose from; where not, kernels
    that stand `aside` (`in_use`) are among them only if asked for.
    """
    everything = _OWN[device][0] if device in _OWN else fits(family)
    asked = FitsAsked(**how)
    of_what, found = _FOUND.get((family, device, asked), (None, ()))
    if of_what is not everything:  # a profile was registered since, or the tables were read anew
        known = [fit for fit in everything if (fit.family, fit.device, fit.form) == (family, device, asked.form)]
        found = _nearest(known, asked)
        _FOUND[family, device, asked] = everything, found
    return found


_FOUND: dict[tuple[object, ...], tuple[object, tuple[Fit, ...]]] = {}  # what was looked through, and what was found


def _nearest(found: Sequence[Fit], asked: FitsAsked) -> tuple[Fit, ...]:
    """Of fits in one format those of one engine and release."""
    engines = {fit.engine for fit in found}
    if asked.engine and asked.engine not in engines:
        return ()
    chosen = asked.engine or preferred_engine(engines)
    of_engine = named_kernels([fit for fit in found if fit.engine == chosen], asked.kernels)
    of_engine = of_engine if asked.kernels or asked.aside else in_use(of_engine)
    if asked.reach and not asked.version:
        least = min((_beyond(fit, asked.reach) for fit in of_engine), default=0.0)
        of_engine = tuple(fit for fit in of_engine if _beyond(fit, asked.reach) <= least)
    chosen_version = nearest_version({fit.version for fit in of_engine}, asked.version)
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


def with_cast_queries(family: str, rows: Iterable[store.TableRow]) -> Iterator[store.TableRow]:
    """Rows of fits, and those of prompts in 8 bits again for 8-bit caches of kernels that read them in no other way.

    A kernel that was timed over an 8-bit cache with 16-bit queries too has rows of its own for it. Decode is timed
    under the cache's format whatever queries are cast to. Source: sglang, layers/attention/flashattention_backend.py
    and trtllm_mha_backend.py (queries go to the cache's format); aiconfigurator, collection_meta.yaml of B200's
    attention tables. Evidence: measured elsewhere, as the rows themselves.

    >>> names = {"device": "H100-SXM", "engine": "sglang", "version": "0.5.14", "kernel": "fa3"}
    >>> row = store.TableRow({**names, "form": "fp8"})
    >>> [one["form"] for one in with_cast_queries("prefill", [row])]
    ['fp8', 'bf16_kv8']
    """
    known = list(rows)
    yield from known
    if family == "prefill":
        kept = {_kernel(row) for row in known if row["form"] == _ASKED}
        yield from (
            row.with_cells({**row, "form": _ASKED})
            for row in known
            if row["form"] == _CASTS and _kernel(row) not in kept
        )


def _kernel(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("device", "engine", "version", "kernel"))


@dataclass(frozen=True, kw_only=True)
class CallFit:
    """What one kind of call takes where `ranks` ranks compute at once: seconds for a unit of each feature.

    `call` names family and direction ('gemm.weight', 'attention.backward', 'rms_norm.forward'), `values` are of the
    features of `cost/calls.py`. Errors are of rows that no fit had seen; `low` and `high` the 10 % and 90 % quantiles
    of measured / predicted [1].
    """

    call: str
    form: str
    ranks: int
    values: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    low: float
    high: float


_KNOWN: dict[str, Mapping[tuple[str, str], CallFit]] = {}


def register_calls(device: str, found: tuple[CallFit, ...], ranks: int) -> None:
    """Lets the calls of a machine's own profile answer for it, or for one of so many equal parts of it."""
    _KNOWN[device] = {(one.call, one.form): one for one in found if one.ranks == ranks}


def calls_of(device: str) -> Mapping[tuple[str, str], CallFit]:
    """The calls that were timed on a device, by name and format; none for other devices."""
    return _KNOWN.get(device, {})
