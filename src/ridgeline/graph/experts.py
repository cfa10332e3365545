"""Operators of a mixture-of-experts feed-forward.

Letters: D hidden, E experts, F ffn of one expert. Elements in Region.EXPERT are per routed row
(a token counts once for each expert it visits). The router's probability is multiplied into the
activation, before the down projection, so combining keeps nothing for backward.
"""

from __future__ import annotations

from ridgeline.graph.ops import Op, OpKind, Region, Saved, Split
from ridgeline.graph.parts import STATISTIC_BYTES, activation_op, linear, mlp_ops, pointwise
from ridgeline.graph.spec import Mlp, Moe

_ROUTE_KERNELS = 4  # softmax or sigmoid, top-k, sum, divide
_PERMUTE_KERNELS = 3  # sort, count, gather


def moe_ops(moe: Moe, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Router, dispatch, experts, combine, and the shared experts beside them."""
    width = moe.latent or hidden
    rows = width * moe.top_k
    ops = [
        linear(
            "router",
            hidden,
            moe.experts,
            split=Split.NONE,
            bias=moe.router_bias,
            region=Region.SEQUENCE,
            kept=kept,
            lora=False,
            wide=moe.router_wide,
        ),
        _route(moe),
        *((_latent("latent_in", hidden, width, moe),) if moe.latent else ()),
        _permute("dispatch", read=rows, write=rows, back=width),
        *_expert_ops(moe.expert, width),
        _permute("combine", read=rows, write=width, back=rows),
        *((_latent("latent_out", width, hidden, moe),) if moe.latent else ()),
    ]
    if moe.shared is not None:
        ops += mlp_ops(moe.shared, hidden, (), "shared")
        if moe.shared_gate:
            ops.append(
                linear("shared_gate", hidden, 1, split=Split.NONE, region=Region.SEQUENCE, lora=False),
            )
        ops.append(
            pointwise(
                "shared_add",
                Region.SEQUENCE,
                read=2 * hidden,
                write=hidden,
                backward_read=hidden,
                backward_write=hidden,
                saved=(Saved(elements=hidden, region=Region.SEQUENCE),) if moe.shared_gate else (),
            )
        )
    return ops


def _latent(name: str, k: int, n: int, moe: Moe) -> Op:
    """A product of every token between the residual's width and that of routed experts, whole on each rank.

    The router keeps what the first reads. Source: Megatron-LM, megatron/core/transformer/moe/moe_layer.py,
    fc1_latent_proj and fc2_latent_proj; vllm, model_executor/models/nemotron_h.py.
    """
    kept = () if name == "latent_in" else (Saved(elements=k, region=Region.SEQUENCE),)
    return linear(name, k, n, split=Split.NONE, bias=moe.expert.bias, region=Region.SEQUENCE, kept=kept, lora=False)


def _route(moe: Moe) -> Op:
    return pointwise(
        "route",
        Region.SEQUENCE,
        read=moe.experts,
        write=moe.experts,
        backward_read=2 * moe.experts,
        backward_write=moe.experts,
        saved=(Saved(elements=moe.experts, region=Region.SEQUENCE, element_bytes=STATISTIC_BYTES),),
        kernels=_ROUTE_KERNELS,
    )


def _permute(name: str, *, read: int, write: int, back: int) -> Op:
    """Rows to their experts or back; backward moves the same rows the other way."""
    return Op(
        name=name,
        kind=OpKind.PERMUTE,
        region=Region.SEQUENCE,
        read=read,
        write=write,
        backward_read=max(read, write),
        backward_write=back,
        kernels=_PERMUTE_KERNELS,
    )


def _expert_ops(expert: Mlp, hidden: int) -> list[Op]:
    wide = expert.ffn * (2 if expert.gated else 1)
    parts = 2 if expert.gated and not expert.merged_gate else 1

    def grouped(name: str, k: int, n: int, split: Split, parts: int) -> Op:
        return Op(
            name=name,
            kind=OpKind.GROUPED_GEMM,
            region=Region.EXPERT,
            k=k,
            n=n,
            split=split,
            params=k * n + (n if expert.bias else 0),
            params_split=True,
            saved=(Saved(elements=k, region=Region.EXPERT),),
            lora=True,
            parts=parts,
            kernels=parts,
        )

    return [
        grouped("experts_up", hidden, wide, Split.COLUMN, parts),
        activation_op(expert, Region.EXPERT, "experts_activation"),
        grouped("experts_down", expert.ffn, hidden, Split.ROW, 1),
    ]
