"""Rows of sorts: keys by passes of a radix sort, timed on the device or as calls of PyTorch.

Shape letters: D keys, e bytes of a key.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ridgeline.cost.compute import stream_cost
from ridgeline.cost.engine_limits import host_slowness
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.errors import InputError, UnitError
from ridgeline.facts.mechanisms import constant
from ridgeline.units import parse_count
from ridgeline.validate.operator_cells import Ask, Priced, bill

_COUNT = re.compile(r"\bn\s*=\s*(?:2\^(\d{1,2})\b|(\d[\d_.]{0,15}\s?[kKMGB]?)\b)")
_BITS = re.compile(r"\b(?:u|s|i|f|u?int|bf|fp|float)?(8|16|32|64)(?:[- ]?bit|\b)")
_ONE_BLOCK = (
    4096.0  # keys that one block sorts in one kernel. Source: pytorch/pytorch, aten/src/ATen/native/cuda/Sort.cpp
)
_LARGEST = 2.0**40  # keys; a bound on nonsense


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
    priced = bill("sort", [stream_cost(work, ask.device, dtype="")], ask, "fp32", flop=0.0, size=float(work.bytes))
    seconds, notes = priced.seconds, [told]
    if called:
        slow = host_slowness(ask.accelerator, ask.machine.cluster.host)
        launches = (float(np.asarray(work.kernels)) - 1.0) * constant("launch.host.compiled") * slow
        seconds = constant("launch.host.eager") * slow + max(launches, seconds)
        notes.append("called by PyTorch, which waits for the result")
    return replace(priced, seconds=seconds, keys=keys, assumptions=tuple(notes))


def _keys(ask: Ask) -> float:
    found = _COUNT.search(ask.words)
    if found is None:
        raise InputError(f"'{ask.words[:40]}' does not state n, the number of keys", field="shape")
    try:
        keys = 2.0 ** int(found[1]) if found[1] else float(parse_count(found[2].replace(" ", ""), field="shape"))
    except UnitError as error:
        raise InputError(f"'{ask.words[:40]}' does not state a whole number of keys", field="shape") from error
    if not 1 <= keys <= _LARGEST:
        raise InputError(f"'{ask.words[:40]}' is out of range; needs 1 to {_LARGEST:.0e} keys", field="shape")
    return keys


def _key_bytes(ask: Ask) -> float:
    found = _BITS.search(ask.dtype.casefold()) or _BITS.search(ask.op)
    if found is None:
        raise InputError(f"'{ask.dtype}' does not state the size of a key", field="dtype")
    return float(found[1]) / 8.0
