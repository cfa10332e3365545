"""Rows of operators that memory binds, by their names in libraries: norms, softmax, activations, copies of rows.

Shape letters: R rows, D elements of a row.
"""

from __future__ import annotations

import re

from ridgeline.cost.compute import stream_cost
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.validate.operator_cells import Ask, Priced, bill

_BACKWARD = re.compile(r"backward|\bbwd\b|\bgrad", re.IGNORECASE)
_ROWS = ("rows", "m", "tokens", "num_tokens", "batch", "b")
_WIDTH = ("cols", "columns", "n", "width", "hidden", "hidden_size", "dim", "d", "vocab")
_TWO = re.compile(r"^\s*(\d+)(?:\s*[xX*,]\s*|\s+)(\d+)\s*$")
_LARGEST = 1e12  # elements; a bound on nonsense


def streamed(ask: Ask) -> Priced:
    """The time of one pass over R rows of D elements at the sustained rate of device memory [s].

    Raises `InputError` where the cells state no rows or widths, and for backward passes, which read more.
    """
    named = reading("stream", words=ask.op)
    assert named is not None  # its family was told by the same reading
    kind = named.text
    if _BACKWARD.search(ask.op):
        raise InputError(f"'{ask.op[:60]}': backward passes of these operators are not priced alone", field="op")
    pair = _TWO.match(ask.words)
    rows, width = (float(pair[1]), float(pair[2])) if pair else (ask.size(*_ROWS), ask.size(*_WIDTH))
    if not 1 <= rows * width <= _LARGEST or min(rows, width) < 1:
        raise InputError(f"'{ask.words[:40]}' is out of range; needs 1 to {_LARGEST:.0e} elements", field="shape")
    form = ask.format()
    work = stream_work(kind, rows, width, form.input_bytes)
    cost = stream_cost(work, ask.device, dtype="")
    told = f"{width:g} elements of {rows:g} rows: {STREAMS[kind].meaning}"
    return bill(kind, [cost], ask, form.matrix, flop=0.0, size=float(work.bytes), notes=[told])
