"""Operators that a training program issues beside products, as its source was counted."""

from __future__ import annotations

from functools import partial

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Block
from ridgeline.graph.ops import ActivationOp, ElementwiseOp, GroupedGemmOp, Op, Region, Routing, RoutingOp
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Layout, Number, Phase, Stream, Work

_SORTED_PUTS = {
    (Routing.ROUTE, "forward"): 2.0, (Routing.COMBINE, "forward"): 1.0, (Routing.DISPATCH, "backward"): 1.0
}  # fmt: skip
"""Puts and additions at indices of a layer of experts, which sort them where algorithms must be deterministic.

Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py: the map and the probabilities of
topk_routing_with_score_function, the sum of unpermute, the gradient of permute.
"""


class Chains:
    """Counts of operators and of calls that the training framework issues."""

    def __init__(self, workload: Workload, layout: Layout) -> None:
        self.workload, self.layout = workload, layout
        self.launches = workload.policy.launches
        self.looped = workload.policy.looped_experts if workload.execution == "eager" else {}

    def counted(self, name: str, other: float) -> float:
        """What the framework launches or calls; `other` where nobody counted [1]."""
        return self.launches.get(name, other)

    def kernels(self, op: Op, block: Block | None, way: str, other: float) -> Number:
        """Kernels of an elementwise operator, `way` forward or backward [1].

        Where the framework's source was counted, its chain where it routes tokens: of the router's choice and of the
        dispatch that it was told; of the activation where experts have biases or modules of their own, or a loop runs
        them one by one; `other` elsewhere.
        """
        if self.looped and op.region is Region.EXPERT and block is not None:
            return self._local(block) * self.looped[way] if isinstance(op, ActivationOp) else other
        if not self.launches:
            return other
        if op.region is Region.EXPERT and block is not None:
            return self._activated(block, way, other)
        if not isinstance(op, RoutingOp):
            return other
        puts = _SORTED_PUTS.get((op.step, way), 0.0)
        if not self.workload.policy.deterministic or self._balances(op):
            puts = 0.0
        told = "sinkhorn" if self._balances(op) else "allgather" if self._gathers(op) else op.step.value
        return self.counted(f"{told}.{way}", other) + puts * constant("launch.moe.sorted_put")

    def summed(self, op: ElementwiseOp, block: Block | None) -> Number:
        """Elements a token that gradients of the tokens which each expert takes move, where a loop runs experts [1].

        Each is a tensor of zeros as long as all tokens (written), added to the sum (two read, one written). Source:
        PyTorch, tools/autograd/derivatives.yaml (index: index_backward of new_zeros).
        """
        taken = self.looped and block is not None and isinstance(op, RoutingOp) and op.step is Routing.DISPATCH
        return 4.0 * self._local(block) * op.backward_write if taken and block is not None else 0.0

    def calls(self, op: Op, way: str) -> float:
        """Calls of collectives of a few bytes that go with an operator [1]: maps and probabilities gathered."""
        return self.counted(f"allgather.calls.{way}", 0.0) if self._gathers(op) else 0.0

    def python(self, block: Block) -> dict[str, Number]:
        """Parts of a layer's forward that a host runs as Python, and how many of each [1].

        A layer with routed experts routes and exchanges tokens; experts that are modules of their own come after the
        first, which takes the place of a dense layer's.
        """
        parts: dict[str, Number] = {"layer": 1.0}
        captured = self.workload.captured if block.experts else "none"
        if block.latent and captured not in ("attention", "layer"):
            parts["latent"] = 1.0
        if block.experts and captured != "layer":
            gathers = self.workload.expert_dispatch == "allgather"
            if captured == "none":
                parts["sinkhorn" if self.workload.expert_choice == "sinkhorn" else "route"] = 1.0
            parts["allgather" if gathers else "alltoall"] = 1.0
            if self.workload.expert_modules == "single":
                parts["expert"] = self._local(block) - 1.0
        return parts

    def together(self) -> float:
        """Products of a rank's experts that run at a time [1]; 0 where one kernel has all."""
        return 1.0 if self.workload.expert_modules == "single" else self.counted("grouped.streams", 0.0)

    def sorted_chunks(self, block: Block, rows_bytes: Number) -> list[Work]:
        """Rows that came rank by rank copied into the order of a rank's experts, and back before they return.

        Not where a rank has one expert, nor where a dispatcher writes rows in that order itself. Source: Megatron-LM,
        megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher (sort_chunks_by_idxs in
        dispatch_postprocess and combine_preprocess); torchtitan, torchtitan/distributed/expert_parallel.py (_permute).
        """
        ep = np.asarray(self.layout.ep)
        if self.workload.expert_dispatch != "alltoall" or np.all(ep <= 1):
            return []
        copied = np.where((ep > 1) & (block.experts > ep), 1.0, 0.0)
        kernels = copied * (0.0 if self.launches else 2.0)  # counts of `dispatch` and `combine` hold these
        piece = partial(Stream, name="moe.sort", bytes=4.0 * rows_bytes * copied, kernels=kernels, routed=True)
        return [piece(phase=phase) for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT)]

    def _local(self, block: Block) -> Number:
        """Routed experts of one rank [1]."""
        local: Number = np.maximum(1, block.experts / np.asarray(self.layout.ep))
        return local

    def _activated(self, block: Block, way: str, other: float) -> Number:
        """Operators beside the products of a rank's experts [1]; one fused kernel where a module has all, unbiased."""
        local = self._local(block)
        if self.workload.expert_modules == "single":
            return np.asarray(local * self.launches[f"expert.{way}"])
        if not any(isinstance(op, GroupedGemmOp) and op.params > op.k * op.n for op in block.ops):
            return other
        return np.asarray(self.launches[f"grouped.{way}"] + local * self.launches[f"biased.{way}"])

    def _balances(self, op: Op) -> bool:
        return isinstance(op, RoutingOp) and op.step is Routing.ROUTE and self.workload.expert_choice == "sinkhorn"

    def _gathers(self, op: Op) -> bool:
        return (
            isinstance(op, RoutingOp) and op.step is Routing.DISPATCH and self.workload.expert_dispatch == "allgather"
        )
