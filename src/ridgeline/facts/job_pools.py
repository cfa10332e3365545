"""Pools of devices that come and go, and the jobs that come to them, from a TOML file.

The only tables that this module knows are those of `JobPool`; docs/job_pools.md shows them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from ridgeline.errors import InputError
from ridgeline.facts import store
from ridgeline.facts.file_quantities import Bytes, FileTable, Name, Rate
from ridgeline.facts.user_files import FileKind, read_toml

MIB = 2**20
POOL = FileKind(what="a job pool", most_bytes=MIB, most_lines=10_000, most_line_bytes=10_000)
Hours = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Many = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class PoolDeviceTable(FileTable):
    """Devices of one kind: how many, and how long they stay and are away at a stretch, in the mean [hour]."""

    name: Name
    count: Annotated[int, Field(strict=True, ge=1, le=10_000)]
    mtbf_h: Hours
    away_h: Hours


class PoolJobsTable(FileTable):
    """Jobs that come at random; pairs are the least and the greatest, between which logarithms are even."""

    count: Many
    per_h: Hours
    devices: Annotated[list[Annotated[int, Field(strict=True, ge=1, le=1024)]], Field(min_length=1)]
    hours: tuple[Hours, Hours]
    memory: tuple[Bytes, Bytes]
    data: tuple[Bytes, Bytes]
    exchange: tuple[Bytes, Bytes]
    slack: tuple[Annotated[float, Field(ge=1, le=1e3)], Annotated[float, Field(ge=1, le=1e3)]]
    high_share: Annotated[float, Field(ge=0, le=1)]


class JobPool(FileTable):
    """A pool: devices over regions, links inside and between these, jobs whose `hours` are those on `reference`.

    `mtbf` and `seed` are factors of all devices' times and the number that all is drawn from.
    """

    reference: Name
    regions: Annotated[int, Field(strict=True, ge=1, le=1000)]
    inside: Rate
    between: Rate
    mtbf: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31)] = 0
    device: Annotated[list[PoolDeviceTable], Field(min_length=1, max_length=1000)]
    jobs: PoolJobsTable


def pool_names() -> tuple[str, ...]:
    """Names of the pools that ship."""
    return store.names("pools", ".toml")


def is_pool(text: str) -> bool:
    """Whether a word names a pool that ships, or the file of one."""
    name = text.partition("(")[0].strip()
    if name in pool_names():
        return True
    path = Path(name)
    if path.suffix.casefold() != ".toml" or not path.is_file():
        return False
    return {"jobs", "device"} <= read_toml(path, POOL).tables.keys()


def job_pool(text: str) -> JobPool:
    """The pool that a word names, with numbers of it in brackets: 'reach-community(per_h=80,mtbf=0.5,seed=3)'.

    Raises `InputError` for a file that is none, and a number that it has not.
    """
    found = re.fullmatch(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", text)
    if found is None:
        raise InputError(f"'{text[:60]}' is no pool; write a name or a file, with numbers as NAME(per_h=80)")
    path = store.path_of(f"pools/{found[1]}.toml") if found[1] in pool_names() else Path(found[1])
    tables: dict[str, Any] = {**read_toml(path, POOL).tables}
    for part in filter(None, (found[2] or "").split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        tables["jobs"] = {**tables.get("jobs", {})}
        where = tables if name in ("mtbf", "seed") else tables["jobs"]
        try:
            where[name] = int(value) if name in ("seed", "count") else float(value)
        except ValueError:
            raise InputError(f"{name} = '{value}' is no number", file=path.name) from None
    try:
        return JobPool.model_validate(tables)
    except ValidationError as caught:
        first = caught.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(one) for one in first["loc"])
        raise InputError(f"{first['msg']}", file=path.name, field=place) from None


@cache
def learned_scores(of: str) -> NDArray[np.float64]:
    """Weights that an assignment learned for its scores of `jobs`, `devices` or `sets` [1]."""
    return np.array(list(store.read_toml("learned_assignment.toml")[of].values()), dtype=float)
