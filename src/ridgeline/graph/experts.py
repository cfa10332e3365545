"""Operators of a mixture-of-experts feed-forward.

Letters: D hidden, E experts, F ffn of one expert. Elements in Region.EXPERT are per routed row
(a token counts once for each expert it visits). The router's probability is multiplied into the
activation, before the down projection, so combining keeps nothing for backward.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.graph.ops import ElementwiseOp, GroupedGemmOp, Op, Region, Role, Routing, RoutingOp, Saved, Split
from ridgeline.graph.parts import STATISTIC_BYTES, activation_op, mlp_ops, repeated
from ridgeline.graph.spec import Mlp, Moe

_ROUTE_KERNELS = 4  # softmax or sigmoid, top-k, sum, divide
_PERMUTE_KERNELS = 3  # sort, count, gather


def moe_ops(moe: Moe, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Router, dispatch, experts, combine, and the shared experts beside them."""
    width = moe.latent or hidden
    rows = width * moe.top_k
    ops = [
        replace(
            repeated("router", hidden, moe.experts, role=Role.ROUTER, bias=moe.router_bias, kept=kept),
            wide=moe.router_wide,
        ),
        _route(moe),
        *((_latent("latent_in", hidden, width, moe),) if moe.latent else ()),
        _moved(Routing.DISPATCH, read=rows, write=rows, back=width),
        *_expert_ops(moe.expert, width),
        _moved(Routing.COMBINE, read=rows, write=width, back=rows),
        *((_latent("latent_out", width, hidden, moe),) if moe.latent else ()),
    ]
    if moe.shared is not None:
        ops += mlp_ops(moe.shared, hidden, (), shared=True)
        if moe.shared_gate:
            ops.append(repeated("shared_gate", hidden, 1, role=Role.SHARED_GATE))
        ops.append(
            ElementwiseOp(
                name="shared_add",
                region=Region.SEQUENCE,
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
    return repeated(name, k, n, role=Role.WIDTH, bias=moe.expert.bias, kept=kept)


def _route(moe: Moe) -> Op:
    return RoutingOp(
        name="route",
        step=Routing.ROUTE,
        region=Region.SEQUENCE,
        read=moe.experts,
        write=moe.experts,
        backward_read=2 * moe.experts,
        backward_write=moe.experts,
        saved=(Saved(elements=moe.experts, region=Region.SEQUENCE, element_bytes=STATISTIC_BYTES),),
        kernels=_ROUTE_KERNELS,
    )


def _moved(step: Routing, *, read: int, write: int, back: int) -> RoutingOp:
    """Rows to their experts or back; backward moves the same rows the other way."""
    return RoutingOp(
        name=step.value, step=step, region=Region.SEQUENCE, read=read, write=write, backward_read=max(read, write),
        backward_write=back, kernels=_PERMUTE_KERNELS,
    )  # fmt: skip


def _expert_ops(expert: Mlp, hidden: int) -> list[Op]:
    wide = expert.ffn * (2 if expert.gated else 1)
    parts = 2 if expert.gated and not expert.merged_gate else 1

    def grouped(name: str, k: int, n: int, split: Split, parts: int) -> GroupedGemmOp:
        return GroupedGemmOp(
            name=name,
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
            gated=expert.gated and split is Split.COLUMN,
        )

    return [
        grouped("experts_up", hidden, wide, Split.COLUMN, parts),
        activation_op(expert, Region.EXPERT, "experts_activation"),
        grouped("experts_down", expert.ffn, hidden, Split.ROW, 1),
    ]
