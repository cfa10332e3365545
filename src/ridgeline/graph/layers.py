"""Layers: specs in, blocks and graphs out; among them mixtures of experts.

Letters: D hidden, L layers, E experts, F ffn of one expert. Elements in Region.EXPERT are per routed row (a token
counts once for each expert it visits). The router's probability is multiplied into the activation, before the down
projection, so combining keeps nothing for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.graph.embedding_head import embedding_ops, head_ops
from ridgeline.graph.model import Block, Boundary, Graph
from ridgeline.graph.ops import (
    ElementwiseOp,
    GroupedGemmOp,
    Op,
    OpRole,
    Region,
    Routing,
    RoutingOp,
    Saved,
    Split,
    elementwise,
    passing,
)
from ridgeline.graph.parts import (
    STATISTIC_BYTES,
    activation_op,
    attention_ops,
    layer_embedding_ops,
    mlp_ops,
    norm_op,
    repeated,
    residual_op,
    streams_op,
)
from ridgeline.graph.spec import (
    AttentionSpec,
    EmbeddingHead,
    GatedDelta,
    LayerSpec,
    Lightning,
    Mixer,
    Mlp,
    Moe,
    StateSpace,
)

_ROUTE_KERNELS = 4  # softmax or sigmoid, top-k, sum, divide
_PERMUTE_KERNELS = 3  # sort, count, gather


def graph_of(embedding_head: EmbeddingHead, layers: Sequence[LayerSpec]) -> Graph:
    """The graph of a stack: equal layers become one block, stored once."""
    names: dict[LayerSpec, str] = {}
    blocks: dict[str, Block] = {}
    for layer in layers:
        if layer not in names:
            name = _name(layer, set(blocks))
            names[layer], blocks[name] = name, block_of(layer, embedding_head.hidden, name)
    return Graph(
        blocks=blocks,
        layers=tuple(names[layer] for layer in layers),
        embedding=tuple(embedding_ops(embedding_head)),
        head=tuple(head_ops(embedding_head)),
        hidden=embedding_head.hidden,
        vocab=embedding_head.vocab,
        tied_embeddings=embedding_head.tied,
    )


def _name(layer: LayerSpec, taken: set[str]) -> str:
    words = ["encoder"] if layer.encoder else ["decoder"] if layer.cross else []
    mixer = layer.mixer
    if isinstance(mixer, Lightning):
        words.append("lightning")
    elif isinstance(mixer, StateSpace):
        words.append("mamba")
    elif isinstance(mixer, GatedDelta):
        words.append("delta")
    elif mixer is not None:
        words += ["sliding"] if mixer.window else ["chunked"] if mixer.chunk else []
        words += ["sparse"] if (mixer.latent and mixer.latent.chosen) or mixer.blocks else []
        words += _entry_words(mixer)
        words += [] if layer.feed else ["attention"]
    words += ["moe"] if isinstance(layer.feed, Moe) else ["dense"] if layer.feed else []
    name = base = "-".join(words)
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _entry_words(mixer: AttentionSpec) -> list[str]:
    """How far keys are kept: as entries of which some are chosen, as entries that all see, or not at all."""
    if mixer.entries is None:
        return []
    if not mixer.entries.ratio:
        return ["near"]
    return ["chosen" if mixer.entries.chosen else "compressed"]


def block_of(layer: LayerSpec, hidden: int, name: str) -> Block:
    """One layer's operators in execution order, with what each keeps."""
    ops = _parallel(layer, hidden) if layer.parallel else _sequential(layer, hidden)
    if layer.closing_norm:
        ops.append(norm_op("closing_norm", layer.norm, hidden))
    if layer.encoder_end:
        ops.append(_memory(hidden))
    moe = layer.feed if isinstance(layer.feed, Moe) else None
    return Block(
        name=name,
        ops=tuple(ops),
        boundaries=_boundaries(layer, hidden),
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        shared_experts=moe.shared_count if moe else 0,
        groups_chosen=moe.groups_chosen if moe else 1.0,
        encoder=layer.encoder,
    )


def _memory(hidden: int) -> Op:
    """The encoder's output, kept once for all cross attentions; no work of its own."""
    kept = Saved(elements=hidden, region=Region.SEQUENCE)
    return ElementwiseOp(name="encoder_output", region=Region.SEQUENCE, saved=(kept,), kernels=0)


def _boundaries(layer: LayerSpec, hidden: int) -> tuple[Boundary, ...]:
    tensor = Boundary(kind="tensor", width=hidden)
    count = sum(part is not None for part in (layer.mixer, layer.cross))
    edges = [tensor] * count
    if isinstance(layer.feed, Mlp) and not (layer.parallel and layer.mixer):
        edges.append(tensor)
    if isinstance(layer.feed, Moe):
        edges.append(Boundary(kind="expert", width=layer.feed.latent or hidden))
        if layer.feed.shared is not None:
            edges.append(tensor)
    return tuple(edges)


def _part_ops(part: Mixer | Mlp | Moe, hidden: int, kept: tuple[Saved, ...], dropout: bool) -> list[Op]:
    match part:
        case AttentionSpec():
            return attention_ops(part, hidden, kept, dropout=dropout)
        case Mlp():
            return mlp_ops(part, hidden, kept)
        case Moe():
            return moe_ops(part, hidden, kept)
    from ridgeline.graph.recurrent import recurrent_ops

    return recurrent_ops(part, hidden, kept)


