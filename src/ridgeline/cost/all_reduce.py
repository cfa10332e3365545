"""What an all-reduce takes in a serving engine: its own kernels by its rules, else the collective library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import FITS, Question, Rung
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import FittedModel, fitted_model
from ridgeline.cost.host_times import issue_seconds
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds, group_sizes
from ridgeline.facts.engine_kernels import NEVER_BYTES, AllReduceRule, all_reduce_rules
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase


def engine_rules(
    machine: Machine, engine: str, version: str = "", *, beyond: bool = False
) -> Mapping[int, AllReduceRule]:
    """The rules of an engine by ranks, inside one node of a machine or `beyond` it on the links of a node.

    Empty where the engine has no kernels of its own.
    """
    part = machine.cluster.accelerator
    joined = "domain" if beyond else "bus" if machine.tiers[0].topology == "bus" else "linked"
    return all_reduce_rules(engine, version, f"{joined} {part.vendor} {part.architecture} {part.name}")


def _reach(machine: Machine, ranks: Number, stride: Number) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether groups lie inside one node, devices of one operating system, or beyond it on the links of a node."""
    span = (np.asarray(ranks, dtype=float) - 1) * np.asarray(stride, dtype=float)
    inside = span < min(machine.cluster.node_devices, machine.tiers[0].size)
    return inside, ~inside & (span < machine.tiers[0].size)


def kernel_sizes(
    machine: Machine,
    size_bytes: Number,
    ranks: Number,
    engine: str,
    version: str = "",
    *,
    stride: Number = 1,
    eager: Number = 0.0,
) -> dict[str, Number]:
    """The sizes of the mechanism `custom_all_reduce`; groups that an engine has no rule for take the next larger's.

    `eager` is 1 for calls that the host issues one by one, 0 for those replayed from a graph.
    """
    near, far = (engine_rules(machine, engine, version, beyond=beyond) for beyond in (False, True))
    _, beyond_node = _reach(machine, ranks, stride)

    def starts(name: str) -> Number:
        inside, outside = (_next(ranks, {n: getattr(rule, name) for n, rule in rules.items()}) for rules in (near, far))
        return np.where(beyond_node, outside, inside) if np.any(beyond_node) else inside

    return {
        "bytes": size_bytes,
        "ranks": ranks,
        "link_bytes_per_s": group_sizes(machine, ranks, stride)["link_bytes_per_s"],
        "two_shot_from_bytes": starts("two_shot_from_bytes"),
        "symmetric_from_bytes": starts("symmetric_from_bytes"),
        "issue_s": np.asarray(eager) * issue_seconds(machine.cluster.accelerator, machine.cluster.host),
    }


def most_bytes(machine: Machine, ranks: Number, stride: Number, engine: str, version: str = "") -> NDArray[np.float64]:
    """The largest buffer that an engine's own kernels take [byte]; 0 for groups that it leaves to the library.

    Most kernels share buffers within a node: devices of one operating system, though links may reach beyond it.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    found = np.zeros(ranks_a.shape)
    for beyond, here in zip((False, True), _reach(machine, ranks_a, stride_a), strict=True):
        for count, rule in engine_rules(machine, engine, version, beyond=beyond).items():
            found = np.where(here & (ranks_a == count) & (ranks_a > 1), rule.most_bytes, found)
    return found


def _next(ranks: Number, values: Mapping[int, float]) -> Number:
    if not values:
        return NEVER_BYTES
    known = np.array(list(values))
    chosen = np.array(list(values.values()))[np.clip(np.searchsorted(known, ranks), 0, len(known) - 1)]
    found: Number = np.minimum(chosen, NEVER_BYTES)
    return found


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
