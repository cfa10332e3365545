"""Layers whose attention and feed-forward are each replaced by a cheaper one, chosen under limits of time and memory.

Shape letters: D hidden, K kv heads, F ffn, B batch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from ridgeline.errors import InputError
from ridgeline.facts.records import Fact
from ridgeline.facts.user_files import LOADS, read_user_file
from ridgeline.graph.model import Block, Boundary, Graph, Model
from ridgeline.graph.ops import ActivationOp, AttentionOp, ElementwiseOp, GemmOp, Op, OpRole, Split
from ridgeline.graph.parts import linear
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

ATTENTION, FEED = "attention", "feed"
KV_HEADS = (8, 4, 2, 1)
SHARES = (1.0, 0.87, 0.75, 0.5, 0.25, 0.2, 0.1)
LINEAR, NONE = "linear", "none"
OPTIONS = {ATTENTION: (*map(str, KV_HEADS), LINEAR, NONE), FEED: (*map(str, SHARES), LINEAR, NONE)}
_BYTES = 2.0  # of a weight and of a cached number, in 16 bits
_MULTIPLE, _GAP = 256, 1e-3  # of a feed-forward's width; of the program, as a share of its loss


@dataclass(frozen=True, kw_only=True)
class MixedBlocks(GraphRewrite):
    """Puzzle: of each layer an attention and a feed-forward out of a table, the least total loss within the limits.

    Attention has fewer key heads, is one product or none; feed-forwards are 100 to 10 % as wide, one product or none.
    Each has a loss (a file, as blockwise distillation scores them; without one the square of the share of weights that
    goes, assumed), seconds of a decode step on a device, priced as everywhere here, and bytes of weights and cache. A
    mixed-integer program picks one of each for every layer:

        minimise  sum loss   subject to   sum seconds <= `seconds` of the model's,  sum bytes <= `held` of the model's

    Fills the seam of graphs. Checked: every mix of two layers; greedy steps and equal layers (benchmarks/
    mixed_blocks.md). Left out: distillation, prompts in the limit of time, tensor ranks in its prices.
    """

    key: ClassVar[str] = "mixed-blocks"
    source: ClassVar[tuple[str, ...]] = ("puzzle",)
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    quality: ClassVar[Fact | None] = accuracy("98.4 % of Llama-3.1-70B's, at 51B, abstract", "puzzle", 98.4, "%")
    seconds: float = param(0.5, "1", "time of a decode step outside the vocabulary that is left", low=0.01, high=1.0)
    held: float = param(1.0, "1", "bytes of layers' weights and caches that are left", low=0.01, high=1.0)
    on: str = param("H100-SXM", "1", "device whose prices count")
    batch: int = param(64, "sequences", "sequences of a step", low=1, high=100_000)
    context: int = param(2048, "tokens", "tokens of each", low=1, high=10_000_000)
    losses: str = param("", "1", "CSV of layer, part, option and loss; when absent, the square of the share that goes")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: the mix is another model, whose blocks must be distilled first."""
        return ()

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        for block in graph.blocks.values():
            roles = {op.role for op in block.ops if isinstance(op, GemmOp)}
            known = {OpRole.QKV, OpRole.OUTPUT, OpRole.UP, OpRole.DOWN} <= roles
            if block.experts or not known or len(block.boundaries) != 2 or block.latent:
                return "is modelled for layers of grouped attention and one feed-forward"
            if _kv_heads(block) > KV_HEADS[0]:
                return f"is modelled for at most {KV_HEADS[0]} key heads"
        return ""

    def rewrite(self, graph: Graph) -> Graph:
        """The graph of the chosen mix; raises `InputError` for a file of losses that does not fit."""
        blocks: dict[str, Block] = {}
        layers = []
        for name, (attention, feed) in zip(graph.layers, self.mix(graph), strict=True):
            made = _mixed(graph.blocks[name], attention, feed, graph.hidden)
            blocks[made.name] = made
            layers.append(made.name)
        return replace(graph, blocks=blocks, layers=tuple(layers))

    def mix(self, graph: Graph) -> list[tuple[str, str]]:
        """Attention and feed-forward of each layer (L), by the names of `OPTIONS`; raises as `rewrite` does."""
        from ridgeline.programs import choose

        tables = [self.table(graph, name, part) for name in graph.layers for part in OPTIONS]
        losses = self._losses(graph, tables)
        costs = [[[row[resource] for row in table] for table in tables] for resource in (1, 2)]
        whole = [sum(each[0] for each in cost) for cost in costs]
        limits = [share * one * (1.0 + 1e-9) for share, one in zip((self.seconds, self.held), whole, strict=True)]
        scaled = [[[each / one for each in row] for row in cost] for cost, one in zip(costs, whole, strict=True)]
        found = choose(losses, scaled, [limit / one for limit, one in zip(limits, whole, strict=True)], gap=_GAP)
        assert found is not None  # a layer may be left out, which costs nothing
        names = [OPTIONS[part][one] for part, one in zip(list(OPTIONS) * len(graph.layers), found, strict=True)]
        return list(zip(names[::2], names[1::2], strict=True))

    def table(self, graph: Graph, name: str, part: str) -> list[tuple[float, float, float]]:
        """Of each option of a part of a layer: loss [1], seconds of a decode step and bytes held [byte].

        An option that has more than the layer itself, more key heads, is as the layer itself.
        """
        return _table(graph.blocks[name], graph.hidden, part, self.on, self.batch, self.context)

    def _losses(self, graph: Graph, tables: Sequence[Sequence[tuple[float, float, float]]]) -> list[list[float]]:
        found = [[row[0] for row in table] for table in tables]
        if not self.losses:
            return found
        rows = csv.DictReader(read_user_file(self.losses, LOADS, field="losses").lines())
        try:
            for row in rows:
                part = row["part"]
                place = 2 * int(row["layer"]) + list(OPTIONS).index(part)
                found[place][OPTIONS[part].index(row["option"])] = float(row["loss"])
        except (KeyError, ValueError, IndexError) as error:
            wanted = "needs columns layer (from 0), part, option and loss"
            raise InputError(f"{wanted}: {error}", file=self.losses, line=rows.line_num) from None
        return found


