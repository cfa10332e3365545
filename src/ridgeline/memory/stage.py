"""Bytes held by one device of a pipeline stage at its peak, by category.

Every degree, size and count may be a scalar or an array over plans; results have the broadcast shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Workload
from ridgeline.memory.activations import (
    earlier_input_bytes,
    kept_bytes,
    logit_bytes,
    logit_gradient_bytes,
    passing_bytes,
    working_set_bytes,
)
from ridgeline.memory.query import Array, MemoryOptions, MemoryStage, as_array, resolve
from ridgeline.memory.states import (
    device_optimizer_bytes,
    device_weight_bytes,
    gathered_bytes,
    gathered_input_bytes,
    gradient_bytes,
    head_copy_bytes,
    head_gradient,
    moved_weight_bytes,
    optimizer_bytes,
    passing_gradient_bytes,
    perturbed_copy_bytes,
    update_copy_bytes,
    weight_copy_bytes,
)
from ridgeline.seams.offload import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS

TRANSIENT = ("gradients", "activations", "logits", "buffers")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes of what comes and goes during a step, at one moment [byte]."""

    gradients: Array
    activations: Array
    logits: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """Sum of the four [byte]."""
        return self.gradients + self.activations + self.logits + self.buffers


def greatest(moments: Sequence[Moment]) -> dict[str, Array]:
    """The bytes by category of the greatest moment of each plan [byte]; the earliest wins a tie."""
    best = moments[0].total
    chosen = {name: getattr(moments[0], name) for name in TRANSIENT}
    for moment in moments[1:]:
        more = moment.total > best
        best = np.where(more, moment.total, best)
        chosen = {name: np.where(more, getattr(moment, name), chosen[name]) for name in TRANSIENT}
    return chosen


STATES = ("weights", "gradients", "optimizer")
"""Memory categories that are counted exactly."""


@dataclass(frozen=True, kw_only=True)
class PeakRange:
    """Ends of the 80 % interval of a peak, as shares of its parts [1].

    States are counted exactly, but what a program copies of them, or leaves between them, is not all known.
    """

    low: float
    high: float
    states_high: float


def peak_range(*, measured: bool) -> PeakRange:
    """The ends for a framework whose peaks are measured by several sources, or for any other program.

    Domain: training; source: rows memory.measured.* and memory.other.* of the mechanism table.
    """
    rung = "measured" if measured else "other"
    ends = {end: constant(f"memory.{rung}.{end}") for end in ("low", "high", "states_high")}
    return PeakRange(**ends)


