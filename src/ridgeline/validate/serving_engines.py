"""Which release of an engine a serving row names, whose policy answers where it has none of its own, and which others
its interval holds for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.benchmarks import release_at
from ridgeline.facts.engines import engine_known, newest_policy
from ridgeline.facts.policies import version_key
from ridgeline.facts.readings import reading
from ridgeline.validate.rows import Row

_BUILDS = ("llama.cpp", "Ollama")
"""Engines that llama.cpp's builds number."""

_BUILD = re.compile(r"\bb(\d{3,5})\b|\((\d{3,5})\)|\bbuild[ :#]*(\d{3,5})\b", re.IGNORECASE)
_COMMIT = re.compile(r"(?=.*\d)[0-9a-f]{7,40}", re.IGNORECASE)
_NUMBERED = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4})+(?:[-+._]?[a-z0-9]+)*)", re.IGNORECASE)
_IMAGE = re.compile(r"[-_](?:cu|cuda|rocm|ubuntu|py|amd64|arm64|x86)\d*(?=[-_.\d]|$).*$", re.IGNORECASE)
"""What the tag of a container says besides the release: 'v0.5.5-cu129-amd64'."""


def release_of(row: Row, engine: str) -> str:
    """The release that a row states, in its own cell or beside the engine's name; '' where it states none.

    Words around a number go: 'vllm==0.6.3', 'lmsysorg/sglang:v0.5.5-cu129', llama.cpp's '2f68ce7cf (6918)', which is
    its build b6918. A commit alone tells no release. Dates and nightly builds stay as they are written.
    """
    named, beside = row.text("engine_version").strip(), row.text("engine")
    for cell in (named, beside):
        build = _BUILD.search(cell) if engine in _BUILDS else None
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
    """The policy that answers for an engine; its interval holds for `others` too. `own`: the engine has a policy."""

    policy: str
    own: bool
    others: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def stand_in(name: str, version: str) -> StandIn:
    """Whose policy answers for an engine of that name and version, with what was assumed.

    Raises `InputError` for an engine whose weights lie or are computed on the host.
    """
    if engine_known(name):
        return StandIn(policy=name, own=True, said=_newer(name, version))
    if reading("host_engine", words=name) is not None:
        raise InputError(
            f"'{name[:40]}' keeps or computes weights on the host: give its rows in the columns of offload.tsv",
            field="engine",
        )
    kind = reading("engine_kind", words=name)
    assert kind is not None  # the last row of the key is of any engine: it batches by iterations, in pages (assumed)
    policy, *rest = kind.text.split("; ")
    return StandIn(policy=policy, own=False, others=tuple(rest), said=(_words(name, kind.told, policy, tuple(rest)),))


def _words(name: str, why: str, policy: str, others: tuple[str, ...]) -> str:
    """What an answer by another engine's policy says."""
    also = ", ".join(others)
    return (
        f"engine '{name[:40]}' has no policy ({why}): the newest {policy}, the interval holds for {also} too (assumed)"
    )


def _newer(name: str, version: str) -> tuple[str, ...]:
    """A word where a version is a whole release later than the newest policy that was read."""
    newest = newest_policy(name)
    if version and newest != "0" and version_key(version)[0] > version_key(newest)[0] and version_key(version)[0] < 1e9:
        return (f"{name} {version[:20]}: settings of {newest}, the newest that was read",)
    return ()