@cache
def _table(block: Block, hidden: int, part: str, on: str, batch: int, context: int) -> list[tuple[float, float, float]]:
    import numpy as np

    from ridgeline.cost.engine_kernels import OwnKernels
    from ridgeline.cost.formats import Formats
    from ridgeline.cost.machine import machine
    from ridgeline.facts.clusters import cluster
    from ridgeline.lower.inference import serve
    from ridgeline.lower.pieces import Core
    from ridgeline.plan.deployment import Deployment
    from ridgeline.serving.step_pieces import PieceTimes, Shelf

    cuts = [_part(block, part, option, hidden) for option in OPTIONS[part]]
    made = [Block(name=str(number), ops=tuple(ops), boundaries=()) for number, ops in enumerate(cuts)]
    graph = Graph(
        blocks={one.name: one for one in made}, layers=tuple(one.name for one in made), embedding=(), head=(),
        hidden=hidden, vocab=hidden, tied_embeddings=False,
    )  # fmt: skip
    served = serve(Model(name=block.name, model_type="", graph=graph, max_positions=None, source=""), Deployment())
    here = machine(cluster(f"1x{on}"))
    times = PieceTimes(served, here, Deployment(), Formats(), OwnKernels(), Shelf(), prompts=False)
    rows, long = np.array([float(batch)]), np.array([float(context)])
    found = []
    for kind, one in zip(served.kinds, made, strict=True):
        cores = [piece for piece in kind.pieces if isinstance(piece, Core)]
        taken = float(times.of_pieces(kind.pieces, rows).mid[0])
        taken += sum(float(times.prices.decode(core, rows, long).mid[0]) for core in cores)
        cache_bytes = batch * context * sum(core.token_bytes(_BYTES) for core in cores)
        found.append((one.params, taken, _BYTES * one.params + cache_bytes))
    whole = max(found[0][0], 1)
    return [((1.0 - params / whole) ** 2, taken, held) for params, taken, held in found]


def _mixed(block: Block, attention: str, feed: str, hidden: int) -> Block:
    if (attention, feed) == (OPTIONS[ATTENTION][0], OPTIONS[FEED][0]):
        return block
    ops = (*_part(block, ATTENTION, attention, hidden), *_part(block, FEED, feed, hidden))
    parts = sum(name not in (LINEAR, NONE) for name in (attention, feed))
    edges: tuple[Boundary, ...] = block.boundaries[:parts]
    return replace(block, name=f"{block.name}-{attention}-{feed}", ops=ops, boundaries=edges)


def _part(block: Block, part: str, option: str, hidden: int) -> list[Op]:
    """Operators of a part of a layer, its norm and sum included, as an option has them."""
    last = next(i for i, op in enumerate(block.ops) if isinstance(op, GemmOp) and op.role is OpRole.OUTPUT) + 2
    ops = list(block.ops[:last] if part == ATTENTION else block.ops[last:])
    if option == NONE:
        return []
    if option == LINEAR:
        return [ops[0], linear(f"{part}_linear", hidden, hidden, split=Split.NONE), ops[-1]]
    return list(_fewer_heads(ops, int(option)) if part == ATTENTION else _narrower(ops, float(option)))


def _kv_heads(block: Block) -> int:
    return block.attention.kv_heads if block.attention is not None else 0


def _fewer_heads(ops: Sequence[Op], heads: int) -> Iterable[Op]:
    core = next(op for op in ops if isinstance(op, AttentionOp))
    heads = min(heads, core.kv_heads)
    gone = (core.kv_heads - heads) * (core.qk_dim + core.v_dim)
    for op in ops:
        if isinstance(op, AttentionOp):
            yield replace(op, kv_heads=heads)
        elif isinstance(op, GemmOp) and op.role is OpRole.QKV:
            yield replace(op, n=op.n - gone, params=op.params // op.n * (op.n - gone))
        else:
            yield op


def _narrower(ops: Sequence[Op], share: float) -> Iterable[Op]:
    down = next(op for op in ops if isinstance(op, GemmOp) and op.role is OpRole.DOWN)
    wide = down.k if share == 1.0 else max(_MULTIPLE, round(share * down.k / _MULTIPLE) * _MULTIPLE)
    for op in ops:
        if isinstance(op, GemmOp) and op.role is OpRole.UP:
            n = op.n // down.k * wide
            yield replace(op, n=n, params=op.params // op.n * n)
        elif isinstance(op, GemmOp) and op.role is OpRole.DOWN:
            yield replace(op, k=wide, params=(op.params - op.k * op.n) + wide * op.n)
        elif isinstance(op, ActivationOp):
            yield _scaled(op, wide / down.k)
        else:
            yield op


def _scaled(op: ElementwiseOp, share: float) -> ElementwiseOp:
    return replace(op, read=share * op.read, write=share * op.write)
