"""Reads a truth table from strangers: any column order, missing and extra columns, bad lines.

A truth table is tab-separated with one header line and no quoting; it may be gzipped. A line that
cannot be used keeps its place as a row with a `problem`, so that the good rows are still answered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.user_files import TRUTH, UserFile, read_user_file
from ridgeline.scenario.settings import COLUMN as SETTINGS
from ridgeline.units import UNITS

LARGEST_CELLS = 8_000_000  # of a table; the largest public one of this kind has 300,000

KINDS: dict[str, frozenset[str]] = {
    "training": frozenset({"model", "hardware", "global_batch", "micro_batch", "recompute", "interconnect", "seq_len"}),
    "memory": frozenset({"model", "hardware", "global_batch", "micro_batch", "recompute", "offload", "optimizer"}),
    "serving": frozenset({"scenario", "isl", "osl", "rate_rps", "batch_or_concurrency", "precision_weights"}),
    "kernels": frozenset({"op", "shape", "dtype", "library"}),
    "collectives": frozenset({"op", "bytes", "topology", "library", "n_nodes"}),
    "offload": frozenset({"gpu", "n_gpu", "placement", "host_mem", "disk", "isl", "osl"}),
    "diffusion": frozenset({"resolution", "frames", "steps", "batch", "technique"}),
    "post-training": frozenset(
        {
            "algorithm",
            "train_engine",
            "rollout_engine",
            "prompts_per_step",
            "samples_per_prompt",
            "response_tokens_mean",
        }
    ),
    "accelerators": frozenset({"name", "vendor", "year", "fp32_tflops"}),
    "prices": frozenset({"accelerator", "mem_gb", "cloud", "instance", "usd_per_gpu_hour", "on_demand_or_spot"}),
    "sources": frozenset({"title", "where", "commit", "quality", "caveats"}),
}
"""Columns that tell one kind of table from another; the kind with the most of its columns present wins."""

MEASURED_KINDS = frozenset(
    {"training", "memory", "serving", "kernels", "collectives", "offload", "diffusion", "post-training"}
)

COUNTS = (
    "layers", "hidden", "heads", "vocab", "seq_len", "n_devices", "tp", "pp", "dp", "cp", "ep",
    "micro_batch", "global_batch",
)  # fmt: skip
"""Columns that hold a count [1]."""

NUMBERS = ("params_b",)
"""Columns that hold a positive number: parameters [1e9]."""

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
"""A number whose thousands are set apart: '1,024'."""

_PLAIN_NUMBERS = frozenset(
    {*COUNTS, *NUMBERS, "value", "active_params_b", "batch_or_concurrency", "rate_rps", "batch", "n_nodes", "n_gpu"}
    | {"isl", "osl", "bytes", "steps", "frames", "context_depth", "gpu_mem_gb"}
)
"""Columns that hold one number."""

PROVENANCE = ("source", "source_where")
"""Columns that say where a row comes from."""

LARGEST_COUNT = 10**10
LONGEST_CELL = 2000  # patterns are searched in cells; none of public tables is longer than 600 [character]
LONGEST_SETTINGS = (
    100_000  # of the one column that is read whole; configs of catalog models have up to 10,000 [character]
)
_PAIR = re.compile(r"^([^\s()]+)\s*\(([^()]+)\)$")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a truth table; `cells` holds every column of the header, '' where blank.

    `problem` says why the line cannot be used, worded with file, line and field. `hidden` are cells that a prediction
    may not see: where the row comes from, in a blind check.
    """

    line: int
    id: str
    cells: Mapping[str, str]
    problem: str | None = None
    hidden: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A cell as written, '' when the column is missing or the cell blank."""
        return self.cells.get(name, "")

    def count(self, name: str) -> int | None:
        """A count [1], None when blank; of 'a (b)', which states two recipes, the one that `second` names."""
        cell = self._chosen(name)
        return None if cell == "" else round(_number(cell))

    def number(self, name: str) -> float | None:
        """A number, None when blank."""
        cell = self._chosen(name)
        return None if cell == "" else float(cell)

    def _chosen(self, name: str) -> str:
        match = _PAIR.match(self.text(name))
        return self.text(name) if match is None else match[2 if self.second else 1]

    @property
    def measured(self) -> float | None:
        """The measured value, None when it is a word such as 'fits'."""
        try:
            value = float(self.text("value"))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def positive(self) -> float:
        """The measured value; raises `InputError` where it is no positive number."""
        value = self.measured
        if value is None or value <= 0:
            raise InputError(f"'{self.text('value')}' is not a positive number", field="value")
        return value

    @property
    def second(self) -> bool:
        """Whether this row is the parenthesised one of two recipes that share a line of their source.

        Such sources print 'tp = 1 (2)' and '4079 (3546)'; the notes then quote '(3546)'.
        """
        value = self.measured
        quoted = re.findall(r"\(([\d.]+)\)", self.text("notes"))
        return value is not None and any(_is_number(each) and float(each) == value for each in quoted)

    @property
    def asks_bytes(self) -> bool:
        """Whether the row asks what is held in memory: bytes, whether a job fits, the longest sequence that does."""
        held = UNITS.get(self.text("unit"), ("", 0.0))[0] == "byte"
        return held or re.match(r"fits|max_seq", self.text("metric"), re.IGNORECASE) is not None

    def cells_of(self, **changed: str) -> dict[str, str]:
        """The row's cells as `facts.readings` looks for patterns in them."""
        own = {"runs": self.place, "model": self.text("model"), "device": self.text("hardware")}
        return own | {"words": self.words} | changed

    def blind(self) -> Row:
        """The row without the name of its source: no recipe and no habit of one can apply to it, but those of a public
        benchmark that its own notes name."""
        hidden = {name: self.text(name) for name in PROVENANCE}
        named = reading("benchmark_named", words=f"{self.text('notes')}; {self.text('note')}")
        shown = dict.fromkeys(PROVENANCE, "") | ({"source": named.text} if named is not None else {})
        return replace(self, id="", cells={**self.cells, **shown}, hidden=hidden)

    def judged(self) -> Row:
        """The row with its source, for a judge who asks whether a constant was taken from it."""
        return replace(self, cells={**self.cells, **self.hidden}, hidden={})

    @property
    def words(self) -> str:
        """Where switches of a run stand: engine, model, recompute, notes, offload, place; then what is asked of it."""
        said = "; ".join(map(self.text, ("engine", "model", "recompute", "notes", "offload", "source_where")))
        asked = "bytes" if self.asks_bytes else "time"
        return f"{said}; optimizer {self.text('optimizer')}; cp {self.count('cp') or 1}; {asked}"

    @property
    def place(self) -> str:
        """Where the row was published, repository and file."""
        return f"{self.text('source')}; {self.text('source_where')}"

    @property
    def source(self) -> str:
        """The code of the row's source: the middle of ids such as 't-titan-0001', else the source column."""
        match = re.match(r"^[a-z]-([a-z0-9]+)-\d+$", self.id)
        return match[1] if match else self.text("source") or "not stated"


