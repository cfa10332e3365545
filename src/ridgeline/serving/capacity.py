"""Memory of a served model on one device: weights, workspace, and what is left for the cache.

Letters: T tokens of an iteration, D hidden, V vocabulary, N sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.cost.formats import Formats, form
from ridgeline.errors import NoPlanError
from ridgeline.facts.engines import EnginePolicy
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator
from ridgeline.graph.model import Model, op_params
from ridgeline.lower.pieces import Core, Experts, HyperConnection, LayerKind, Piece, Product, Recurrence, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Disaggregation, HostExperts, NanoBatches, Speculation, instance_devices, of
from ridgeline.serving.adapters import kept_bytes
from ridgeline.units import bytes_text

_WIDE_LOGITS = 4.0  # byte; logits are sampled in fp32


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How the fullest device's memory is divided [byte], and the cache of one attention rank in tokens."""

    memory_bytes: float
    weights_bytes: float
    workspace_bytes: float
    context_bytes: float
    state_bytes: float  # recurrent states and windows of the sequences that may run
    cache_bytes: float
    token_bytes: float  # of cache, on one device
    cache_tokens: int
    sequence_bytes: float = 0.0  # recurrent states and windows of one sequence
    experts_bytes: float = 0.0  # weights on each device that holds experts alone
    experts_memory_bytes: float = 0.0  # of such a device


def piece_bytes(piece: Piece, formats: Formats) -> float:
    """Weights of one piece on one device [byte]."""
    if isinstance(piece, Product):
        return piece.n * piece.k * piece.count * form(formats.of(piece.part)).weight_bytes
    if isinstance(piece, Experts):
        held = piece.count / piece.ranks
        return held * (2.0 + piece.gated) * piece.hidden * piece.inner * form(formats.feed).weight_bytes
    if isinstance(piece, HyperConnection):
        return piece.weight_bytes
    if isinstance(piece, Core) and piece.choice is not None:
        return piece.choice.elements * form(formats.attention).weight_bytes
    return 0.0


def token_bytes(kinds: Iterable[LayerKind], formats: Formats) -> tuple[float, float]:
    """Cache of one token in layers that see everything, and of one token within a window, on one device [byte]."""
    size = form(formats.cache).weight_bytes
    whole = windowed = 0.0
    for kind in kinds:
        for piece in kind.pieces:
            if isinstance(piece, Core):
                each = kind.count * piece.token_bytes(size) / piece.ranks
                windowed += kind.count * piece.near_bytes(size)
                if piece.window and not piece.chunked:
                    windowed += each * piece.window
                else:
                    whole += each
    if whole == 0.0:  # every layer has a window: engines keep the cache of the whole sequence
        cores = [(kind.count, piece) for kind in kinds for piece in kind.pieces if isinstance(piece, Core)]
        return sum(count * core.token_bytes(size) / core.ranks for count, core in cores), 0.0
    return whole, windowed


def hosted_bytes(served: Served, deployment: Deployment, formats: Formats) -> float:
    """Routed experts, or all layers that are streamed, that lie in host memory instead of on the device [byte]."""
    chosen = of(deployment, HostExperts)
    if chosen.streams:
        return (1.0 - chosen.share) * layers_bytes(served, formats)
    pieces = ((kind.count, piece) for kind in served.kinds for piece in kind.pieces if isinstance(piece, Experts))
    whole = sum(count * piece_bytes(piece, formats) for count, piece in pieces) if chosen.applied else 0.0
    return (1.0 - chosen.share) * whole


def layers_bytes(served: Served, formats: Formats) -> float:
    """Weights of all layers on a device of one stage [byte]."""
    return sum(kind.count * sum(piece_bytes(piece, formats) for piece in kind.pieces) for kind in served.kinds)


