"""Measured operator tables of the wheel `aiconfigurator-core`, read in place when it is installed.

Nothing of the package is imported and nothing is copied: files are found beside its metadata, and only the columns
and rows asked for are read. Source: ai-dynamo/aiconfigurator, Apache-2.0.
"""

from __future__ import annotations

import math
import re
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
from ridgeline.facts.engine_kernels import release_key

PACKAGE = "aiconfigurator-core"
INSTALL = "pip install 'ridgeline[measured]'"
_FOLDER = "aiconfigurator_core/systems/data"
Columns = Mapping[str, NDArray[Any]]
"""Columns of a table by name."""


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
def native(place: str) -> bool:
    """Whether the layers of a table ran norms and rotary as chains of PyTorch's kernels, as no served engine does.

    >>> native("gb200/mla/vllm/0.24.0/mla_context_module_perf.parquet")
    True
    """
    rows = store.read_tsv("opdata_native.tsv")
    return next((row["native"] == "1" for row in rows if re.search(row["tables"], place)), False)


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
def tables(name: str, device: str = "") -> tuple[OpTable, ...]:
    """Every table of a name ('gemm_perf') for a device ('' each of the catalog), newest version of an engine last."""
    folder = root()
    if folder is None:
        return ()
    found = []
    for system, accelerator in systems().items():
        if device not in ("", accelerator):
            continue
        for path in (folder / system).glob(f"*/*/*/{name}.parquet"):
            family, engine, version = path.parts[-4:-1]
            found.append(
                OpTable(accelerator=accelerator, family=family, engine=engine, version=version, name=name, path=path)
            )
    return tuple(sorted(found, key=lambda table: (table.accelerator, table.engine, release_key(table.version))))


def same_library(name: str, device: str, engine: str, version: str) -> OpTable | None:
    """The table of a name of one device and one release of a library; None where there is none."""
    wanted = (device, engine, version)
    return next((t for t in tables(name) if (t.accelerator, t.engine, t.version) == wanted), None)


def read(
    table: OpTable, columns: Sequence[str], where: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, NDArray[Any]]:
    """Columns of a table as arrays, of the rows where other columns have one of the values wanted.

    A column that the table lacks comes back as zeros, so that tables of several versions can be read alike. Raises
    `DomainError` when the file cannot be read.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile, read_metadata

    try:
        held = read_metadata(table.path)
        known = set(held.schema.names)
        only = {name: list(values) for name, values in (where or {}).items() if name in known}
        asked = [name for name in dict.fromkeys((*columns, *only)) if name in known]
        # Filters, arrays and words that are numbered afterwards import pandas or all of Arrow's functions, which takes
        # longer than reading.
        read = ParquetFile(table.path, metadata=held, read_dictionary=asked).read(columns=asked, use_threads=False)
        found = {name: _array(read[name].combine_chunks()) for name in asked}
    except (OSError, ArrowException) as error:
        raise DomainError(f"{table.place} of {PACKAGE} cannot be read: {error}; reinstall it: {INSTALL}") from error
    kept = np.ones(read.num_rows, dtype=bool)
    for name, values in only.items():
        kept &= np.isin(found[name], values)
    count = int(kept.sum())
    return {name: found[name][kept] if name in known else np.zeros(count) for name in columns}


def _array(column: Any) -> NDArray[Any]:
    """A column of PyArrow as an array, NaN for numbers that are missing; without gaps by its buffers."""
    from pyarrow import types

    number = types.is_integer(column.type) or types.is_floating(column.type)
    if column.null_count:
        missing: float | None = math.nan if number else None
        words = [missing if one is None else one for one in column.to_pylist()]
        return np.array(words, dtype=float if number else object)
    if types.is_dictionary(column.type):
        return np.array(column.dictionary.to_pylist(), dtype=object).take(
            np.asarray(np.from_dlpack(column.indices), dtype=np.int64)
        )
    if number:
        return np.array(np.from_dlpack(column))
    return np.asarray(column.to_pylist())
