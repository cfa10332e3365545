"""Tokens sent to the ranks of their experts and combined again, as DeepEP's and TensorRT-LLM's kernels do it.

By the kernels alone, and as engines call them, which takes at least what the host needs to issue a call.

Shape letters: T tokens of one rank, E experts, N ranks on n nodes, g = N / n.
"""

from __future__ import annotations

import math

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import issued
from ridgeline.cost.mechanism import Array, formula

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


EXCHANGE = formula("exchange", _exchange)
ENGINE_EXCHANGE = formula("engine_exchange", _called)
