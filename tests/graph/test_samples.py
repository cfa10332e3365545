"""Networks of sentences, utterances and categories: parameters by hand, and what their operators are."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.flop import model_flop_per_token, op_flop_per_token
from ridgeline.graph.lstm import lstm, recurrent
from ridgeline.graph.ops import GemmOp, Op
from ridgeline.graph.recommendation import RECOMMENDERS, recommender
from ridgeline.graph.translation import translator
from ridgeline.graph.workload import Workload
from ridgeline.lower.params import rank_params
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Collective, CollectiveKind, Gemm, Layout, Phase, Stream


def gates(inputs: int, hidden: int) -> int:
    """Weights and both biases of an LSTM."""
    return 4 * hidden * (inputs + hidden) + 8 * hidden


def test_parameters_of_gnmt_by_hand() -> None:
    wide, words = 1024, 32_320
    encoder = 2 * gates(wide, wide) + gates(2 * wide, wide) + 2 * gates(wide, wide)
    decoder = gates(wide, wide) + 3 * gates(2 * wide, wide)
    attention = 2 * wide**2 + 2 * wide + 1
    table, classes = words * wide, words * wide + words
    assert recurrent("gnmt").graph.params == encoder + decoder + attention + table + classes == 160_671_297


def test_parameters_of_the_transducer_by_hand() -> None:
    encoder = gates(240, 1024) + gates(1024, 1024) + gates(2048, 1024) + 2 * gates(1024, 1024)
    predicted = 1023 * 512 + 2 * gates(512, 512)
    joint = 1024 * 512 + 512 + 512 * 512 + 512 + 512 * 1024 + 1024
    assert recurrent("rnn-t").graph.params == encoder + predicted + joint == 49_006_080  # published: 49 million


def test_parameters_of_the_translating_transformer_by_hand() -> None:
    d, f, words, norm = 1024, 4096, 33_712, 2048
    feed = 2 * d * f + f + d
    assert translator("transformer-translation-big").graph.params == (
        words * d + 6 * (4 * d * d + feed + 2 * norm) + 6 * (8 * d * d + feed + 3 * norm) + 2 * norm
    )


def test_parameters_of_recommenders_by_hand() -> None:
    tables = (138_493 + 26_744) * (64 + 128)
    layers = 256 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + (64 + 64) + 1
    assert recommender("ncf").graph.params == tables + layers
    bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    wide = 27 * 128
    crossed = 3 * (wide * 512 + 512 * wide + wide)
    top = wide * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1
    assert recommender("dlrm-dcnv2").graph.params == 204_184_588 * 128 + bottom + crossed + top


def test_a_recurrent_layer_multiplies_its_state_step_by_step() -> None:
    ops = lstm("lstm", 8, 16, rows=1, steps=10)
    state = next(op for op in ops if op.name == "lstm.state")
    workload = Workload(seq_len=10, global_batch=4)
    work = [w for w in Sharder(workload, Layout(micro_batch=4)).op(state, None) if isinstance(w, Gemm)]
    by_phase = {w.phase: w for w in work}
    forward, weight = by_phase[Phase.FORWARD], by_phase[Phase.BACKWARD_WEIGHT]
    # four sequences at once, ten times; the weight's gradient sums over all forty positions in one product
    assert (forward.m, forward.k, forward.n, forward.steps) == (4, 16, 64, 10)
    assert (weight.m, weight.k, weight.n, weight.steps) == (16, 40, 64, 1)
    assert float(sum(2 * w.m * w.k * w.n * w.steps for w in work)) == 3 * 2 * 40 * 16 * 64


def test_flop_of_a_sentence_do_not_depend_on_how_its_steps_are_cut() -> None:
    ops = lstm("lstm", 8, 16, rows=1, steps=10)
    assert sum(float(op_flop_per_token(op, 1.0)) for op in ops if isinstance(op, GemmOp)) == 2 * (8 + 16) * 64


def test_tables_are_divided_and_only_their_rows_are_updated() -> None:
    whole, parts = (recommender("dlrm-dcnv2", shards=shards) for shards in (1, 8))
    assert whole.graph.params == pytest.approx(parts.graph.params, rel=1e-6)
    block = parts.graph.blocks["tables"]
    workload, layout = Workload(seq_len=1, global_batch=800, precision="fp16-amp"), Layout(micro_batch=100, ep=8)
    held = rank_params(block.ops, layout, workload, experts=block.experts)
    assert float(held.expert) == pytest.approx(204_184_588 * 128 / 8, rel=1e-6)
    assert float(held.trained_expert) == 0.0  # no dense gradient, nothing to reduce
    work = Sharder(workload, layout).block(block)
    lookups = next(w for w in work if isinstance(w, Stream) and w.phase is Phase.FORWARD)
    # 214 rows of 128 numbers in fp32 read, 26 sums in 16 bits written, for each of 100 samples
    assert float(lookups.bytes) == 100 * (214 * 128 * 4 + 26 * 128 * 2)
    traded = [w for w in work if isinstance(w, Collective)]
    assert [(w.kind, float(w.bytes), w.ranks) for w in traded] == [
        (CollectiveKind.ALL_TO_ALL, 100 * 26 * 128 * 2, 8)
    ] * 2


def test_pairs_of_a_transducer_are_every_frame_and_token() -> None:
    head = {op.name: op for op in recurrent("rnn-t").graph.head}
    assert head["joint"].rows == 205 * 51
    assert head["loss"].n == 205 * 51 * 1024


def test_products_of_a_dense_recommender_by_hand() -> None:
    graph = recommender("dlrm-small").graph
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = 480 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert model_flop_per_token(graph, 1.0) == 2 * (bottom + top) + 2 * 27**2 * 128


def test_unknown_names_are_refused() -> None:
    for build in (recurrent, recommender, translator):
        with pytest.raises(UnknownNameError):
            build("nothing")
    assert all(isinstance(op, Op) for name in RECOMMENDERS for op in recommender(name).graph.head)


def test_under_autocast_ncf_multiplies_and_joins_what_it_looked_up_in_four_bytes() -> None:
    plain, wide = (
        {op.name: op for op in recommender("ncf", autocast=autocast).graph.blocks["layers"].ops}
        for autocast in (False, True)
    )
    assert (plain["multiply"].read, wide["multiply"].read) == (2 * 64, 4 * 64)
    assert (plain["join"].write, wide["join"].write) == (256, 2 * 256)
    assert (wide["cast"].read, wide["cast"].write) == (2 * (256 + 64), 256 + 64)
    assert "cast" not in plain
    assert plain["layer1"] == wide["layer1"]
