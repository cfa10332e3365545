"""The command `numerics`: an algorithm run on arrays, with its error beside the usual way's."""

from __future__ import annotations

from types import SimpleNamespace

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError
from ridgeline.numerics.algorithm import Arrays, algorithm, algorithms, drawn, read
from ridgeline.report.blocks import Line, Table, blank, labelled

_MOST = 8192  # side of a made-up weight


def compute(given: SimpleNamespace) -> Answer:
    """Prints what an algorithm measured on a weight of a file or a made-up one; without a name, which there are."""
    if given.name is None:
        known = [algorithm(key) for key in algorithms()]
        rows = tuple((one.key, one.technique, one.summary()) for one in known)
        answer = {"algorithms": [{"key": k, "technique": t, "summary": s} for k, t, s in rows]}
        heads = ("algorithm", "technique", "what it does")
        return Answer(lambda: answer, lambda: [Table(columns=heads, rows=rows, indent=0)], width=140)
    one, arrays = algorithm(given.name), _arrays(given)
    found = dict(one.run(arrays))
    rows, columns = arrays.weight.shape
    said = {"algorithm": one.text, "rows": rows, "columns": columns, "samples": len(arrays.inputs), "seed": given.seed}
    head = Line(text=f"{one.text} on {rows} x {columns}, {len(arrays.inputs)} samples, seed {given.seed}", strong=True)
    return Answer(
        lambda: {**said, "values": found, "source": list(one.source)},
        lambda: [head, blank(), *labelled([(name, f"{value:.4g}") for name, value in found.items()])],
        value=found,
    )


def _arrays(given: SimpleNamespace) -> Arrays:
    if given.weights is not None:
        return read(given.weights, given.inputs, given.samples, seed=given.seed)
    if given.inputs is not None:
        raise InputError("inputs without the weight that they are of; say --weights too", field="--inputs")
    try:
        rows, columns = (int(part) for part in given.shape.lower().split("x"))
    except ValueError:
        raise InputError(f"'{given.shape}' is no ROWSxCOLUMNS, e.g. 512x512", field="--shape") from None
    if not (1 <= rows <= _MOST and 1 <= columns <= _MOST):
        raise InputError(f"'{given.shape}': sides need 1 to {_MOST}; give larger weights as a file", field="--shape")
    return drawn(rows, columns, given.samples, seed=given.seed)
