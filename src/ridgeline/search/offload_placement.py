"""Where weights, cache and activations live when they do not fit the GPU: FlexGen's policy, proven best.

A block of sequences, `gpu_batch` at a time, goes through the layers together, so that a layer's weights are fetched
once per block (Sheng et al. 2023). Shares of weights, cache and activations on GPU, in DRAM and on disk minimise

    token_s = L (T_prefill + (n - 1) T_decode) / (block n),   T the largest of the rows of `streamed_schedule.least`

within the memory of each tier. Divided by the block, all this is linear in the shares, in y = 1 / block, in
weights' shares times y, and in products of y with the other shares (`streamed_costs`). A product is held between its
four McCormick planes over a range of y: the program of a range is a lower bound of every block in it, and exact where
the range is one block. Ranges are halved in the order of their bounds over all batch sizes and places of attention at
once; the first range of one block that comes up is the best of all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from ridgeline.errors import NoPlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.offloaded import Offload as Asked
from ridgeline.predict.offloaded import hybrid_of
from ridgeline.programs import Draft, Floats, Whole, gap
from ridgeline.report.offloaded import PolicyReport
from ridgeline.serving.hybrid_sides import band
from ridgeline.serving.streamed_costs import CACHE, DISK, GPU, HIDDEN, INVERSE, SIZE, HostMachine, Job, Terms, place_of
from ridgeline.serving.streamed_machine import attention_of, job_of, machine_of
from ridgeline.serving.streamed_policy import MOST_GPU_BATCH, TIERS, StreamedPolicy
from ridgeline.serving.streamed_schedule import Scheduled, least, scheduled

_TRIED = 48  # candidates replayed at most, in the order of what they could take at least
_KINDS = ("weights", "cache", "activations")


def best_policy(
    model: Model, cluster: Cluster, deployment: Deployment, asked: Asked, *, prompt_tokens: int = 512,
    output_tokens: int = 32, assumed: Sequence[str] = (),
) -> PolicyReport:  # fmt: skip
    """The policy of least time per token for one device by FlexGen's loop, with its distance from what is possible [s].

    Candidates are replayed in the order of what they take at least (`offload_schedule.least`), until none that is left
    could be sooner, or so many were.

    Domain: layers of four D x D and two D x F matrices, one device, 16-bit values. Raises `NoPlanError` where not one
    sequence fits, `PlanError` for another model. Source: flexgen; evidence: derived.
    """
    job = job_of(model, prompt_tokens, output_tokens)
    hybrid, said = hybrid_of(model, cluster, replace(deployment, tp=1, pp=1), asked, "FlexGen")
    machine = machine_of(hybrid, job, asked.dram_bytes)
    if hybrid.host is None:
        said.append("attention never runs on processors, as none is named (--cpu)")
    policy, run, bound_s, tried = soonest(job, machine, attention_of(hybrid))
    token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
    held, price = policy.held_bytes(job), cluster.price_usd_per_device_h
    ends = [band(spent, prompt=first) for spent, first in zip(run.parts(), (True, False), strict=True)]
    low_s, high_s = (run.prefill_s * ends[0][end] + run.decode_s * ends[1][end] for end in (0, 1))
    lengths = f"{prompt_tokens:,} prompt and {output_tokens:,} output tokens"
    known = {name: float(value) for name, value in vars(machine).items() if name.endswith("_per_s")}
    return PolicyReport(
        title=f"{model.name} on one {cluster.accelerator.name}: streamed weights, requests of {lengths}",
        tokens_per_s=1.0 / token_s, low=policy.block * job.output_tokens / high_s,
        high=policy.block * job.output_tokens / low_s, prefill_s=run.prefill_s, decode_s=run.decode_s,
        prefill=run.prefill, decode=run.decode, gap=gap(token_s, bound_s), tried=tried,
        gpu_batch=policy.gpu_batch, gpu_batches=policy.gpu_batches, cpu_attention=policy.cpu_attention,
        shares={kind: tuple(map(float, row)) for kind, row in zip(_KINDS, policy.shares, strict=True)},
        peak_bytes=tuple(map(float, held)), usable_bytes=tuple(map(float, machine.usable_bytes)),
        rates={name: value for name, value in known.items() if math.isfinite(value)},
        usd_per_h=None if price is None else price.value,
        assumed=(*assumed, *said, "values of 16 bits; a disk that is written as fast as it is read"),
    )  # fmt: skip


def soonest(job: Job, machine: HostMachine, attention: Iterable[bool]) -> tuple[StreamedPolicy, Scheduled, float, int]:
    """The policy whose replay is soonest, it, the least time per token of any [s], and how many were replayed."""
    best: tuple[float, StreamedPolicy, Scheduled] | None = None
    least_s, tried = math.inf, 0
    for bound_s, policy, _ in ranked(job, machine, attention=attention):
        least_s = min(bound_s, best[0]) if best else bound_s
        if tried == _TRIED or (best is not None and bound_s >= best[0]):
            break
        run, tried = scheduled(job, machine, policy), tried + 1
        token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
        if best is None or token_s < best[0]:
            best = token_s, policy, run
    assert best is not None  # `ranked` raises where nothing fits
    return best[1], best[2], least_s, tried


Costs = Callable[..., Terms]  # rows of a job on a machine, of a batch size and a place of attention


def ranked(
    job: Job,
    machine: HostMachine,
    *,
    attention: Iterable[bool] = (True, False),
    gpu_batches: Iterable[int] = range(1, MOST_GPU_BATCH + 1),
    most_batches: int | None = None,
    costs: Costs = least,
) -> Iterator[tuple[float, StreamedPolicy, int]]:
    """Policies in the order of their least time per token by rows of `costs` [s], with it and the programs solved [1].

    Of each place of attention (on processors or not), batch size on the GPU and number of batches, `most_batches` at
    most, the best shares; no other policy is sooner than the next one's bound. Raises `NoPlanError` where not even one
    sequence fits; the text tells which tier would have to hold how much. Domain: layers of 4 D x D and 2 D x F weights,
    one GPU, blocks of equal sequences. Source: flexgen. Evidence: derived.
    """
    serial, solved = count(), 0
    attention, sizes = tuple(attention), sorted(set(gpu_batches))
    heap: list[tuple[float, int, _Program, int, int, Floats]] = []
    for on_host in attention:
        for size in sizes:
            program = _Program(job=job, machine=machine, size=size, cpu_attention=on_host, costs=costs)
            most = most_batches or program.most_batches()
            found = program.solve(1, most)
            solved += 1
            if found is None:
                break
            heap.append((found[0], next(serial), program, 1, most, found[1]))
    if not heap:
        raise NoPlanError(_nearest(job, machine, attention, sizes[0]))
    heapq.heapify(heap)
    while heap:
        bound_s, _, program, low, high, values = heapq.heappop(heap)
        if low == high:
            yield bound_s, program.policy(values, low), solved
            continue
        real = 1.0 / (float(values[INVERSE]) * program.size)
        middle = min(max(int(real), low), high - 1)
        for first, last in ((low, middle), (middle + 1, high)):
            found = program.solve(first, last)
            solved += 1
            if found is not None:
                heapq.heappush(heap, (found[0], next(serial), program, first, last, found[1]))


@dataclass(frozen=True, kw_only=True)
class _Program:
    """The linear programs of one batch size and place of attention."""

    job: Job
    machine: HostMachine
    size: int
    cpu_attention: bool
    costs: Costs = least

    def most_batches(self) -> int:
        """Batches beyond which no memory holds the cache of a block [1]."""
        cache = 4.0 * self.job.hidden * self.job.layers * (self.job.prompt_tokens + self.job.output_tokens)
        return max(1, int(self.machine.usable_bytes.sum() / (cache * self.size)))

    def solve(self, low: int, high: int, *, grow: int | None = None) -> tuple[float, Floats] | None:
        """Least time per token [s] over blocks of low to high batches, and v; None where nothing fits.

        With `grow`, that tier may exceed its limit, and the excess [byte] is what is least.
        """
        found = self.costs(self.job, self.machine, self.size, cpu_attention=self.cpu_attention)
        least, most = 1.0 / (self.size * high), 1.0 / (self.size * low)
        draft = Draft()
        values = draft.variable(SIZE, high=self._highs(most))
        draft.row((values[INVERSE : INVERSE + 1], 1.0), low=least, high=most)
        draft.row((values[:3], 1.0), (values[INVERSE : INVERSE + 1], -1.0), low=0.0, high=0.0)
        for kind in (CACHE, HIDDEN):
            first = place_of(kind, GPU)
            draft.row((values[first : first + 3], 1.0), low=1.0, high=1.0)
            products = values[place_of(kind, GPU, product=True) :][:3]
            draft.row((products, 1.0), (values[INVERSE : INVERSE + 1], -1.0), low=0.0, high=0.0)
            _planes(draft, products, values[first : first + 3], int(values[INVERSE]), least, most)
        self._times(draft, values, found, 0.0 if grow is not None else 1.0)
        self._memory(draft, values, found, grow)
        answer = draft.solve()
        return None if answer is None else (answer.objective, answer.values)

    def _highs(self, most: float) -> Floats:
        """Upper ends of v."""
        highs = np.ones(SIZE)
        highs[:3] = most
        highs[INVERSE:] = most
        highs[[place_of(HIDDEN, DISK), place_of(HIDDEN, DISK, product=True)]] = 0.0  # activations stay off the disk
        return highs

    def _times(self, draft: Draft, values: Whole, found: Terms, weight: float) -> None:
        """Prefill and decode of a layer take as long as their slowest rows."""
        job = self.job
        share = weight * job.layers / job.output_tokens
        for rows, passes in ((found.prefill_s, 1), (found.decode_s, job.output_tokens - 1)):
            slowest = draft.variable(1, cost=share * passes)
            tiled = np.broadcast_to(values, rows.shape)
            draft.row((tiled, rows), (np.full((len(rows), 1), slowest[0]), -1.0), high=0.0)

    def _memory(self, draft: Draft, values: Whole, found: Terms, grow: int | None) -> None:
        """No tier holds more than it may, in units of what it may hold."""
        for tier, (rows, limit) in enumerate(zip(found.tier_bytes, self.machine.usable_bytes, strict=True)):
            unit = max(float(limit), 1.0)
            excess = draft.variable(1, cost=unit) if tier == grow else None
            for one in rows:
                line = one / unit
                line[INVERSE] -= limit / unit
                if excess is not None:
                    draft.row((values, line), (excess, -1.0), high=0.0)
                else:
                    draft.row((values, line), high=0.0)

    def policy(self, values: Floats, batches: int) -> StreamedPolicy:
        """The shares of v as a policy."""
        shares = np.clip(values[:INVERSE].reshape(3, 3), 0.0, None)
        shares = shares / shares.sum(axis=1, keepdims=True)
        return StreamedPolicy(gpu_batch=self.size, gpu_batches=batches, shares=shares, cpu_attention=self.cpu_attention)


def _planes(draft: Draft, products: Whole, shares: Whole, inverse: int, least: float, most: float) -> None:
    """Holds each product of a share (0 to 1) with y (least to most) between its four McCormick planes."""
    for product, share in zip(products, shares, strict=True):
        for coefficients, high in (
            ((-1.0, least, 0.0), 0.0),
            ((-1.0, most, 1.0), most),
            ((1.0, -most, 0.0), 0.0),
            ((1.0, -least, -1.0), -least),
        ):
            draft.row(([int(product), int(share), inverse], coefficients), high=high)


def _nearest(job: Job, machine: HostMachine, attention: tuple[bool, ...], size: int) -> str:
    """Which tier alone could grow so that one batch fits, and to what."""
    wanted = []
    for tier, name in enumerate(TIERS):
        programs = [_Program(job=job, machine=machine, size=size, cpu_attention=on_host) for on_host in attention]
        found = [one for program in programs if (one := program.solve(1, 1, grow=tier)) is not None]
        if found:
            more = min(one[0] for one in found) * size
            now, needed = (float(machine.usable_bytes[tier]), float(machine.usable_bytes[tier]) + more)
            wanted.append(f"{name} from {now / 2**30:.4g} to {needed / 2**30:.4g} GiB")
    change = " or ".join(wanted) if wanted else "several tiers at once"
    return f"no policy holds a batch of {size} sequences; nearest change: raise usable {change}"
