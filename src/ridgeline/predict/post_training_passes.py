"""Passes of post-training over an iteration's sequences: updates, and forwards of the policy, its reference and others.

Shape letters: N sequences of an iteration.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.post_training import PostTraining
from ridgeline.predict import predict
from ridgeline.report.report import Report
from ridgeline.seams.rollout import RankDivision, sequence_packing

Floats = NDArray[np.float64]
FORWARD_ONLY = "forward-only"


def sequence_lengths(asked: PostTraining, output: NDArray[np.int64]) -> Floats:
    """Prompt and response of each sequence, ascending (N,) [token]."""
    return np.sort(np.round(asked.prompt) + output.astype(np.float64))


def mini_batch_lengths(lengths: Floats, asked: PostTraining) -> Floats:
    """Sequences of one optimizer step, which stands for all: evenly spaced quantiles of an iteration's (M,) [token].

    Where mini-batches do not divide an iteration, they are as many, and equal.
    """
    size = -(-len(lengths) // -(-len(lengths) // (asked.mini_batch or len(lengths))))
    return lengths[((np.arange(size) + 0.5) * len(lengths) / size).astype(np.int64)]


def batch_workload(job: Workload, lengths: Floats, plan: Plan, packing: str) -> Workload:
    """The training workload whose rows hold some sequences (N,) [token], divisible over a plan's ranks.

    What rounding adds, and rows that only padding fills, count as padding: no token is lost or trained twice.
    """
    rounds = plan.pp if plan.chunks > 1 else 1  # interleaved stages take micro-batches in rounds of them
    over = RankDivision(ranks=plan.dp, lockstep=plan.zero == 3, pipeline=plan.pp > 1)
    rows, tokens, _ = sequence_packing(packing).rows(lengths, plan.dp * plan.micro_batch * rounds, over)
    document = float(np.square(lengths).sum() / lengths.sum())
    packed = rows * tokens < len(lengths) * float(lengths.max()) and document < tokens
    shards = 2 * plan.tp * plan.cp
    tokens = -(-tokens // shards) * shards  # of sequence and context shards, which are equal
    return replace(
        job, seq_len=tokens, global_batch=rows, padding=1.0 - float(lengths.sum()) / (rows * tokens), tokens=None,
        mean_document=document if packed else None,
    )  # fmt: skip


def forward_plan(plan: Plan) -> Plan:
    """The plan of forwards on the trainer's ranks: its degrees, with nothing that only training has."""
    return replace(
        plan, schedule="1f1b", chunks=1, recompute="none", recompute_layers=None, layer_split=None,
        offload_optimizer=False, offload_activations=False, offload_weights=False, optimizer_in_backward=False,
        zero=3 if plan.zero == 3 else 0, zero_group=plan.zero_group if plan.zero == 3 else None, technique=(),
    )  # fmt: skip


def forward_report(model: Model, cluster: Cluster, job: Workload, lengths: Floats, roles: tuple[Plan, str]) -> Report:
    """A forward of some sequences (N,) [token] through a model on the trainer's ranks."""
    plan, packing = forward_plan(roles[0]), roles[1]
    asked = replace(batch_workload(job, lengths, plan, packing), optimizer=FORWARD_ONLY)
    return predict(model, cluster, asked, plan, changes=False)


def update_report(model: Model, cluster: Cluster, job: Workload, lengths: Floats, roles: tuple[Plan, str]) -> Report:
    """One optimizer step on some sequences (M,) [token]."""
    return predict(model, cluster, batch_workload(job, lengths, *roles), roles[0], changes=False)
