"""Measured operator tables of the wheel `aiconfigurator-core`, read in place when it is installed.

Nothing of the package is imported and nothing is copied: files are found beside its metadata, and only the columns
and rows asked for are read. Source: ai-dynamo/aiconfigurator, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import DomainError
from ridgeline.facts import store
from ridgeline.facts.fits import release_key

PACKAGE = "aiconfigurator-core"
INSTALL = "pip install 'ridgeline[measured]'"
_FOLDER = "aiconfigurator_core/systems/data"


@dataclass(frozen=True, kw_only=True, order=True)
class OpTable:
    """One table: the device and library that were measured, and its file."""

    accelerator: str
    family: str
    engine: str  # vllm, sglang, trtllm, nccl, oneccl
    version: str
    name: str
    path: Path

    @property
    def place(self) -> str:
        """The file inside the wheel's data folder."""
        return "/".join(self.path.parts[-5:])


@cache
def systems() -> Mapping[str, str]:
    """Folder of the wheel -> accelerator."""
    return {row["system"]: row["accelerator"] for row in store.read_tsv("opdata.tsv")}


@cache
def root() -> Path | None:
    """The folder of the tables; None when the wheel, or a reader of its files, is not installed."""
    if find_spec("pyarrow") is None:
        return None
    try:
        folder = Path(str(distribution(PACKAGE).locate_file(_FOLDER)))
    except PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


@cache
def release() -> str:
    """The wheel's version; '' when it is not installed."""
    try:
        return distribution(PACKAGE).version
    except PackageNotFoundError:
        return ""


@cache
def tables(name: str) -> tuple[OpTable, ...]:
    """Every table of a name ('gemm_perf') for the devices of the catalog, newest version of an engine last."""
    folder = root()
    if folder is None:
        return ()
    found = []
    for system, accelerator in systems().items():
        for path in (folder / system).glob(f"*/*/*/{name}.parquet"):
            family, engine, version = path.parts[-4:-1]
            found.append(
                OpTable(accelerator=accelerator, family=family, engine=engine, version=version, name=name, path=path)
            )
    return tuple(sorted(found, key=lambda table: (table.accelerator, table.engine, release_key(table.version))))


def read(
    table: OpTable, columns: Sequence[str], where: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, NDArray[Any]]:
    """Columns of a table as arrays, of the rows where other columns have one of the values wanted.

    A column that the table lacks comes back as zeros, so that tables of several versions can be read alike. Raises
    `DomainError` when the file cannot be read.
    """
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        known = set(pq.read_schema(table.path).names)
        filters = [(name, "in", list(values)) for name, values in (where or {}).items() if name in known]
        wanted = [name for name in columns if name in known]
        found = pq.read_table(table.path, columns=wanted, filters=filters or None)
    except (OSError, ArrowException) as error:
        raise DomainError(f"{table.place} of {PACKAGE} cannot be read: {error}; reinstall it: {INSTALL}") from error
    count = found.num_rows
    return {name: found[name].to_numpy(zero_copy_only=False) if name in known else np.zeros(count) for name in columns}
