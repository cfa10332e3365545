"""Seconds of one layer on one rank, by phase, from the work that `lower` put on it.

Every number may be an array over plans. The host launches kernels while the device runs them, so a
phase takes the longer of the two; collectives are exposed unless they have work to hide behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.cost.answer import Cost
from ridgeline.cost.formats import ELEMENT_BYTES, FORMS, form
from ridgeline.cost.host_times import dispatch_seconds, host_range, host_slowness, issue_seconds
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.own_host import own_host
from ridgeline.cost.phases import PARTS, BlockCost, PhaseCost
from ridgeline.cost.price_list import formula_cost
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Layout, Number, Phase, Stream, Work
from ridgeline.seams.recompute import ATTENTION, FUSED_ATTENTION, GATHER, LINK, MEMORY, PRODUCT, WORK, recompute_rule

if TYPE_CHECKING:
    from ridgeline.cost.paired import PairedLayer
    from ridgeline.seams.experts import ExpertExchange

PHASES = (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
PLAIN: Mapping[str, Number] = MappingProxyType({"layer": 1.0})
"""Python of a layer with plain attention and no routed experts, by part of `Pricer.python_seconds`."""


class Pricer:
    """Prices work on one machine for one workload."""

    def __init__(self, machine: Machine, workload: Workload, *, exchange: ExpertExchange | None = None) -> None:
        self.machine = machine
        self.workload = workload
        self.exchange = exchange
        self.policy = workload.policy
        self.precision = PRECISIONS[workload.precision]
        self.deterministic = workload.policy.deterministic
        self._kernels: dict[int, tuple[Work, Cost]] = {}  # by the work's id, with the work that it is of
        self.launch_device_s = constant("launch.device")
        part, host = machine.device.accelerator, machine.cluster.host
        self.host_slowness = host_slowness(part, host)
        self.dispatch_s = dispatch_seconds(part)
        self.own_host = own_host(machine.device)
        self.hosts = host_range(part, host)
        self.collective_issue_s = 0.0 if workload.execution == "graph" else issue_seconds(part, host)

    def on(self, machine: Machine) -> Pricer:
        """The same for another machine; kernels keep their prices where its devices are equal."""
        other = Pricer(machine, self.workload, exchange=self.exchange)
        if machine.device == self.machine.device:
            other._kernels = self._kernels
        return other

    @property
    def held(self) -> bool:
        """Whether the power limit sets the clock of long products in the compute format."""
        device, dtype = self.machine.device, self.precision.compute
        loaded = device.loaded.get(dtype)
        return loaded is not None and loaded < device.matrix.get(dtype, 0.0)

    def interval(self, seconds: float, rung: Evidence) -> tuple[float, float]:
        """The 80 % interval of a step's time or of a part of it [s]."""
        return self.own_host.interval(seconds, rung, dtype=self.precision.compute)

    def kernel(self, work: Gemm | Attention | Stream) -> Cost:
        """Price of one kernel, launch excluded; that of plain numbers is kept."""
        cost = self._kernels[id(work)][1] if id(work) in self._kernels else self._kernel(work)
        if np.ndim(cost.seconds) == 0:
            self._kernels[id(work)] = (work, cost)
        return cost

    def _kernel(self, work: Gemm | Attention | Stream) -> Cost:
        dtype = self.precision.attention
        if isinstance(work, Gemm) and (work.quantized or not self.precision.quantize):
            dtype = self.precision.compute
        if isinstance(work, Gemm) and work.form:
            named = dtype + work.form if work.form.startswith("-") else work.form
            return formula_cost(work, self.machine.device, form(named), loaded=True)
        timed = self.own_host.cost(work, dtype=dtype, element_bytes=ELEMENT_BYTES[dtype])
        if timed is not None:
            return timed
        kernel = self.workload.attention_kernel
        return formula_cost(work, self.machine.device, FORMS[dtype], attention=kernel, loaded=True)

    def host_seconds(self, work: Gemm | Attention | Stream, kernels: Number) -> Number:
        """Host time to issue one piece of work [s].

        A framework's layers may be Python modules around each product and attention, and issue the product of each
        expert by itself, or pass a module for it forward and one function of its gradients backward; eager PyTorch
        dispatches every operator; compiled code only launches; a captured graph is replayed. Times are those of a DGX
        H100's processor; other hosts take `host_slowness` times as long.
        """
        calls = work.calls if isinstance(work, Stream) else 0.0
        issued_s = self._issue_seconds(work, kernels) + self._filled_seconds(work)
        return self.host_slowness * issued_s + calls * self.collective_issue_s

    def weights_seconds(self, tensors: Number) -> Number:
        """Host time to keep the gradients of so many trained tensors after one backward [s]."""
        count = self.policy.launches.get("weight", 0.0)
        if not count or self.workload.execution == "graph":
            return 0.0
        return self.host_slowness * count * constant("launch.host.kernel") * tensors

    def python_seconds(self, what: str) -> float:
        """Host time of a program's Python beside modules and operators [s].

        `what` is a 'layer' or what its experts ('route' or 'sinkhorn', 'alltoall' or 'allgather', 'expert') and latent
        attention ('latent') add to it, the 'embedding' or the 'loss' of one forward, the 'checkpoint' of a layer that
        backward runs again, or the 'turn' of a micro-batch at one chunk: its schedule, its wrappers, what prepares its
        batch. Sharded weights are collected around a layer and its tensors ('sharded.forward', 'sharded.backward'; each
        with '.tensor'), in a 'sharded.turn', and looped over once a 'sharded.step'.
        """
        if self.workload.execution == "graph":
            return 0.0
        return self.host_slowness * self.policy.host_s.get(what, 0.0)

    def message_seconds(self) -> float:
        """Host time to hand one message to a neighbour stage or take one from it [s]."""
        count = self.policy.launches.get("message", 0.0)
        if not count or self.workload.execution == "graph":
            return 0.0
        return self.host_slowness * count * constant("launch.host.kernel") + self.collective_issue_s

    def _ring_seconds(self, layout: Layout) -> Number:
        """Host time that ring attention takes beyond one call [s].

        Each of cp steps is a call of attention, an exchange of keys and values with either neighbour, and the operators
        that merge its result with those before. Compiled and captured programs do not issue them one by one.
        """
        if self.workload.execution == "graph" or not self.policy.host_modules:
            return 0.0
        steps = np.where(layout.with_style(lambda style: style.by_turns), layout.cp, 1)
        merged_s = constant("launch.host.eager") + (constant("launch.host.ring") - 1.0) * constant("launch.host.kernel")
        again_s = (steps - 1) * constant("launch.host.module")
        ring_s = self.host_slowness * (steps * merged_s + again_s) + 2.0 * steps * self.collective_issue_s
        return np.where(steps > 1, ring_s, 0.0)

    def _issue_seconds(self, work: Gemm | Attention | Stream, kernels: Number) -> Number:
        execution = "graph" if work.captured else self.workload.execution
        if execution == "graph" or (execution == "compiled" and not self.policy.host_modules):
            return kernels * constant(f"launch.host.{execution}")
        if self.policy.host_modules and not isinstance(work, Stream):
            if isinstance(work, Attention):
                return self._attention_seconds(work)
            alone = self.workload.expert_modules == "single" and work.phase is not Phase.BACKWARD_WEIGHT
            cast = work.quantized and work.cast_layouts > 0
            floats = cast and self.precision.compute.startswith("fp")
            narrow = ".fp8" if floats and work.phase is Phase.FORWARD else ""
            module_s = constant(f"launch.host.module{narrow}")
            expert_s = (1.0 + self.policy.launches.get("grouped.cast", 0.0) * cast) * constant("launch.host.kernel")
            return module_s + (np.asarray(work.count) - 1.0) * (module_s if alone else expert_s)
        chain_s = constant("launch.host.eager") + (kernels - 1) * constant("launch.host.kernel")
        return np.where(kernels > 0, chain_s, 0.0)

    def _filled_seconds(self, work: Gemm | Attention | Stream) -> float:
        """Host time to fill new tensors, as PyTorch does where algorithms must be deterministic [s]."""
        if not self.deterministic or work.captured or self.workload.execution == "graph":
            return 0.0
        kind = "product" if isinstance(work, Gemm) else "attention" if isinstance(work, Attention) else "norm"
        if kind == "norm" and "norm" not in work.name:
            return 0.0
        return constant(f"launch.filled.{kind}") * constant("launch.host.kernel")

    def _attention_seconds(self, work: Attention) -> float:
        """Host time of one attention whose modules the host calls, forward or backward, on a DGX H100's host [s].

        Forward passes modules that choose a kernel; attention that is not fused is a chain of operators.
        """
        forward = work.phase is Phase.FORWARD
        count = self.policy.launches
        modules = count["attention.modules"] if forward else 1.0
        chain = 0.0 if work.fused else count[f"attention.{'forward' if forward else 'backward'}"]
        return modules * constant("launch.host.module") + chain * constant("launch.host.kernel")

    def rows(self, work: Iterable[Work]) -> list[tuple[Work, Cost]]:
        """Every piece of work with its own price, launch and overlap excluded."""
        return [
            (piece, Cost(seconds=collective_seconds(piece, self.machine), bytes=piece.bytes))
            if isinstance(piece, Collective)
            else (piece, self.kernel(piece))
            for piece in work
        ]

    def block(
        self,
        work: Sequence[Work],
        layout: Layout,
        *,
        tensors: Number = 0.0,
        python: Mapping[str, Number] = PLAIN,
        recompute: Iterable[str] = (),
    ) -> BlockCost:
        """Price of one layer with so many trained `tensors`, every phase, and of its `recompute` by rules.

        `python` says how often each part of `python_seconds` runs in its forward.
        """
        by_phase: dict[Phase, list[Work]] = defaultdict(list)
        for piece in work:
            by_phase[piece.phase].append(piece)
        layer = any(isinstance(piece, Attention) for piece in work)
        glue_s, back_s = (
            self.own_host.layer_s(way, dtype=self.precision.attention) if layer else 0.0
            for way in ("forward", "backward")
        )  # fmt: skip
        inputs = self.phase(by_phase[Phase.BACKWARD_INPUT], layout, beside_s=back_s)
        cover = inputs.parts["matrix"] + inputs.parts["launch"]
        beside_s = glue_s + sum(count * self.python_seconds(part) for part, count in python.items())
        again_s = beside_s + self.python_seconds("checkpoint")
        forward = self.phase(by_phase[Phase.FORWARD], layout, beside_s=beside_s)
        weights = self.phase(
            by_phase[Phase.BACKWARD_WEIGHT], layout, cover_s=cover, beside_s=self.weights_seconds(tensors)
        )
        return BlockCost(
            forward=forward,
            backward_input=inputs,
            backward_weight=weights,
            pairing=self._pairing(by_phase, (forward, inputs, weights)),
            again={name: self._repeated(name, by_phase[Phase.FORWARD], layout, again_s) for name in recompute},
        )

    def _pairing(
        self, work: Mapping[Phase, list[Work]], phases: Sequence[PhaseCost]
    ) -> Callable[[], PairedLayer] | None:
        """How to find what a layer saves beside another micro-batch's; None where it exchanges no rows."""
        if not any(piece.name.startswith("moe.") for piece in work[Phase.FORWARD] if isinstance(piece, Collective)):
            return None
        from ridgeline.cost.paired import paired_layer

        priced = {phase: (one.seconds, one.parts["expert link"]) for phase, one in zip(PHASES, phases, strict=True)}
        return partial(paired_layer, self, work, priced)

    def _repeated(self, name: str, forward: Sequence[Work], layout: Layout, beside_s: Number) -> PhaseCost:
        """What backward repeats of a forward under a rule of recompute [s]; work done in part first, then the rest.

        `beside_s` is the host's time beside a forward of the whole layer.
        """
        rule = recompute_rule(name, self.policy.selective)
        shares = {work: rule.again(work) for work in WORK}
        in_part = sorted({share for share in shares.values() if 0.0 < share < 1.0})
        by_share = {share: [one for one in forward if shares[_kind(one)] == share] for share in (*in_part, 1.0)}
        some = [self.phase(by_share[share], layout).times(share) for share in in_part]
        rest = self.phase(
            by_share[1.0],
            layout,
            cover_s=reduce(add, (one.seconds for one in some)) if some else None,
            beside_s=beside_s if rule.by_layer else 0.0,
        )
        return reduce(add, (*some, rest))

    def phase(
        self, work: Iterable[Work], layout: Layout, *, cover_s: Number | None = None, beside_s: Number = 0.0
    ) -> PhaseCost:
        """Time of one phase [s]: max(device, host launches) plus exposed collectives.

        A device that is its own host issues a kernel and then runs it: device + launches. Products, attention and
        collectives are timed there as calls, so the issue of their kernels is in their price already.

        `cover_s` is what a hidden collective may run under: by default the products of the same phase and
        the time in which the device waits for the host. `beside_s` is what the host does beside launching this work.
        """
        parts: dict[str, Number] = dict.fromkeys(PARTS, 0.0)
        flop: Number = 0.0
        traffic: Number = 0.0
        kernels: Number = 0.0
        host_s, own_s = np.zeros(()) + beside_s, np.zeros(()) + beside_s
        links: list[Collective] = []
        routed: list[Gemm | Stream] = []
        fused = self.exchange is not None and self.exchange.fused
        for piece in work:
            if isinstance(piece, Collective):
                links.append(piece)
                if fused and piece.name.startswith("moe."):
                    continue
                host_s = host_s + np.where(np.asarray(piece.ranks) > 1, piece.repeats * self.collective_issue_s, 0.0)
                continue
            cost = self.kernel(piece)
            name = "matrix" if isinstance(piece, Gemm) else "attention" if isinstance(piece, Attention) else "memory"
            parts[name] = parts[name] + cost.seconds
            flop, traffic = flop + cost.flop, traffic + cost.bytes
            if isinstance(piece, Gemm | Stream) and piece.routed:
                routed.append(piece)
                if fused and len(routed) > 1:
                    continue
            kernels = kernels + cost.kernels
            issued_s = self.host_seconds(piece, cost.kernels)
            host_s = host_s + issued_s
            if not cost.timed and self.dispatch_s is not None:
                priced_s = 0.0 if isinstance(piece, Stream) else cost.kernels * self.dispatch_s
                own_s = own_s + np.maximum(issued_s - priced_s, 0.0)
            if isinstance(piece, Gemm) and not self.policy.host_modules:
                own_s = own_s + self.own_host.divided_s(piece, layout)
            if isinstance(piece, Attention):
                host_s = host_s + self._ring_seconds(layout)
        device_s = parts["matrix"] + parts["attention"] + parts["memory"]
        quick, own, slow = (
            np.maximum(kernels * self.launch_device_s, host_s * factor - device_s)
            for factor in (self.hosts[0], 1.0, self.hosts[1])
        )
        parts["launch"] = own if self.dispatch_s is None else own_s
        hosts = (quick, slow) if self.dispatch_s is None else (own_s, own_s)
        ahead = np.maximum(device_s - host_s, 0.0) if self.dispatch_s is None else np.zeros(())
        cover = parts["matrix"] + parts["launch"] if cover_s is None else cover_s
        self._links(parts, links, layout, cover_s=cover)
        moved = {link.name: link for link in links if link.name.startswith("moe.")}
        if self.exchange is not None and routed and "moe.dispatch" in moved:
            from ridgeline.cost.routed import exchanged_s

            parts["expert link"] = exchanged_s(self, self.exchange, routed, moved, parts["expert link"], device_s)
        seconds = sum(parts.values(), start=np.zeros(()))
        return PhaseCost(seconds=seconds, parts=parts, hosts=hosts, ahead=ahead, flop=flop, bytes=traffic)

    def _links(self, parts: dict[str, Number], links: list[Collective], layout: Layout, *, cover_s: Number) -> None:
        """Add the exposed part of collectives, and what hidden ones slow the work they run beside.

        A collective cut into N pieces and pipelined with the work that feeds it shows its first
        piece, or what is longer than the work: max(c / N, c - work). While both run, the work takes
        `overlap.compute_slowdown` longer.
        """
        slowdown = constant("overlap.compute_slowdown")
        for family in ("tensor", "attention", "moe"):
            mine = [link for link in links if link.name.split(".")[0] == family]
            if not mine:
                continue
            label = {"tensor": "tensor link", "attention": "context link", "moe": "expert link"}[family]
            for behind in ("", "gemm", "attention"):
                group = [link for link in mine if link.hidden_behind == behind]
                total: Number = sum((collective_seconds(link, self.machine) for link in group), start=np.zeros(()))
                if behind == "":
                    parts[label] = parts[label] + total
                    continue
                cover = cover_s if behind == "gemm" else parts["attention"] + parts["launch"]
                pieces = np.maximum(layout.tp if behind == "gemm" else layout.cp, 1)
                exposed = np.maximum(total / pieces, total - cover)
                hidden = np.ones(()) if behind == "attention" else np.asarray(group[0].hidden if group else 1.0)
                shown = np.where(hidden > 0, exposed + slowdown * (total - exposed), total)
                parts[label] = parts[label] + shown


def _kind(work: Work) -> str:
    """Which kind of work a rule of recompute is asked about."""
    if isinstance(work, Collective):
        gathered = work.kind is CollectiveKind.ALL_GATHER and work.hidden_behind == "gemm"
        return GATHER if gathered else LINK
    if isinstance(work, Attention):
        return FUSED_ATTENTION if work.fused else ATTENTION
    return PRODUCT if isinstance(work, Gemm) else MEMORY
