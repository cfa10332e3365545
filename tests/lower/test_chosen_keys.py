"""Sparse latent attention, by hand: what the indexer adds in weights, cache, FLOP and time, and where it is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.formats import Formats
from ridgeline.cost.layer_questions import latent_layer
from ridgeline.cost.machine import machine
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import ModelError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import latent_widths
from ridgeline.graph.build import build
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.load import catalog_config, load
from ridgeline.graph.workload import Workload
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core, Product
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.capacity import token_bytes
from ridgeline.serving.engine import formats_of

DENSE, SPARSE, SHARED = load("deepseek-v3"), load("deepseek-v3.2"), load("glm-5.2")
INDEXER = 64 * 128 * 1536 + 7168 * (128 + 64)  # queries of 64 heads from the latent; one key and 64 weights from D
H200 = machine(cluster("8xH200-SXM"))


def core(tp: int = 8) -> Core:
    (found,) = {piece for piece in serve(SPARSE, deployed(tp=tp)).kinds[0].pieces if isinstance(piece, Core)}
    return found


def test_parameters_are_the_dense_models_and_an_indexer_with_its_norm_in_every_layer() -> None:
    assert SPARSE.graph.params - DENSE.graph.params == 61 * (INDEXER + 2 * 128)


def test_layers_that_take_the_choice_before_them_have_no_indexer() -> None:
    every = load("glm-5").graph
    scoring = [SHARED.graph.blocks[name].attention.index_heads > 0 for name in SHARED.graph.layers]
    assert scoring == [True, True, True, *([False] * 3 + [True]) * 18, False, False, False]
    each = 32 * 128 * 2048 + 6144 * (128 + 32) + 2 * 128
    assert every.params - SHARED.graph.params == 57 * each
    cores = [piece for kind in serve(SHARED, deployed()).kinds for piece in kind.pieces if isinstance(piece, Core)]
    assert sorted(piece.choice.heads for piece in cores if piece.choice) == [0, 32, 32]


def test_flop_sees_chosen_keys_and_scores_all() -> None:
    """At S = 4,096 and 2,048 chosen: mean keys 2048 - 2048 * 2047 / 8192; the indexer scores (S + 1) / 2."""
    keys = 2048 - 2048 * 2047 / 8192
    added = 2 * INDEXER + 2 * 64 * 128 * 4097 / 2
    spared = 2 * 128 * (192 + 128) * (4097 / 2 - keys)
    more = model_flop_per_token(SPARSE.graph, 4096.0) - model_flop_per_token(DENSE.graph, 4096.0)
    assert more == pytest.approx(61 * (added - spared), rel=1e-9)


def test_cache_holds_an_index_key_of_8_bits_beside_the_latent() -> None:
    for kv, latent in (("bf16", 2 * 576), ("fp8", 512 + 4 * 4 + 2 * 64)):
        deployment = deployed(tp=8, kv=kv)
        found = token_bytes(serve(SPARSE, deployment).kinds, formats_of(deployment))
        assert found == (61 * (latent + 128 + 4), 0.0)


def test_every_rank_scores_for_itself() -> None:
    one, eight = core(1).choice, core(8).choice
    assert one == eight
    assert eight is not None
    assert eight.elements == INDEXER
    names = {piece.name for piece in serve(SPARSE, deployed(tp=8)).kinds[0].pieces if isinstance(piece, Product)}
    assert not any(name.startswith("index") for name in names)


def test_a_core_is_the_fitted_layer_without_start_passes_and_dense_products() -> None:
    """More context lengthens both alike, as everything else of a layer knows no context."""
    prices = ServedPrices(H200, Formats(attention="fp8_block"), engine="SGLang")
    sequences, contexts = np.array([64.0]), np.array([3000.0, 100_000.0])
    ours = prices.decode(core(), sequences, contexts).mid
    asked = latent_layer(64.0, 1.0, 16.0, cached=contexts - 1, decode=True, sparse=True, dtype="fp8_block")
    whole = prices.ask(asked).mid
    assert ours[1] - ours[0] == pytest.approx(whole[1] - whole[0], rel=1e-9)
    assert (ours < whole).all()
    assert dict(asked.question.sizes)["index_heads"] == latent_widths("DeepSeek-V3.2", sparse=True)["index_heads"]


@settings(max_examples=20, deadline=None)
@given(st.floats(1, 256), st.floats(1, 1e5), st.sampled_from(["SGLang", "vLLM", "TensorRT-LLM"]))
def test_longer_contexts_and_more_sequences_are_never_faster(batch: float, context: float, engine: str) -> None:
    prices = ServedPrices(H200, Formats(), engine=engine)
    grid = np.array([context, context * 1.5])
    found = prices.decode(core(), np.array([[batch], [batch + 1.0]]), grid[None, :]).mid
    assert (np.diff(found, axis=0) >= -1e-12).all()
    assert (np.diff(found, axis=1) >= -1e-12).all()


def test_long_contexts_decode_faster_than_dense_and_short_ones_do_not() -> None:
    prices = ServedPrices(H200, Formats(), engine="SGLang")
    dense = Core(heads=16, kv_heads=1, qk_dim=192, v_dim=128, latent=True)
    many = np.array([64.0])
    short, long = np.array([1024.0]), np.array([60_000.0])
    assert prices.decode(core(), many, long).mid < 0.5 * prices.decode(dense, many, long).mid
    assert prices.decode(core(), many, short).mid > prices.decode(dense, many, short).mid


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(PlanError, match="served, not trained"):
        predict(SPARSE, cluster("64xH200-SXM"), Workload(seq_len=4096, global_batch=64), Plan(tp=8, pp=1, dp=8))
    with pytest.raises(PlanError, match="kv_ranks with keys that an indexer chooses"):
        serve(SPARSE, deployed(tp=8, kv_ranks=8))


@pytest.mark.parametrize("listed", [["full"], ["shared"] * 78, ["full", "all"] * 39, "full"])
def test_a_list_of_indexers_that_cannot_be_is_named(listed: object) -> None:
    config = dict(catalog_config("glm-5.2")) | {"indexer_types": listed}
    with pytest.raises(ModelError, match="indexer_types"):
        build(config, name="broken", source="test")
