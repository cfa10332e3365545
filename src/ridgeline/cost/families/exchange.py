"""Tokens sent to the ranks of their experts and combined again, as DeepEP's and TensorRT-LLM's kernels do it.

By the kernels alone, and as engines call them, which takes at least what the host needs to issue a call.

Shape letters: T tokens of one rank, E experts, N ranks on n nodes, g = N / n.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import issued
from ridgeline.cost.mechanism import Array, Mechanism, Parameter, parameter

_GROUPS = (
    4.0  # nodes that group-limited routing lets a token reach. Source: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2
)


@helper
def _norm3(a: float, b: float, c: float, power: float) -> float:
    longest = max(a, b, c)
    if longest <= 0.0:
        return 0.0
    found: float = longest * ((a / longest) ** power + (b / longest) ** power + (c / longest) ** power) ** (1.0 / power)
    return found


@kernel
def _exchange(sizes: Array, device: Array, values: Array, out: Array) -> None:
    device_sms = device[0]
    for i in range(sizes.shape[0]):
        quick, combine, tokens, row_bytes = sizes[i, 0] > 0.0, sizes[i, 1] > 0.0, sizes[i, 2], sizes[i, 3]
        top_k, experts, ranks, nodes, sms = sizes[i, 4], sizes[i, 5], sizes[i, 6], sizes[i, 7], sizes[i, 8]
        link, nic = sizes[i, 9], sizes[i, 10]
        group = ranks / nodes
        if quick:  # one message for each token and expert, a warp group for each expert
            messages = tokens * min(top_k, experts)
            busy = min(math.ceil(experts / math.ceil(experts / device_sms)), device_sms)
            handled = tokens * top_k / 2.0 if combine else tokens
            leaving, staying = (ranks - group) / ranks * messages, (group - 1.0) / ranks * messages
        else:  # one message for each token and rank reached, one over the network for each node reached
            messages = tokens * ranks * (1.0 - (1.0 - 1.0 / ranks) ** min(top_k, ranks * experts))
            busy, handled = max(1.0, min(sms, device_sms)), messages
            reached = min(_GROUPS, nodes * (1.0 - (1.0 - 1.0 / nodes) ** top_k))
            leaving, staying = tokens * reached * (nodes - 1.0) / nodes, messages * (group - 1.0) / group
        if nodes < 2.0:
            leaving = 0.0
        work = handled / busy * ((values[9] if combine else values[2]) + row_bytes / values[3])
        wire = staying * row_bytes / (link * values[4])
        network = leaving * row_bytes / (nic * values[5]) if leaving > 0.0 else 0.0
        seconds = (values[8] if combine else values[0]) + values[1] * experts
        if nodes > 1.0:
            seconds += values[6] * math.log2(nodes)
        moved = _norm3(work, wire, network, values[7])
        out[i, 0], out[i, 1], out[i, 2] = seconds + moved, work, max(wire, network)


@kernel
def _called(sizes: Array, device: Array, values: Array, out: Array) -> None:
    _exchange(sizes, device, values, out)
    for i in range(sizes.shape[0]):
        issue_s = values[10] * (values[11] if sizes[i, 1] > 0.0 else 1.0)
        out[i, 0] = issued(out[i, 0], issue_s)


EXCHANGE = Mechanism(
    family="exchange",
    sizes=(
        "quick",
        "combine",
        "tokens",
        "row_bytes",
        "top_k",
        "experts",
        "ranks",
        "nodes",
        "sms",
        "link_bytes_per_s",
        "nic_bytes_per_s",
    ),
    defaults={"nodes": 1.0, "sms": 20.0},
    selectors=("quick",),
    kernel=_exchange,
    parameters=(
        parameter("start_s_", "s", 3e-6, 2e-4, 1.2e-5, "launch and notification of a dispatch"),
        parameter("expert_s_", "s", 1e-10, 2e-7, 1e-8, "polling of one expert"),
        parameter("message_s_", "s", 1e-9, 2e-5, 3e-7, "one SM's time for a message of a dispatch"),
        parameter("sm_bytes_per_s_", "byte/s", 1e9, 3e11, 3e10, "copy rate of one SM"),
        parameter("link_share_", "1", 0.05, 1, 0.6, "share of the link that is sustained"),
        parameter("nic_share_", "1", 0.1, 1, 0.85, "share of a network interface that is sustained"),
        parameter("net_hop_s_", "s", 1e-6, 5e-5, 8e-6, "one doubling of nodes"),
        parameter("overlap_", "1", 1, 8, 3, "norm in which copies, link and network overlap"),
        parameter("combine_start_s_", "s", 3e-6, 2e-4, 1.4e-5, "launch of a combine"),
        parameter("combine_message_s_", "s", 1e-9, 2e-5, 3e-7, "one SM's time for a message of a combine"),
    ),
)

ENGINE_EXCHANGE = replace(
    EXCHANGE,
    family="engine_exchange",
    kernel=_called,
    parameters=(
        *EXCHANGE.parameters,
        Parameter(name="issue_s_", unit="s", low=3e-7, high=1e-3, start=2e-6, meaning="host time to issue a dispatch"),
        parameter("combine_issue_share_", "1", 0.05, 2, 0.5, "host time to issue a combine, against a dispatch's"),
    ),
)
