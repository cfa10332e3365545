"""A block's operators divided over ranks: what one rank does for one micro-batch.

Shape letters: T tokens of a micro-batch on one context shard, S sequence, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.graph.flop import mean_context
from ridgeline.graph.model import Block, Boundary
from ridgeline.graph.ops import (
    AttentionOp,
    ConvolutionOp,
    CrossEntropyOp,
    ElementwiseOp,
    EmbeddingOp,
    GemmOp,
    GroupedGemmOp,
    LinearOp,
    Op,
    RecurrentOp,
    Region,
    ScanOp,
    SparseTableOp,
    Split,
)
from ridgeline.graph.parts import MASK_BYTES, narrowed
from ridgeline.graph.workload import PRECISIONS, Precision, Task, Workload
from ridgeline.lower.chains import Chains
from ridgeline.lower.contexts import context_exchange
from ridgeline.lower.networks import convolution, made_of_weight, recurrence, scan, tables
from ridgeline.lower.params import adapted, adapters, cast_to_keep, trains
from ridgeline.lower.replays import replayed
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Layout, Number, Phase, Stream, Work

# Bytes per logit that an unfused fp32 vocabulary-parallel cross entropy moves: cast 2+4, max 4,
# subtract 8, exponent 8, sum 4, divide 8; backward: subtract one-hot 8, cast 4+2.
_CROSS_ENTROPY_UNFUSED = (38.0, 14.0)
# Fused: forward reads the logits twice (maximum and sum, then loss) and writes softmax in place;
# backward reads and writes once, all in the activation dtype of 2 bytes, plus one fp32 pass.
_CROSS_ENTROPY_FUSED = (8.0, 6.0)
ONCE_A_NODE = ("deepep", "hybridep")
"""Dispatchers that send a token to a node once, whichever of its experts lie there (DeepEP, NVIDIA's HybridEP)."""


class Sharder:
    """Divides ops by a layout for a workload; `block` gives the work of one layer.

    `share` of a step's tokens is always one micro-batch of one rank. `frozen` base weights (LoRA)
    have no weight gradients; adapters of rank `lora_rank` are added to ops that admit them.
    """

    def __init__(self, workload: Workload, layout: Layout) -> None:
        self.workload = workload
        self.layout = layout
        self.precision: Precision = PRECISIONS[workload.precision]
        self.adapters = workload.task in (Task.LORA, Task.QLORA)
        self.quantized_base = workload.task is Task.QLORA
        self.eager = workload.execution == "eager" and not workload.policy.hand_fused
        self.unfused_loss = workload.execution == "eager" or workload.policy.chained_loss
        self.chains = Chains(workload, layout)

    def block(self, block: Block) -> list[Work]:
        """All work of one layer of this kind, forward and backward, collectives included."""
        work = [piece for op in block.ops for piece in self.op(op, block)]
        work = replayed(work, self.workload.captured, block)
        for boundary in block.boundaries:
            work += self._boundary(boundary, block)
        return work

    def end(self, ops: Iterable[Op]) -> list[Work]:
        """All work of the embedding."""
        return [piece for op in ops for piece in self.op(op, None)]

    def head(self, ops: Iterable[Op]) -> list[Work]:
        """All work of the head, on the positions whose logits are made; none where none are."""
        if self.workload.unpredicted == 1.0:
            return []
        predicted = np.asarray(self.layout.micro_batch) * (1.0 - self.workload.unpredicted)
        return Sharder(self.workload, replace(self.layout, micro_batch=predicted)).end(ops)

    def op(self, op: Op, block: Block | None) -> list[Work]:
        """All work of one operator."""
        work = list(self._work(op, block))
        return [piece for piece in work if piece.phase is Phase.FORWARD] if op.frozen else work

    # tokens and widths -------------------------------------------------------------------------

    def _seq_len(self, block: Block | None) -> float:
        encoder = block is not None and block.encoder and self.workload.encoder_seq_len
        return float(self.workload.encoder_seq_len or 0) if encoder else float(self.workload.seq_len)

    def _rows(self, op: Op, block: Block | None) -> Number:
        seq_len = self._seq_len(block)
        if (
            isinstance(op, LinearOp) and op.cross and self.workload.encoder_seq_len
        ):  # keys and values of the encoder's tokens
            seq_len = float(self.workload.encoder_seq_len)
        if op.region is Region.SEQUENCE:
            return self.layout.sequence_tokens(seq_len)
        if op.region is Region.EXPERT:
            assert block is not None
            return self.layout.expert_rows(seq_len, block.top_k) * self.workload.expert_capacity
        return self.layout.tokens(seq_len)

    def _width_share(self, op: Op) -> Number:
        if op.region is Region.EXPERT:
            return 1 / np.asarray(self.layout.etp)
        return 1.0 if op.region is Region.SEQUENCE else 1 / np.asarray(self.layout.tp)

    def _work(self, op: Op, block: Block | None) -> Iterable[Work]:
        match op:
            case ConvolutionOp() if op.pixelwise:
                return convolution(op, self.precision, pixels=self._rows(op, block) * op.rows)
            case RecurrentOp():
                return recurrence(op, self.precision, rows=self._rows(op, block) * op.rows)
            case GemmOp():
                return self._gemm(op, block)
            case GroupedGemmOp():
                return self._grouped_gemm(op, block)
            case AttentionOp():
                return self._attention(op, block)
            case ElementwiseOp():
                return self._elementwise(op, block)
            case ScanOp():
                return scan(op, self.precision, rows=self._rows(op, block) * self._width_share(op))
            case SparseTableOp():
                return tables(op, self.precision, tokens=self.layout.tokens(1.0))
            case EmbeddingOp():
                return self._embedding(op, block)
            case CrossEntropyOp():
                return self._cross_entropy(op, block)
        raise TypeError(f"no work is known for {type(op).__name__}")

    # operators ---------------------------------------------------------------------------------

    def _gemm(self, op: GemmOp, block: Block | None) -> Iterable[Work]:
        degree = self.layout.tp
        n = op.n / degree if op.split is Split.COLUMN else op.n
        k = op.k / degree if op.split is Split.ROW else op.k
        return self._gemm_passes(op, m=self._rows(op, block), n=n, k=k, count=1)

    def _grouped_gemm(self, op: GroupedGemmOp, block: Block | None) -> Iterable[Work]:
        assert block is not None
        local_experts = np.maximum(1, block.experts / np.asarray(self.layout.ep))
        rows = self._rows(op, block)
        n = op.n / self.layout.etp if op.split is Split.COLUMN else op.n
        k = op.k / self.layout.etp if op.split is Split.ROW else op.k
        return self._gemm_passes(op, m=rows / local_experts, n=n, k=k, count=local_experts)

    def _gemm_passes(self, op: LinearOp, *, m: Number, n: Number, k: Number, count: Number) -> Iterable[Work]:
        precision = self.precision
        frozen = not trains(op, self.workload)
        dequantized = k * n if self.quantized_base and op.lora else 0
        piece = partial(Gemm, count=count, quantized=narrowed(op, precision), kernels=float(op.kernels))
        routed, dropless = op.region is Region.EXPERT, self.workload.expert_capacity <= 1.0
        piece = partial(piece, routed=routed, uneven=routed and dropless, together=self.chains.together())
        thin = partial(piece, name=op.name, output_bytes=precision.activation_bytes, weight_rows=dequantized)
        layouts, own = 1 if frozen else 2, op.formats  # gradients of weights need inputs and gradients transposed
        yield thin(phase=Phase.FORWARD, m=m, n=n, k=k, cast_layouts=layouts, form=own.forward)
        yield thin(phase=Phase.BACKWARD_INPUT, m=m, n=k, k=n, cast_layouts=layouts, form=own.inputs)
        yield from made_of_weight(op, precision, numbers=k * n * count)
        if op.constant:
            return
        if not frozen:
            weight = partial(piece, name=op.name, output_bytes=precision.grad_bytes, accumulate=True, cast_layouts=0)
            yield weight(phase=Phase.BACKWARD_WEIGHT, m=k, n=n, k=m, form=own.weights)
            incoming = np.asarray(m) * n * count
            if pruned := own.gradient_bytes:
                yield Stream(name=f"{op.name}.format", phase=Phase.BACKWARD_WEIGHT, bytes=incoming * pruned)
            if op.params > op.k * op.n:  # a bias: its gradient sums the incoming one over all rows
                yield Stream(
                    name=f"{op.name}.bias", phase=Phase.BACKWARD_WEIGHT, bytes=incoming * precision.activation_bytes,
                    function="bias", elements=incoming,
                )  # fmt: skip
        elif adapted(op, self.workload):
            yield from self._adapter(op, m=m, n=n, k=k, count=count)

    def _adapter(self, op: LinearOp, *, m: Number, n: Number, k: Number, count: Number) -> Iterable[Work]:
        """Two thin products for each adapter, and passes over its inputs and results."""
        rank, parts = self.workload.lora_rank, adapters(op, self.workload)
        size = self.precision.activation_bytes
        for name, k_in, n_out in ((f"{op.name}.lora_a", k, rank), (f"{op.name}.lora_b", rank, n / parts)):
            piece = partial(Gemm, name=name, count=count * parts, output_bytes=size, kernels=float(parts))
            yield piece(phase=Phase.FORWARD, m=m, n=n_out, k=k_in)
            yield piece(phase=Phase.BACKWARD_INPUT, m=m, n=k_in, k=n_out)
            yield piece(phase=Phase.BACKWARD_WEIGHT, m=k_in, n=n_out, k=m)
        yield from self._adapter_passes(op, parts=parts, inputs=m * count * k, results=m * count * n)

    def _adapter_passes(self, op: LinearOp, *, parts: int, inputs: Number, results: Number) -> Iterable[Work]:
        """Passes over elements of an adapter's `inputs` and `results`.

        Sequence parallelism keeps results of row-parallel layers in shards, and inputs of column-parallel ones where
        the gathers of products hide behind them; elsewhere adapters read what was gathered (NVIDIA/NeMo,
        return_layernorm_output_gathered). Forward the result is scaled, and added to the product's; backward its
        gradient is scaled, and that of the input added. Compiled programs scale on the way. Dropout reads and writes
        inputs and writes a mask of a byte.
        """
        layout, size = self.layout, self.precision.activation_bytes
        shards = np.where(layout.sequence_parallel, layout.tp, 1)
        if op.split is Split.COLUMN:
            inputs = inputs / np.where(layout.overlap_tensor, shards, 1)
        if op.split is Split.ROW:
            results = results / shards
        inputs = inputs * parts
        compiled = self.workload.execution == "compiled" and not self.workload.policy.hand_fused
        scaled, kernels = (0.0, 1.0) if compiled else (2.0, 2.0)
        passes = partial(Stream, name=f"{op.name}.lora_sum", kernels=kernels * parts)
        yield passes(phase=Phase.FORWARD, bytes=size * (scaled + 3.0) * results)
        yield passes(phase=Phase.BACKWARD_INPUT, bytes=size * (scaled * results + 3.0 * inputs))
        if self.workload.lora_dropout:
            for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT):
                dropped = (2.0 * size + 1.0) * inputs
                yield Stream(name=f"{op.name}.lora_dropout", phase=phase, bytes=dropped, kernels=float(parts))

    def _attention(self, op: AttentionOp, block: Block | None) -> Iterable[Work]:
        layout, workload = self.layout, self.workload
        if op.index_heads or op.near:
            raise PlanError("model: attention to keys that an indexer chooses is served, not trained; no plan")
        if op.positions:
            yield from self._own_attention(op, block)
            return
        queries = self._seq_len(block)
        keys = float(workload.encoder_seq_len or workload.seq_len) if op.cross else queries
        context = mean_context(op, keys)
        keys = keys / (op.ratio or 1)  # entries
        if workload.mean_document is not None and not op.cross:  # packed documents do not see each other
            context = min(context, (workload.mean_document + 1) / 2 if op.causal else workload.mean_document)
        fused = workload.attention_kernel != "unfused"
        by_heads = layout.with_style(lambda style: style.by_heads)
        head_share = layout.tp * np.where(by_heads, layout.cp, 1)
        token_share = np.where(by_heads, 1, layout.cp)
        for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT):
            yield Attention(
                name=op.name,
                phase=phase,
                sequences=layout.micro_batch,
                heads=op.heads / head_share,
                kv_heads=np.maximum(1, op.kv_heads / head_share),
                q_tokens=queries / token_share,
                kv_tokens=keys,
                mean_context=context,
                qk_dim=op.qk_dim,
                v_dim=op.v_dim,
                fused=fused,
                chained=self.eager,
                dropout=self._drops(op),
                kernels=float(op.kernels),
            )
        yield from context_exchange(op, layout, self.precision, queries=queries)

    def _drops(self, op: AttentionOp) -> bool:
        """Whether scores are dropped: as the model says where operators run one by one, else as was usual with them."""
        return not self.eager or any(saved.times_seq and saved.element_bytes == MASK_BYTES for saved in op.saved)

    def _own_attention(self, op: AttentionOp, block: Block | None) -> Iterable[Work]:
        """Queries that attend to positions of their own number: an image's pixels, a memory before the sequence."""
        for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT):
            yield Attention(
                name=op.name, phase=phase, sequences=self.layout.micro_batch, heads=op.heads, kv_heads=op.kv_heads,
                q_tokens=op.rows * self._seq_len(block), kv_tokens=float(op.positions),
                mean_context=float(op.positions), qk_dim=op.qk_dim, v_dim=op.v_dim,
                fused=self.workload.attention_kernel != "unfused", chained=self.eager, kernels=float(op.kernels),
            )  # fmt: skip

    def _elementwise(self, op: ElementwiseOp, block: Block | None) -> Iterable[Work]:
        rows = self._rows(op, block) * self._width_share(op)
        size = self.precision.activation_bytes
        forward, backward = op.read + op.write, op.backward_read + op.backward_write
        if self.eager:  # every kernel of an unfused chain reads and writes the width
            forward = max(forward, 2 * op.kernels * op.write)
            backward = max(backward, 2 * op.kernels * op.backward_write)
        cast = cast_to_keep(op, self.workload, self.precision)
        flop = rows * op.flop_per_token
        fused = op.pieces * (float(op.kernels if self.eager else 1) + float(cast > 0))
        routed = op.region is Region.EXPERT
        piece = partial(Stream, name=op.name, function=op.function, elements=rows * op.write, routed=routed)
        yield piece(
            phase=Phase.FORWARD, bytes=rows * (forward * size + cast), flop=flop,
            kernels=self.chains.kernels(op, block, "forward", fused), calls=self.chains.calls(op, "forward"),
        )  # fmt: skip
        if backward:
            yield piece(
                phase=Phase.BACKWARD_INPUT, bytes=rows * ((backward + self.chains.summed(op, block)) * size + cast),
                flop=2 * flop, kernels=self.chains.kernels(op, block, "backward", fused),
                calls=self.chains.calls(op, "backward"),
            )  # fmt: skip

    def _embedding(self, op: EmbeddingOp, block: Block | None) -> Iterable[Work]:
        tokens = self.layout.tokens(self._seq_len(block))
        # autocast leaves a lookup in the format of its table; PyTorch, autocast op reference
        size = max(self.precision.activation_bytes, self.precision.weight_bytes)
        chain = "embed_tokens" if op.tokens else ""
        kernels, calls = (self.chains.counted(f"{chain}.{what}", n) for what, n in (("forward", 1.0), ("calls", 0.0)))
        piece = partial(Stream, name=op.name, function="embedding", elements=tokens * op.k)
        yield piece(phase=Phase.FORWARD, bytes=tokens * op.k * 2 * size, kernels=kernels, calls=calls)
        if not self.adapters:  # read the incoming gradient, add it to rows of the weight gradient
            grad = 2 * self.precision.grad_bytes / np.asarray(self.layout.tp)
            table = op.n * op.k / np.asarray(self.layout.tp if op.params_split else 1.0)
            yield piece(phase=Phase.BACKWARD_WEIGHT, bytes=tokens * op.k * (size + grad), table=table)

    def _cross_entropy(self, op: CrossEntropyOp, block: Block | None) -> Iterable[Work]:
        logits = self.layout.tokens(self._seq_len(block)) * op.n / self.layout.tp
        forward, backward = _CROSS_ENTROPY_UNFUSED if self.unfused_loss else _CROSS_ENTROPY_FUSED
        kernels = 6.0 if self.unfused_loss else 2.0
        piece = partial(Stream, name=op.name, function="cross_entropy", elements=logits)
        yield piece(
            phase=Phase.FORWARD,
            bytes=logits * forward,
            kernels=self.chains.counted("cross_entropy.forward", kernels),
            calls=self.chains.counted("cross_entropy.calls", 0.0),
        )
        yield piece(
            phase=Phase.BACKWARD_INPUT,
            bytes=logits * backward,
            kernels=self.chains.counted("cross_entropy.backward", kernels / 2),
        )

    # collectives -------------------------------------------------------------------------------

    def _boundary(self, boundary: Boundary, block: Block) -> list[Work]:
        layout, size = self.layout, self.precision.activation_bytes
        seq_len = self._seq_len(block)
        if boundary.kind == "tables":
            traded = partial(Collective, name="moe.tables", kind=CollectiveKind.ALL_TO_ALL, stride=layout.etp)
            moved = layout.tokens(seq_len) * boundary.width * size
            return [
                traded(phase=phase, bytes=moved, ranks=layout.ep) for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT)
            ]
        if boundary.kind == "expert":
            return self._exchanged(boundary, block, seq_len)
        whole = layout.tokens(seq_len) * boundary.width * size
        parallel = np.where(layout.sequence_parallel, layout.tp, 1)
        repeated = np.where(layout.sequence_parallel, 1, layout.tp)
        work: list[Work] = []
        for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT):
            for kind, ranks in (
                (CollectiveKind.ALL_GATHER, parallel),
                (CollectiveKind.REDUCE_SCATTER, parallel),
                (CollectiveKind.ALL_REDUCE, repeated),
            ):
                one = Collective(
                    name=f"tensor.{kind.value}", phase=phase, kind=kind, bytes=whole, ranks=ranks, stride=1,
                    hidden_behind="gemm", hidden=layout.overlap_tensor,
                )  # fmt: skip
                work.append(one)
        # backward gathers the saved input shards again for the weight gradient, under a product
        if not self.adapters:
            work.append(
                Collective(
                    name="tensor.regather",
                    phase=Phase.BACKWARD_WEIGHT,
                    kind=CollectiveKind.ALL_GATHER,
                    bytes=whole,
                    ranks=parallel,
                    stride=1,
                    hidden_behind="gemm",
                )
            )
        return work

    def _exchanged(self, boundary: Boundary, block: Block, seq_len: float) -> list[Work]:
        """Rows sent to their experts and back, and backward again; or all tokens gathered and their sums scattered.

        Ranks that divide an expert gather each other's rows once these have come, and scatter their sums before they
        go back (Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py).
        """
        layout, etp = self.layout, self.layout.etp
        size = layout.tokens(seq_len) / layout.tp * boundary.width * self.precision.activation_bytes
        rows = size * block.top_k * self.workload.expert_capacity
        both = (("gather", CollectiveKind.ALL_GATHER), ("scatter", CollectiveKind.REDUCE_SCATTER))
        made: list[tuple[str, CollectiveKind, Number, Number, Number]]
        if self.workload.expert_dispatch == "allgather":
            ranks = np.asarray(layout.ep) * etp
            made = [(way, kind, size * ranks, ranks, 1) for way, kind in both]
        else:
            made = [(way, CollectiveKind.ALL_TO_ALL, rows, layout.ep, etp) for way in ("dispatch", "combine")]
            made += [(f"shared_{way}", kind, rows * etp, etp, 1) for way, kind in both if np.max(etp) > 1]
        copies = block.top_k if self.workload.expert_dispatch in ONCE_A_NODE else 0.0
        exchange = partial(Collective, copies=copies, nodes_chosen=block.groups_chosen)
        return [
            exchange(name=f"moe.{way}", phase=phase, kind=kind, bytes=moved, ranks=ranks, stride=stride)
            for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT)
            for way, kind, moved, ranks, stride in made
        ] + self.chains.sorted_chunks(block, rows * etp)
