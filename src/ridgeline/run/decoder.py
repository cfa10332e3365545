"""A decoder transformer in PyTorch with the dimensions of a graph and random weights.

Letters: B batch, S sequence, D hidden, H heads, K kv heads, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed import (
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    get_world_size,
    reduce_scatter_tensor,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ridgeline.run.mapping import DecoderShape


class _Gather(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: Any, group: Any) -> Any:
        ctx.group = group
        whole = part.new_empty((part.shape[0] * get_world_size(group), *part.shape[1:]))
        all_gather_into_tensor(whole, part.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mine = grad.new_empty((grad.shape[0] // get_world_size(ctx.group), *grad.shape[1:]))
        reduce_scatter_tensor(mine, grad.contiguous(), group=ctx.group)
        return mine, None


def gather(part: Any, dim: int, group: Any) -> Any:
    """The parts of all ranks of a group side by side along `dim`; its gradient is the sum of theirs for one's part."""
    return _Gather.apply(part.movedim(dim, 0), group).movedim(0, dim)


class _Shared(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, whole: Any, group: Any) -> Any:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = grad.clone(memory_format=torch.contiguous_format)
        all_reduce(total, group=ctx.group)
        return total, None


class _Trade(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return _traded(rows, received, sent, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _traded(grad, ctx.sent, ctx.received, ctx.group), None, None, None


def _traded(rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
    here = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    all_to_all_single(here, rows.contiguous(), list(received), list(sent), group=group)
    return here


def trade(rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
    """Rows that the ranks of a group sent here, `received` of each, for the `sent` first, next, ... of one's own."""
    return _Trade.apply(rows, received, sent, group)


_BASE = 10_000.0  # of the rotary angles; any value costs the same
_ACTIVATIONS: dict[str, Any] = {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu}


def _norm(shape: DecoderShape) -> Any:
    return nn.RMSNorm(shape.hidden, eps=1e-5) if shape.norm == "rms" else nn.LayerNorm(shape.hidden)


class TorchAttention(nn.Module):  # type: ignore[misc]
    """Causal attention with grouped heads; it takes (B, S, D), of which tensor parallelism holds some heads."""

    def __init__(self, shape: DecoderShape, *, recompute: bool = False) -> None:
        super().__init__()
        self.head_dim, self.rotary, self.recompute = shape.head_dim, shape.rotary, recompute
        self.context: Any = None  # group of ranks that hold one part of each sequence
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.query = nn.Linear(shape.hidden, q, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.out = nn.Linear(q, shape.hidden, bias=shape.out_bias)

    def projected(self, x: Any, start: int) -> tuple[Any, Any, Any]:
        """Queries, keys and values (B, S, heads, head) of x from position `start` on."""
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)) for layer in (self.query, self.key, self.value))
        return (turned(q, start), turned(k, start), v) if self.rotary else (q, k, v)

    def forward(self, x: Any, start: int = 0, cache: list[Any] | None = None) -> Any:
        """Attention of x over itself, and over the `cache` of `start` earlier tokens, which grows by x."""
        # its result lies as q does: no copy to flatten it
        q, k, v = (part.transpose(1, 2) for part in self.projected(x, start))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            cache[:] = [k, v]
        grouped = q.shape[1] != k.shape[1]
        options: dict[str, Any] = {"is_causal": q.shape[2] > 1}
        if self.context is not None:
            k, v = (gather(part, 2, self.context)[:, :, : start + x.shape[1]] for part in (k, v))
            options = {"attn_mask": causal(x.shape[1], k.shape[2], x.device)}
        core: Any = partial(functional.scaled_dot_product_attention, enable_gqa=grouped, **options)
        again = self.recompute and self.training
        mixed = checkpoint(core, q, k, v, use_reentrant=False) if again else core(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class LatentAttention(TorchAttention):
    """Attention whose keys and values come of a latent, and whose keys' turning part all heads share (MLA)."""

    def __init__(self, shape: DecoderShape, *, recompute: bool = False) -> None:
        nn.Module.__init__(self)
        self.head_dim, self.recompute, self.context = shape.head_dim, recompute, None
        self.rank, self.rope, self.v_dim = shape.kv_rank, shape.rope_dim, shape.v_dim
        self.tensor: Any = None  # group of ranks that each hold some heads
        low, wide = shape.q_rank, shape.kv_rank + shape.rope_dim
        self.query_down = nn.Linear(shape.hidden, low, bias=shape.qkv_bias) if low else None
        self.query_norm: Any = nn.RMSNorm(low, eps=1e-5) if low else None
        self.query = nn.Linear(low or shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.latent_down, self.latent_norm = (
            nn.Linear(shape.hidden, wide, bias=shape.qkv_bias), nn.RMSNorm(shape.kv_rank, eps=1e-5)
        )  # fmt: skip
        keys = shape.heads * (shape.head_dim - shape.rope_dim + shape.v_dim)
        self.latent_up = nn.Linear(shape.kv_rank, keys, bias=False)
        self.out = nn.Linear(shape.heads * shape.v_dim, shape.hidden, bias=shape.out_bias)

    def projected(self, x: Any, start: int) -> tuple[Any, Any, Any]:
        """Queries, keys and values (B, S, H, head) of x from position `start` on, each head with keys of its own."""
        low = x if self.query_down is None else self.query_norm(self.query_down(x))
        q = self.query(low).unflatten(-1, (-1, self.head_dim))
        still = self.head_dim - self.rope
        latent, shared = self.latent_down(x).split([self.rank, self.rope], dim=-1)
        made = self.latent_up(self.latent_norm(latent)).unflatten(-1, (-1, still + self.v_dim))
        k, v = made.split([still, self.v_dim], dim=-1)
        if self.tensor is not None:
            shared = _Shared.apply(shared, self.tensor)
        shared = turned(shared[:, :, None], start).expand(-1, -1, k.shape[2], -1)
        q = torch.cat([q[..., :still], turned(q[..., still:], start)], dim=-1)
        return q, torch.cat([k, shared], dim=-1), v


def causal(queries: int, keys: int, device: Any) -> Any:
    """Which of S keys each of the last queries sees, (queries, keys): the last query all of them."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def turned(x: Any, start: int) -> Any:
    """Rotary embedding of (B, S, H, head) from position `start` on."""
    cos, sin = _angles(start, x.shape[1], x.shape[-1] // 2, x.dtype, x.device)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


@lru_cache(maxsize=4)
def _angles(start: int, tokens: int, half: int, dtype: Any, device: Any) -> tuple[Any, Any]:
    """Cosines and sines of positions, (S, 1, half) each: made once for all layers of a pass."""
    rates = _BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(start, start + tokens, device=device, dtype=torch.float32)[:, None] * rates
    cos, sin = (part.to(dtype)[:, None] for part in (angle.cos(), angle.sin()))
    return cos, sin


class TorchMlp(nn.Module):  # type: ignore[misc]
    """A feed-forward: act(gate) * up or act(up)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.activation = _ACTIVATIONS.get(shape.activation, functional.gelu)
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=shape.mlp_bias) if shape.gated else None
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.mlp_bias)

    def forward(self, x: Any) -> Any:
        """The feed-forward of x."""
        up = self.up(x)
        return self.down(self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up)


class TorchExperts(nn.Module):  # type: ignore[misc]
    """E experts of which each token visits `top_k`; an expert without tokens runs on none, so it has gradients.

    With a `group` each of its ranks holds an equal run of the experts, and tokens travel there and back.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.top_k, self.count = shape.top_k, shape.experts
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(TorchMlp(shape) for _ in range(shape.experts))
        self.shared = TorchMlp(replace(shape, ffn=shape.shared_ffn)) if shape.shared_ffn else None
        self.group: Any = None

    def spread(self, group: Any, place: int, ranks: int) -> None:
        """Keeps the experts of one of so many ranks."""
        held = self.count // ranks
        self.group, self.experts = group, self.experts[place * held : (place + 1) * held]

    def forward(self, x: Any) -> Any:
        """The weighted sum of each token's experts, and what every token visits."""
        routed = self._routed(x)
        return routed if self.shared is None else routed + self.shared(x)

    def _routed(self, x: Any) -> Any:
        flat = x.flatten(0, -2)
        weights, chosen = torch.softmax(self.router(flat), dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.group is not None:
            return self._travelling(flat, weights.flatten(), chosen.flatten()).view_as(x)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count).tolist()
        tokens = flat.index_select(0, order // self.top_k)
        made = torch.cat([expert(own) for expert, own in zip(self.experts, tokens.split(counts), strict=True)])
        return self._summed(flat, made, weights.flatten(), order).view_as(x)

    def _summed(self, flat: Any, made: Any, weights: Any, order: Any) -> Any:
        """Each token's results, weighted and added where the token lies."""
        weighted = (made * weights[order, None]).to(flat.dtype)
        return torch.zeros_like(flat).index_add(0, order // self.top_k, weighted)

    def _travelling(self, flat: Any, weights: Any, chosen: Any) -> Any:
        """Tokens sorted by expert, sent to the ranks that hold it, and their results sent back."""
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.count)
        here = torch.empty_like(counts)
        all_to_all_single(here, counts, group=self.group)
        here = here.view(-1, len(self.experts))  # by rank that sends, and expert
        sent, received = counts.view(here.shape).sum(1).tolist(), here.sum(1).tolist()
        tokens = trade(flat.index_select(0, order // self.top_k), received, sent, self.group)
        owner = torch.arange(len(self.experts), device=flat.device).repeat(len(here)).repeat_interleave(here.flatten())
        by_owner = owner.argsort(stable=True)
        own = tokens.index_select(0, by_owner).split(here.sum(0).tolist())
        made = torch.cat([expert(part) for expert, part in zip(self.experts, own, strict=True)])
        back = trade(torch.zeros_like(made).index_copy(0, by_owner, made), sent, received, self.group)
        return self._summed(flat, back, weights, order)


class TorchLayer(nn.Module):  # type: ignore[misc]
    """One pre-norm layer."""

    def __init__(self, shape: DecoderShape, *, recompute: bool = False) -> None:
        super().__init__()
        kind = LatentAttention if shape.kv_rank else TorchAttention
        self.attention_norm, self.attention = _norm(shape), kind(shape, recompute=recompute)
        self.mlp_norm, self.mlp = _norm(shape), TorchExperts(shape) if shape.experts else TorchMlp(shape)

    def forward(self, x: Any, start: int = 0, cache: list[Any] | None = None) -> Any:
        """The layer's output for x."""
        x = x + self.attention(self.attention_norm(x), start, cache)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """The whole model, or one pipeline stage of it: parts that are None belong to other stages.

    `recompute` is what backward runs again: 'none', 'selective' (attention between its products) or 'full' (layers).
    """

    def __init__(self, shape: DecoderShape, *, recompute: str = "none") -> None:
        super().__init__()
        self.recompute = recompute == "full"
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.layers = nn.ModuleList(TorchLayer(shape, recompute=recompute == "selective") for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        self.tied, self.start = shape.tied, 0
        self.tie()

    def tie(self) -> None:
        """Makes the head's weight the embedding's, where the model has it so."""
        if self.tied and self.head is not None and self.embed is not None:
            self.head.weight = self.embed.weight

    def share_context(self, group: Any, start: int) -> None:
        """Makes this the part of a sequence from position `start` on, whose other parts the group's ranks hold."""
        self.start = start
        for layer in self.layers:
            layer.attention.context = group

    def keep(self, first: int, last: int, total: int) -> None:
        """Drops all but layers `first` to `last` (excluded) and the ends that belong to them."""
        self.layers = self.layers[first:last]
        if first > 0:
            self.embed = self.positions = None
        if last < total:
            self.norm = self.head = None

    def forward(self, x: Any, start: int = 0, caches: list[list[Any]] | None = None) -> Any:
        """Logits (B, S, V) of tokens (B, S); a stage takes and gives what its neighbours do."""
        start += self.start
        if self.embed is not None:
            tokens = x
            x = self.embed(tokens)
            if self.positions is not None:
                x = x + self.positions(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        for number, layer in enumerate(self.layers):
            if self.recompute and self.training:
                x = checkpoint(layer, x, start, use_reentrant=False)
            else:
                x = layer(x, start, None if caches is None else caches[number])
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: Any, tokens: Any) -> Any:
    """Mean cross entropy of the next token; `tokens` are those that the logits should name."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten(0, 1))
