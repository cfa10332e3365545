"""What an all-reduce takes in a serving engine: its own kernels where it has them, else the collective library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.cost.answer import FITS, Question, Rung
from ridgeline.cost.engine_limits import issue_seconds, kernel_sizes, most_bytes
from ridgeline.cost.fitted import FittedModel, find_fits, fitted_model
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase


def all_reduce_seconds(
    size_bytes: Number,
    ranks: Number,
    machine: Machine,
    *,
    engine: str,
    version: str = "",
    stride: Number = 1,
    eager: bool = False,
) -> Number:
    """Time of an all-reduce of `ranks` devices, `stride` apart, as an engine would do it [s]; 0 for one rank.

    Parameters
    ----------
    size_bytes : Number [byte]
        Whole buffer of one rank; arrays of sizes, ranks and strides broadcast.
    ranks, stride : Number [1]
        Groups inside one node, in counts that the engine's kernels support, take them up to their limit; all others,
        and engines without kernels of their own, take the library.
    engine, version : str
        vllm, sglang or trtllm; without a version the newest rules and fits.
    eager : bool
        Calls issued one by one by the host; else replayed from a graph.

    Source: `data/engine_all_reduce.tsv` for limits, `data/fits/` for values. Evidence: that of the first rung of
    fitted, borrowed and common that has values.
    """
    size, count, apart = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (size_bytes, ranks, stride)))
    most = most_bytes(machine, count, apart, engine, version)
    own = (most > 0) & (size <= most)
    model = kernels_of(machine.part, engine, version, rungs=machine.rungs) if own.any() else None
    if model is None:
        return _library(size, count, apart, machine, eager)
    seconds = np.empty(size.shape)
    sizes = kernel_sizes(machine, size[own], count[own], engine, version, stride=apart[own], eager=float(eager))
    seconds[own] = model.seconds(sizes)
    if not own.all():
        seconds[~own] = _library(size[~own], count[~own], apart[~own], machine, eager)
    return seconds


def kernels_of(
    part: Accelerator, engine: str, version: str = "", *, rungs: Sequence[Rung] = FITS
) -> FittedModel | None:
    """An engine's all-reduce kernels on a device, ready to price sizes; None where nobody measured any."""
    question = Question(family="custom_all_reduce", sizes={}, form="any", engine=engine, version=version)
    for rung in rungs:
        if find_fits(question, part, rung):
            return fitted_model(question, part, rung)
    return None


def _library(size: Number, ranks: Number, stride: Number, machine: Machine, eager: bool) -> Number:
    work = Collective(
        name="all_reduce", phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE, bytes=size, ranks=ranks, stride=stride
    )
    seconds = collective_seconds(work, machine)
    issue_s = issue_seconds(machine.cluster.accelerator, machine.cluster.host) if eager else 0.0
    found: Number = np.where(np.asarray(ranks) > 1, np.maximum(seconds, issue_s), 0.0)
    return found