@dataclass(frozen=True, kw_only=True)
class TruthTable:
    """A truth table: which kind it is and its rows, bad ones included."""

    path: str
    kind: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)


def read(path: str | Path) -> TruthTable:
    """The rows of a truth table; raises `InputError` when nothing in the file can be used."""
    return table_of(read_user_file(path, TRUTH))


def table_of(file: UserFile) -> TruthTable:
    """The rows of a truth table that was read; raises `InputError` when nothing in it can be used."""
    name = file.name
    if file.break_:
        raise InputError(f"is a broken gzip file: {file.break_}", file=name)
    lines = ((n, line) for n, line in enumerate(file.lines(), start=1) if line.strip() and not line.startswith("#"))
    start, header = next(lines, (0, ""))
    if not start:
        raise InputError("the file is empty; a truth table has a header line and rows", file=name)
    columns = _header(header, name, start)
    if len(columns) * file.line_ends > LARGEST_CELLS:
        told = f"{file.line_ends:,} lines of {len(columns):,} columns, the limit is {LARGEST_CELLS:,} cells"
        raise InputError(f"{told}; split the table", file=name)
    kind = _kind(columns, name, start)
    rows = tuple(_row(line, columns, kind, name, number) for number, line in lines)
    return TruthTable(path=name, kind=kind, columns=columns, rows=rows)


