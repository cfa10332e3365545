"""A training step whose sequences have unlike lengths: what a technique of length balance makes of them.

Shape letters: N sequences of a step, R ranks that share them, d ranks of a group, T tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.cost.network import collective_seconds
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.lengths import drawn
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.memory.stage import activation_bytes
from ridgeline.plan.plan import Plan
from ridgeline.predict.explain import explain
from ridgeline.predict.predictor import Predictor
from ridgeline.report.lengths import DegreeUse, LengthsReport
from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, length_balance
from ridgeline.seams.resolve import rewritten
from ridgeline.training.bounds import step_bound_s
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.pipeline import pipeline_schedule

_PARTS = (1 / 16, 1 / 4, 1.0)  # of a micro-batch: lengths of its sequences that are priced; linear between them
_SMALL = 256  # tokens a rank: a micro-batch that waits for launches and gathers


class Costs:
    """What sequences cost on groups of any degree, from the prices of the plan: `seams.length_balance.SequenceCosts`.

    A sequence of s tokens on d ranks takes s p(s, d): p is the time of a token in a micro-batch that fills the group's
    memory with sequences of s tokens, priced at three lengths, linear in s between them, and d p(s, d) linear in
    log d between powers of two.
    """

    def __init__(self, model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> None:
        if plan.pp > 1:
            raise PlanError(f"sequences of unlike lengths: pp {plan.pp}, groups have no pipeline here; say pp 1")
        self.model, self.cluster, self.workload, self.plan = model, cluster, workload, plan
        self.ranks = plan.dp * plan.cp
        self.node = max(1, min(cluster.node_devices, plan.devices) // plan.tp)
        self.machine = Predictor(model, cluster, workload).machine
        self._tables: dict[int, tuple[Floats, Floats]] = {}
        self._floors: dict[int, float] = {}

    def _at(self, degree: int, tokens: int, length: float) -> tuple[Predictor, Plan]:
        """Predictor and plan of micro-batches of `tokens` tokens on `degree` ranks, in sequences of `length`."""
        plan = replace(self.plan, cp=degree, dp=self.ranks // degree, micro_batch=1)
        workload = replace(
            self.workload, seq_len=tokens, mean_document=length, global_batch=plan.dp, lengths="", tokens=None
        )
        return Predictor(self.model, self.cluster, workload, resolved=self.machine), plan

    def _micro_batch_s(self, degree: int, tokens: int, length: float) -> tuple[float, float]:
        """One more micro-batch, and what a step takes besides [s]."""
        predictor, plan = self._at(degree, tokens, length)
        times = predictor.prepare(plan)[1]
        schedule, rules = pipeline_schedule(plan.schedule), exchange_rules(plan)
        few, more = (float(step_bound_s(schedule, count, times, rules)) for count in (4, 8))
        return (more - few) / 4, few - (more - few)

    def _whole(self, degree: int, tokens: float) -> int:
        """Tokens of a micro-batch in pieces that all ranks of a group take alike."""
        piece = 2 * degree * self.plan.tp
        return max(1, int(tokens // piece)) * piece

    @cached_property
    def _held(self) -> tuple[float, float]:
        """Bytes of a device without activations, and bytes of each token on a rank."""
        found = []
        for tokens in (self._whole(1, 2048), self._whole(1, 8192)):
            predictor, plan = self._at(1, tokens, tokens)
            found.append((tokens, float(sum(np.max(part) for part in predictor.memory(plan).values()))))
        (few, small), (many, large) = found
        each = (large - small) / (many - few)
        return small - few * each, each

    @cached_property
    def tokens(self) -> float:
        """Tokens whose activations one rank's memory holds [token]; raises `NoPlanError` where it holds no 1,024."""
        fixed, each = self._held
        room = self.cluster.accelerator.memory_bytes - fixed
        if room / each < 1024.0:
            raise NoPlanError(
                f"a device has {max(0.0, room) / 2**30:,.1f} GiB beside its states, 1,024 tokens take"
                f" {1024 * each / 2**30:,.1f} GiB; shard states (--zero 3), recompute, or use more devices"
            )
        return room / each

    @cached_property
    def _moved_s(self) -> float:
        """Seconds for the activations of one token of a rank, to host memory and back."""
        predictor, plan = self._at(1, self._whole(1, 8192), 8192)
        held = activation_bytes(self.model.graph, predictor.workload, **predictor.held(plan, in_flight=np.ones(1)))
        return 2.0 * float(np.max(held)) / predictor.workload.seq_len / predictor.machine.host_link_bytes_per_s

    def _table(self, degree: int) -> tuple[Floats, Floats]:
        """Lengths (3,) [token] and seconds a token (3,) of a group's micro-batches."""
        if degree not in self._tables:
            tokens = self._whole(degree, degree * self.tokens)
            lengths = np.array([max(1.0, tokens * part) for part in _PARTS])
            taken = [self._micro_batch_s(degree, tokens, float(length))[0] / tokens for length in lengths]
            self._tables[degree] = lengths, np.array(taken)
        return self._tables[degree]

    def _of_degree(self, lengths: Floats, degree: int) -> Floats:
        at, taken = self._table(degree)
        inside = np.interp(lengths, at, taken)
        first, last = (taken[1] - taken[0]) / (at[1] - at[0]), (taken[2] - taken[1]) / (at[2] - at[1])
        outside = np.minimum(0.0, lengths - at[0]) * first + np.maximum(0.0, lengths - at[-1]) * last
        return np.asarray(lengths * np.maximum(inside + outside, 0.0))

    def seconds(self, lengths: ArrayLike, degree: ArrayLike) -> Floats:
        """Forward and backward of a sequence on `degree` ranks, in the shape of both [s]."""
        long, ranks = np.broadcast_arrays(np.asarray(lengths, dtype=float), np.asarray(degree))
        low = 2 ** np.log2(ranks).astype(int)
        high = np.where(low < ranks, 2 * low, low)
        high = np.where((high > self.ranks) | (self.ranks % high != 0), low, high)
        spent, between = self._spent(long, low), high > low
        if between.any():
            share = np.where(between, np.log2(ranks) - np.log2(low), 0.0)
            spent = (1 - share) * spent + share * self._spent(long, high)
        return np.asarray(spent / ranks)

    def _spent(self, lengths: Floats, degrees: NDArray[np.int64]) -> Floats:
        """Seconds of all ranks together, for degrees that are powers of two [s]."""
        answer = np.zeros(lengths.shape)
        for one in np.unique(degrees).tolist():
            taken = degrees == one
            answer[taken] = self._of_degree(lengths[taken], one) * one
        return answer

    def linear_seconds(self, tokens: ArrayLike) -> Floats:
        """What grows with tokens alone, on one rank: seconds a token as lengths go to 0 [s]."""
        at, taken = self._table(1)
        each = float(taken[0] - at[0] * (taken[1] - taken[0]) / (at[1] - at[0]))
        return np.asarray(np.asarray(tokens, dtype=float) * each)

    def moved_seconds(self, tokens: ArrayLike) -> Floats:
        """Activations of tokens of one rank to host memory and back, at the device's own link [s]."""
        return np.asarray(tokens, dtype=float) * self._moved_s

    def relaid_seconds(self, tokens: ArrayLike) -> Floats:
        """Tokens of one rank to others and back in each layer, forward and backward: 4 exchanges of a row [s]."""
        graph = self.model.graph
        width, layers = graph.hidden * PRECISIONS[self.workload.precision].activation_bytes, len(graph.layers)
        work = Collective(
            name="relay",
            phase=Phase.FORWARD,
            kind=CollectiveKind.ALL_TO_ALL,
            ranks=np.asarray(float(self.ranks)),
            bytes=np.asarray(tokens, dtype=float) * width,
            stride=self.plan.tp,
        )
        return np.asarray(np.where(np.asarray(tokens) > 0, 4.0 * layers * collective_seconds(work, self.machine), 0.0))

    def floor(self, degree: ArrayLike) -> Floats:
        """The smallest micro-batch of a group of `degree` ranks, a power of two below it for others [s]."""
        asked = np.asarray(degree)
        answer = np.zeros(asked.shape)
        for one in np.unique(asked).tolist():
            low = 2 ** int(np.log2(one))
            if low not in self._floors:
                tokens = self._whole(low, _SMALL * low)
                self._floors[low] = self._micro_batch_s(low, tokens, tokens)[0]
            answer = np.where(asked == one, self._floors[low], answer)
        return answer

    @cached_property
    def besides_s(self) -> float:
        """The update and what of its exchanges no micro-batch hides [s]."""
        return self._micro_batch_s(1, self._whole(1, self.tokens), self.tokens)[1]

    @cached_property
    def spread(self) -> tuple[float, float]:
        """The 80 % interval over the step time, of the step with even lengths that fill memory [1]."""
        predictor, plan = self._at(1, self._whole(1, self.tokens), self.tokens)
        told = explain(predictor, predictor.evaluate(plan)).step_time
        return told.low / told.value, told.high / told.value


