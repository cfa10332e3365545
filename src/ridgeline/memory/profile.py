"""Numbers of a graph that memory depends on, summed once so that a plan costs a few array operations.

Shape letters: T tokens, S sequence, D hidden, V vocabulary, E experts, r adapter rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import AttentionOp, ElementwiseOp, EmbeddingOp, GemmOp, LinearOp, Op, Region, Saved, Split
from ridgeline.graph.parts import MASK_BYTES, feeds_forward, narrowed
from ridgeline.graph.workload import PRECISIONS, Precision, Task, Workload
from ridgeline.lower.params import adapted, adapters, optimizer_states, quantized_base, trained_tensors, trains
from ridgeline.memory.runtime import Runtime, runtime_of
from ridgeline.seams.recompute import RESULTS, RecomputeRule
from ridgeline.seams.states import OptimizerStates

CONSTANT_BYTES = 0.127 / 8  # doubly quantized block constants, arXiv:2305.14314 section 3
NF4_BYTES = 0.5 + CONSTANT_BYTES  # 4-bit NormalFloat
FP32_BYTES = 4.0
EIGHT_BIT_BYTES = 1.0  # recipes that cast GEMM operands keep the 8-bit copy of the input alone (Transformer Engine)


@dataclass(frozen=True, kw_only=True)
class Divided:
    """Numbers or bytes by how ranks divide them.

    `dense` splits over tp; `repeated` over nothing; `expert` over ep * etp; `expert_repeated` over
    ep alone.
    """

    dense: float = 0.0
    repeated: float = 0.0
    expert: float = 0.0
    expert_repeated: float = 0.0

    def plus(self, op: Op, count: float) -> Divided:
        """This sum with `count` more numbers, divided as the weight of `op` is."""
        if op.region is Region.EXPERT:
            name = "expert" if op.params_split else "expert_repeated"
        else:
            name = "dense" if op.params_split else "repeated"
        return replace(self, **{name: getattr(self, name) + count})

    @property
    def total(self) -> float:
        """All ranks together [1]."""
        return self.dense + self.repeated + self.expert + self.expert_repeated


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes per token of one layer [byte/token], by region."""

    sequence: float = 0.0
    tensor: float = 0.0
    vocab: float = 0.0
    expert: float = 0.0

    def plus(self, region: Region, value: float) -> Kept:
        """This sum with `value` more bytes per token in `region`."""
        return replace(self, **{region.value: getattr(self, region.value) + value})


@dataclass(frozen=True, kw_only=True)
class KeptTensor:
    """A tensor that may wait for backward [byte/token]; `role` is what a rule of recompute is asked about."""

    role: str
    region: Region
    bytes: float


@dataclass(frozen=True, kw_only=True)
class PartMemory:
    """What memory needs to know of one block kind, of the embedding or of the head.

    `trained` numbers carry gradients and optimizer states; `frozen` ones are held in the activation format,
    `quantized` ones in NF4 (QLoRA) or in 8 bits (a frozen base under an 8-bit recipe). `formats` are bytes that
    products in formats of their own hold besides, `states` those that the optimizer keeps of the trained ones.
    `tensors` are what a forward makes that may wait for backward; of them `inputs` are those of 4-bit products, where
    held. `backward` is the widest operator's gradients in flight, per token, `beside_mlp` that but for feed-forwards.
    `largest` is the biggest linear weight [1], whose gradient or dequantized copy passes; `made` waits for backward.
    """

    trained: Divided = Divided()
    frozen: Divided = Divided()
    quantized: Divided = Divided()
    formats: Divided = Divided()
    states: Divided = Divided()
    tensors: tuple[KeptTensor, ...] = ()
    inputs: Kept = Kept()
    backward: Kept = Kept()
    beside_mlp: Kept = Kept()
    largest: Divided = Divided()
    made: Divided = Divided()
    tokens_factor: float = 1.0
    top_k: float = 1.0
    _kept: dict[RecomputeRule | None, Kept] = field(init=False, default_factory=dict, compare=False, repr=False)

    def kept(self, rule: RecomputeRule | None = None) -> Kept:
        """Bytes per token that wait for backward under a rule of recompute, all that is saved without [byte/token]."""
        if rule not in self._kept:
            found = Kept()
            for one in self.tensors:
                if share := float(one.role not in RESULTS) if rule is None else rule.stays(one.role):
                    found = found.plus(one.region, share * one.bytes)
            self._kept[rule] = found
        return self._kept[rule]


