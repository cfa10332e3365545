"""Native sparse attention: compressed blocks, chosen blocks and a window in place of all keys.

Shape letters: S sequence, l tokens of a compressed block, d tokens from one to the next, n chosen blocks of b tokens,
w tokens of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import AttentionOp, ConvolutionOp, ElementwiseOp, GemmOp, Op, OpRole, Region, Saved, Split
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class NativeSparseAttention(GraphRewrite):
    """NSA: each query attends to S / d compressed entries, to n chosen blocks and to a window, each with own keys.

    Gates weigh the three results. The choice of blocks sums scores that the compressed branch has made, and is not
    counted apart.
    """

    key: ClassVar[str] = "nsa"
    source: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2502.11089, section 3 and 4.1",)
    owns: ClassVar[frozenset[str]] = frozenset({"attention"})
    compressed: int = param(32, "tokens", "tokens of a compressed block", low=1, high=65_536)
    stride: int = param(16, "tokens", "tokens from one compressed block to the next", low=1, high=65_536)
    chosen: int = param(16, "blocks", "blocks that a query attends to", low=1, high=65_536)
    block: int = param(64, "tokens", "tokens of a block that is chosen", low=1, high=65_536)
    window: int = param(512, "tokens", "last tokens that every query attends to", low=1, high=1_000_000)

    def refusal(self, graph: Graph) -> str:
        """It is defined for causal self-attention to all keys."""
        cores = graph.attentions
        if not cores:
            return "it has no attention"
        plain = all(op.causal and not (op.window or op.chunk or op.top or op.ratio or op.cross) for op in cores)
        return "" if plain else "some of its attention is not causal self-attention to all keys"

    def rewrite(self, graph: Graph) -> Graph:
        """Three attentions, what makes compressed entries, gates and their sum in place of each attention."""
        return replace(graph, blocks={name: self._block(block) for name, block in graph.blocks.items()})

    def _block(self, block: Block) -> Block:
        core = block.attention
        if core is None:
            return block
        ops: list[Op] = []
        for op in block.ops:
            if op is core:
                ops += self._branches(core, hidden=block.boundaries[0].width)
            elif isinstance(op, GemmOp) and op.role is OpRole.QKV:
                more = 2 * core.kv_heads * (core.qk_dim + core.v_dim)
                ops.append(replace(op, n=op.n + more, params=op.params + op.k * more, parts=op.parts + 4))
            else:
                ops.append(op)
        return replace(block, ops=tuple(ops))

    def _branches(self, core: AttentionOp, *, hidden: int) -> list[Op]:
        keys, out = core.kv_heads * (core.qk_dim + core.v_dim), core.heads * core.v_dim
        kept = (
            Saved(elements=keys, region=Region.TENSOR),
            Saved(elements=out, region=Region.TENSOR),
            Saved(elements=core.heads, region=Region.TENSOR, element_bytes=4.0, kernel="flash"),
        )
        query = Saved(elements=core.heads * core.qk_dim, region=Region.TENSOR)
        width = self.compressed * (core.qk_dim + core.v_dim) // 2
        made = core.kv_heads / self.stride  # entries of keys, and of values, for each token
        return [
            ConvolutionOp(
                name="compress", region=Region.TENSOR, k=width, n=core.qk_dim + core.v_dim,
                rows=made, params=width * (core.qk_dim + core.v_dim),
            ),
            replace(core, name="attend_compressed", ratio=self.stride, near=0, saved=(query, *kept)),
            replace(core, name="attend_chosen", top=self.chosen * self.block, saved=kept, params=0),
            replace(core, name="attend_window", window=self.window, saved=kept, params=0),
            GemmOp(
                name="gates", region=Region.TENSOR, k=hidden, n=3 * core.heads, split=Split.COLUMN,
                params=hidden * 3 * core.heads, params_split=True,
            ),
            ElementwiseOp(
                name="gated_sum", region=Region.TENSOR, read=3.0 * (out + core.heads),
                write=out, backward_read=4.0 * out + 3.0 * core.heads, backward_write=3.0 * (out + core.heads),
                kernels=2,
            ),
        ]  # fmt: skip
