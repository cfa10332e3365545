"""Model FLOP against hand counts and published formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import WorkloadError
from ridgeline.graph.build import from_dims
from ridgeline.graph.flop import mean_context, model_flop_per_token, op_flop_per_token
from ridgeline.graph.load import load
from ridgeline.graph.ops import AttentionOp, Op, Region, ScanOp


def attention(*, causal: bool = True, window: int | None = None, chunk: int | None = None) -> Op:
    return AttentionOp(
        name="attention",
        region=Region.TENSOR,
        heads=2,
        kv_heads=1,
        qk_dim=3,
        v_dim=5,
        causal=causal,
        window=window,
        chunk=chunk,
    )


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(24, 2304, 24), (96, 12288, 96), (128, 25600, 160)])
def test_gpt_matches_the_formula_of_narayanan_2021(layers: int, hidden: int, heads: int) -> None:
    # arXiv:2104.04473 section 5.1: 96 B s l h^2 (1 + s/6h + V/16lh) with recompute, so 24 forward
    seq_len, vocab = 2048, 51200
    model = from_dims(layers=layers, hidden=hidden, heads=heads, vocab=vocab, max_positions=seq_len)
    expected = 24 * layers * hidden**2 * (1 + seq_len / (6 * hidden) + vocab / (12 * layers * hidden))
    assert model_flop_per_token(model.graph, float(seq_len), attention="full") == pytest.approx(expected, rel=1e-12)


def test_llama_by_hand() -> None:
    graph = load("llama-3-8b").graph
    layer = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336
    weights = 2 * (32 * layer + 4096 * 128256)
    scores = 32 * 2 * 32 * (128 + 128)
    assert model_flop_per_token(graph, 8192.0, attention="full") == weights + scores * 8192
    assert model_flop_per_token(graph, 8192.0, attention="causal") == weights + scores * 8193 / 2


def test_experts_count_when_active() -> None:
    graph = load("mixtral-8x7b").graph
    layer = 4096 * (4096 + 2048) + 4096 * 4096 + 4096 * 8 + 2 * 3 * 4096 * 14336
    weights = 2 * (32 * layer + 4096 * 32000)
    assert model_flop_per_token(graph, 1.0) == weights + 32 * 2 * 32 * 256


def test_encoder_decoder_counts_each_side_with_its_own_tokens() -> None:
    graph = load("t5-small").graph
    inner, hidden, ffn, heads = 512, 512, 2048, 8
    encoder = 2 * (4 * hidden * inner + 2 * hidden * ffn)
    decoder = 2 * (6 * hidden * inner + 2 * hidden * ffn)
    cross = 2 * 2 * hidden * inner
    source, target = 100.0, 50.0
    scores = 2 * heads * 128
    expected = (
        6 * (encoder + scores * source) * source
        + 6 * (decoder + scores * (target + 1) / 2 + scores * source) * target
        + 6 * cross * source
        + 2 * hidden * 32128 * target
    ) / target
    assert model_flop_per_token(graph, target, encoder_seq_len=source) == pytest.approx(expected, rel=1e-12)


def test_lightning_layers_cost_the_same_at_any_length() -> None:
    graph = load("minimax-text-01").graph
    op = next(op for op in graph.blocks["lightning-moe"].ops if isinstance(op, ScanOp))
    # 64 heads of 128: 4 * 128 * 128 through the state, 4 * 128 * 256 inside a chunk of 256
    assert op_flop_per_token(op, 1e6) == 64 * 4 * 128 * (128 + 256)


def brute_force(op: Op, seq_len: int) -> float:
    total = 0
    for query in range(seq_len):
        first = 0
        if op.window is not None:
            first = max(first, query - op.window + 1)
        if op.chunk is not None:
            first = max(first, query // op.chunk * op.chunk)
        total += query - first + 1
    return total / seq_len


@given(seq_len=st.integers(1, 60), window=st.none() | st.integers(1, 70), chunk=st.none() | st.integers(1, 70))
def test_mean_context_equals_counting(seq_len: int, window: int | None, chunk: int | None) -> None:
    op = attention(window=window, chunk=None if window else chunk)
    assert mean_context(op, float(seq_len)) == pytest.approx(brute_force(op, seq_len), rel=1e-12)


@given(seq_len=st.integers(1, 10_000), window=st.none() | st.integers(1, 5000))
def test_causal_never_counts_more_than_full(seq_len: int, window: int | None) -> None:
    op = attention(window=window)
    assert mean_context(op, float(seq_len)) <= mean_context(op, float(seq_len), attention="full")


def test_arrays_and_floats_agree() -> None:
    lengths = np.array([[1.0, 128.0], [4096.0, 10_000.0]])
    for name in ("llama-4-scout", "gpt-oss-20b", "t5-small", "deepseek-v3", "nemotron-h-8b"):
        graph = load(name).graph
        many = model_flop_per_token(graph, lengths)
        assert many.shape == lengths.shape
        one = [[model_flop_per_token(graph, float(value)) for value in row] for row in lengths]
        np.testing.assert_allclose(many, one, rtol=1e-14)
        assert isinstance(one[0][0], float)


def test_packed_documents_shorten_the_context_but_not_below_a_window() -> None:
    graph = load("llama-3-8b").graph
    short = model_flop_per_token(graph, 8192.0, context=512.0)
    slope = 32 * 2 * 32 * 256
    assert model_flop_per_token(graph, 8192.0) - short == pytest.approx(slope * (8193 / 2 - 512))


def test_unknown_counting_is_refused() -> None:
    with pytest.raises(WorkloadError, match="'causal' or 'full'"):
        mean_context(attention(), 10.0, attention="half")
