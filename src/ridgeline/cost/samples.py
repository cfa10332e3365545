"""Measured kernels as a mechanism takes them: rows of operator tables, turned into sizes and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import Question
from ridgeline.cost.formats import Form, form, words
from ridgeline.cost.mechanism import Array
from ridgeline.cost.readers import READERS, Reader
from ridgeline.errors import DomainError
from ridgeline.facts.opdata import Columns, OpTable, read, tables
from ridgeline.lower.work import Number

FOLDS = 5
HELD_OUT, INTERVAL = 0, 1  # folds that judge, and that widen; the others are fitted to
_MILLISECOND = 1e-3


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Measured kernels of one device, library, format and kernel; `sizes` are columns of one length."""

    family: str
    accelerator: str
    engine: str
    version: str
    form: str
    kernel: str
    sizes: Mapping[str, Array]
    seconds: Array
    folds: NDArray[np.int64]
    source: str

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: NDArray[np.bool_]) -> Sample:
        """The rows of a mask."""
        return Sample(
            **{name: getattr(self, name) for name in _LABELS},
            sizes={name: column[mask] for name, column in self.sizes.items()},
            seconds=self.seconds[mask],
            folds=self.folds[mask],
        )

    def question(self, kernel: str, *, hybrid: bool = False) -> Question:
        """Its sizes as a question about kernels of a name, of its device's library."""
        return Question(
            family=self.family, sizes=self.sizes, form=self.form, engine=self.engine, version=self.version,
            kernel=kernel, hybrid=hybrid,
        )  # fmt: skip


_LABELS = ("family", "accelerator", "engine", "version", "form", "kernel", "source")


def family_tables(family: str, device: str = "") -> tuple[OpTable, ...]:
    """The tables that hold a family, of a device ('' each) and every library version."""
    reader = READERS[family]
    found = (table for name in reader.tables for table in tables(name, device))
    return tuple(table for table in found if not reader.engines or table.engine in reader.engines)


def samples(family: str, table: OpTable, *, wanted: Form | None = None, extra: str = "") -> Iterator[Sample]:
    """The rows of one table, apart by format and kernel; of one format when `wanted`, with an `extra` column."""
    reader = READERS[family]
    if reader.parts is not None:
        for kernel, sizes, seconds in reader.parts(table):
            usable = np.isfinite(seconds) & (seconds > 0)
            kept: dict[str, Array] = {name: np.asarray(column, dtype=float)[usable] for name, column in sizes.items()}
            yield _sample(family, table, reader.part_form, kernel, kept, seconds[usable])
        return
    where = {reader.form_column: words(wanted)} if wanted is not None and reader.form_column else {}
    labels = [name for name in (reader.form_column, "kernel_source", extra) if name]
    found = read(table, tuple(dict.fromkeys((*reader.columns, *labels, "latency"))), where)
    seconds = np.asarray(found["latency"], dtype=float) * _MILLISECOND
    usable = np.isfinite(seconds) & (seconds > 0)
    if reader.told is not None:
        usable &= reader.told(found, table)
    kernels = np.asarray(reader.kernels(found, table) if reader.kernels else found["kernel_source"], dtype=object)
    forms = _forms(reader, found, len(seconds))
    for word in dict.fromkeys(forms[usable]):
        what = _known(str(word))
        if what is None or (wanted is not None and what.name != wanted.name):
            continue
        for kernel in dict.fromkeys(kernels[usable & (forms == word)]):
            mask = usable & (forms == word) & (kernels == kernel)
            stated = reader.sizes({name: found[name][mask] for name in reader.columns}, table)
            if extra:
                stated = {**stated, extra: found[extra][mask]}
            full = {name: np.broadcast_to(np.asarray(size, dtype=float), mask.sum()) for name, size in stated.items()}
            yield _sample(family, table, what.name, str(kernel), full, seconds[mask])


def _sample(
    family: str, table: OpTable, form_name: str, kernel: str, sizes: Mapping[str, Array], seconds: Array
) -> Sample:
    return Sample(
        family=family,
        accelerator=table.accelerator,
        engine=table.engine,
        version=table.version,
        form=form_name,
        kernel=kernel,
        sizes=sizes,
        seconds=seconds,
        folds=folds(family, sizes),
        source=table.place,
    )


def _forms(reader: Reader, columns: Columns, count: int) -> NDArray[Any]:
    if reader.forms is not None:
        return reader.forms(columns)
    return np.asarray(columns[reader.form_column] if reader.form_column else ["any"] * count, dtype=object)


def _known(word: str) -> Form | None:
    try:
        return form(word)
    except DomainError:
        return None


def held_out(family: str, sizes: Mapping[str, Number]) -> bool:
    """Whether one shape lies in a block that no fit used, neither for its values nor for its interval."""
    if not all(name in sizes for name in READERS[family].blocks):
        return False
    one = {name: np.atleast_1d(np.asarray(sizes[name], dtype=float)) for name in READERS[family].blocks}
    return bool((folds(family, one) == HELD_OUT).all())


def block_numbers(
    family: str, sizes: Mapping[str, Array], names: Sequence[str] = ()
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The shape blocks (or combinations of `names`) of some rows, and the number of each row's."""
    chosen_names = tuple(names) or READERS[family].blocks
    columns = np.broadcast_arrays(*(np.asarray(sizes[name], dtype=float) for name in chosen_names))
    number = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:  # sorting numbers takes a tenth of the time of sorting rows
        values, inverse = np.unique(column, return_inverse=True)
        number = np.unique(number * len(values) + inverse.reshape(-1), return_inverse=True)[1].reshape(-1)
    _, first = np.unique(number, return_index=True)
    return np.stack([column.ravel()[first] for column in columns], axis=-1), number


def block_keys(family: str, sizes: Mapping[str, Array], names: Sequence[str] = ()) -> NDArray[np.int64]:
    """A number for the shape block (or `names`) of each row, the same for the same block on every device [1]."""
    unique, number = block_numbers(family, sizes, names)
    keys = np.array([crc32(f"{family}:{row.tolist()}".encode()) for row in unique], dtype=np.int64)
    return keys[number]


def folds(family: str, sizes: Mapping[str, Array], names: Sequence[str] = ()) -> NDArray[np.int64]:
    """The fold of each row, from 0 to 4: the same shape block (or `names`) is in the same fold on every device [1]."""
    return block_keys(family, sizes, names) % FOLDS


def hidden_folds(family: str, sizes: Mapping[str, Array]) -> NDArray[np.int64]:
    """The folds hidden from a table to judge it: shape blocks, or single shapes where a block is a whole axis."""
    reader = READERS[family]
    if set(reader.blocks) & set(reader.smooth):
        return folds(family, sizes)
    return folds(family, sizes, (*reader.blocks, *reader.smooth))
