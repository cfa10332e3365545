"""What a step with offload is made of: the layers of every stage, and what a rank gets of each lane.

Shape letters: P stages, v chunks per stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.cost.host import pageable_bytes_per_s
from ridgeline.cost.machine import Machine
from ridgeline.facts.cpus import cpu_constants
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.params import RankParams, optimizer_states
from ridgeline.seams.lanes import LaneRates, Part
from ridgeline.seams.offload import TierOffload
from ridgeline.seams.schedule import Integers
from ridgeline.training.exchanges import Sharding
from ridgeline.training.stage_times import StageLayers, StageTimes

EMBEDDING, HEAD = "embedding", "head"


def lane_rates(machine: Machine, found: Sequence[TierOffload] = ()) -> LaneRates:
    """What one rank gets of its host's links, drives and memory [byte/s]: equal shares of what ranks have in common.

    Drives write at the usual share of their read rate where that is not told. Source: row drive.write_share of the
    mechanism table; where a technique of those `found` moves memory that is not pinned, one core stages the copies.
    """
    host, device, ranks = machine.cluster.host, machine.device, machine.host_ranks
    link = machine.host_link_bytes_per_s
    if not all(one.pinned() for one in found):
        link = pageable_bytes_per_s(link)
    write = host.nvme_write_bytes_per_s or host.nvme_bytes_per_s * constant("drive.write_share")
    return LaneRates(
        upload=link, download=link, read=host.nvme_bytes_per_s / ranks, write=write / ranks,
        dram=host.dram_bytes_per_s / ranks, update=machine.host_update_bytes_per_s,
        core=cpu_constants()["core.bytes_per_s"].value, device=device.memory_bytes_per_s,
    )  # fmt: skip


def names_of(layers: Sequence[str], split: Sequence[int], places: Integers, held: StageLayers) -> list[list[list[str]]]:
    """Names of the parts of each stage and chunk in the order of a forward.

    `layers` of the model, `split` of them by place; `places` (P, v).
    """
    starts = np.concatenate(([0], np.cumsum(split)))
    return [
        [
            [EMBEDDING] * bool(held.first[stage, chunk])
            + list(layers[starts[place] : starts[place + 1]])
            + [HEAD] * bool(held.last[stage, chunk])
            for chunk, place in enumerate(row)
        ]
        for stage, row in enumerate(places.tolist())
    ]


def parts_of(
    names: Sequence[Sequence[Sequence[str]]], held: StageLayers, times: StageTimes, sharding: Sharding,
    kept_bytes: Mapping[str, float], *, workload: Workload, found: Sequence[TierOffload] = (),
) -> list[list[list[Part]]]:  # fmt: skip
    """Every part of every stage and chunk; those of a chunk add up to its times.

    `kept_bytes` are what one micro-batch leaves of each part for its backward [byte]; where one `found` keeps
    the ends on the device, no weights of them move.
    """
    known = _Known(held, sharding, kept_bytes, workload)
    known.still = frozenset({EMBEDDING, HEAD}) if any(one.keeps_ends for one in found) else frozenset()
    return [
        [known.chunk(found, times, stage, chunk) for chunk, found in enumerate(chunks)]
        for stage, chunks in enumerate(names)
    ]


class _Known:
    """Each part by its name: an embedding, a head, or a layer of some kind."""

    def __init__(
        self, held: StageLayers, sharding: Sharding, kept_bytes: Mapping[str, float], workload: Workload
    ) -> None:
        cost, kinds = held.cost, (*held.names, EMBEDDING, HEAD)
        blocks = (*(cost.blocks[name] for name in held.names), cost.embedding, cost.head)
        params = (*(cost.block_params[name] for name in held.names), cost.embedding_params, cost.head_params)
        self.still: frozenset[str] = frozenset()
        self.sharding, self.kept_bytes, self.layout = sharding, kept_bytes, cost.layout
        self.precision, self.optimizer = PRECISIONS[workload.precision], optimizer_states(workload)
        self.blocks = dict(zip(kinds, blocks, strict=True))
        self.params: dict[str, RankParams] = dict(zip(kinds, params, strict=True))
        self.gather_s, self.reduce_s = (
            {kind: float(np.asarray(each)) for kind, each in zip(kinds, cost.exchanges[name], strict=True)}
            for name in ("gather", "reduce")
        )

    def chunk(self, names: Sequence[str], times: StageTimes, stage: int, chunk: int) -> list[Part]:
        """The parts of one chunk: its times, shared out as its parts are priced."""
        phases = ("forward", "backward_input", "backward_weight")
        columns = []
        for phase in phases:
            priced = np.array([float(np.asarray(getattr(self.blocks[name], phase).seconds)) for name in names])
            columns.append(priced * float(getattr(times, f"{phase}_s")[stage, chunk]) / max(priced.sum(), 1e-30))
        return [self.part(name, *map(float, each)) for name, *each in zip(names, *columns, strict=True)]

    def part(self, name: str, forward_s: float, input_s: float, weight_s: float) -> Part:
        """One part with these times."""
        sharding, layout, params, precision = self.sharding, self.layout, self.params[name], self.precision
        ranks = float(np.asarray(layout.cp)) * float(np.asarray(sharding.dp))
        experts = max(1.0, ranks * float(np.asarray(layout.tp)) / float(np.asarray(layout.ep) * np.asarray(layout.etp)))
        limit = float(np.asarray(sharding.zero_group)) or ranks
        group = (min(limit, ranks), min(limit, ranks, experts))

        def over(dense: object, expert: object, on: bool) -> float:
            shares = group if on else (1.0, 1.0)
            return float(np.asarray(dense)) / shares[0] + float(np.asarray(expert)) / shares[1]

        zero = int(np.asarray(sharding.zero))
        moving = precision.weight_bytes * (name not in self.still)
        weights = over(params.dense, params.expert, False) * moving
        numbers = over(params.trained_dense, params.trained_expert, zero >= 1)
        states = over(params.moved_dense, params.moved_expert, zero >= 1) / 2 + numbers * precision.master_bytes
        owned = over(params.trained_dense, params.trained_expert, zero >= 2) * (not self.optimizer.forwards())
        whole = over(params.trained_dense, params.trained_expert, False)
        return Part(
            forward_s=forward_s, input_s=input_s, weight_s=weight_s, gather_s=self.gather_s[name],
            reduce_s=self.reduce_s[name], weight_bytes=weights, kept_bytes=self.kept_bytes[name], numbers=numbers,
            share_bytes=over(params.dense, params.expert, zero >= 3) * moving,
            new_bytes=numbers * precision.weight_bytes, gradient_bytes=owned * precision.grad_bytes, state_bytes=states,
            perturbed_bytes=whole * self.optimizer.perturbed_bytes(precision.weight_bytes),
        )  # fmt: skip
