"""FlexGen's question for a model, a machine and requests: where weights, cache and activations lie, in which blocks.

`offload_placement` answers it for rates; here the rates are those that the rest of the package prices with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.offloaded import Offload as Asked
from ridgeline.predict.offloaded import hybrid_of
from ridgeline.report.offloaded import PolicyReport
from ridgeline.search.offload_placement import ranked
from ridgeline.search.programs import gap
from ridgeline.serving.hybrid_band import band
from ridgeline.serving.streamed_costs import Job, Machine, Method
from ridgeline.serving.streamed_machine import job_of, machine_of, methods_of
from ridgeline.serving.streamed_policy import Policy, evaluate
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
    methods = methods_of(hybrid)
    if hybrid.host is None:
        said.append("attention never runs on processors, as none is named (--cpu)")
    policy, run, bound_s, tried = soonest(job, machine, methods)
    token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
    held, price = evaluate(job, machine, policy).tier_bytes, cluster.price_usd_per_device_h
    ends = [band(spent) for spent in run.parts()]
    low_s, high_s = (run.prefill_s * ends[0][end] + run.decode_s * ends[1][end] for end in (0, 1))
    lengths = f"{prompt_tokens:,} prompt and {output_tokens:,} output tokens"
    known = {name: float(value) for name, value in vars(machine).items() if name.endswith("_per_s")}
    return PolicyReport(
        title=f"{model.name} on one {cluster.accelerator.name}: streamed weights, requests of {lengths}",
        tokens_per_s=1.0 / token_s, low=policy.block * job.output_tokens / high_s,
        high=policy.block * job.output_tokens / low_s, prefill_s=run.prefill_s, decode_s=run.decode_s,
        prefill=run.prefill, decode=run.decode, gap=gap(token_s, bound_s), tried=tried,
        gpu_batch=policy.gpu_batch, gpu_batches=policy.gpu_batches, cpu_attention=policy.method.cpu_attention,
        shares={kind: tuple(map(float, row)) for kind, row in zip(_KINDS, policy.shares, strict=True)},
        peak_bytes=tuple(map(float, held)), usable_bytes=tuple(map(float, machine.usable_bytes)),
        rates={name: value for name, value in known.items() if math.isfinite(value)},
        usd_per_h=None if price is None else price.value,
        assumed=(*assumed, *said, "values of 16 bits; a disk that is written as fast as it is read"),
    )  # fmt: skip


def soonest(job: Job, machine: Machine, methods: Sequence[Method]) -> tuple[Policy, Scheduled, float, int]:
    """The policy whose replay is soonest, it, the least time per token of any [s], and how many were replayed."""
    best: tuple[float, Policy, Scheduled] | None = None
    least_s, tried = math.inf, 0
    for bound_s, policy, _ in ranked(job, machine, methods=methods, costs=least):
        least_s = min(bound_s, best[0]) if best else bound_s
        if tried == _TRIED or (best is not None and bound_s >= best[0]):
            break
        run, tried = scheduled(job, machine, policy), tried + 1
        token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
        if best is None or token_s < best[0]:
            best = token_s, policy, run
    assert best is not None  # `ranked` raises where nothing fits
    return best[1], best[2], least_s, tried
