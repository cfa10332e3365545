"""Seconds of the pieces of a served layer, over arrays of tokens, sequences and contexts.

Each piece is asked of the ladder once, as an array; what engines replay from graphs does not wait for the host.
Shape letters: T tokens, N sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost import layer_questions, questions
from ridgeline.cost.answer import Question, Rung, worst
from ridgeline.cost.engine_kernels import (
    READ,
    ExpertKernels,
    OwnKernels,
    block_seconds,
    half_sums,
    integer_seconds,
    operand_bytes,
    peak_share,
    score_seconds,
    tiled_rows,
    vector_seconds,
    wide_seconds,
    widened_bytes,
)
from ridgeline.cost.families.layers import CHOSEN_CORE
from ridgeline.cost.families.routing import experts_reached
from ridgeline.cost.fit_choice import CORES, device_only_fits, earlier_fits, find_fits
from ridgeline.cost.fitted import FittedModel, model_of, model_seconds
from ridgeline.cost.formats import WIDENED_BYTES, Formats, form
from ridgeline.cost.machine import Machine
from ridgeline.cost.seconds import Seconds, banded, kernel_limit_s, limited, nothing, unfitted
from ridgeline.cost.served_compressed import compressed_attention
from ridgeline.cost.served_links import LinkPrices
from ridgeline.errors import DomainError
from ridgeline.facts.fits import calls_of
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import OWN_HOST, Evidence
from ridgeline.facts.transfer import transfer_evidence
from ridgeline.lower.pieces import Core, ElementwisePiece, ExpertAllToAll, Experts, Product, Recurrence, Reduce
from ridgeline.lower.work import CollectiveKind, Number

Array = NDArray[np.float64]
_WHOLE = (1.0, 1.0)  # of the matrix and the memory rate of kernels
_BY_QUERY = ("mmha", "mmha-wide")  # kernels of decode that read keys for each query head
_FEWEST_BLOCKS = 4.0  # multiprocessors a block. Source: tensorrt-llm, decoderXQAConstants.h, kEnableMinBlockFactor
MEASURED_SKEW = 1.01  # power of expert loads where nothing is known of the traffic (AIConfigurator's measured default)


class ServedPrices(LinkPrices):
    """Prices pieces of served layers on one machine with one engine's kernels; `rungs_used` tells what answered."""

    products = "bf16"  # of attention: scores are taken in 16 bits; an 8-bit cache is widened as it is read

    def __init__(
        self,
        machine: Machine,
        formats: Formats,
        *,
        engine: str = "",
        version: str = "",
        skew: float = MEASURED_SKEW,
        own: OwnKernels | None = None,
        expert_backend: str = "",
        prompts: bool = False,
    ) -> None:
        super().__init__(machine, engine=engine, version=version)
        self._backend = ExpertKernels(self.part, self.engine, expert_backend, formats.feed, prompts=prompts)
        self.formats, self.skew = formats, skew
        self.own = own or OwnKernels()
        self.evidence_used, self.rungs_used = Evidence.HERE, dict[str, Rung]()

    @cached_property
    def _shares(self) -> tuple[tuple[float, float], ...]:
        """Of the matrix and the memory rate that the engine's products have, and the least and the most of it [1]."""
        own, faster = self.own, half_sums(self.part) if self.own.half_sums else 1.0
        return tuple((matrix * faster, memory) for matrix, memory in (own.shares, *own.ends))

    def engines(self, question: Question) -> Question:
        """The question about this engine's kernels, or about those of the library that it names."""
        if question.engine not in ("", self.engine):
            return question
        return replace(question, engine=self.engine, version=self.version, hybrid=self.own.hybrid)

    def _model(
        self, question: Question, kernel: str = "", *, shares: tuple[float, float] = _WHOLE, best: Rung = Rung.FITTED
    ) -> FittedModel:
        asked = self.engines(question)
        wider = question.family == "gemm" and self.own.wide == READ and form(question.form).weight_bytes < WIDENED_BYTES
        asked = replace(asked, form="bf16") if wider else asked
        kernels = self.own.earlier if question.family in CORES else ""
        earlier = kernels and earlier_fits(
            question.family, self.part, engine=self.engine, kernel=kernels, form=question.form
        )
        for rung in (one for one in self.machine.rungs if worst((one, best)) is one):
            fits = device_only_fits(asked, self.part, rung)
            if earlier:
                fits, rung = earlier, Rung.BORROWED
            fits = tuple(fit for fit in fits if fit.kernel.split(" ")[-1] == kernel) or fits
            if fits:
                rung = worst((rung, Rung.BORROWED)) if wider else rung
                self.evidence_used = min(self.evidence_used, *(transfer_evidence(fit, self.part) for fit in fits))
                self.rungs_used[question.family] = worst((self.rungs_used.get(question.family, rung), rung))
                return model_of(
                    question.family, question.form, self.part, fits, rung, hosted=False, cold=True, shares=shares
                )
        raise DomainError(f"{self.part.name}: no device was ever measured for {question.family} in {question.form}")

    def ask(self, asked: questions.Asked, kernel: str = "", *, best: Rung = Rung.FITTED) -> Seconds:
        """The price of an operator from rungs of `best` on, by the fits of one `kernel` where there are any [s].

        What the engine's products reach and how wrong the mechanism is are independent: logarithms add as squares.
        """
        question = asked.question
        own = question.family == "gemm" and self.own.shared_form in ("", question.form)
        shares = self._shares[0] if own else _WHOLE  # experts' kernels are no library's
        found = self._read(question, self._model(question, kernel, shares=shares, best=best))
        if shares == _WHOLE:
            return found
        slow, fast = (self._read(question, self._model(question, kernel, shares=end)).mid for end in self._shares[1:])
        down = np.hypot(np.log(found.mid / found.low), np.log(found.mid / fast))
        up = np.hypot(np.log(found.high / found.mid), np.log(slow / found.mid))
        return replace(found, low=found.mid * np.exp(-down), high=found.mid * np.exp(up))

    def _read(self, question: Question, model: FittedModel) -> Seconds:
        return model_seconds(question, model, stand_ins=self.own.stand_ins)

    def stream(self, piece: ElementwisePiece, rows: Array) -> Seconds:
        """A pass over elements as wide as the engine keeps activations [s]."""
        return self.streamed(self.own.pass_bytes * piece.elements * rows, piece.kernels)

    def _around(self, rows: Array, shapes: Sequence[tuple[float, float]], passed: float, count: float) -> Seconds:
        """What products of more rows than a vector's move beside weights, and a pass over `passed` elements [s].

        Only of engines that keep activations wider than 16 bits: kernels of others do it themselves.
        """
        own = self.own
        moved = sum(operand_bytes(rows, k, n, wide=own.wide, pass_bytes=own.pass_bytes) for k, n in shapes)
        moved = np.where(rows > own.vector_rows, moved + passed * own.pass_bytes * rows, 0.0) * count
        return self.streamed(moved, 0.0)

    def reduce(self, piece: Reduce, rows: Array, ranks: int) -> Seconds:
        """A reduction over tensor-parallel ranks, with what the engine's way of launching adds to it [s]."""
        found = super().reduce(piece, rows, ranks)
        own = self.own
        if piece.gather or not (own.graph_wait_s or own.apart_wait_s):
            return found
        return found + unfitted(np.where(rows <= own.graph_rows, own.graph_wait_s, own.apart_wait_s))

    def quantizes_activations(self, piece: Product) -> bool:
        """Whether a kernel of its own casts a product's 16-bit input to the format of its weight."""
        return (what := form(self.formats.of(piece.part))).cast and not (self.formats.static and what.name == "fp8")

    def product(self, piece: Product, rows: Array) -> Seconds:
        """A projection over `rows` tokens or sequences [s]."""
        name = self.formats.of(piece.part)
        cast = None if self.quantizes_activations(piece) == form(name).cast else False
        size, elements = np.maximum(rows, 1.0), piece.n * piece.k * piece.count
        if piece.part == "wide":
            return banded("interval.derived", *wide_seconds(size, piece, form(name), self.machine.device))

        def measured(dtype: str) -> Seconds:
            return self.ask(questions.gemm(size, piece.n, piece.k, count=piece.count, dtype=dtype, cast=cast))

        found = self._owned(name, size, np.full(size.shape, elements), 2.0 * size * elements, piece.count, measured)
        found = self._limited(found, name, 2.0 * size * elements, elements * form(name).weight_bytes)
        wider = self.own.pass_bytes > WIDENED_BYTES
        return found + self._around(size, [(piece.k, piece.n)], 0.0, piece.count) if wider else found

    def heat(self, piece: Product, rows: Array, times: Array) -> Array | None:
        """How much longer than its `times` a product takes where its like alone draw all of the power limit [1].

        (FLOP / loaded rate) / time, both with the casts of the tables that they were measured in (`facts.loaded`). None
        where nobody measured the rate, or an engine widens its weights.
        """
        what, size = form(self.formats.of(piece.part)), np.maximum(rows, 1.0)
        rate = self.machine.device.loaded.get(what.matrix)
        if rate is None or (self.own.wide and what.weight_bytes < WIDENED_BYTES):
            return None
        if self.quantizes_activations(piece) != what.cast:
            times = self.ask(questions.gemm(size, piece.n, piece.k, count=piece.count, dtype=what.name)).mid
        return np.asarray(2.0 * size * piece.n * piece.k * piece.count / rate / times)

    def _owned(
        self, name: str, rows: Array, elements: Array, flop: Array, kernels: float, measured: Callable[[str], Seconds]
    ) -> Seconds:
        """Products with weights of `elements` in a format, by the engine's own kernels or as `measured` ones [s]."""
        what, device = form(name), self.machine.device
        if self.part.architecture == OWN_HOST and not calls_of(self.part.name):  # a socket of the table: no tiles
            memory = elements * what.weight_bytes / device.memory_bytes_per_s
            compute = flop / device.matrix_rate(what.matrix)
            return banded("interval.derived", np.maximum(compute, memory), compute, memory)
        if self.own.wide not in ("", READ) and what.weight_bytes < WIDENED_BYTES:
            if self.own.wide == "int8" and "int8" in device.matrix:
                moved = elements * what.weight_bytes
                found = banded("int8", *integer_seconds(flop, moved, kernels, device))
            else:
                found = measured("bf16") + self.streamed(widened_bytes(elements, what), kernels)
        else:
            found = measured(name)
        few = rows <= self.own.vector_rows
        if not few.any():
            return found
        mid, memory = vector_seconds(elements * what.weight_bytes, kernels, device)
        return banded("vector", mid, 0.0 * mid, memory).where(few, found)

    def _limited(self, found: Seconds, name: str, flop: Number, moved_bytes: Number) -> Seconds:
        """A kernel's time with the least that the device's peaks allow for what it cannot do without [s]."""
        flop = np.asarray(flop) / peak_share(self.own, self.part, form(name).matrix)
        return limited(found, kernel_limit_s(self.part, name, flop, moved_bytes))

    def experts(self, piece: Experts, rows: Array) -> Seconds:
        """The routed experts over the tokens of all attention ranks [s]."""
        size = np.maximum(rows, 1.0)

        def measured(dtype: str) -> Seconds:
            asked = questions.experts(
                size, piece.hidden, piece.inner, piece.top_k, piece.count, ranks=float(piece.ranks),
                skew=self.skew, gated=piece.gated, dtype=dtype,
            )  # fmt: skip
            ours, best = self._backend.of(asked)
            return self.ask(ours, best=best)

        each = piece.hidden * piece.inner * (3.0 if piece.gated else 2.0) / piece.ranks
        chosen, kernels = experts_reached(size, piece.top_k, piece.count, self.skew), constant("launch.served.experts")
        flop = 2.0 * tiled_rows(size, piece.top_k, chosen) * each
        found = self._owned(self.formats.feed, size, chosen * each, flop, kernels, measured)
        feed, least_flop = self.formats.feed, 2.0 * size * piece.top_k * each
        found = self._limited(found, feed, least_flop, chosen * each * form(feed).weight_bytes)
        up = [(piece.hidden, piece.inner)] * (2 if piece.gated else 1)
        found = found + unfitted(np.full(size.shape, (len(up) + 1.0) * self.own.choice_wait_s))
        if self.own.pass_bytes <= WIDENED_BYTES:
            return found
        shapes = [*up, (piece.inner, piece.hidden)]
        return found + self._around(size, shapes, (len(up) + 1.0) * piece.inner, piece.top_k / piece.ranks)

    def prefill(self, core: Core, batch: float, tokens: Array, cached: Array) -> Seconds:
        """Attention of `batch` prompts of `tokens` after `cached` tokens each [s].

        Each rank does its own heads; where contexts are divided it gathers their cache first.
        """
        own = max(1.0, core.kv_heads / core.ranks)
        cached = cached if core.causal else cached + tokens / 2.0  # as many pairs of tokens as in both directions
        if core.entries is not None or core.choice is not None:
            return self._chosen(core, batch, tokens, cached)
        if self.own.score_bytes and not core.latent:
            return banded("scores", *score_seconds(
                batch, tokens, cached, core.heads, (core.qk_dim + core.v_dim) / 2, self.own.score_bytes,
                self.machine.device,
            ))  # fmt: skip
        if core.latent:
            asked = questions.mla_prefill(
                batch, tokens, core.heads, cached=cached, dtype=self.products, cache_dtype=self.formats.cache
            )
        else:
            asked = questions.prefill(
                batch, tokens, core.heads, own, (core.qk_dim + core.v_dim) / 2, cached=cached,
                window=float(core.window), dtype=self.products, cache_dtype=self.formats.cache,
            )  # fmt: skip
        found = self._limited(self.ask(asked), asked.question.form, asked.flop, asked.bytes)
        if core.ranks == 1:
            return found
        token_bytes = core.token_elements / core.kv_heads * own * form(self.formats.cache).weight_bytes
        gathered = self.collective(CollectiveKind.ALL_GATHER, batch * np.maximum(cached, 1.0) * token_bytes, core.ranks)
        moved = np.where(cached > 0.0, gathered, 0.0)
        if core.kv_heads > 1.0:  # ranks have keys of different heads, and give tokens to those that hold them
            moved = moved + self.collective(CollectiveKind.ALL_TO_ALL, batch * tokens * token_bytes, core.ranks)
        return found + unfitted(moved)

    def decode(self, core: Core, sequences: Array, context: Array) -> Seconds:
        """Attention of one new token of each of `sequences` over `context` tokens of cache [s].

        Where contexts are divided a rank does the heads of all its fellows over the part that it holds.
        """
        if core.entries is not None or core.choice is not None:
            return self._chosen(core, sequences, 1.0, np.maximum(context - 1.0, 0.0), decode=True)
        heads, held = core.heads * core.ranks, np.maximum(context / core.ranks, 1.0)
        if core.latent:
            asked = questions.mla_decode(sequences, held, heads, dtype=self.products, cache_dtype=self.formats.cache)
        else:
            read = heads if self.own.per_query else core.kv_heads
            asked = questions.decode(
                sequences, held, heads, read, (core.qk_dim + core.v_dim) / 2,
                window=float(core.window) / core.ranks, dtype=self.products, cache_dtype=self.formats.cache,
            )  # fmt: skip
        again = self.own.beams * (heads / core.kv_heads if self.own.per_query and not core.latent else 1.0)
        found = self._limited(
            self._decoded(asked), asked.question.form, asked.flop, asked.bytes / again / self.own.beams
        )
        if self.own.block_heads and not core.latent:
            found = self._by_block(found, heads * np.maximum(sequences, 1.0), held, core.qk_dim + core.v_dim)
        return found + self.context_parts(core, np.maximum(sequences, 1.0)) if core.ranks > 1 else found

    def _chosen(self, core: Core, batch: Number, tokens: Number, cached: Number, *, decode: bool = False) -> Seconds:
        """Attention to the keys that an indexer chooses, and the choice: what a whole sparse layer takes for it [s]."""
        choice = core.choice
        if choice is None:
            assert core.entries is not None
            return compressed_attention(self, core, core.entries, batch, tokens, cached, decode=decode)
        widths: dict[str, float] = {
            "hidden": choice.hidden, "rank": choice.rank, "nope": core.qk_dim - questions.ROTARY, "value": core.v_dim,
            "index_heads": choice.heads, "top": choice.top,
        }  # fmt: skip
        asked = partial(
            layer_questions.chosen_core, batch, tokens, cached, core.heads, widths, decode=decode,
            cache_dtype=self.formats.cache,
        )  # fmt: skip
        forms = (self.formats.attention, self.products)
        known = [name for name in forms if find_fits(self.engines(asked(dtype=name)), self.part, self.machine.rungs[0])]
        question = asked(dtype=[*known, *forms][0])
        model = replace(self._model(question), mechanism=CHOSEN_CORE)
        return self._read(question, model) + self.streamed(np.zeros(1), 1.0)

    def _decoded(self, asked: questions.Asked) -> Seconds:
        """Decode by the kernels that an engine has for a group of query heads [s].

        Kernels that take a group together want it to be one of `groups` and a quarter as many blocks as there are
        multiprocessors; others read keys for each query head. Where such kernels were measured two fits bound them
        from above, that of single heads, where memory hides what a multiprocessor does, and that of wide groups: the
        shorter counts. Elsewhere the grouping kernels' fit does each head by itself.
        Source: tensorrt-llm, cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention, decoderXQAImplPrecompiled.cpp.
        """
        if not self.own.splits:
            asked = asked.sized(most_splits=1.0)
        found = self.ask(asked)
        sizes = asked.question.sizes
        if not self.own.groups or np.max(sizes["group"]) <= 1.0:
            return found
        one, other = (self.ask(asked.sized(per_query=1.0), kernel) for kernel in _BY_QUERY)
        shorter = one.where(one.mid <= other.mid, other)
        blocks = np.asarray(sizes["batch"]) * sizes["kv_heads"]
        each = ~np.isin(sizes["group"], self.own.groups) | (blocks * _FEWEST_BLOCKS < self.machine.device.sm_count)
        return shorter.where(each, found)

    def _by_block(self, found: Seconds, heads: Array, context: Array, elements: float) -> Seconds:
        """Decode of many query heads by one block each, if memory does not take longer; of fewer in parts [s].

        A kernel of its own adds the parts up. Source: vllm, csrc/attention/attention_kernels.cu at 00f5113.
        """
        mid, memory = block_seconds(heads, context, elements, self.own.room, self.machine.device)
        alone = heads > self.own.block_heads
        whole = banded("paged", mid, 0.0 * mid, memory).where(alone & (mid > found.mid), found)
        return whole.where(alone, found + self.streamed(np.zeros_like(found.mid), 1.0))

    def recurrence(self, piece: Recurrence, batch: Array | float, tokens: Array, *, decode: bool = False) -> Seconds:
        """A scan over `tokens` of each of `batch` prompts, or over one token of each of `batch` sequences [s]."""
        if piece.delta:
            return self.ask(
                layer_questions.delta_rule(
                    batch, tokens, piece.heads, piece.key_heads, piece.key_dim, piece.value_dim, decode=decode
                )
            )
        rows = np.asarray(batch * tokens, dtype=float)
        each = 2.0 * piece.elements + (0.0 if decode else piece.handed)
        moved = self.streamed(each * rows + piece.state_bytes * batch, 1.0 if decode else piece.kernels)
        compute = piece.flop_per_token * rows / self.machine.device.half_rate
        mid = np.maximum(moved.mid, compute)
        return unfitted(mid, compute=compute, memory=moved.memory)

    def expert_all_to_all(self, piece: ExpertAllToAll, rows: Array) -> Seconds:
        """Tokens of every attention rank to their experts and back [s]; `rows` are those of all ranks together.

        Few ranks gather all tokens and scatter the sums, or meet in all-reduces of both; many send each token to the
        ranks of its experts only.
        """
        if piece.stay:
            return self.passed_on(piece, np.maximum(rows / piece.ranks, 1.0))
        size = 2.0 * piece.width * np.maximum(rows, piece.ranks)
        if self._backend.over(piece.ranks) and self._exchanges:
            machine = self.group(piece.ranks)
            per_rank = np.maximum(rows / piece.ranks, 1.0)
            total = nothing(rows.shape)
            for combine in (False, True):
                asked = questions.exchange(
                    per_rank, piece.width, piece.top_k, piece.experts, machine, combine=combine,
                    quick=self._backend.quick,
                )  # fmt: skip
                total = total + self.ask(asked)
            return total
        if self.own.all_meet and not self._backend.narrow:
            return unfitted(2.0 * self.all_reduce(size, piece.ranks))
        cast = form(self.formats.feed).input_bytes / 2.0 if self._backend.narrow else 1.0
        gathered = self.collective(CollectiveKind.ALL_GATHER, cast * size, piece.ranks)
        scattered = self.collective(CollectiveKind.REDUCE_SCATTER, size, piece.ranks)
        return unfitted(gathered + scattered)

    @cached_property
    def _exchanges(self) -> bool:
        question = Question(family="exchange", sizes={}, form="any")
        return any(find_fits(question, self.part, one) for one in self.machine.rungs if one is not Rung.COMMON)
