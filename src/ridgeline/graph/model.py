"""A model as layers of operators: each kind of layer stored once, their order, and the embedding and head around them.

Letters: D hidden, V vocabulary, E experts, L layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.graph.ops import AttentionOp, GemmOp, LinearOp, Op, OpRole, Region


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A place where a block's activations enter and leave a divided region.

    'tensor': an all-gather/reduce-scatter pair with sequence parallel, one all-reduce without, of
    `width` elements per token, in forward and again in backward. 'expert': dispatch and combine
    all-to-all of `width` elements per token and selected expert. 'tables': an all-to-all of `width` elements per token
    from the devices that hold them, and back of their gradients. What is `deferred` enters the residual a part later
    than it was computed, so that its all-reduce may run beside that part.
    """

    kind: str
    width: int
    deferred: bool = False


@dataclass(frozen=True, kw_only=True)
class Block:
    """One kind of layer, stored once and repeated; `ops` in execution order."""

    name: str
    ops: tuple[Op, ...]
    boundaries: tuple[Boundary, ...] = ()
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    groups_chosen: float = 1.0  # share of the groups of experts that those of one token lie in
    encoder: bool = False  # runs over the encoder's tokens in an encoder-decoder

    @property
    def params(self) -> int:
        """Trainable numbers of one such layer, all experts counted [1]."""
        return sum(op_params(op, self.experts) for op in self.ops)

    @property
    def active_params(self) -> int:
        """Trainable numbers that one token passes through [1]."""
        return sum(op_params(op, self.top_k) for op in self.ops)

    @property
    def attention(self) -> AttentionOp | None:
        """The first attention: of a decoder that also attends to an encoder, its own."""
        return next((op for op in self.ops if isinstance(op, AttentionOp)), None)

    @property
    def latent(self) -> bool:
        """Whether its attention keeps one latent vector a token for all heads."""
        return self.attention is not None and self.attention.latent

    def gemm(self, role: OpRole) -> GemmOp | None:
        """The product that has a role; None where the layer has none."""
        return next((op for op in self.ops if isinstance(op, GemmOp) and op.role is role), None)


def op_params(op: Op, experts: int) -> int:
    """Trainable numbers of an op when `experts` copies of an expert weight are counted [1]."""
    if op.tied:
        return 0
    return op.params * (experts if op.region is Region.EXPERT else 1)


def _tensors(op: Op, experts: int) -> int:
    """Named weights of an op when every expert has its own [1]."""
    if op.tied or not op.params:
        return 0
    return (op.parts if isinstance(op, LinearOp) else 1) * (experts if op.region is Region.EXPERT else 1)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model's computation: blocks stored once, the order of layers, and the two ends.

    `embedding` runs before the first layer, `head` after the last (final norm, logits, loss).
    """

    blocks: Mapping[str, Block]
    layers: tuple[str, ...]  # block name of each layer, in order
    embedding: tuple[Op, ...]
    head: tuple[Op, ...]
    hidden: int  # D, the width that crosses a pipeline cut
    vocab: int
    tied_embeddings: bool

    @property
    def params(self) -> int:
        """All trainable numbers [1]."""
        return self._ends() + sum(self.blocks[name].params * count for name, count in Counter(self.layers).items())

    @property
    def active_params(self) -> int:
        """Trainable numbers that one token passes through, the embedding table included [1]."""
        return self._ends() + sum(
            self.blocks[name].active_params * count for name, count in Counter(self.layers).items()
        )

    @property
    def attentions(self) -> list[AttentionOp]:
        """The attentions of all kinds of layers, each kind once."""
        return [op for block in self.blocks.values() for op in block.ops if isinstance(op, AttentionOp)]

    @property
    def latent_attention(self) -> bool:
        """Whether any layer keeps one latent vector a token for all heads."""
        return any(block.latent for block in self.blocks.values())

    @property
    def tensors(self) -> int:
        """Weights of a checkpoint by name [1]: parts of a merged product apart, every expert."""
        ends = sum(_tensors(op, 1) for op in (*self.embedding, *self.head))
        each = {name: sum(_tensors(op, block.experts) for op in block.ops) for name, block in self.blocks.items()}
        return ends + sum(each[name] for name in self.layers)

    def _ends(self) -> int:
        return sum(op_params(op, 1) for op in (*self.embedding, *self.head))


SAMPLE = "tokens_per_sample"
"""The dimension of a network that says how many tokens one sample counts: one for an image, the words of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An architecture: its name, where its dimensions come from, and its graph."""

    name: str
    model_type: str
    graph: Graph
    max_positions: int | None
    source: str
    dims: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)  # what it was built from
    techniques: tuple[str, ...] = ()  # those that were put in place in its graph


def network_of(
    name: str,
    kind: str,
    layers: Sequence[Block],
    *,
    hidden: int,
    source: str,
    embedding: Sequence[Op] = (),
    head: Sequence[Op] = (),
    dims: Mapping[str, float | str],
    **more: Any,
) -> Model:
    """A network of layers in order, each kind stored once by its name; `more` are fields of the graph.

    `dims` are what people name of it beside the number of its layers.
    """
    graph = Graph(
        blocks={block.name: block for block in layers}, layers=tuple(block.name for block in layers),
        embedding=tuple(embedding), head=tuple(head), hidden=hidden, **{"vocab": 0, "tied_embeddings": False, **more},
    )  # fmt: skip
    return Model(
        name=name, model_type=kind, graph=graph, max_positions=None, source=source, dims={"layers": len(layers), **dims}
    )
