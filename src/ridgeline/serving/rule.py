"""The numbers of `state.RULE`: what the compiled clock reads of an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.cost.host_times import dispatch_seconds, host_slowness
from ridgeline.cost.machine import Machine, outside
from ridgeline.cost.network import send_seconds
from ridgeline.lower.pieces import Recurrence
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.seams.serving import (
    Instance,
    NanoBatches,
    Preemption,
    RemoteKV,
    Speculation,
    StructuredOutput,
    applied,
    instance_devices,
    of,
    step_tokens,
)
from ridgeline.serving.clock import Times
from ridgeline.serving.nano import NanoTables
from ridgeline.serving.split import SplitTables
from ridgeline.serving.state import GRIDS, MIXED_BATCHES, PREFILL_FIRST, RULE, STATIC, Array, Records
from ridgeline.serving.step import StepTables

if TYPE_CHECKING:
    from ridgeline.serving.engine import Engine

_SCHEDULERS = {"prefill-first": PREFILL_FIRST, "mixed": MIXED_BATCHES, "static": STATIC, "single": STATIC}
_DRAWING = {"": (), "prompts": (Role.PREFILL,), "all": (Role.PREFILL, Role.DECODE)}
_LONGEST_PERIOD = 32  # steps in which blocks of sequences that gain several tokens a step are counted


def rule_of(
    one: Engine, tables: StepTables, *, prefix_tokens: int = 0, stride: int = 0, takers: Sequence[Engine] = ()
) -> Records:
    """One record of `state.RULE`; `stride` devices lie between pools that send caches, to those of `takers`."""
    policy, deployment = one.policy, one.deployment
    overlapped = policy.overlapped_host and (deployment.role is not Role.PREFILL or policy.prompt_pools_overlap)
    eager = one.prefill_graph_tokens == 0.0
    late = overlapped and policy.late_results and eager and deployment.role is Role.WHOLE
    rule = np.zeros((), dtype=RULE)
    values = {
        **_scheduling(one, prefix_tokens),
        **moving(one, stride, takers),
        "eager_s": _launched_s(one, tables.kernels + _scans(one) * policy.scan_kernels),
        "build_s": policy.scan_build_s if deployment.options.fresh_kernels and _scans(one) else 0.0,
        "step_host_s": policy.step_host_s + (policy.group_host_s if instance_devices(deployment) > 1 else 0.0),
        "seq_host_s": policy.seq_host_s,
        "moving_holds": policy.moving_holds_place,
        "draws_rank": deployment.role in _DRAWING[policy.drawn_ranks],
        "stands": policy.taking_in_stands and deployment.role is Role.DECODE,
        "overlapped": overlapped,
        "ahead": overlapped,
        "late_results": late,
        "prefill_graphs": one.prefill_graph_tokens,
        "balance": max(1.0, deployment.pp * tables.stage_share),
        "hops": float(deployment.pp - 1),
        "follows": float(policy.chunks_follow and deployment.pp > 1),
        "part_tokens": float(policy.part_tokens),
        "send_start_s": tables.send_start_s,
        "send_s": tables.send_s,
        "drafted": float(step_tokens(deployment) - 1),
        "gained": of(deployment, Speculation).gained,
        "exposed_s": policy.exposed_host_s,
        "chain": 0.5,
        "attention_memory": 1.0,
    }
    for name, value in {**values, **one.numbers(stride)}.items():
        rule[name] = value
    return rule


def _launched_s(one: Engine, kernels: float) -> float:
    """The least that launching an iteration's kernels takes [s]: 0 where the device issues them, in their times."""
    part, host = one.machine.cluster.accelerator, one.machine.cluster.host
    own = dispatch_seconds(part) is not None
    return 0.0 if own else kernels * one.policy.eager_kernel_host_s * host_slowness(part, host)


def _scans(one: Engine) -> int:
    """Layers with a gated scan [1]."""
    kinds = one.steps.served.kinds
    return sum(
        kind.count for kind in kinds if any(isinstance(piece, Recurrence) and piece.delta for piece in kind.pieces)
    )