def weights_bytes(
    model: Model, served: Served, deployment: Deployment, formats: Formats, *, own_head: bool = False
) -> float:
    """Weights on the fullest device: the last pipeline stage holds the head, the first the embedding [byte].

    With `own_head` a head has a table of its own where the model's is that of its embedding.
    """
    layers = layers_bytes(served, formats)
    share = -(-len(model.graph.layers) // deployment.pp) / len(model.graph.layers)
    table = 2.0 * sum(op_params(op, 1) for op in model.graph.embedding) / deployment.tp
    head = sum(piece_bytes(piece, formats) for piece in served.head)
    if model.graph.tied_embeddings and deployment.pp == 1 and not own_head:
        head = 0.0
    ends = table + head if deployment.pp == 1 else max(table, head)
    return layers * share + ends


def workspace_bytes(
    model: Model, served: Served, deployment: Deployment, policy: EnginePolicy, tokens: int, prompt_tokens: float = 0.0
) -> float:
    """Activations of the largest iteration, as engines find them by a dry run [byte].

    2 T (n + k + 3 D) of the widest product, or of an engine that says what it holds, with H heads a device and prompts
    of S tokens, 2 T D (whole + shared / tp) + T S H score + N V logit.
    """
    logits = min(tokens, policy.max_seqs) * model.graph.vocab
    if policy.prompt_widths:
        heads = max(
            (piece.heads for kind in served.kinds for piece in kind.pieces if isinstance(piece, Core)), default=0
        )
        body = 2.0 * served.hidden * (policy.prompt_widths + policy.prompt_shards / deployment.tp)
        return tokens * (body + prompt_tokens * heads * policy.held_score_bytes) + logits * policy.held_logit_bytes
    widest = 0.0
    for kind in served.kinds:
        for piece in kind.pieces:
            if isinstance(piece, Product):
                widest = max(widest, piece.n + piece.k)
            elif isinstance(piece, Experts):
                rows = piece.top_k / piece.ranks * deployment.dp
                widest = max(widest, rows * ((1.0 + piece.gated) * piece.inner + piece.hidden))
    body = 2.0 * tokens * (widest + 3.0 * served.hidden)
    return max(body, logits * (2.0 + _WIDE_LOGITS) + 2.0 * tokens * served.hidden)


def capacity(
    model: Model, served: Served, deployment: Deployment, policy: EnginePolicy, formats: Formats, part: Accelerator, *,
    dram_bytes: float = 0.0,
) -> Capacity:  # fmt: skip
    """What a device holds and what is left for the cache.

    Raises `NoPlanError` where the weights or the cache of a single token do not fit: the engine will not start.
    """
    memory = part.memory_bytes
    weights = weights_bytes(model, served, deployment, formats, own_head=policy.own_head)
    whole, windowed = token_bytes(served.kinds, formats)
    layers = len(model.graph.layers)
    drafts = of(deployment, Speculation).held(layers, layers_bytes(served, formats), whole)
    weights -= hosted_bytes(served, deployment, formats)
    weights += kept_bytes(served, deployment) + drafts[0]
    replicas = of(deployment, NanoBatches).replicas  # each process holds all of it
    weights *= replicas
    chunked = policy.scheduler in ("mixed", "prefill-first")
    dry_run = policy.token_budget if chunked else int(constant("serve.static_tokens"))
    dry_run = of(deployment, HostExperts).resident_tokens(dry_run)
    work = workspace_bytes(model, served, deployment, policy, dry_run)
    context = replicas * policy.context_bytes
    context += policy.group_context_bytes if instance_devices(deployment) > 1 else 0.0
    fraction = policy.memory_fraction
    share = 1.0 / deployment.pp
    sequence = share * (windowed + _state_bytes(served))
    state = policy.max_seqs * sequence
    if policy.reserved_bytes or policy.reserved_rank_bytes:
        left = memory - policy.reserved_bytes - policy.reserved_rank_bytes * instance_devices(deployment) - weights
    elif policy.memory_of == "free":
        left = (memory - weights - work - context) * fraction
    elif policy.memory_of == "static":
        left = memory * fraction - weights
    else:
        left = memory * fraction - weights - work - context
    if left - state < 0.0 <= left:  # fewer sequences of recurrent states are kept
        state = left / 2.0
    cache = left - state
    hosted = of(deployment, HostExperts)
    if hosted.streams:
        buffers = check_buffers(model, served, hosted, formats, cache)
        host = (hosted.dram_gb or 0.0) * 1e9 or dram_bytes
        elsewhere = hosted.cache_bytes(host - hosted_bytes(served, deployment, formats))
        cache = cache - buffers if hosted.keeps_cache else elsewhere
    each = whole * share + drafts[1]
    tokens = int(cache / each) if each > 0 else 2**31
    if deployment.options.cache_tokens is not None:
        tokens = deployment.options.cache_tokens * deployment.pp
    if cache <= 0 or tokens < policy.block_tokens:
        raise NoPlanError(
            f"{model.name} will not start on {instance_devices(deployment)}x{part.name}: weights take"
            f" {bytes_text(weights)} and workspace {bytes_text(work + context)} of {bytes_text(memory)} a device"
            f" ({fraction:.0%} may be used), which leaves {bytes_text(max(cache, 0.0))} for the cache;"
            " divide it over more devices (tp, pp), or take narrower weights"
        )
    return Capacity(
        memory_bytes=memory,
        weights_bytes=weights,
        workspace_bytes=work,
        context_bytes=context,
        state_bytes=state,
        cache_bytes=cache,
        token_bytes=each,
        cache_tokens=tokens // deployment.pp,
        sequence_bytes=sequence,
    )


def check_buffers(model: Model, served: Served, hosted: HostExperts, formats: Formats, room_bytes: float) -> float:
    """What weights that are streamed arrive in [byte]; raises `NoPlanError` where there is no room for it."""
    asked = 0.0
    for kind in served.kinds:
        routed = [piece for piece in kind.pieces if isinstance(piece, Experts)]
        experts = sum(piece_bytes(piece, formats) for piece in routed)
        dense = sum(piece_bytes(piece, formats) for piece in kind.pieces) - experts
        asked = max(asked, hosted.buffer_bytes(dense, experts, max([piece.count for piece in routed], default=1)))
    if asked > room_bytes:
        raise NoPlanError(
            f"{model.name} will not start: layers that are streamed arrive in {bytes_text(asked)}, the device has"
            f" {bytes_text(max(room_bytes, 0.0))} left; keep a smaller share of them there, or take narrower weights"
        )
    return asked


def _state_bytes(served: Served) -> float:
    """Recurrent states of one sequence [byte]."""
    return sum(
        kind.count * piece.state_bytes / 2.0
        for kind in served.kinds
        for piece in kind.pieces
        if isinstance(piece, Recurrence)
    )


def expert_capacity(
    served: Served, deployment: Deployment, policy: EnginePolicy, formats: Formats, part: Accelerator
) -> tuple[float, float]:
    """Weights on a device that holds experts alone, and what it may hold beside the rows of an iteration [byte].

    Rows of a micro-batch of the token budget on every attention rank: those that go in and out, and the wide ones.
    """
    weights = sum(kind.count * piece_bytes(piece, formats) for kind in served.kinds for piece in kind.pieces
                  if isinstance(piece, Experts))  # fmt: skip
    widest, micro = 0.0, of(deployment, Disaggregation).micro_batches
    for piece in (piece for kind in served.kinds for piece in kind.pieces if isinstance(piece, Experts)):
        rows = policy.token_budget * deployment.dp / micro * piece.top_k / piece.ranks
        widest = max(widest, 2.0 * rows * ((1.0 + piece.gated) * piece.inner + 2.0 * piece.hidden))
    fraction = policy.memory_fraction
    context = policy.context_bytes + policy.group_context_bytes
    return weights, part.memory_bytes * fraction - widest - context