@dataclass(frozen=True, kw_only=True)
class GraphProfile:
    """A graph and a workload as sums.

    `table` is the embedding table that the last stage repeats when embeddings are tied.
    """

    blocks: dict[str, PartMemory]
    embedding: PartMemory
    head: PartMemory
    table: PartMemory
    hidden: int
    vocab: int
    precision: Precision
    optimizer: OptimizerStates
    adapters: bool
    quantized_bytes: float
    dequantizes: bool
    eager: bool
    grouped: bool  # whether products of experts are grouped
    square_roots: bool  # whether an update makes those of all second moments at once


def named_precision(name: str) -> Precision:
    """The precision recipe called `name`."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


@dataclass(kw_only=True)
class _Builder:
    """Sums one part, operator by operator."""

    workload: Workload
    precision: Precision
    optimizer: OptimizerStates
    runtime: Runtime
    experts: int = 0
    encoder: bool = False
    part: PartMemory = field(default_factory=PartMemory)

    def run(self, ops: Iterable[Op]) -> PartMemory:
        """The sums over `ops`."""
        for op in ops:
            for add in (self._weights, self._kept, self._transients):
                add(op)
        return self.part

    def _quantized(self, op: Op) -> bool:
        """Whether the op's frozen weight is held in few bits by this program."""
        head = isinstance(op, LinearOp) and op.region is Region.VOCAB and self.workload.task is Task.QLORA
        return quantized_base(op, self.workload) or (head and self.runtime.quantized_head)

    def _adapters(self, op: Op) -> int:
        """Low-rank adapters on this weight [1]."""
        return adapters(op, self.workload) if isinstance(op, LinearOp) and adapted(op, self.workload) else 0

    def _weights(self, op: Op) -> None:
        if not op.params or (op.tied and self.runtime.ties_embeddings):
            return
        copies = self.experts if op.region is Region.EXPERT else 1
        count = float(op.params * copies)
        made = count * op.made.held_bytes if isinstance(op, LinearOp) and op.made else 0.0
        self.part = part = replace(self.part, made=self.part.made.plus(op, made))
        tensors = trained_tensors(op, self.workload)
        states = part.states.plus(op, sum(map(self.optimizer.state_bytes, tensors)) * copies)
        if isinstance(op, LinearOp) and (each := op.formats.more_bytes(self.precision.weight_bytes)):
            part = replace(part, formats=part.formats.plus(op, min(op.k * op.n, op.params) * copies * each))
        if trains(op, self.workload):
            self.part = replace(part, trained=part.trained.plus(op, count), states=states)
            return
        parts = self._adapters(op)
        adapter = 0.0
        if parts and isinstance(op, LinearOp):
            adapter = float(self.workload.lora_rank * (op.k * parts + op.n) * copies)
        quantized = self._quantized(op)
        self.part = replace(
            part,
            trained=part.trained.plus(op, adapter),
            states=states,
            frozen=part.frozen.plus(op, 0.0 if quantized else count),
            quantized=part.quantized.plus(op, count if quantized else 0.0),
        )

    def _kept(self, op: Op) -> None:
        parts = self._adapters(op)
        trained = trains(op, self.workload)
        keep_input = trained or (parts > 0 and not self.workload.lora_dropout)
        held = self.runtime.held_inputs > 0 and self.workload.task is Task.QLORA and self._quantized(op)
        wide = self.runtime.autocast and self.precision.weight_bytes > self.precision.activation_bytes
        wide = wide and (self.runtime.frozen_as_trained or self.workload.task not in (Task.LORA, Task.QLORA))
        kernel = "unfused" if self.workload.attention_kernel == "unfused" else "flash"
        for saved in op.saved:
            if saved.role == "logits" or saved.kernel not in ("", kernel):
                continue  # logits have a category of their own
            if isinstance(op, LinearOp) and not (keep_input or held) and saved.role != "input":
                continue  # the input of a frozen linear layer only serves its weight's gradient
            if isinstance(op, LinearOp) and trained and narrowed(op, self.precision) and not saved.role:
                saved = replace(saved, element_bytes=EIGHT_BIT_BYTES)
            if saved.role in ("input", "norm") and saved.element_bytes is None and wide:
                saved = replace(saved, element_bytes=FP32_BYTES)
            if wide and isinstance(op, GemmOp) and not saved.role:  # each projection casts the fp32 norm for itself
                saved = replace(saved, elements=saved.elements * op.parts)
            if saved.role == "mlp" and self.runtime.mlp_input_bytes is not None:
                saved = replace(saved, element_bytes=self.runtime.mlp_input_bytes)
            self._keep(op, saved, quantized_input=held)
        if parts and isinstance(op, LinearOp):
            self._keep_adapters(op, parts)
        if self.workload.execution == "eager":
            self._keep_eager(op)
        self._keep_results(op)

    def _keep_adapters(self, op: LinearOp, parts: int) -> None:
        """What adapters keep: their narrow results and, where they drop elements, what is left of inputs and a mask.

        Adapters multiply in the activation format, whatever the base does. Each has a mask of its own.
        """
        self._keep(op, Saved(elements=float(self.workload.lora_rank * parts), region=op.region))
        if not self.workload.lora_dropout:
            return
        row = op.split is Split.ROW and op.region is Region.TENSOR
        region = op.region if row or op.region is not Region.TENSOR else Region.SEQUENCE
        width = self.precision.activation_bytes + MASK_BYTES
        self._keep(op, Saved(elements=float(op.k * parts), region=region, element_bytes=width))

    def _keep_eager(self, op: Op) -> None:
        """What eager mode keeps between the kernels that a fused operator would be.

        A gated activation keeps act(gate) beside gate and up. A norm done in fp32 by hand keeps the
        fp32 copy in place of its input, and the normalised values. A softmax in fp32 keeps its result beside the copy
        that multiplies values.
        """
        if isinstance(op, AttentionOp) and self._wide_scores():
            scores = Saved(elements=op.heads, region=op.region, element_bytes=FP32_BYTES, role="core", times_seq=True)
            self._keep(op, scores)
            if self.runtime.wide_scores:  # transformers, repeat_kv: keys and values once for each head
                repeats = max(0, op.heads - op.kv_heads) * (op.qk_dim + op.v_dim)
                self._keep(op, Saved(elements=repeats, region=op.region))
        if not isinstance(op, ElementwiseOp) or op.kernels < 2 or not op.saved:
            return
        role = op.saved[0].role
        if role == "mlp" and op.saved[0].elements > op.write:
            self._keep(op, Saved(elements=op.write, region=op.region, role="mlp"))
        elif role in ("norm", "input"):
            self._keep(op, Saved(elements=op.write, region=op.region, element_bytes=FP32_BYTES, role="norm"))

    def _wide_scores(self) -> bool:
        """Whether attention goes operator by operator and its softmax is in fp32: the program's own, or autocast's."""
        if self.workload.attention_kernel != "unfused" or self.workload.execution != "eager":
            return False
        cast = self.runtime.autocast and self.precision.weight_bytes > self.precision.activation_bytes
        return self.precision.activation_bytes < FP32_BYTES and (cast or self.runtime.wide_scores)

    def _keep_results(self, op: Op) -> None:
        """Results of products and attention, which a rule of recompute may keep."""
        width = self.precision.activation_bytes
        if isinstance(op, LinearOp) and op.region is not Region.VOCAB:
            region = Region.SEQUENCE if op.split is Split.ROW and op.region is Region.TENSOR else op.region
            self._list(KeptTensor(role="product", region=region, bytes=op.n * width))
        elif isinstance(op, AttentionOp):
            self._list(KeptTensor(role="attention", region=op.region, bytes=op.heads * op.v_dim * width))

    def _list(self, tensor: KeptTensor) -> None:
        self.part = replace(self.part, tensors=(*self.part.tensors, tensor))

    def _keep(self, op: Op, saved: Saved, *, quantized_input: bool = False) -> None:
        width = self.precision.activation_bytes if saved.element_bytes is None else saved.element_bytes
        value = saved.elements * width
        encoder_tokens = self.workload.encoder_seq_len or self.workload.seq_len
        if saved.times_seq:
            across = self.encoder or (isinstance(op, AttentionOp) and op.cross)
            value *= encoder_tokens if across else self.workload.seq_len
        elif isinstance(op, LinearOp) and op.cross:
            value *= encoder_tokens / self.workload.seq_len
        self._list(KeptTensor(role=saved.role, region=saved.region, bytes=value))
        if quantized_input:
            self.part = replace(self.part, inputs=self.part.inputs.plus(saved.region, value))

    def _transients(self, op: Op) -> None:
        width, part = self.precision.activation_bytes, self.part
        wide: Kept | None = None
        if isinstance(op, LinearOp) and op.region is not Region.VOCAB:
            whole, split = (op.n, op.k) if op.split is Split.ROW else (op.k, op.n)
            region = Region.EXPERT if op.region is Region.EXPERT else Region.TENSOR
            wide = Kept().plus(Region.SEQUENCE, whole * width).plus(region, split * width)
            if op.k * op.n * max(1, self.experts if op.region is Region.EXPERT else 1) > part.largest.total:
                copies = self.experts if op.region is Region.EXPERT else 1
                self.part = part = replace(part, largest=Divided().plus(op, float(op.k * op.n * copies)))
        elif isinstance(op, ElementwiseOp) and op.region in (Region.TENSOR, Region.EXPERT):
            wide = Kept().plus(op.region, (op.write + op.backward_write) * width)
        elif isinstance(op, AttentionOp) and self.workload.attention_kernel == "unfused":
            scores = op.heads * (self.workload.seq_len if not self.encoder else self._encoder_tokens())
            # gradients of the probabilities and of the scores; in fp32 the copy that multiplied values has gone by then
            each = 2.0 * FP32_BYTES - width if self._wide_scores() else 2.0 * width
            wide = Kept().plus(Region.TENSOR, each * scores)
        if wide is not None and _sum(wide) > _sum(part.backward):
            self.part = part = replace(part, backward=wide)
        if wide is not None and _sum(wide) > _sum(part.beside_mlp) and not feeds_forward(op):
            self.part = replace(part, beside_mlp=wide)

    def _encoder_tokens(self) -> int:
        return self.workload.encoder_seq_len or self.workload.seq_len


