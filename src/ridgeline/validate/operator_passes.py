"""Rows of passes, sorts, convolutions and experts, by what their cells state.

Shape letters: R rows, D elements of a row, or D keys of e bytes; N images, C channels in, K out, H x W in, P x Q out,
R x S the filter, G groups; T tokens of the expert-parallel group, D hidden, F feed-forward, E experts.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ridgeline.cost import questions
from ridgeline.cost.convolution import Images
from ridgeline.cost.expert_tables import UNGATED
from ridgeline.cost.formats import FORMS
from ridgeline.cost.host_times import host_slowness
from ridgeline.cost.questions import Worked
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.errors import InputError, UnitError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.readings import reading
from ridgeline.units import parse_count
from ridgeline.validate.operator_cells import LARGEST, Ask, Priced, priced

_BACKWARD = re.compile(r"backward|\bbwd\b|\bgrad", re.IGNORECASE)
_ROWS = ("rows", "m", "tokens", "num_tokens", "batch", "b")
_WIDTH = ("cols", "columns", "n", "width", "hidden", "hidden_size", "dim", "d", "vocab")
_TWO = re.compile(r"^\s*(\d+)(?:\s*[xX*,]\s*|\s+)(\d+)\s*$")
_MOST_ELEMENTS = 1e12  # a bound on nonsense


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
    if not 1 <= rows * width <= _MOST_ELEMENTS or min(rows, width) < 1:
        raise InputError(f"'{ask.words[:40]}' is out of range; needs 1 to {_MOST_ELEMENTS:.0e} elements", field="shape")
    form = ask.format()
    told = f"{width:g} elements of {rows:g} rows: {STREAMS[kind].meaning}"
    asked = Worked(works=(stream_work(kind, rows, width, form.input_bytes),), form=form)
    return priced(kind, asked, ask, notes=[told])


_COUNT = re.compile(r"\bn\s*=\s*(?:2\^(\d{1,2})\b|(\d[\d_.]{0,15}\s?[kKMGB]?)\b)")
_BITS = re.compile(r"\b(?:u|s|i|f|u?int|bf|fp|float)?(8|16|32|64)(?:[- ]?bit|\b)")


def sorted_keys(ask: Ask) -> Priced:
    """The time in which D keys of e bytes are sorted, by a pass over them for each 8 bits [s].

    Keys alone; with 4-byte values where the operator says pairs; with 8-byte places by `torch.sort`. Few enough for one
    block are sorted in one kernel. Kernels of PyTorch are issued one by one by the host, which the device waits for: an
    eager operator, then one launch a kernel.
    Raises `InputError` where the cells state no number or size of keys.
    """
    keys, key_bytes = _keys(ask), _key_bytes(ask)
    called = re.search(r"torch", ask.library.casefold()) is not None
    kind = "sort_long" if "torch.sort" in ask.library.casefold() else "sort" if "pair" in ask.op else "sort_keys"
    work = stream_work(kind, 1.0, keys, key_bytes)
    told = f"{keys:.4g} keys of {key_bytes:g} bytes: {STREAMS[kind].meaning}"
    found = priced("sort", Worked(works=(work,), form=FORMS["fp32"]), ask)
    seconds, notes = found.seconds, [told]
    if called:
        slow = host_slowness(ask.accelerator, ask.machine.cluster.host)
        launches = (float(np.asarray(work.kernels)) - 1.0) * constant("launch.host.compiled") * slow
        seconds = constant("launch.host.eager") * slow + max(launches, seconds)
        notes.append("called by PyTorch, which waits for the result")
    return replace(found, seconds=seconds, keys=keys, assumptions=tuple(notes))


def _keys(ask: Ask) -> float:
    found = _COUNT.search(ask.words)
    if found is None:
        raise InputError(f"'{ask.words[:40]}' does not state n, the number of keys", field="shape")
    try:
        keys = 2.0 ** int(found[1]) if found[1] else float(parse_count(found[2].replace(" ", ""), field="shape"))
    except UnitError as error:
        raise InputError(f"'{ask.words[:40]}' does not state a whole number of keys", field="shape") from error
    if not 1 <= keys <= LARGEST:
        raise InputError(f"'{ask.words[:40]}' is out of range; needs 1 to {LARGEST:.0e} keys", field="shape")
    return keys


def _key_bytes(ask: Ask) -> float:
    found = _BITS.search(ask.dtype.casefold()) or _BITS.search(ask.op)
    if found is None:
        raise InputError(f"'{ask.dtype}' does not state the size of a key", field="dtype")
    return float(found[1]) / 8.0


def convolution(ask: Ask) -> Priced:
    """A convolution by `cost.convolution` [s].

    Without the filter's size, an output as large as the input means stride 1 and R = 2 pad + 1. Raises `InputError`
    where the cells state neither, or groups that do not divide the channels.
    """
    form = ask.format()
    batch, rows, columns = ask.size("n"), ask.size("p"), ask.size("q")
    notes = []
    if {"r", "s"} <= ask.shape.keys():
        height, width = ask.size("r"), ask.size("s")
    elif {rows, columns} == {ask.size("h"), ask.size("w")}:
        height, width = 2 * ask.size("pad_h", default=0.0) + 1, 2 * ask.size("pad_w", default=0.0) + 1
        if 1 < height == width == rows == columns:  # (7 + 2 x 3 - 1) / 2 + 1 = 7 as well
            raise InputError(f"'{ask.words}' fits filters of {height:g} x {width:g} and of 1 x 1", field="shape")
        notes.append(f"filter {height:g} x {width:g}: the output is as large as the padded input allows at stride 1")
    else:
        raise InputError(f"'{ask.words}' states neither filter size nor stride", field="shape")
    channels, filters = ask.size("c"), ask.size("k")
    groups = ask.size("groups", "g", default=1.0)
    if groups < 1 or channels % groups or filters % groups:
        raise InputError(f"{groups:g} groups do not divide {channels:g} and {filters:g} channels", field="shape")
    images = Images(
        count=batch, channels=channels, height=ask.size("h", default=rows), width=ask.size("w", default=columns),
        filters=filters, filter_height=height, filter_width=width, rows=rows, columns=columns, groups=groups,
    )  # fmt: skip
    _, how = images.costs(form, ask.device)
    return priced("conv2d", Worked(works=(images,), form=form), ask, flop=images.flop, notes=[how, *notes])


_INNER = ("inter", "ffn", "inner", "inter_size", "intermediate_size")


def experts(ask: Ask) -> Priced:
    """The feed-forward of one rank's experts, each F / moe_tp wide; one rank of `moe_ep` gets its share of rows [s]."""
    form = ask.format()
    tokens, hidden, inner = ask.size("tokens", "num_tokens"), ask.size("hidden", "hidden_size"), ask.size(*_INNER)
    top_k, count = ask.size("topk", "top_k"), ask.size("experts", "num_experts")
    inner /= ask.size("moe_tp", "tp", default=1.0)
    ranks = ask.size("moe_ep", "ep", default=1.0)
    if min(tokens, hidden, inner, top_k, count, ranks) <= 0:
        raise InputError(f"'{ask.words}' has a size of 0", field="shape")
    skewed = re.search(r"dist(?:ribution)?\s*=\s*power_law_([\d.]+)", ask.words)
    gate = not re.search(r"non-?gated", ask.library, re.IGNORECASE) and (hidden, ask.size(*_INNER)) not in UNGATED
    asked = questions.experts(
        tokens, hidden, inner, top_k, count, ranks=ranks, skew=float(skewed[1]) if skewed else 0.0, gated=gate,
        dtype=form.name,
    )  # fmt: skip
    told = f"rows of experts by a power law of {skewed[1]}" if skewed else "balanced routing over the experts (assumed)"
    return priced("moe feed-forward", asked, ask, notes=[told])