def _sequential(layer: LayerSpec, hidden: int) -> list[Op]:
    """Each part: norm before, on the output, or after the residual, as `placement` says."""
    ops: list[Op] = []
    parts = (("attention", layer.mixer), ("cross", layer.cross), ("mlp", layer.feed))
    for label, part in parts:
        if part is None:
            continue
        kept = Saved(elements=hidden, region=Region.SEQUENCE)
        first = "" if ops else "input"
        if layer.streams > 1:
            ops.append(streams_op(f"streams_{label}_in", hidden, layer.streams, before=True))
        if layer.placement in ("pre", "sandwich"):
            ops.append(norm_op(f"{label}_norm", layer.norm, hidden, role=OpRole.ENTRY, saved_as=first or "norm"))
        else:
            kept = Saved(elements=hidden, region=Region.SEQUENCE, role=first)
        ops += _part_ops(part, hidden, (kept,), layer.dropout)
        if layer.placement in ("output", "sandwich"):
            ops.append(norm_op(f"{label}_output_norm", layer.norm, hidden))
        if layer.streams > 1:
            ops.append(streams_op(f"streams_{label}_out", hidden, layer.streams, before=False))
        else:
            ops.append(residual_op(f"{label}_residual", hidden, dropout=layer.dropout))
        if layer.placement == "post":
            ops.append(norm_op(f"{label}_norm", layer.norm, hidden, role=OpRole.ENTRY))
    return [*ops, *(layer_embedding_ops(layer.embedding, hidden, layer.norm) if layer.embedding else ())]


def _parallel(layer: LayerSpec, hidden: int) -> list[Op]:
    """Attention and feed-forward of the same input, added together."""
    assert layer.mixer is not None
    assert layer.feed is not None
    kept = (Saved(elements=hidden, region=Region.SEQUENCE),)
    ops: list[Op] = [norm_op("attention_norm", layer.norm, hidden, role=OpRole.ENTRY, saved_as="input")]
    ops += _part_ops(layer.mixer, hidden, kept, layer.dropout)
    if layer.parallel == "two":
        ops.append(norm_op("mlp_norm", layer.norm, hidden, role=OpRole.ENTRY, keep=False))
        ops += _part_ops(layer.feed, hidden, kept, layer.dropout)
    else:
        ops += _part_ops(layer.feed, hidden, (), layer.dropout)
    ops.append(residual_op("residual", hidden, branches=2, dropout=layer.dropout))
    return ops


def moe_ops(moe: Moe, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Router, dispatch, experts, combine, and the shared experts beside them."""
    width = moe.latent or hidden
    rows = width * moe.top_k
    ops = [
        replace(
            repeated("router", hidden, moe.experts, role=OpRole.ROUTER, bias=moe.router_bias, kept=kept),
            wide=moe.router_wide,
        ),
        route_op(moe.experts),
        *((_latent("latent_in", hidden, width, moe),) if moe.latent else ()),
        moved_op(Routing.DISPATCH, read=rows, write=rows, back=width),
        *_expert_ops(moe.expert, width),
        moved_op(Routing.COMBINE, read=rows, write=width, back=rows),
        *((_latent("latent_out", width, hidden, moe),) if moe.latent else ()),
    ]
    if moe.shared is not None:
        ops += mlp_ops(moe.shared, hidden, (), shared=True)
        if moe.shared_gate:
            ops.append(repeated("shared_gate", hidden, 1, role=OpRole.SHARED_GATE))
        ops.append(
            elementwise(
                "shared_add",
                2 * hidden,
                hidden,
                backward_write=hidden,
                region=Region.SEQUENCE,
                kept=hidden if moe.shared_gate else 0,
            )
        )
    return ops


def _latent(name: str, k: int, n: int, moe: Moe) -> Op:
    """A product of every token between the residual's width and that of routed experts, whole on each rank.

    The router keeps what the first reads. Source: Megatron-LM, megatron/core/transformer/moe/moe_layer.py,
    fc1_latent_proj and fc2_latent_proj; vllm, model_executor/models/nemotron_h.py.
    """
    kept = () if name == "latent_in" else (Saved(elements=k, region=Region.SEQUENCE),)
    return repeated(name, k, n, role=OpRole.WIDTH, bias=moe.expert.bias, kept=kept)


def route_op(experts: int) -> Op:
    """The choice of a token's experts from the scores of all."""
    return passing(
        RoutingOp, "route", experts, experts, 2 * experts, region=Region.SEQUENCE, step=Routing.ROUTE, kept=experts,
        element_bytes=STATISTIC_BYTES, kernels=_ROUTE_KERNELS,
    )  # fmt: skip


def moved_op(step: Routing, *, read: int, write: int, back: int) -> RoutingOp:
    """Rows to their experts or back; backward moves the same rows the other way."""
    return passing(
        RoutingOp, step.value, read, write, max(read, write), back, region=Region.SEQUENCE, step=step,
        kernels=_PERMUTE_KERNELS,
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