def _sum(kept: Kept) -> float:
    return kept.sequence + kept.tensor + kept.vocab + kept.expert


def _gradient_bytes(precision: Precision, runtime: Runtime) -> float:
    """Bytes of a gradient: the program's own beside a master copy, at least those of weights without [byte]."""
    own = runtime.gradient_bytes
    return precision.grad_bytes if own is None else max(own, 0.0 if precision.master_bytes else precision.weight_bytes)


def profile_graph(graph: Graph, workload: Workload, runtime: Runtime | None = None) -> GraphProfile:
    """Sums of `graph` under `workload` and `runtime`: what a stage's bytes are made of.

    Frozen linear layers without an adapter do not keep their input: it only serves the gradient of
    their own weight. Norms, activations and attention keep theirs, for the gradient passes through.
    `runtime` is by default that of the workload's framework.
    """
    runtime = runtime_of(workload.policy) if runtime is None else runtime
    precision, optimizer = named_precision(workload.precision), optimizer_states(workload)
    precision = replace(
        precision,
        weight_bytes=precision.weight_bytes if runtime.weight_bytes is None else runtime.weight_bytes,
        grad_bytes=_gradient_bytes(precision, runtime),
    )

    def part(ops: Iterable[Op], experts: int = 0, *, encoder: bool = False) -> PartMemory:
        builder = _Builder(
            workload=workload, precision=precision, optimizer=optimizer, runtime=runtime, experts=experts,
            encoder=encoder,
        )  # fmt: skip
        return builder.run(ops)

    def block_part(block: Block) -> PartMemory:
        sums = part(block.ops, block.experts, encoder=block.encoder)
        encoder_tokens = workload.encoder_seq_len or workload.seq_len
        factor = encoder_tokens / workload.seq_len if block.encoder else 1.0
        return replace(sums, tokens_factor=factor, top_k=max(1, block.top_k) * workload.expert_capacity)

    tables = [op for op in graph.embedding if isinstance(op, EmbeddingOp) and op.n == graph.vocab]
    tied = graph.tied_embeddings and runtime.ties_embeddings
    return GraphProfile(
        blocks={name: block_part(block) for name, block in graph.blocks.items()},
        embedding=part(graph.embedding),
        head=part(graph.head),
        table=part(replace(op, saved=()) for op in tables[:1]) if tied else PartMemory(),
        hidden=graph.hidden,
        vocab=graph.vocab,
        precision=precision,
        optimizer=optimizer,
        adapters=workload.task in (Task.LORA, Task.QLORA),
        dequantizes=workload.task is Task.QLORA,
        eager=workload.execution == "eager",
        square_roots=optimizer.two_moments and not (workload.fused_optimizer or workload.looped_optimizer),
        grouped=any(block.experts for block in graph.blocks.values()),
        quantized_bytes=(runtime.quantized_bytes or NF4_BYTES) if workload.task is Task.QLORA else EIGHT_BIT_BYTES,
    )