def _header(line: str, name: str, number: int) -> tuple[str, ...]:
    columns = tuple(_cell(cell).strip().casefold() for cell in line.split("\t"))
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if twice:
        raise InputError(f"the column '{twice[0]}' appears twice in the header", file=name, line=number)
    if len(columns) == 1:
        raise InputError("the header has one column; a truth table is tab-separated", file=name, line=number)
    return columns


def _kind(columns: tuple[str, ...], name: str, number: int) -> str:
    present = set(columns)
    shares = {kind: len(marks & present) / len(marks) for kind, marks in KINDS.items()}
    best = max(shares, key=lambda kind: shares[kind])
    wanted = {"metric", "value"} if best in MEASURED_KINDS else set()
    if len(KINDS[best] & present) < 2 or not wanted <= present:
        missing = sorted(wanted - present)
        raise InputError(
            f"no kind of truth table has these columns ({', '.join(columns[:6])}, ...)"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + f"; known kinds: {', '.join(KINDS)}",
            file=name,
            line=number,
        )
    return best


def _row(line: str, columns: tuple[str, ...], kind: str, name: str, number: int) -> Row:
    parts = [_cell(part) for part in line.split("\t")]
    cells = dict(zip(columns, parts, strict=False)) | dict.fromkeys(columns[len(parts) :], "")
    for column in _PLAIN_NUMBERS & cells.keys():
        if _GROUPED.fullmatch(cells[column]):
            cells[column] = cells[column].replace(",", "")
    problem = _problem(parts, columns, cells, kind, name, number)
    return Row(line=number, id=cells.get("id") or f"line {number}", cells=cells, problem=problem)


def _cell(text: str) -> str:
    """A cell without surrounding blanks and without the quotes that a spreadsheet leaves around it."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('""', '"').strip()
    return text


def _problem(
    parts: list[str], columns: tuple[str, ...], cells: Mapping[str, str], kind: str, name: str, number: int
) -> str | None:
    if kind not in MEASURED_KINDS:
        return None
    if len(parts) > len(columns):
        return f"{name}:{number}: {len(parts)} cells, the header has {len(columns)}"
    for column in columns:
        limit = LONGEST_SETTINGS if column == SETTINGS else LONGEST_CELL
        if len(cells[column]) > limit:
            return f"{name}:{number}: field '{column}': {len(cells[column])} characters, the limit is {limit}"
    needed = [columns.index(column) for column in ("metric", "value", "unit") if column in columns]
    if len(parts) <= max(needed):
        return f"{name}:{number}: {len(parts)} cells, too few to hold metric, value and unit"
    for column in ("metric", "value"):
        if not cells[column]:
            return f"{name}:{number}: field '{column}': blank"
    if kind in ("training", "memory"):
        for column in (*COUNTS, *NUMBERS):
            fault = _fault(cells.get(column, ""), whole=column in COUNTS)
            if fault:
                return f"{name}:{number}: field '{column}': {fault}"
    return _value_fault(cells["value"], name, number)


def _fault(cell: str, *, whole: bool) -> str | None:
    if cell == "":
        return None
    pair = _PAIR.match(cell)
    for part in (pair[1], pair[2]) if pair else (cell,):
        digits = part[:-1] if whole and part[-1:] in ("k", "K") else part
        if not _is_number(digits):
            return f"'{cell[:40]}' is not a number"
        value = _number(part)
        if not 0 < value <= LARGEST_COUNT:
            return f"'{cell[:40]}' is out of range; needs 0 < value <= {LARGEST_COUNT:.0e}"
        if whole and (value < 0.5 or abs(value - round(value)) > 1e-9):
            return f"'{cell[:40]}' is not a whole number"
    return None


def _value_fault(cell: str, name: str, number: int) -> str | None:
    if re.search(r"[^\W\d_]", cell) and not re.fullmatch(r"[-+]?(?:inf|infinity|nan)", cell, re.IGNORECASE):
        if re.fullmatch(r"[A-Za-z][A-Za-z ]{1,30}", cell) or _is_number(cell):
            return None
        return f"{name}:{number}: field 'value': '{cell[:40]}' is neither a number nor a word"
    if not _is_number(cell):
        return f"{name}:{number}: field 'value': '{cell[:40]}' is not a finite number"
    return None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _number(text: str) -> float:
    """A number; '8k' is 8192, as lengths and batches are written."""
    return float(text[:-1]) * 1024 if text[-1:] in ("k", "K") else float(text)