def _scheduling(one: Engine, prefix_tokens: int) -> dict[str, float]:
    """How iterations are filled and what admission asks for."""
    policy, deployment = one.policy, one.deployment
    tokens = policy.block_tokens
    period, growth = growth_of(tokens, of(deployment, Speculation).gained)
    blocks = one.capacity.cache_tokens * (deployment.pp // one.lanes) // tokens
    keeps = policy.prefix_cache and not any(technique.forgets_prefixes for technique in applied(deployment))
    return {
        "scheduler": _SCHEDULERS[policy.scheduler],
        "chunked": policy.chunked,
        "padded": policy.compiled_tokens or policy.pads_prompts,
        "receive_steps": 1,
        "token_budget": policy.token_budget,
        "max_seqs": policy.max_seqs,
        "block_tokens": tokens,
        "period": period,
        "growth_blocks": growth,
        "capacity": blocks,
        "kept_free": int(policy.watermark * blocks),
        "reserve": _reserve(one),
        "swaps": policy.preemption == "swap",
        "beside": deployment.swap_beside,
        "ranks": deployment.dp * one.lanes,
        "prefix_tokens": prefix_tokens // tokens * tokens if keeps and prefix_tokens >= tokens else 0,
    }


def _reserve(one: Engine) -> float:
    """Share of the output that admission sets blocks aside for [1].

    None where caches may give way by the deployment's choice and by the engine's own never do, as TensorRT-LLM's
    MAX_UTILIZATION beside GUARANTEED_NO_EVICT. Source: tensorrt-llm, docs/source/advanced/gpt-runtime.md.
    """
    policy = one.policy
    if policy.preemption == "none" and of(one.deployment, Preemption).applied:
        return 0.0
    return {"whole": 1.0, "estimate": policy.output_estimate_floor}.get(policy.admits, 0.0)


def copies_sent(one: Instance, taker: Engine) -> float:
    """How often a rank sends the cache that it holds of a request to an instance of another pool [1].

    c = max(1, t' b' / (t b)), t ranks that share a request and b bytes of a token's cache that each of them holds; 1
    where tokens leave nothing behind, as in recurrent states

    One vector for all heads is held by every tensor-parallel rank. Where as many give as take, each sends its own; one
    attention rank of many sends it to all that take, one after the other. Source: tensorrt-llm,
    batch_manager/mlaCacheFormatter.cpp (needSendCache, formatOutput); sglang, srt/disaggregation/common/conn.py
    (required_dst_info_num).
    """
    given, taken = (each.deployment.tp * each.deployment.pp * each.capacity.token_bytes for each in (one, taker))
    return max(1.0, taken / given) if given else 1.0


def moving(one: Instance, stride: int, takers: Sequence[Engine] = ()) -> dict[str, float]:
    """What it takes to move a token's cache to the host, and to one of `takers`, `stride` devices away [s].

    To the host: its bytes over the link. To a taker a sequence's
    recurrent states and windows go with its start, whatever its length.
    """
    each = one.capacity.token_bytes
    found = {"swap_token_s": each / one.machine.cluster.host.device_bytes_per_s}
    if stride:
        sent = partial(_sent_s, _ends(one, takers), stride)
        found["move_start_s"] = sent(max(one.capacity.sequence_bytes, 1.0))
        copies = max((copies_sent(one, taker) for taker in takers), default=1.0)
        found["move_token_s"] = copies * (sent(max(each * 1e4, 1.0)) - sent(1.0)) / 1e4
    return found


def _ends(one: Instance, takers: Sequence[Engine]) -> list[Machine]:
    """The machines whose links a cache passes: its own, or of devices of two kinds each as it sees the other."""
    apart = [taker for taker in takers if taker.deployment.kind != one.deployment.kind]
    return [one.machine] if not apart else [outside(each.machine) for each in (one, *apart)]


def _sent_s(ends: Sequence[Machine], stride: int, size_bytes: float) -> float:
    """Time of a message from one device to another, at the pace of the slower end [s]."""
    return max(float(send_seconds(size_bytes, max(stride, *_nodes(ends)), end)) for end in ends)


def _nodes(ends: Sequence[Machine]) -> list[int]:
    """Strides that leave each end's node where there are two ends [1]."""
    return [0, *(end.tiers[0].size for end in ends if len(ends) > 1)]


def growth_of(block_tokens: int, gained: float) -> tuple[int, int]:
    """Steps of a period and the whole blocks that a sequence takes in it, never fewer than it fills [step, block].

    One block every `block_tokens` steps where a step gains one token; else the period with the least excess.
    """
    if gained == 1.0:
        return block_tokens, 1

    def excess(period: int) -> float:
        return math.ceil(period * gained / block_tokens) * block_tokens / (period * gained)

    period = min(range(1, _LONGEST_PERIOD + 1), key=excess)
    return period, math.ceil(period * gained / block_tokens)


def pool_role(deployment: Deployment) -> tuple[int, int]:
    """Whether an instance gives requests on, and which it takes: 1 those that arrive, 2 those sent on."""
    return {Role.WHOLE: (0, 1), Role.PREFILL: (1, 1), Role.DECODE: (0, 2)}[deployment.role]


def times_of(engines: Sequence[Engine], tables: Sequence[StepTables]) -> tuple[Times, dict[str, list[int]]]:
    """The tables of several engines [s], with the fields of their rules that say where each begins and how long."""
    return end_to_end([_parts(one, table) for one, table in zip(engines, tables, strict=True)])


def end_to_end(kinds: Sequence[Mapping[str, Array]]) -> tuple[Times, dict[str, list[int]]]:
    """Tables by name of each kind in one array, and the fields of the rules [1]: their places, the sizes of grids."""
    names = list(dict.fromkeys(name for parts in kinds for name in parts))
    places: dict[str, list[int]] = {name: [] for name in names}
    places |= {f"{name}_size": [] for name in names if name in GRIDS}
    laid: list[Array] = []
    end = 0
    for parts in kinds:
        for name in names:
            part = parts.get(name, np.zeros(0))
            places[name].append(end)
            if name in GRIDS:
                places[f"{name}_size"].append(part.size)
            laid.append(np.ravel(part))
            end += part.size
    return np.concatenate(laid), places


def _parts(one: Engine, table: StepTables) -> dict[str, Array]:
    """What the clock reads of one engine; tables that its deployment has no use for are left out.

    Attention of a split device is that of any other, and so is that of micro-batches whose experts are elsewhere.
    """
    decode_shape, prompt_shape = (len(table.sequences), len(table.contexts)), (len(table.chunks), len(table.pasts))
    found = {
        "tokens": table.tokens,
        "lane": table.lane.mid + one.policy.exposed_host_s,
        "group": np.stack([table.experts(prompts=with_prompts).mid for with_prompts in (False, True)]),
        "sequences": table.sequences,
        "head": table.head.mid,
        "contexts": table.contexts,
        "decode": np.broadcast_to(table.decode.mid, decode_shape),
        "chunks": table.chunks,
        "pasts": table.pasts,
        "first": np.broadcast_to(table.first.mid, prompt_shape),
        "each": np.broadcast_to(table.each.mid, prompt_shape),
        "graphs": np.array(one.graphs, dtype=float) * of(one.deployment, NanoBatches).replicas,
    }
    waiting: NanoTables | SplitTables | None = table.nano or table.split
    if waiting is not None:
        for name in ("compute", "memory", "network", "head_compute", "head_memory", "head_network"):
            found[f"nano_{name}"] = getattr(waiting, name).mid
    if table.split is not None:
        found |= {"busy": table.split.busy.mid, "head_busy": table.split.head_busy.mid}
    if table.attention_ffn is not None:
        found["send"] = table.attention_ffn.send.mid
    lines = (
        table.split or table.attention_ffn or of(one.deployment, RemoteKV).applied
    )  # steps that more than one thing may bind
    decode = table.nano.decode if table.nano else table.decode if lines else None
    if decode is not None:
        found["nano_decode"] = np.broadcast_to(decode.mid, decode_shape)
    return found


def masks_told(one: Instance, sequences: float, device_s: float) -> dict[str, float]:
    """What the masks of structured output add to an iteration of the device [s]; nothing where they add nothing."""
    rule = of(one.deployment, StructuredOutput).numbers(one, 0)
    if not rule:
        return {}
    threads = max(rule["mask_threads"], 1.0) if sequences > rule["mask_above"] else 1.0
    made_s = rule["mask_s"] * sequences / threads
    added_s = max(0.0, made_s - device_s) if rule["masks_beside"] else made_s
    return {"masks": added_s} if added_s > 0.0 else {}
