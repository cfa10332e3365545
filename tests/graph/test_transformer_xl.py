"""Transformer-XL: parameters by hand from the released configurations, products of a segment and its memory."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts.mechanisms import token_frequency
from ridgeline.graph.flop import op_flop_per_token
from ridgeline.graph.ops import CrossEntropyOp, Op
from ridgeline.graph.transformer_xl import transformer_xl
from ridgeline.graph.workload import Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Attention, Gemm, Layout, Phase

WORDS = (19_997, 20_000, 160_000, 67_738)


def layer(wide: int, ffn: int) -> int:
    """Queries, keys and values, distances, the output; the feed-forward with biases; two norms with scale and shift."""
    return 5 * wide**2 + 2 * wide * ffn + ffn + wide + 4 * wide


@pytest.mark.parametrize(
    ("name", "params"),
    [
        # one table that the logits share, their biases, three clusters, two biases of queries
        ("transformer-xl-base", 16 * layer(512, 2048) + sum(WORDS) * 513 + 3 * 513 + 2 * 512),
        (
            "transformer-xl-large",  # tables of 1024, 256, 64 and 16, each widened; the first cluster's own way back
            18 * layer(1024, 4096)
            + sum(count * 1024 // 4**number for number, count in enumerate(WORDS))
            + 1024 * (1024 + 256 + 64 + 16) + 1024**2 + sum(WORDS) + 3 * 1025 + 2 * 1024,
        ),
        # one table that the logits share, and a bias for each word
        ("transformer-xl-large-plain", 18 * layer(1024, 4096) + sum(WORDS) * 1025 + 2 * 1024),
    ],
)  # fmt: skip
def test_parameters_of_the_released_configurations(name: str, params: int) -> None:
    assert transformer_xl(name, sequences=16).graph.params == params


def ops(name: str, sequences: int) -> dict[str, Op]:
    graph = transformer_xl(name, sequences=sequences).graph
    return {op.name: op for op in (*graph.blocks["layer"].ops, *graph.embedding, *graph.head)}


def test_a_segment_attends_to_its_memory_by_content_and_distance() -> None:
    found = ops("transformer-xl-large", 8)
    core = found["attention"]
    # 768 keys, a product of 64 by content, one of 64 by distance, one with the values
    assert op_flop_per_token(core, 384.0) == 768 * 2 * 16 * 3 * 64
    assert op_flop_per_token(found["qkv"], 384.0) == 2 * 2 * 1024 * 3072  # the memory's keys as well
    assert op_flop_per_token(found["distances"], 384.0) == 2 * 1024 * 1024 * 2 / 8  # once for all eight sequences
    work = Sharder(
        Workload(seq_len=384, global_batch=8, attention_kernel="unfused"), Layout(micro_batch=8)
    ).op(core, None)  # fmt: skip
    first = next(piece for piece in work if isinstance(piece, Attention) and piece.phase is Phase.FORWARD)
    assert (first.sequences, first.q_tokens, first.kv_tokens, first.mean_context) == (8, 384, 768, 768)


def test_logits_of_rare_words_are_made_for_rare_tokens() -> None:
    found = ops("transformer-xl-base", 8)
    assert found["logits"].n == 20_000  # 19997 words and three clusters
    rare = [found[f"logits{number}"] for number in (1, 2, 3)]
    assert [(op.k, op.n) for op in rare] == [(512, count) for count in WORDS[1:]]
    assert [op.rows for op in rare] == [
        token_frequency(*ends) for ends in ((19997, 39997), (39997, 199997), (199997, 267735))
    ]
    assert sum(op.rows for op in rare) + token_frequency(0, 19997) == pytest.approx(1.0)


def test_a_softmax_that_is_not_adaptive_makes_every_logit_of_every_token() -> None:
    found = ops("transformer-xl-large-plain", 8)
    assert (found["logits"].k, found["logits"].n, found["cross_entropy"].n) == (1024, sum(WORDS), sum(WORDS))
    assert not {name for name in found if name.startswith(("logits1", "narrow", "widen", "select"))}


def test_rows_of_a_micro_batch_share_the_distances() -> None:
    graph = transformer_xl("transformer-xl-base", sequences=4).graph
    work = Sharder(Workload(seq_len=192, global_batch=4), Layout(micro_batch=4)).block(graph.blocks["layer"])
    distances = [float(piece.m) for piece in work if isinstance(piece, Gemm) and piece.name == "distances"]
    assert distances[0] == 384  # the keys of one sequence, whatever the sequences


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="transformer-xl-base"):
        transformer_xl("transformer-xl-huge", sequences=1)
    assert any(isinstance(op, CrossEntropyOp) for op in ops("transformer-xl-base", 1).values())
