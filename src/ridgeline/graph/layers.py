"""Layers: specs in, blocks and graphs out. Letters: D hidden, L layers."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.graph.ends import embedding_ops, head_ops
from ridgeline.graph.experts import moe_ops
from ridgeline.graph.model import Block, Boundary, Graph
from ridgeline.graph.ops import ElementwiseOp, Op, Region, Role, Saved
from ridgeline.graph.parts import attention_ops, mlp_ops, norm_op, residual_op, streams_op
from ridgeline.graph.recurrent import gated_delta_ops, lightning_ops, state_space_ops
from ridgeline.graph.spec import Attention, Ends, GatedDelta, Layer, Lightning, Mixer, Mlp, Moe, StateSpace


def graph_of(ends: Ends, layers: Sequence[Layer]) -> Graph:
    """The graph of a stack: equal layers become one block, stored once."""
    names: dict[Layer, str] = {}
    blocks: dict[str, Block] = {}
    for layer in layers:
        if layer not in names:
            name = _name(layer, set(blocks))
            names[layer], blocks[name] = name, block_of(layer, ends.hidden, name)
    return Graph(
        blocks=blocks,
        layers=tuple(names[layer] for layer in layers),
        embedding=tuple(embedding_ops(ends)),
        head=tuple(head_ops(ends)),
        hidden=ends.hidden,
        vocab=ends.vocab,
        tied_embeddings=ends.tied,
    )


def _name(layer: Layer, taken: set[str]) -> str:
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


def _entry_words(mixer: Attention) -> list[str]:
    """How far keys are kept: as entries of which some are chosen, as entries that all see, or not at all."""
    if mixer.entries is None:
        return []
    if not mixer.entries.ratio:
        return ["near"]
    return ["chosen" if mixer.entries.chosen else "compressed"]


def block_of(layer: Layer, hidden: int, name: str) -> Block:
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
        encoder=layer.encoder,
    )


def _memory(hidden: int) -> Op:
    """The encoder's output, kept once for all cross attentions; no work of its own."""
    kept = Saved(elements=hidden, region=Region.SEQUENCE)
    return ElementwiseOp(name="encoder_output", region=Region.SEQUENCE, saved=(kept,), kernels=0)


def _boundaries(layer: Layer, hidden: int) -> tuple[Boundary, ...]:
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
        case Attention():
            return attention_ops(part, hidden, kept, dropout=dropout)
        case Lightning():
            return lightning_ops(part, hidden, kept)
        case StateSpace():
            return state_space_ops(part, hidden, kept)
        case GatedDelta():
            return gated_delta_ops(part, hidden, kept)
        case Mlp():
            return mlp_ops(part, hidden, kept)
        case Moe():
            return moe_ops(part, hidden, kept)


def _sequential(layer: Layer, hidden: int) -> list[Op]:
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
            ops.append(norm_op(f"{label}_norm", layer.norm, hidden, role=Role.ENTRY, saved_as=first or "norm"))
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
            ops.append(norm_op(f"{label}_norm", layer.norm, hidden, role=Role.ENTRY))
    return ops


def _parallel(layer: Layer, hidden: int) -> list[Op]:
    """Attention and feed-forward of the same input, added together."""
    assert layer.mixer is not None
    assert layer.feed is not None
    kept = (Saved(elements=hidden, region=Region.SEQUENCE),)
    ops: list[Op] = [norm_op("attention_norm", layer.norm, hidden, role=Role.ENTRY, saved_as="input")]
    ops += _part_ops(layer.mixer, hidden, kept, layer.dropout)
    if layer.parallel == "two":
        ops.append(norm_op("mlp_norm", layer.norm, hidden, role=Role.ENTRY, keep=False))
        ops += _part_ops(layer.feed, hidden, kept, layer.dropout)
    else:
        ops += _part_ops(layer.feed, hidden, (), layer.dropout)
    ops.append(residual_op("residual", hidden, branches=2, dropout=layer.dropout))
    return ops
