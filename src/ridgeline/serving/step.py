"""What one iteration of an engine takes: tables over tokens, sequences and contexts, made once for a deployment.

Shape letters: T tokens of an iteration on one attention rank, N sequences that decode, C their mean context, Q tokens
of one prompt's chunk, P tokens cached before it. Between grid points tables are linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import Machine
from ridgeline.cost.seconds import Seconds, nothing, stacked
from ridgeline.graph.model import Model
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core, Fusions, HyperConnection, Recurrence, Served
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.seams.registry import listed
from ridgeline.seams.serving import (
    Adapters,
    Beams,
    Disaggregation,
    HostExperts,
    NanoBatches,
    Partition,
    Placement,
    of,
)
from ridgeline.serving.adapters import sequence_seconds, token_seconds
from ridgeline.serving.attention_ffn import AttentionFFNTables, disaggregated, replicated, send_seconds
from ridgeline.serving.capacity import token_bytes
from ridgeline.serving.deferred import hidden, without
from ridgeline.serving.host_experts import hosted_seconds, streamed_tables
from ridgeline.serving.nano import NanoTables
from ridgeline.serving.split import SplitTables
from ridgeline.serving.step_pieces import PieceTimes, Shelf

Array = NDArray[np.float64]
_MANY = 16.0  # prompts side by side, from which what one more takes is read


def token_grid(most: int) -> Array:
    """Tokens at which iterations are priced: every one to 32, then ever wider steps that keep to tiles [token]."""
    parts = [np.arange(1, 33), np.arange(40, 257, 8), np.arange(288, 1025, 32), np.arange(1152, 8193, 128)]
    beyond = np.arange(8704, max(most, 8704) + 512, 512)
    grid = np.concatenate([*parts, beyond]).astype(float)
    return grid[: int(np.searchsorted(grid, most)) + 1]


def spread_grid(first: float, most: float, *, each_octave: int) -> Array:
    """Points from `first` to beyond `most`, `each_octave` in every doubling, in whole numbers."""
    octaves = max(0.0, np.log2(most / first))
    found = np.round(first * 2.0 ** (np.arange(np.ceil(octaves * each_octave) + 1) / each_octave))
    return found[np.concatenate(([True], found[1:] != found[:-1]))]


@dataclass(frozen=True, kw_only=True)
class StepTables:
    """Time of every part of an iteration on its grid [s].

    `lane` (T,) what tokens of one attention rank take outside attention, `group` (T,) what those of all ranks take
    together (experts, shared ones too, and their trade) in a step, `prompt_group` (T,) in an iteration with prompts
    (None: as much), `head` (N,) what sampled sequences take, `decode` (N, C), and
    of a prompt's chunk `first` (Q, P) when it is alone and `each` (Q, P) when it is one of many. `kernels` is
    launches [1].
    """

    tokens: Array
    lane: Seconds
    group: Seconds
    head: Seconds
    sequences: Array
    contexts: Array
    decode: Seconds
    chunks: Array
    pasts: Array
    first: Seconds
    each: Seconds
    kernels: float
    stage_share: float  # of the layers on the fullest pipeline stage
    send_s: float  # of one token's activations past a stage [s/token]
    send_start_s: float
    prompt_group: Seconds | None = None
    nano: NanoTables | None = None
    split: SplitTables | None = None
    attention_ffn: AttentionFFNTables | None = None
    group_name: str = "experts"  # what people call `group`, and `first`
    prompt_name: str = "attention"

    def experts(self, *, prompts: bool) -> Seconds:
        """What those of all ranks take together in a step, or in an iteration with prompts, (T,) [s]."""
        return self.group if self.prompt_group is None or not prompts else self.prompt_group


class StepModel:
    """Builds the tables of one deployment; `served` is the divided model, `prices` what answers.

    Deployments on the same machine may share a `shelf`.
    """

    def __init__(
        self,
        model: Model,
        machine: Machine,
        deployment: Deployment,
        formats: Formats,
        *,
        own: OwnKernels | None = None,
        shelf: Shelf | None = None,
        fusions: Fusions | None = None,
    ) -> None:
        self.model, self.machine, self.deployment, self.formats = model, machine, deployment, formats
        self.fusions = fusions
        self._placed, self._apart = of(deployment, Placement), of(deployment, Disaggregation)
        self._stays_uneven = (self._placed.imbalance or 1.0) if self._placed.stay else 1.0
        whole: Served = serve(model, deployment, fusions)
        self.served = replicated(disaggregated(whole, deployment) if self._apart.applied else whole, deployment)
        priced = partial(PieceTimes, self.served, machine, deployment, formats, own or OwnKernels(), shelf or Shelf())
        role = deployment.role
        self._pieces = priced(prompts=role is Role.PREFILL)
        self._prompt_pieces = priced(prompts=role is not Role.DECODE)
        self.prices, self.expert_prices = self._pieces.prices, self._pieces.expert_prices
        self.all_prices = tuple(
            side for pieces in (self._pieces, self._prompt_pieces) for side in (pieces.prices, pieces.expert_prices)
        )

    @lru_cache(maxsize=16)  # noqa: B019  (few; an engine is asked again at each end of its interval)
    def tables(
        self,
        *,
        most_tokens: int,
        most_sequences: int,
        most_context: int,
        beside_tokens: int = 0,
        captured: bool = True,
        whole_cache: bool = False,
        whole_batch: bool = False,
    ) -> StepTables:
        """The tables up to a token budget, sequences of one rank and the longest context.

        Up to `beside_tokens` a layer's shared experts run beside its routed ones. Where no graph is `captured` kernels
        follow each other more slowly (`launch.stream`). Where experts have devices of their own, `lane`, `group` and
        `decode` are those of one micro-batch, and shared experts stay with attention. With `whole_cache` decoding
        sequences attend to the longest context from their first token on, with `whole_batch` as many as can run.
        """
        tokens = token_grid(most_tokens)
        group_tokens = token_grid(most_tokens * self.deployment.dp)
        sequences = spread_grid(1.0, float(max(most_sequences, 2)), each_octave=2)
        contexts = np.concatenate([[1.0], spread_grid(64.0, float(max(most_context, 128)), each_octave=3)])
        chunks = np.concatenate([[1.0], spread_grid(16.0, float(max(most_tokens, 32)), each_octave=4)])
        pasts = np.concatenate([[0.0], spread_grid(128.0, float(max(most_context, 256)), each_octave=2)])
        n, c = np.meshgrid(sequences, contexts, indexing="ij")
        c = np.full_like(c, most_context) if whole_cache else c
        n = np.full_like(n, most_sequences) if whole_batch else n
        q, p = np.meshgrid(chunks, pasts, indexing="ij")
        many = self._pieces.mixers("many", (q, p), partial(self._prompts, _MANY, q, p))
        start_s, token_s = self._sends()
        lane, shared, head = self._outside_attention(tokens, sequences, captured)
        group, prompt_group = (
            beside(self._routed(pieces, tokens, group_tokens), shared, tokens <= beside_tokens)
            for pieces in (self._pieces, self._prompt_pieces)
        )
        hosted = of(self.deployment, HostExperts)
        if hosted.applied and not hosted.streams:
            group, prompt_group = (
                hosted_seconds(self.served, self.deployment, self.machine, self.formats, tokens, one, lane)
                for one in (group, prompt_group)
            )
        some = np.maximum(n / self._micro, 1.0)
        decode = self._decode(some * self._stays_uneven, c)
        first = self._pieces.mixers("first", (q, p), partial(self._prompts, 1.0, q, p))
        if any(kind.deferred for kind in self.served.kinds):
            lane = without(lane, self._hidden(tokens)[0])
            decode = without(decode, self._hidden(sequences)[1][:, None])
            first = without(first, self._hidden(chunks)[1][:, None])
            many = without(many, self._hidden(_MANY * chunks)[1][:, None])
        nano = self._nano(tokens, sequences, n, c) if of(self.deployment, NanoBatches).applied else None
        if hosted.streams:
            nano = streamed_tables(self, tokens, (lane, group, prompt_group, head), n, c, decode)
        found = StepTables(
            tokens=tokens,
            lane=lane,
            group=group,
            prompt_group=prompt_group,
            head=head,
            sequences=sequences,
            contexts=contexts,
            decode=decode,
            chunks=chunks,
            pasts=pasts,
            first=first,
            each=many.times(1.0 / _MANY),
            kernels=self.kernels * self._micro,
            stage_share=-(-len(self.model.graph.layers) // self.deployment.pp) / len(self.model.graph.layers),
            send_s=token_s,
            send_start_s=start_s,
            nano=nano,
            split=self._split(tokens, sequences) if of(self.deployment, Partition).applied else None,
            attention_ffn=self._sent(tokens) if self._apart.applied else None,
        )
        return reduce(lambda tables, one: one.retimed(self, tables), map(listed, self.deployment.technique), found)

    def _hidden(self, tokens: Array) -> tuple[Array, Array]:
        """What deferred sums of all layers save beside kernels, and what attention's cores could save more [s]."""
        return hidden(self._pieces, self.served.kinds, tokens)

    @property
    def uncut(self) -> str:
        """Why the model's caches cannot be cut, in a phrase; '' where attention keeps keys and values of all tokens."""
        pieces = (piece for kind in self.served.kinds for piece in kind.pieces)
        if any(isinstance(one, Recurrence) or (isinstance(one, Core) and (one.window or one.latent)) for one in pieces):
            return (
                "is modelled for attention that keeps keys and values of all tokens, not for windows, latent vectors or"
                " recurrent states; leave it out"
            )
        return ""

    @property
    def _micro(self) -> int:
        """Micro-batches of an iteration: more than one where experts have devices of their own [1]."""
        return self._apart.micro_batches if self._apart.applied else 1

    def _outside_attention(self, tokens: Array, sequences: Array, captured: bool) -> tuple[Seconds, Seconds, Seconds]:
        """What tokens take on a rank, in its shared experts, and what sampled sequences take [s]."""
        micro = self._micro
        part = np.maximum(tokens / micro, 1.0) * self._stays_uneven
        lane, shared = self._prompt_pieces.under_load(part), self._pieces.sum(part, "shared")
        head = self._pieces.sum(sequences, "sequences")
        if not captured and self.prices.dispatch_s is None:
            lane = lane + self.prices.gaps(self.kernels * micro, tokens.shape)
        if self._apart.applied:
            lane, shared = lane + shared, nothing(tokens.shape)
        adapters = of(self.deployment, Adapters)
        if adapters.count:
            lane = lane + token_seconds(self.served, adapters, self.prices, tokens)
            head = head + sequence_seconds(self.served, adapters, self.prices, sequences)
        return lane, shared, head

    def _routed(self, pieces: PieceTimes, tokens: Array, group_tokens: Array) -> Seconds:
        """What routed experts and their exchange take when each attention rank brings T tokens [s]."""
        routed = pieces.sum(group_tokens, "group")
        if self._placed.stay:  # attention is where experts are, as unevenly; new cache goes to all ranks
            new = group_tokens * sum(token_bytes(self.served.kinds, self.formats))
            routed = routed + self.prices.gathered(new, self.deployment.dp)
        return _on(routed, group_tokens, np.maximum(tokens / self._micro, 1.0), self.deployment.dp)

    @property
    def kernels(self) -> float:
        """Launches of one iteration [1]."""
        return self._pieces.kernels

    def _sent(self, tokens: Array) -> AttentionFFNTables:
        """What goes between attention's devices and those of the experts."""
        far = self.expert_prices if self.deployment.expert_kind else None
        return AttentionFFNTables(send=send_seconds(self.served, self.deployment, self.prices, tokens, far=far))

    def _nano(self, tokens: Array, sequences: Array, n: Array, c: Array) -> NanoTables:
        """All parts of iterations that are cut, by what their kernels wait for."""
        total: list[Seconds] | None = None
        for share, count in Counter(of(self.deployment, NanoBatches).fractions(self)).items():
            sampled, some = np.maximum(sequences * share, 1.0), np.maximum(n * share, 1.0)
            kernels = list(self.bound(np.maximum(tokens * share, 1.0)))[:3]
            heads = list(self._pieces.bound(sampled, "sequences"))[:3]
            decode = self._pieces.mixers("decode", (some, c), partial(self._tokens, some, c))
            each = [one.times(float(count)) for one in (*kernels, *heads, decode)]
            total = each if total is None else [one + other for one, other in zip(total, each, strict=True)]
        assert total is not None
        names = ("compute", "memory", "network", "head_compute", "head_memory", "head_network", "decode")
        return NanoTables(**dict(zip(names, total, strict=True)))

    def _split(self, tokens: Array, sequences: Array) -> SplitTables:
        """Iterations by what each kernel waits for, and how long memory is busy in them."""
        compute, memory, network, busy = self.bound(tokens)
        head_compute, head_memory, head_network, head_busy = self._pieces.bound(sequences, "sequences")
        return SplitTables(
            compute=compute, memory=memory, network=network, busy=busy, head_compute=head_compute,
            head_memory=head_memory, head_network=head_network, head_busy=head_busy,
        )  # fmt: skip

    def bound(self, tokens: Array) -> Iterator[Seconds]:
        """Kernels over T tokens by what they wait for, and memory's busy time, (3, T) as in `NanoTables` [s]."""
        together = tokens * self.deployment.dp
        rows = (
            self._pieces.bound(tokens, "tokens", "shared"),
            self._pieces.bound(together, "group"),
            self._prompt_pieces.bound(together, "group"),
        )
        return map(stacked, zip(*rows, strict=True))

    def _sends(self) -> tuple[float, float]:
        """Start of a send past a pipeline stage, and what each token adds [s]."""
        if self.deployment.pp == 1:
            return 0.0, 0.0
        stride = self.deployment.tp * self.deployment.dp
        streams = max(
            (p.streams for kind in self.served.kinds for p in kind.pieces if isinstance(p, HyperConnection)), default=1
        )
        size = 2.0 * self.served.hidden * streams
        one, many = (float(self.prices.send(size * count, stride).mid) for count in (1.0, 1025.0))
        token_s = (many - one) / 1024.0
        return one - token_s, token_s

    def _prompts(self, batch: float, tokens: Array, cached: Array, piece: Core | Recurrence) -> Seconds:
        """A mixer over prompts of `tokens` each after `cached` ones [s]."""
        if isinstance(piece, Recurrence):
            return self.prices.recurrence(piece, batch, tokens)
        return self.prices.prefill(piece, batch, tokens, cached)

    def _tokens(self, sequences: Array, context: Array, piece: Core | Recurrence) -> Seconds:
        """A mixer over one new token of each sequence [s]."""
        if isinstance(piece, Recurrence):
            return self.prices.recurrence(piece, sequences, np.ones_like(sequences), decode=True)
        return self.prices.decode(piece, sequences, context)

    def _decode(self, sequences: Array, context: Array) -> Seconds:
        """The mixers of a step of `sequences`, each beam of which reads the whole context [s].

        Kernels make a block of each head and beam, which walks the prompt's cache again; it is kept once, so at the
        low end caches on the chip answer all beams but one. Source: tensorrt-llm, cpp/tensorrt_llm/kernels/
        decoderMaskedMultiheadAttention/decoderMaskedMultiheadAttentionTemplate.h: batch_beam_idx, beam0_context_length.
        """
        once = self._pieces.mixers("decode", (sequences, context), partial(self._tokens, sequences, context))
        width = of(self.deployment, Beams).width
        if width == 1:
            return once
        beams = sequences * width
        each = self._pieces.mixers("decode", (beams, context), partial(self._tokens, beams, context))
        return replace(each, low=np.minimum(once.low, each.low))


def beside(one: Seconds, other: Seconds, both: NDArray[np.bool_]) -> Seconds:
    """Two chains of kernels on two streams where `both`, else one after the other [s].

    t >= max(a, b, memory a + memory b, compute a + compute b): neither is faster than alone, and what one resource
    must do for both adds up. Lower bound: kernels that leave it room do not slow each other.
    """
    compute, memory = one.compute + other.compute, one.memory + other.memory
    busy = np.maximum(compute, memory)
    ends = {
        end: np.where(
            both,
            np.maximum(np.maximum(getattr(one, end), getattr(other, end)), busy),
            getattr(one, end) + getattr(other, end),
        )
        for end in ("mid", "low", "high")
    }
    ends["low"], ends["high"] = np.minimum(ends["low"], ends["mid"]), np.maximum(ends["high"], ends["mid"])
    return Seconds(**ends, compute=compute, memory=memory)


def _on(found: Seconds, grid: Array, tokens: Array, ranks: int) -> Seconds:
    """A table over the tokens of all ranks, read where each of `ranks` has `tokens` of its own."""
    return found.at(grid, tokens * ranks)
