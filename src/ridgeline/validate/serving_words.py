"""Words of serving rows: what is measured, how requests arrive, which engine and release, whose policy answers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches

from ridgeline.errors import InputError
from ridgeline.facts.benchmarks import release_at
from ridgeline.facts.engines import engine_known, newest_policy
from ridgeline.facts.policies import version_key
from ridgeline.facts.readings import reading, words
from ridgeline.validate.rows import Row

LARGEST = 1e10
"""A bound on nonsense: no count, length or rate of a serving row is above it."""

_STATISTICS, _TIMES, _RATES = words("served.statistic"), words("served.time"), words("served.rate")
_OTHERS, _WHOLE_WORDS, _LEVELS = words("served.other"), words("served.whole"), words("served.level")
"""What the parts of a metric's name mean; whole words are those of engines' own benchmarks."""

_SECONDS = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "min": 60.0}
_BYTES = {"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20, "bytes": 1.0, "B": 1.0}
_WATTS = {"W": 1.0, "kW": 1e3, "mW": 1e-3}
_STATISTIC_FIRST = re.compile(r"^(?P<statistic>mean|avg|average|p50|median|p90|p95|p99)_(?P<base>ttft|tpot|itl|e2el)_")
_METRIC = re.compile(
    r"^(?P<base>[a-z0-9_]+?)(?:_(?P<statistic>mean|avg|average|p50|median|p90|p95|p99))?"
    r"_(?P<unit>ms|us|s|gb|gib|w)(?P<each>_per_gpu|_per_device|_per_chip)?$"
)


_LENGTHS = ("isl", "osl")
_THOUSANDS = re.compile(r"[1-9]\d{0,3}[kK]")
"""Lengths as benchmarks name them: '8k' is 8192 tokens. Source: inferencex, the shapes 1k1k, 1k8k and 8k1k."""


@dataclass(frozen=True, kw_only=True)
class ServedMetric:
    """What a row measures: canonical name, statistic ('' not stated) and the factor that makes its value SI."""

    name: str
    statistic: str
    unit_si: float


def metric_of(row: Row) -> ServedMetric:
    """The metric of a serving row; raises `InputError` when the word or the unit is unknown."""
    cell = re.sub(r"[\s()/-]+", "_", row.text("metric").strip().casefold()).strip("_")
    cell = _STATISTIC_FIRST.sub(r"\g<base>_\g<statistic>_", _WHOLE_WORDS.get(cell, cell))
    if cell in _OTHERS:
        return ServedMetric(name=_OTHERS[cell], statistic="mean", unit_si=1.0)
    match = _METRIC.match(cell)
    if match is None:
        raise InputError(_unknown(row.text("metric"), cell), field="metric")
    base, each = match["base"], match["each"] is not None
    statistic = _STATISTICS.get(match["statistic"] or "", "")
    unit = row.text("unit").strip()
    if base in _TIMES and not each:
        return ServedMetric(name=_TIMES[base], statistic=statistic, unit_si=_factor(_SECONDS, unit or match["unit"]))
    if base in _RATES:
        name = _RATES[base]
        if not re.match(r"^(?:tok(?:ens?)?|1|req(?:uests?)?|samples?)/s", unit or "tok/s"):
            raise InputError(f"'{unit[:20]}' is no unit of a rate; needs tok/s or 1/s", field="unit")
        return ServedMetric(name=f"{name}_per_device" if each else name, statistic=statistic, unit_si=1.0)
    if base in _LEVELS and not each:
        name = _LEVELS[base]
        factor = _factor(_BYTES if name == "memory" else _WATTS, unit or match["unit"].upper())
        binary = reading("binary_gigabytes", runs=row.source) is not None
        factor = _BYTES["GiB"] if binary and factor == _BYTES["GB"] else factor
        return ServedMetric(name=name, statistic=statistic or ("mean" if name == "power" else ""), unit_si=factor)
    raise InputError(_unknown(row.text("metric"), cell), field="metric")


def _unknown(written: str, cell: str) -> str:
    known = (*_TIMES, *(f"{name}_s" for name in _RATES), *_LEVELS, *_OTHERS)
    close = get_close_matches(cell, [*known, *_WHOLE_WORDS], 1)
    near = f"; nearest: {close[0]}" if close else ""
    return f"'{written[:40]}' is no metric of serving{near}; known: {', '.join(known)}"


def _factor(units: dict[str, float], unit: str) -> float:
    found = units.get(unit)
    if found is None:
        raise InputError(f"'{unit[:20]}' is no unit of this metric; known: {', '.join(units)}", field="unit")
    return found


def arrivals_of(row: Row) -> str:
    """How requests arrive: 'static', 'closed', 'poisson', 'queue' or 'cold'."""
    cell = row.text("scenario").strip().casefold()
    found = reading("arrivals", words=cell)
    if found is None:
        known = "fixed-batch, single-stream, fixed-concurrency, poisson-rate, open-loop-rate, offline"
        raise InputError(f"'{cell[:40]}' is no known way of sending requests; known: {known}", field="scenario")
    return found.text


ANY_ENGINE = ("SGLang", "TensorRT-LLM", "TGI", "Transformers")
"""What else an engine may be that a row does not name."""


def engine_of(row: Row) -> tuple[str, tuple[str, ...]]:
    """The engine by its usual name, with what was assumed where the cell is blank."""
    cell = row.text("engine").strip()
    if not cell:
        return "vLLM", (f"engine not stated: vLLM assumed, the interval holds for {', '.join(ANY_ENGINE)} too",)
    known = reading("engine", words=cell)
    return (cell[:60] if known is None else known.text), ()


def number(row: Row, name: str, *, zero: bool = False) -> float | None:
    """A number of a cell, None where blank; raises `InputError` when it is none or out of range."""
    cell = row.text(name).strip()
    if cell == "":
        return None
    if name in _LENGTHS and _THOUSANDS.fullmatch(cell):
        return float(cell[:-1]) * 1024
    try:
        value = float(cell) if "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"'{cell[:40]}' is not a number", field=name)
    if not (0 if zero else 1e-9) <= value <= LARGEST:
        raise InputError(f"{cell[:40]} is out of range; needs 0 < value <= {LARGEST:.0e}", field=name)
    return value


def whole(row: Row, name: str) -> int | None:
    """A count of a cell [1], None where blank."""
    value = number(row, name)
    if value is None:
        return None
    if value < 1 or abs(value - round(value)) > 1e-9:
        raise InputError(f"'{row.text(name)[:40]}' is not a whole number above zero", field=name)
    return round(value)


_BUILD = re.compile(r"\bb(\d{3,5})\b|\((\d{3,5})\)|\bbuild[ :#]*(\d{3,5})\b", re.IGNORECASE)
_COMMIT = re.compile(r"(?=.*\d)[0-9a-f]{7,40}", re.IGNORECASE)
_NUMBERED = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4})+(?:[-+._]?[a-z0-9]+)*)", re.IGNORECASE)
_IMAGE = re.compile(r"[-_](?:cu|cuda|rocm|ubuntu|py|amd64|arm64|x86)\d*(?=[-_.\d]|$).*$", re.IGNORECASE)
"""What the tag of a container says besides the release: 'v0.5.5-cu129-amd64'."""


def release_of(row: Row, engine: str) -> str:
    """The release that a row states, in its own cell or beside the engine's name; '' where it states none.

    Words around a number go: 'vllm==0.6.3', 'lmsysorg/sglang:v0.5.5-cu129', llama.cpp's '2f68ce7cf (6918)', which is
    its build b6918. A commit alone tells no release. Dates and nightly builds stay as they are written. Kernels that a
    program was built with, and the note names, follow: AutoAWQ's '0.1.6 gemv'.
    """
    built = reading("build", program=engine, words=row.text("note"))
    return " ".join(word for word in (_stated(row, engine), built and built.text) if word)


def _stated(row: Row, engine: str) -> str:
    named, beside = row.text("engine_version").strip(), row.text("engine")
    for cell in (named, beside):
        build = _BUILD.search(cell) if reading("numbered_builds", program=engine) else None
        numbered = _NUMBERED.search(cell)
        if build:
            return f"b{build[1] or build[2] or build[3]}"
        if numbered:
            return _IMAGE.sub("", numbered[1])[:60]
    return "" if _COMMIT.fullmatch(named) else named[:60]


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(rf"\b({'|'.join(_MONTHS)})[a-z]*[ .,-]*(20\d\d)\b", re.IGNORECASE)
_DAY = re.compile(r"\b20\d\d-\d\d(?:-\d\d)?\b")


def release_then(engine: str, release: str, note: str) -> str | None:
    """The newest release of an engine on the day that stands for a release, or in the note of a row without one.

    None where a release or a nightly build is stated, where no day is, and where no release of that day is known.
    """
    month, day = _MONTH.search(release), _DAY.search(release or note)
    if month:
        return release_at(engine, f"{month[2]}-{_MONTHS.index(month[1].casefold()) + 1:02d}-31")
    if day is None or re.search(r"nightly", release, re.IGNORECASE):
        return None
    return release_at(engine, day[0] if len(day[0]) > len("2025-10") else f"{day[0]}-31")


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """The policy that answers for an engine; its interval holds for `others` too. `own`: the engine has a policy.

    `dated`: its releases are as old as the policy's; those of an engine of which nothing is known are the newest.
    """

    policy: str
    own: bool
    dated: bool = True
    others: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def stand_in(name: str, version: str, *, device: str = "", files: bool = False) -> StandIn:
    """Whose policy answers for an engine of that name and version, with what was assumed.

    Of an unknown one the `device`, an accelerator's name, tells which kernels there are, and weights in `files` of
    llama.cpp's formats that it reads them. Raises `InputError` for an engine whose weights lie or are computed on the
    host.
    """
    if engine_known(name):
        return StandIn(policy=name, own=True, said=_newer(name, version))
    if reading("host_engine", words=name) is not None:
        raise InputError(
            f"'{name[:40]}' keeps or computes weights on the host: give its rows in the columns of offload.tsv",
            field="engine",
        )
    kind = reading("engine_kind", words=f"{name} gguf" if files else name, device=device)
    assert kind is not None  # the last row of the key is of any engine: it batches by iterations, in pages (assumed)
    policy, *rest = kind.text.split("; ")
    said = (_words(name, kind.told, policy, tuple(rest)),)
    return StandIn(
        policy=policy, own=False, dated=kind != reading("engine_kind", words=""), others=tuple(rest), said=said
    )


def _words(name: str, why: str, policy: str, others: tuple[str, ...]) -> str:
    """What an answer by another engine's policy says."""
    also = ", ".join(others)
    return f"engine '{name[:40]}' has no policy ({why}): {policy}, the interval holds for {also} too (assumed)"


def _newer(name: str, version: str) -> tuple[str, ...]:
    """A word where a version is a whole release later than the newest policy that was read."""
    newest = newest_policy(name)
    if version and newest != "0" and version_key(version)[0] > version_key(newest)[0] and version_key(version)[0] < 1e9:
        return (f"{name} {version[:20]}: settings of {newest}, the newest that was read",)
    return ()
