"""Bytes kept for backward, against Korthikanti et al. 2022 (arXiv:2205.05198)."""

from __future__ import annotations

from collections import defaultdict

import pytest

from ridgeline.graph.build import from_dims
from ridgeline.graph.load import load
from ridgeline.graph.model import Block, Model
from ridgeline.graph.ops import Region

HALF = 2.0  # bytes of fp16


def gpt(*, dropout: bool = True) -> Model:
    return from_dims(layers=2, hidden=1024, heads=16, vocab=51200, max_positions=2048, dropout=dropout)


def layer(model: Model) -> Block:
    return model.graph.blocks[model.graph.layers[0]]


def kept_bytes(block: Block, *, seq_len: int = 0, kernel: str = "unfused") -> dict[tuple[Region, str], float]:
    """Bytes per token of one layer by region and role [byte]."""
    total: dict[tuple[Region, str], float] = defaultdict(float)
    for op in block.ops:
        for one in op.saved:
            if one.kernel in ("", kernel):
                width = HALF if one.element_bytes is None else one.element_bytes
                total[one.region, one.role] += one.elements * width * (seq_len if one.times_seq else 1)
    return dict(total)


@pytest.mark.parametrize("seq_len", [512, 2048, 8192])
def test_a_gpt_layer_keeps_sbh_times_34_plus_5as_over_h(seq_len: int) -> None:
    model, hidden, heads = gpt(), 1024, 16
    kept = sum(kept_bytes(layer(model), seq_len=seq_len).values())
    assert kept == hidden * (34 + 5 * heads * seq_len / hidden)  # equation 1, per token (s b = 1)


def test_the_parts_of_a_gpt_layer_are_those_of_the_paper() -> None:
    seq_len, hidden, heads = 2048, 1024, 16
    kept = kept_bytes(layer(gpt()), seq_len=seq_len)
    tensor = sum(value for (region, _), value in kept.items() if region is Region.TENSOR)
    sequence = sum(value for (region, _), value in kept.items() if region is Region.SEQUENCE)
    core = kept[Region.TENSOR, "core"]
    assert sequence == 10 * hidden  # two norm inputs 4, their outputs 4, two dropout masks 2
    assert tensor - core == 24 * hidden  # q k v 6, attention output 2, gelu input 8 and output 8
    assert core == 5 * heads * seq_len  # softmax 2, its dropout's mask 1 and output 2


def test_tensor_and_sequence_parallel_divide_what_the_paper_says() -> None:
    seq_len, hidden, heads, degree = 2048, 1024, 16, 8
    kept = kept_bytes(layer(gpt()), seq_len=seq_len)
    scores = 5 * heads * seq_len / hidden
    for divided, expected in (
        ({Region.TENSOR}, 10 + 24 / degree + scores / degree),  # equation 2
        ({Region.TENSOR, Region.SEQUENCE}, (34 + scores) / degree),  # equation 4
    ):
        found = sum(value / (degree if region in divided else 1) for (region, _), value in kept.items())
        assert found == pytest.approx(hidden * expected, rel=1e-12)


def test_only_the_first_tensor_of_a_layer_is_its_input() -> None:
    for name in ("gpt3-125m", "llama-3.1-8b", "deepseek-v3", "bert-base", "pythia-1b", "gemma-2-9b", "nemotron-h-8b"):
        for block in load(name).graph.blocks.values():
            saved = [one for op in block.ops for one in op.saved]
            assert [one.role for one in saved].index("input") == 0, name
            assert sum(one.role == "input" for one in saved) == 1, name
            assert saved[0].region is Region.SEQUENCE


def test_flash_attention_keeps_statistics_in_place_of_scores() -> None:
    block, heads = layer(gpt()), 16
    flash = kept_bytes(block, seq_len=2048, kernel="flash")
    assert (Region.TENSOR, "core") not in flash
    assert sum(flash.values()) == 34 * 1024 + 4 * heads


def test_a_llama_layer_by_hand() -> None:
    # D 4096, H 32, K 8 of 128, F 14336; bf16; flash; no dropout
    kept = kept_bytes(load("llama-3-8b").graph.blocks["dense"], kernel="flash")
    assert kept == {
        (Region.SEQUENCE, "input"): 2 * 4096,
        (Region.SEQUENCE, "norm"): 2 * 4096,
        (Region.SEQUENCE, ""): 2 * (4096 + 4096),  # inputs of qkv and of gate and up
        (Region.TENSOR, ""): 2 * (4096 + 2 * 1024) + 2 * 4096 + 4 * 32 + 2 * 14336,
        (Region.TENSOR, "mlp"): 2 * 2 * 14336,
    }


def test_a_mixtral_layer_keeps_experts_rows_in_the_expert_region() -> None:
    kept = kept_bytes(load("mixtral-8x7b").graph.blocks["moe"], kernel="flash")
    rows = 2 * (4096 + 14336)
    assert kept[Region.EXPERT, ""] == rows  # inputs of gate and up, and of down, per routed row
    assert kept[Region.EXPERT, "mlp"] == 2 * 2 * 14336


def test_no_dropout_no_masks() -> None:
    kept = kept_bytes(layer(gpt(dropout=False)), seq_len=2048)
    assert sum(kept.values()) == 1024 * (34 - 2) + 16 * 2048 * 2


def test_logits_are_kept_once_in_fp32() -> None:
    model = load("llama-3-8b")
    logits = [one for op in model.graph.head for one in op.saved if one.role == "logits"]
    assert [(one.elements, one.element_bytes, one.region) for one in logits] == [(128256, 4.0, Region.VOCAB)]
