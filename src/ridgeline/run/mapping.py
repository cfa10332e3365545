"""From a plan to what runs it: the one place where a plan's words become degrees, groups and schedules of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import ModelError, PlanError, WorkloadError
from ridgeline.facts.frameworks import FrameworkPolicy, framework_policy
from ridgeline.graph.model import Block, Model
from ridgeline.graph.ops import ElementwiseOp, EmbeddingOp, GroupedGemmOp, LinearOp, NormOp, OpRole
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan

PRECISIONS = ("fp32", "bf16", "bf16-pure", "bf16-amp")
OPTIMIZERS = ("adamw", "adamw-bf16", "adam", "sgd", "sgd-momentum")
_IN_WEIGHTS_FORMAT = {"adamw": "adamw-bf16", "adam": "adamw-bf16"}  # PyTorch keeps moments as the weights are
_SCHEDULES = ("gpipe", "1f1b")
_KNOWN_OPS = frozenset({
    "attention_norm", "qkv", "q", "q_down", "q_norm", "q_up", "kv_down", "kv_norm", "kv_up", "rotary",
    "attention", "attention_out", "attention_residual", "mlp_norm", "mlp_up",
    "mlp_activation", "mlp_down", "mlp_residual", "router", "route", "dispatch", "experts_up", "experts_activation",
    "experts_down", "combine", "shared_up", "shared_activation", "shared_down", "shared_add",
    "embed_tokens", "embed_positions", "embed_sum", "final_norm", "lm_head", "cross_entropy",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """A decoder's dimensions as its graph has them; every weight of the graph is a weight of the model that runs.

    `norm` is 'rms' or 'layer', `rotary` whether queries and keys turn, `positions` rows of a learned table or 0;
    a bias is said for qkv, attention output and MLP apart. `experts` 0 is a dense MLP. `kv_rank` above 0 is latent
    attention: keys of `head_dim` of which `rope_dim` turn and are shared by all heads, values of `v_dim`, queries over
    a latent of `q_rank` where that is not 0. `shared_ffn` is the width of the experts that every token visits.
    """

    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    activation: str
    norm: str
    rotary: bool
    positions: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    experts: int = 0
    top_k: int = 0
    shared_ffn: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What every rank is told: the model, its degrees, how states are divided, and the step.

    `data` names the library that exchanges gradients and states: '' (one rank), 'ddp', 'all-reduce' (after
    backward, where DDP cannot be combined), 'zero-1' (DDP and ZeroRedundancyOptimizer), 'all-reduce-1' (that optimizer
    after the all-reduce), 'shard-2' and 'shard-3' (`fully_shard`, weights kept or freed between forward and backward).
    """

    shape: DecoderShape
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int = 1
    data: str
    sequence_parallel: bool
    micro_batch: int
    micro_batches: int
    schedule: str
    layer_split: tuple[int, ...]
    recompute: str
    seq_len: int
    precision: str
    optimizer: str
    fused_optimizer: bool = True

    @property
    def ranks(self) -> int:
        """Processes that run it [1]."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def one_group(self) -> bool:
        """Whether every collective is of all ranks: one degree alone is more than one."""
        spread = self.ep not in (1, self.ranks) or (self.shape.tied and self.pp > 2)  # or only its ends share weights
        return self.ranks in (self.tp, self.pp, self.cp, self.dp) and not spread

    @property
    def policy(self) -> FrameworkPolicy:
        """How the run holds memory and copies: as the library that it calls, but for what it does itself.

        An update reads gradients once: no norm is taken, and they are freed. Selective recompute is that of attention.
        """
        if self.data.startswith("shard"):
            return replace(framework_policy("FSDP2"), gradient_passes=1.0, selective="core-attention")
        if self.data in ("ddp", "zero-1"):
            return replace(framework_policy("DDP"), gradient_passes=1.0, persistent_gradients=False)
        return replace(framework_policy("plain PyTorch"), gradient_passes=1.0)


def as_it_runs(workload: Workload) -> Workload:
    """The workload with its moments in the format in which PyTorch keeps them: that of the weights."""
    if workload.precision != "bf16-pure":
        return workload
    return replace(workload, optimizer=_IN_WEIGHTS_FORMAT.get(workload.optimizer, workload.optimizer))


def execution_of(model: Model, workload: Workload, plan: Plan) -> Execution:
    """The execution of a plan; raises PlanError, ModelError or WorkloadError for what has no way to run here."""
    shape = shape_of(model)
    _check_workload(workload)
    _check_plan(plan, shape, workload)
    return Execution(
        shape=shape,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        dp=plan.dp,
        ep=plan.ep,
        data=_data(plan),
        sequence_parallel=plan.sequence_parallel and plan.tp > 1,
        micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches(workload.global_batch),
        schedule=plan.schedule,
        layer_split=plan.layer_split or _even(shape.layers, plan.pp),
        recompute=plan.recompute,
        seq_len=workload.seq_len,
        precision=workload.precision,
        optimizer=workload.optimizer,
        fused_optimizer=workload.fused_optimizer,
    )


def _even(layers: int, stages: int) -> tuple[int, ...]:
    from ridgeline.lower.split import even_split

    return tuple(even_split(layers, stages))


def _data(plan: Plan) -> str:
    if plan.dp * plan.cp == 1:
        return ""
    if plan.zero >= 2:
        return f"shard-{plan.zero}"
    if plan.zero == 1:
        return "zero-1" if plan.tp * plan.pp == 1 else "all-reduce-1"
    return "ddp" if plan.tp * plan.pp * plan.ep == 1 else "all-reduce"


def _check_workload(workload: Workload) -> None:
    if workload.task not in (Task.PRETRAIN, Task.FULL):
        raise WorkloadError(f"task = {workload.task.value} is not run here; needs pretrain or full")
    if workload.precision not in PRECISIONS:
        raise WorkloadError(f"precision = {workload.precision} is not run here; needs one of {', '.join(PRECISIONS)}")
    if workload.optimizer not in OPTIMIZERS:
        raise WorkloadError(f"optimizer = {workload.optimizer} is not run here; needs one of {', '.join(OPTIMIZERS)}")
    if workload.optimizer == "adamw-bf16" and workload.precision != "bf16-pure":
        raise WorkloadError("optimizer = adamw-bf16 is run here with precision = bf16-pure alone; use adamw")
    if workload.mean_document is not None or workload.padding:
        raise WorkloadError("packed documents and padding are not run here; leave mean_document and padding out")


def _check_plan(plan: Plan, shape: DecoderShape, workload: Workload) -> None:
    if plan.schedule not in _SCHEDULES or plan.chunks > 1:
        raise PlanError(f"plan: schedule = {plan.schedule} is not run here; needs gpipe or 1f1b with chunks = 1")
    divided = plan.tp if shape.experts else 1
    if plan.etp != divided:
        raise PlanError(f"plan: etp = {plan.etp} with ep = {plan.ep} is not run here; needs {divided}")
    for name in (
        "offload_optimizer",
        "offload_activations",
        "overlap_tensor",
        "zero_group",
        "recompute_layers",
        "offload_weights",
        "optimizer_in_backward",
    ):
        if getattr(plan, name):
            raise PlanError(f"plan: {name} is not run here; leave it out")
    if plan.loss != Plan.loss:
        raise PlanError(f"plan: loss = {plan.loss} is not run here; needs {Plan.loss}")
    if plan.recompute == "selective" and plan.zero >= 2 and plan.dp * plan.cp > 1:
        raise PlanError("plan: recompute = selective with zero = 2 or 3 is not run here; needs none or full")
    for name, value in (
        ("heads", shape.heads),
        ("kv_heads", shape.kv_heads),
        ("ffn", shape.ffn),
        ("shared ffn", shape.shared_ffn),
    ):
        if value % plan.tp:
            raise PlanError(f"plan: tp = {plan.tp} does not divide {name} = {value}")
    if shape.vocab % plan.tp or (plan.sequence_parallel and workload.seq_len % plan.tp):
        raise PlanError(f"plan: tp = {plan.tp} does not divide vocab = {shape.vocab} or seq_len = {workload.seq_len}")
    if plan.ep > 1 and (plan.zero or not shape.experts or shape.experts % plan.ep):
        raise PlanError(f"plan: ep = {plan.ep} needs zero = 0 and a divisor of the {shape.experts} experts")
    if plan.ep > 1 and plan.dp * plan.cp % plan.ep:
        raise PlanError(f"plan: ep = {plan.ep} is not run here over tensor ranks; needs a divisor of dp * cp")
    if workload.seq_len % plan.cp:
        raise PlanError(f"plan: cp = {plan.cp} does not divide seq_len = {workload.seq_len}")
    if plan.cp > 1 and plan.context_style != "ring":
        raise PlanError(f"plan: context_style = {plan.context_style} is not run here; leave it out")
    if shape.kv_rank and plan.sequence_parallel:
        raise PlanError("plan: sequence_parallel with latent attention is not run here; leave it out")
    if plan.cp > 1 and plan.sequence_parallel:
        raise PlanError("plan: sequence_parallel with cp is not run here; leave it out")
    if plan.sequence_parallel and (shape.experts or shape.positions):
        raise PlanError("plan: sequence_parallel with experts or learned positions is not run here; leave it out")
    if plan.pp > 1 and plan.micro_batches(workload.global_batch) < plan.pp and plan.schedule == "1f1b":
        count = plan.micro_batches(workload.global_batch)
        raise PlanError(f"plan: 1f1b over pp = {plan.pp} needs as many micro-batches, has {count}; raise global_batch")
    if workload.precision == "bf16" and _data(plan) not in ("shard-2", "shard-3"):
        raise WorkloadError(
            "precision = bf16 keeps a master copy, which only zero = 2 or 3 run here; use bf16-amp or fp32"
        )


def shape_of(model: Model) -> DecoderShape:
    """The dimensions of a decoder from its graph; raises ModelError for an architecture that is not run."""
    graph, dims = model.graph, model.dims
    kinds = set(graph.layers)
    block = graph.blocks[graph.layers[0]]
    unknown = sorted({op.name for op in (*block.ops, *graph.embedding, *graph.head)} - _KNOWN_OPS)
    if len(kinds) > 1 or unknown or block.encoder:
        why = f"its layers hold {', '.join(unknown)}" if unknown else f"its layers are of {len(kinds)} kinds"
        raise ModelError(f"{model.name} is not run here: {why}; plain decoders and their mixtures of experts are")
    core, latent = block.attention, _latent(block)
    experts = [op for op in block.ops if isinstance(op, GroupedGemmOp)]
    up, down = (
        block.gemm(role) or each for role, each in zip((OpRole.UP, OpRole.DOWN), experts or (None, None), strict=True)
    )
    first, last = block.gemm(OpRole.KEY_DOWN if latent else OpRole.QKV), block.gemm(OpRole.OUTPUT)
    if core is None or up is None or down is None or first is None or last is None:
        raise ModelError(f"{model.name} is not run here: its layers are not attention and a feed-forward")
    shared = block.gemm(OpRole.SHARED_DOWN)
    norm = next(op for op in block.ops if isinstance(op, NormOp))
    positions = [op for op in graph.embedding if isinstance(op, EmbeddingOp) and not op.tokens]
    uneven = core.v_dim != core.qk_dim and not latent
    if core.window or core.chunk or not core.causal or uneven:
        raise ModelError(f"{model.name} is not run here: windows and encoders are left out")
    shape = DecoderShape(
        layers=len(graph.layers),
        hidden=graph.hidden,
        vocab=graph.vocab,
        heads=core.heads,
        kv_heads=core.kv_heads,
        head_dim=core.qk_dim,
        ffn=down.k,
        gated=bool(dims.get("gated", up.n == 2 * down.k)),
        activation=str(dims.get("activation", "silu")),
        norm="rms" if norm.params == graph.hidden else "layer",
        rotary=any(isinstance(op, ElementwiseOp) and op.function == "rotary" for op in block.ops),
        positions=positions[0].n if positions else 0,
        tied=graph.tied_embeddings,
        qkv_bias=_bias(first),
        out_bias=_bias(last),
        mlp_bias=_bias(up),
        experts=block.experts,
        top_k=block.top_k,
        shared_ffn=0 if shared is None else shared.k,
        v_dim=core.v_dim,
        **latent,
    )
    if parameters(shape) != graph.params:
        raise ModelError(
            f"{model.name} is not run here: it has {graph.params} weights, the decoder that runs {parameters(shape)}"
        )
    return shape


def _latent(block: Block) -> dict[str, int]:
    """The ranks of latent attention; nothing for other kinds."""
    down, up, queries = (block.gemm(role) for role in (OpRole.KEY_DOWN, OpRole.KEY_UP, OpRole.QUERY_UP))
    if not block.latent or down is None or up is None:
        return {}
    return {"kv_rank": up.k, "rope_dim": down.n - up.k, "q_rank": queries.k if queries is not None else 0}


def _bias(op: LinearOp) -> bool:
    return op.params > op.k * op.n


def parameters(shape: DecoderShape) -> int:
    """Weights of the decoder that runs [1]; they must be those of the graph."""
    d = shape.hidden
    attention = _projections(shape) + shape.heads * shape.v_dim * d + d * shape.out_bias
    ups = 1 + shape.gated

    def mlp(inner: int) -> int:
        return (d * ups * inner + ups * inner * shape.mlp_bias + inner * d + d * shape.mlp_bias) * (inner > 0)

    feed = (
        shape.experts * mlp(shape.ffn) + d * shape.experts + mlp(shape.shared_ffn) if shape.experts else mlp(shape.ffn)
    )
    norm = d * (1 if shape.norm == "rms" else 2)
    ends = shape.vocab * d * (1 if shape.tied else 2) + shape.positions * d + norm
    return shape.layers * (attention + feed + 2 * norm) + ends


def _projections(shape: DecoderShape) -> int:
    """Weights that make queries, keys and values of one layer [1]."""
    d, q, bias = shape.hidden, shape.heads * shape.head_dim, int(shape.qkv_bias)
    if not shape.kv_rank:
        whole = q + 2 * shape.kv_heads * shape.head_dim
        return d * whole + whole * bias
    rank, wide = shape.kv_rank, shape.kv_rank + shape.rope_dim
    keys = shape.heads * (shape.head_dim - shape.rope_dim + shape.v_dim)
    queries = shape.q_rank * (d + bias + 1 + q) if shape.q_rank else d * q
    return queries + d * wide + wide * bias + rank + rank * keys
