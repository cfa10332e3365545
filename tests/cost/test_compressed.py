"""Layers with compressed or block-chosen keys, and hyper-connections: formulas by hand, and what questions state."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost import layer_questions
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.layer_questions import layer_sizes
from ridgeline.errors import UnknownNameError

DEVICE = np.array([100.0, 1e15, 1e12, 1e8, 1e9, 1e13, 1e15])  # SMs, rate, memory, L2, clock, vector, 16-bit rate


def seconds(family: str, sizes: dict[str, float], **values: float) -> float:
    model = mechanism(family)
    usual = {parameter.name: parameter.start for parameter in model.parameters}
    return float(np.asarray(model.seconds(sizes, DEVICE, model.vector({**usual, **values}))))


def at(kind: str, heads: float, model: str, cache_bytes: float = 1.0) -> dict[str, float]:
    found = layer_sizes(kind, model, heads, cache_bytes)
    return {name: float(np.asarray(size)) for name, size in found.items()}


def test_weights_of_deepseek_v4_s_layers_by_hand() -> None:
    """All heads of V4-Pro: 128 of 512, 16 groups of the output, queries over 1,536."""
    shared = 7168 * 1536 + 1536 * 128 * 512 + 128 * 512 * 1024 + 16 * 1024 * 7168
    assert at("hca", 128, "DeepSeek-V4-Pro")["elements"] == shared + 7168 * 512 * 3  # a key, its compressor and gate
    indexer = 1536 * 64 * 128 + 7168 * 64 + 7168 * 128 * 4
    assert at("csa", 128, "DeepSeek-V4-Pro")["elements"] == shared + 7168 * 512 * 5 + indexer
    eighth = at("hca", 16, "DeepSeek-V4-Pro")["elements"]
    assert eighth == 7168 * 1536 + 1536 * 16 * 512 + 16 * 512 * 1024 + 2 * 1024 * 7168 + 7168 * 512 * 3
    assert at("csa", 128, "DeepSeek-V4-Pro")["entry_bytes"] == 584
    assert at("csa", 128, "sgl-project/DeepSeek-V4-Flash-FP8")["top"] == 512


def test_weights_of_minimax_m3_s_layers_by_hand() -> None:
    found = at("msa", 64, "MiniMaxAI/MiniMax-M3", 2.0)
    assert found["key_heads"] == found["index_heads"] == 4
    assert found["elements"] == 6144 * 128 * (64 + 4 + 4 + 64) + 6144 * 128 * (4 + 1)
    assert found["entry_bytes"] == 2 * 128 * 2
    assert at("msa", 8, "MiniMaxAI/MiniMax-M3")["key_heads"] == 1  # keys are repeated on more ranks than there are


def test_a_compressed_layer_by_hand_where_scores_are_all() -> None:
    """One query over 128,000 keys: 1,000 entries of 128, all seen, and the last 128 keys."""
    sizes = {**at("hca", 128, "DeepSeek-V4-Pro"), "batch": 1000.0, "tokens": 1.0, "cached": 127_999.0}
    free = {"start_s_": 3e-6, "matrix_share_": 1.0, "key_s_": 1e-11, "row_s_": 1e-12, "elementwise_share_": 4.0}
    found = seconds("hca_layer_decode", {**sizes, "elements": 1.0, "weight_bytes": 1.0}, score_share_=0.01,
                    gather_share_=20.0, memory_share_=1.0, **free)  # fmt: skip
    around = 1000 * 2 * (6 * 7168 + 8 * 128 * 512) / 4e12
    assert found == pytest.approx(3e-6 + 1000 * 1128 * 4 * 128 * 512 / 1e13 + around, rel=1e-3)


def test_chosen_entries_are_bounded_and_their_indexer_is_not() -> None:
    sizes = {**at("csa", 64, "DeepSeek-V4-Flash"), "batch": 64.0, "tokens": 1.0, "weight_bytes": 1.0}
    blind = {**sizes, "index_heads": 0.0}
    short, long = (seconds("csa_layer_decode", {**blind, "cached": c}) for c in (8191.0, 262_143.0))
    assert short == long  # 512 entries both times
    few, many = (seconds("csa_layer_decode", {**sizes, "cached": c}, pick_s_=1e-9) for c in (8191.0, 262_143.0))
    assert many - few > (65_536 - 2048) * 1e-9


def test_hyper_connections_by_hand() -> None:
    values = {"start_s_": 1e-6, "memory_share_": 0.5, "product_share_": 1.0, "row_s_": 1e-10, "l2_kept_": 0.02}
    sizes = {"rows": 100_000.0, "width": 7168.0}
    before = seconds("hyper_connection", {**sizes, "before": 1.0}, **values)
    after = seconds("hyper_connection", {**sizes, "before": 0.0}, **values)
    assert before == pytest.approx(1e-6 + 1e5 * 7168 * 2 * 5 / 5e11, rel=0.01)  # four streams and the mixed one
    assert after == pytest.approx(1e-6 + 1e5 * 7168 * 2 * 9 / 5e11, rel=0.01)  # four read, one added, four written
    slow = seconds("hyper_connection", {**sizes, "before": 1.0}, **{**values, "product_share_": 0.005})
    assert slow > 2 * 1e5 * 4 * 7168 * 24 / 5e12  # 24 weights of every row


def test_questions_state_the_work_of_a_layer() -> None:
    one = layer_questions.compressed_layer("hca", 1, 1, 128, cached=127_999, decode=True, cache_dtype="fp8")
    elements = float(np.asarray(one.question.sizes["elements"]))
    assert float(np.asarray(one.flop)) == pytest.approx(2 * elements + 1128 * 4 * 128 * 512)
    assert float(np.asarray(one.bytes)) == pytest.approx(elements * 2 + 4 * 7168 + 1128 * 584)
    long = layer_questions.compressed_layer("msa", 1, 1, 64, cached=65_535, decode=True)
    assert float(np.asarray(long.flop)) == pytest.approx(
        2 * np.asarray(long.question.sizes["elements"]) + 2048 * 4 * 64 * 128 + 2 * 65_536 * 4 * 128
    )
    mixed = layer_questions.hyper_connection(10, 100, before=True)
    assert float(np.asarray(mixed.flop)) == 2 * 10 * 4 * 100 * 24
    assert float(np.asarray(mixed.bytes)) == 10 * 100 * 2 * 5


def test_models_without_widths_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="compressed"):
        layer_sizes("csa", "Llama-3", 8, 1.0)