def peak_interval(categories: Mapping[str, float], *, measured: bool = False) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a sum of memory categories [byte, or the unit of its values].

    A sum of states alone is exact. `measured`: see `peak_range`.
    """
    ends = peak_range(measured=measured)
    states = sum(size for name, size in categories.items() if name in STATES)
    transient = sum(size for name, size in categories.items() if name not in STATES)
    above = ends.states_high * states + ends.high * transient if transient else states
    return states + ends.low * transient, above


def reserved_bytes(categories: Mapping[str, float], share: float) -> float:
    """What a caching allocator holds beyond its peak of allocated bytes [byte]: a share of what comes and goes.

    Blocks that were split, or freed on another stream, do not serve the next tensor; states that stay cause none.
    """
    return share * sum(categories.get(name, 0.0) for name in ("activations", "logits", "buffers", "workspace"))


ALLOCATED = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "workspace")
CATEGORIES = (*ALLOCATED, "context")


def stage_memory(graph: Graph, workload: Workload, **options: Unpack[MemoryOptions]) -> dict[str, Array]:
    """Peak bytes of one device of one pipeline stage, by category [byte]; the values add up.

    Weights, optimizer states and scratch stay all step long. Gradients, activations, logits and
    buffers are those of the worst of six moments: the head, the loss, the head's backward, that of the first layer
    to go, the end of backward, and the update. See `MemoryOptions` for the arguments.

    Domain: training with PyTorch-like eager allocation; fragmentation is not included.
    """
    return device_memory(resolve(graph, workload, options))


def device_memory(stage: MemoryStage) -> dict[str, Array]:
    """As `stage_memory`, of a stage that is resolved [byte]."""
    result = {
        "weights": device_weight_bytes(stage),
        "optimizer": device_optimizer_bytes(stage),
        **greatest(_moments(stage)),
        "workspace": as_array(stage.runtime.workspace_bytes(grouped=stage.profile.grouped)),
        "context": as_array(stage.runtime.context_bytes),
    }
    values = np.broadcast_arrays(*(result[name] for name in CATEGORIES))
    return dict(zip(CATEGORIES, values, strict=True))


def _moments(stage: MemoryStage) -> tuple[Moment, ...]:
    if stage.forwards:
        return _forward_moments(stage)
    runtime, none = stage.runtime, as_array(0.0)
    gradients = gradient_bytes(stage) * (1.0 - stage.away(GRADIENTS))
    away, moving = stage.away(ACTIVATIONS), np.minimum(1.0, _moving_layers(stage) / np.maximum(stage.layer_count, 1.0))
    kept = kept_bytes(stage)
    kept = kept * ((1.0 - away) + away * moving)
    copies = weight_copy_bytes(stage)
    apart = gathered_bytes(stage) + gathered_input_bytes(stage) + runtime.gradient_copies * gradients
    fixed, head = apart + copies, apart + np.maximum(copies, head_copy_bytes(stage))
    # a layer's activations are gone by the time all its gradients are there
    inside = fixed + np.maximum(working_set_bytes(stage), passing_gradient_bytes(stage))
    # gradients of earlier micro-batches wait for the later ones
    early = gradients if runtime.persistent_gradients else np.where(stage.micro_batches > 1, gradients, none)
    made = head_gradient(stage) * stage.profile.precision.grad_bytes
    early = np.maximum(early, made * stage.by_loss(lambda loss: loss.early_gradient))
    heads = np.maximum(gradients if runtime.persistent_gradients else early, made)
    heads = heads + made * stage.by_loss(lambda loss: loss.gradient_copies())
    before, logits = kept + earlier_input_bytes(stage), logit_bytes(stage)
    one = logit_gradient_bytes(stage)  # the loss adds at least as much to the logits
    return (
        Moment(gradients=early, activations=before, logits=np.maximum(logits - one, none), buffers=head),
        Moment(gradients=early, activations=before, logits=logits, buffers=fixed),
        Moment(gradients=heads, activations=kept, logits=one, buffers=head),
        Moment(gradients=early, activations=kept, logits=none, buffers=inside),
        Moment(gradients=gradients, activations=none, logits=none, buffers=inside),
        Moment(gradients=gradients, activations=none, logits=none, buffers=update_copy_bytes(stage)),
    )


def _forward_moments(stage: MemoryStage) -> tuple[Moment, ...]:
    """A layer at work, a weight that is perturbed, and the loss of all forwards that go side by side."""
    none, apart = as_array(0.0), gathered_bytes(stage) + gathered_input_bytes(stage) + weight_copy_bytes(stage)
    logits = stage.side_by_side * logit_bytes(stage)
    return (
        Moment(gradients=none, activations=passing_bytes(stage), logits=none, buffers=apart),
        Moment(gradients=none, activations=none, logits=none, buffers=apart + perturbed_copy_bytes(stage)),
        Moment(gradients=none, activations=none, logits=logits, buffers=apart),
    )


def _moving_layers(stage: MemoryStage) -> float:
    """Layers whose activations are on the device while the others are away [1]: the most of any technique."""
    return max((one.kept_layers() for one, _ in stage.offloads), default=0.0)


def host_bytes(stage: MemoryStage) -> Array:
    """Bytes that one rank of a stage keeps in host memory: what was offloaded or paged [byte]."""
    paged = optimizer_bytes(stage) * (1.0 - stage.away(OPTIMIZER)) - device_optimizer_bytes(stage)
    return tier_bytes(stage, "dram") + paged


def tier_bytes(stage: MemoryStage, tier: str) -> Array:
    """Bytes that one rank of a stage keeps in 'dram' or on 'nvme' [byte]."""
    states = optimizer_bytes(stage) * stage.away(OPTIMIZER, tier)
    states = states + moved_weight_bytes(stage) * stage.away(WEIGHTS, tier)
    states = states + gradient_bytes(stage) * stage.away(GRADIENTS, tier)
    return states + kept_bytes(stage) * stage.away(ACTIVATIONS, tier)


def activation_bytes(graph: Graph, workload: Workload, **options: Unpack[MemoryOptions]) -> Array:
    """What forward keeps for backward on one rank of a stage, wherever it is held [byte]."""
    return kept_bytes(resolve(graph, workload, options))


def allocator_peak(categories: Mapping[str, Array]) -> Array:
    """What `torch.cuda.max_memory_allocated` counts: every category but the context [byte]."""
    return np.asarray(sum((categories[name] for name in ALLOCATED), start=as_array(0.0)))


def device_peak(categories: Mapping[str, Array]) -> Array:
    """What the device must have free: allocator peak, context and library buffers [byte]."""
    return allocator_peak(categories) + categories["context"]