def predict_lengths(model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> LengthsReport:
    """The step of a workload whose `lengths` are told, divided as the plan's `length_balance` does.

    Raises `PlanError` for pipelines, `NoPlanError` where a sequence fits in no group.
    """
    built = rewritten(model, plan.technique)
    return _report(Costs(built, cluster, workload, plan), length_balance(plan.length_balance), workload, plan)


def divided_lengths(costs: Costs, workload: Workload, plan: Plan) -> LengthsReport:
    """As `predict_lengths`, at costs that other divisions of the same sequences share."""
    return _report(costs, length_balance(plan.length_balance), workload, plan)


def least_lengths_s(costs: Costs, workload: Workload) -> float:
    """What the sequences take on ranks of their own that never wait, and the update [s]: no division takes less."""
    lengths = drawn(workload.lengths, workload.global_batch, workload.seq_len).lengths
    return float(costs.seconds(lengths, 1).sum()) / costs.ranks + costs.besides_s


def best_lengths(model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> tuple[LengthsReport, ...]:
    """Every technique of length balance with what is worth trying of it, the quickest first.

    Raises `NoPlanError` where none holds the longest sequence.
    """
    from ridgeline.seams.registry import names
    from ridgeline.seams.setting import Setting

    setting = Setting(model=model, cluster=cluster, plan=plan, workload=workload)
    costs = Costs(rewritten(model, plan.technique), cluster, workload, plan)
    found: list[LengthsReport] = []
    refused = ""
    for key in names("length_balance"):
        for text in length_balance(key).axes(setting):
            try:
                found.append(_report(costs, length_balance(text), workload, replace(plan, length_balance=text)))
            except NoPlanError as error:
                refused = refused or str(error)
    if not found:
        raise NoPlanError(refused)
    return tuple(sorted(found, key=lambda one: one.step_s))


def _report(costs: Costs, technique: LengthBalance, workload: Workload, plan: Plan) -> LengthsReport:
    sample = drawn(workload.lengths, workload.global_batch, workload.seq_len)
    lengths = sample.lengths
    division = technique.divide(lengths, costs)
    rounds_s = technique.step_seconds(lengths, division.rounds, costs)
    step_s = float(rounds_s.sum()) + costs.besides_s
    low, high = costs.spread
    work_s = _work_s(lengths, division, costs) / costs.ranks
    return LengthsReport(
        plan=plan,
        cluster=costs.cluster,
        sequences=len(lengths),
        tokens=float(lengths.sum()),
        longest=float(lengths.max()),
        median=float(np.median(lengths)),
        dropped=sample.dropped,
        rank_tokens=costs.tokens,
        step_s=step_s,
        low_s=step_s * low,
        high_s=step_s * high,
        bound_s=division.bound_s + costs.besides_s if division.bound_s else None,
        waiting=max(0.0, 1.0 - work_s / float(rounds_s.sum())),
        rounds=len(division.rounds),
        degrees=_uses(lengths, division),
        sources=technique.source,
    )


def _work_s(lengths: Floats, division: LengthDivision, costs: Costs) -> float:
    """Seconds that all ranks compute, added up."""
    groups = [group for one in division.rounds for group in one]
    return sum(
        float(costs.seconds(lengths[list(group.sequences)], group.ranks).sum()) * group.ranks for group in groups
    )


def _uses(lengths: NDArray[np.float64], division: LengthDivision) -> tuple[DegreeUse, ...]:
    groups = [group for one in division.rounds for group in one]
    found = []
    for degree in sorted({group.ranks for group in groups}):
        own = [group for group in groups if group.ranks == degree]
        held = np.concatenate([lengths[list(group.sequences)] for group in own])
        found.append(
            DegreeUse(
                degree=degree,
                groups=len(own),
                sequences=len(held),
                tokens=float(held.sum()),
                shortest=float(held.min()),
                longest=float(held.max()),
                moved=sum(1 for group in own if group.moved),
            )
        )
    return tuple(found)
