"""What one device of a served model does, by hand: widths, repeated keys, experts and collectives."""

from __future__ import annotations

from functools import cache

import pytest

from ridgeline.errors import PlanError, RidgelineError
from ridgeline.graph.build import from_dims
from ridgeline.graph.load import catalog, load
from ridgeline.graph.model import Model, op_params
from ridgeline.graph.ops import LinearOp
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import (
    Core,
    ElementwisePiece,
    ExpertAllToAll,
    Experts,
    Fusions,
    LayerKind,
    Piece,
    Product,
    Reduce,
    Served,
)
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.serving_words import deployed

LLAMA = load("llama-3.1-8b")  # D 4096, 32 heads and 8 kv heads of 128, F 14336, V 128256, 32 layers
MIXTRAL = load("mixtral-8x7b")  # 8 experts of 14336, 2 chosen
DEEPSEEK = load("deepseek-v3")  # 256 experts of 2048, 8 chosen, 1 shared; 3 dense layers, 58 with experts


def products(kind: LayerKind) -> dict[str, tuple[float, float]]:
    return {piece.name: (piece.n, piece.k) for piece in kind.pieces if isinstance(piece, Product)}


def experts(served: Served) -> Experts:
    (found,) = {piece for kind in served.kinds for piece in kind.pieces if isinstance(piece, Experts)}
    return found


def count(served: Served, sort: type) -> int:
    """How many such pieces an iteration runs, all layers and both ends."""
    layers = sum(kind.count * sum(isinstance(piece, sort) for piece in kind.pieces) for kind in served.kinds)
    return layers + sum(isinstance(piece, sort) for piece in (*served.embedding, *served.head))


def matrix_elements(served: Served) -> float:
    """Elements of all weight matrices in the layers of one device [1]."""
    total = 0.0
    for kind in served.kinds:
        for piece in kind.pieces:
            if isinstance(piece, Product):
                total += kind.count * piece.count * piece.n * piece.k
            elif isinstance(piece, Experts):
                each = (2 + piece.gated) * piece.hidden * piece.inner
                total += kind.count * piece.count / piece.ranks * each
    return total


def whole_elements(model: Model) -> int:
    """The same of the undivided model [1]."""
    graph = model.graph
    blocks = [graph.blocks[name] for name in graph.layers]
    return sum(op_params(op, block.experts) for block in blocks for op in block.ops if isinstance(op, LinearOp))


def test_a_layer_of_llama_on_one_device_and_on_four() -> None:
    one, four = (serve(LLAMA, deployed(tp=tp)).kinds for tp in (1, 4))
    assert [kind.count for kind in one] == [32]
    assert products(one[0]) == {
        "qkv": (6144, 4096),  # (32 + 2 * 8) heads of 128
        "attention_out": (4096, 4096),
        "mlp_up": (28672, 4096),  # gate and up
        "mlp_down": (4096, 14336),
    }
    assert products(four[0]) == {
        "qkv": (1536, 4096),
        "attention_out": (4096, 1024),
        "mlp_up": (7168, 4096),
        "mlp_down": (4096, 3584),
    }
    cores = [piece for kind in four for piece in kind.pieces if isinstance(piece, Core)]
    assert cores == [Core(heads=8, kv_heads=2, qk_dim=128, v_dim=128)]


@pytest.mark.parametrize(
    ("tp", "width", "kv_heads"),
    [(1, 6144, 8), (8, 768, 1), (16, 512, 1), (32, 384, 1)],  # beyond 8 ranks: own queries, and one key and value head
)
def test_keys_and_values_of_fewer_heads_than_ranks_are_repeated(tp: int, width: int, kv_heads: int) -> None:
    (kind,) = serve(LLAMA, deployed(tp=tp)).kinds
    assert products(kind)["qkv"] == (width, 4096)
    assert [piece.kv_heads for piece in kind.pieces if isinstance(piece, Core)] == [kv_heads]


@pytest.mark.parametrize(
    ("tp", "heads", "kv_heads", "feed"),
    [(8, 7, 1, 4736), (4, 7, 1, 9472), (2, 14, 2, 18944), (3, 14, 2, 37888 / 3)],  # 3: 2 + 1 + 1 of 4 key heads
)
def test_whole_key_heads_go_to_ranks_with_their_queries(tp: int, heads: int, kv_heads: int, feed: float) -> None:
    """Qwen2-7B has 28 heads of 128, 4 of keys, 37,888 columns of gate and up: the fullest rank's share of each."""
    (kind,) = serve(load("qwen2-7b"), deployed(tp=tp), Fusions(whole_groups=True)).kinds
    (core,) = [piece for piece in kind.pieces if isinstance(piece, Core)]
    assert (core.heads, core.kv_heads) == (heads, kv_heads)
    found = products(kind)
    assert found["qkv"] == ((heads + 2 * kv_heads) * 128, 3584)
    assert found["attention_out"] == (3584, heads * 128)
    assert found["mlp_up"] == pytest.approx((feed, 3584))


def test_whole_key_heads_are_the_even_division_where_that_is_one() -> None:
    for tp in (1, 2, 4, 8):
        assert serve(LLAMA, deployed(tp=tp), Fusions(whole_groups=True)) == serve(LLAMA, deployed(tp=tp))


def test_the_head_is_divided_over_the_vocabulary() -> None:
    head = serve(LLAMA, deployed(tp=4)).head
    assert [(piece.n, piece.k, piece.rows) for piece in head if isinstance(piece, Product)] == [
        (128256 / 4, 4096, "sequences")
    ]
    assert [(piece.width, piece.gather) for piece in head if isinstance(piece, Reduce)] == [(128256, True)]


@pytest.mark.parametrize(
    ("deployment", "ranks", "inner"),
    [
        (deployed(), 1, 14336),
        (deployed(tp=8), 1, 1792),  # every expert on every rank, an eighth of each
        (deployed(tp=8, ep=8), 8, 14336),  # one whole expert a rank
        (deployed(tp=8, ep=2), 2, 3584),  # four experts a rank, a quarter of each
        (deployed(dp=4, ep=4), 4, 14336),
        (deployed(tp=2, dp=4, ep=4), 4, 7168),
    ],
)
def test_experts_are_divided_over_their_ranks_and_cut_over_the_rest(
    deployment: Deployment, ranks: int, inner: float
) -> None:
    found = experts(serve(MIXTRAL, deployment))
    assert found == Experts(hidden=4096, inner=inner, top_k=2, count=8, ranks=ranks, gated=True)
    held = found.count / found.ranks * 3 * found.hidden * found.inner
    assert held * deployment.tp * deployment.dp == 8 * 3 * 4096 * 14336


def test_deepseek_s_layers_are_of_two_kinds() -> None:
    served = serve(DEEPSEEK, deployed(tp=8))
    assert {kind.name: kind.count for kind in served.kinds} == {"dense": 3, "moe": 58}
    cores = [piece for kind in served.kinds for piece in kind.pieces if isinstance(piece, Core)]
    assert all(core.latent and core.kv_heads == 1 and core.heads == 16 for core in cores)
    assert experts(served).inner == 2048 / 8


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
def test_collectives_are_only_where_something_is_divided(model: Model) -> None:
    alone = serve(model, deployed())
    assert (count(alone, Reduce), count(alone, ExpertAllToAll)) == (0, 0)
    layers = len(model.graph.layers)
    divided = serve(model, deployed(tp=4))
    assert count(divided, Reduce) == 2 * layers + 2  # after attention and after the rest; embedding, logits
    assert count(divided, ExpertAllToAll) == 0
    routed = sum(model.graph.blocks[name].experts > 0 for name in model.graph.layers)
    ranks = deployed(dp=4, ep=4 if routed else 1)
    side_by_side = serve(model, ranks)
    assert (count(side_by_side, Reduce), count(side_by_side, ExpertAllToAll)) == (0, routed)


@pytest.mark.parametrize(("name", "reductions"), [("minimax-m2", 3), ("olmo-2-7b", 3), ("qwen3-32b", 2)])
def test_norms_over_the_heads_of_all_ranks_add_their_sums_up(name: str, reductions: int) -> None:
    model = load(name)  # MiniMax and OLMo 2 norm all heads together, Qwen3 each by itself
    (kind,) = serve(model, deployed(engine="vLLM", tp=4)).kinds
    widths = [piece.width for piece in kind.pieces if isinstance(piece, Reduce)]
    assert len(widths) == reductions
    assert widths.count(4) == reductions - 2  # a sum of queries and one of keys, 8 bytes a token
    core = next(piece for piece in kind.pieces if isinstance(piece, Core))
    heads = (core.heads + core.kv_heads) * core.qk_dim
    passes = {piece.name: piece.elements for piece in kind.pieces if isinstance(piece, ElementwisePiece)}
    assert passes["qk_norm"] == 2 * heads  # read and written
    assert passes.get("qk_sums", heads) == heads  # read
    (alone,) = serve(model, deployed(engine="vLLM")).kinds
    assert {"qk_norm"} == {
        piece.name for piece in alone.pieces if isinstance(piece, ElementwisePiece) and piece.name[:3] == "qk_"
    }


def test_routers_of_32_bits_widen_their_input_first() -> None:
    (kind,) = serve(load("minimax-m2"), deployed(engine="vLLM", tp=4)).kinds
    router = next(piece for piece in kind.pieces if isinstance(piece, Product) and piece.name == "router")
    assert (router.part, router.n, router.k) == ("wide", 256, 3072)  # whole on every rank
    before = kind.pieces[kind.pieces.index(router) - 1]
    assert isinstance(before, ElementwisePiece)
    assert (before.name, before.elements) == ("widened", 3072 + 2 * 3072)  # 2 bytes are read, 4 written
    (other,) = serve(MIXTRAL, deployed(tp=4)).kinds
    parts = {piece.name: piece.part for piece in other.pieces if isinstance(piece, Product)}
    assert parts["router"] == "plain"
    assert "widened" not in {piece.name for piece in other.pieces if isinstance(piece, ElementwisePiece)}


def test_the_trade_spans_all_ranks_of_an_instance() -> None:
    trades = {piece for kind in serve(MIXTRAL, deployed(tp=2, dp=4, ep=8)).kinds for piece in kind.pieces}
    assert ExpertAllToAll(width=4096, ranks=8, top_k=2, experts=8) in trades


def test_what_experts_do_themselves_is_not_counted_twice() -> None:
    names = {
        piece.name
        for kind in serve(MIXTRAL, deployed()).kinds
        for piece in kind.pieces
        if isinstance(piece, ElementwisePiece)
    }
    assert names.isdisjoint({"route", "dispatch", "experts_activation", "combine"})
    fused = [
        piece.kernels
        for kind in serve(LLAMA, deployed()).kinds
        for piece in kind.pieces
        if isinstance(piece, ElementwisePiece) and piece.name.endswith("_residual")
    ]
    assert fused == [0.0, 0.0]


@cache
def servable() -> tuple[Model, ...]:
    found = []
    for name in catalog():
        model = load(name)
        try:
            serve(model, deployed())
        except RidgelineError:
            continue
        found.append(model)
    return tuple(found)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_ranks_together_hold_at_least_every_matrix_of_the_model(tp: int) -> None:
    """Equal on one device; more on several only where keys, values, routers or latent vectors are repeated."""
    seen = 0
    for model in servable():
        try:
            served = serve(model, deployed(tp=tp))
        except PlanError:  # heads that tp does not divide
            continue
        whole, held = whole_elements(model), matrix_elements(served) * tp
        assert held >= 0.99 * whole, model.name  # biases are no matrices
        if tp == 1:
            assert held <= whole, model.name
        assert held <= 1.25 * whole or tp > 4, model.name
        seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    ("deployment", "model", "words"),
    [
        (deployed(tp=3), LLAMA, "tp = 3 does not divide 32 attention heads"),
        (deployed(tp=16, ep=16), MIXTRAL, "ep = 16 does not divide 8 experts"),
        (deployed(pp=33), LLAMA, "pp = 33 is more than the 32 layers"),
        (deployed(tp=2, ep=2), LLAMA, "ep = 2 needs experts"),
        (deployed(), load("t5-small"), "encoder"),
    ],
)
def test_degrees_that_do_not_divide_are_refused(deployment: Deployment, model: Model, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        serve(model, deployment)


def test_a_window_stays_with_its_core() -> None:
    gemma = serve(load("gemma-3-27b"), deployed())
    windows = {piece.window: kind.count for kind in gemma.kinds for piece in kind.pieces if isinstance(piece, Core)}
    assert windows == {1024: 52, 0: 10}  # five of six layers see 1024 tokens


def test_heads_of_a_made_up_model() -> None:
    tiny = from_dims(layers=2, hidden=64, heads=4, vocab=1000, max_positions=256)
    (kind,) = serve(tiny, deployed(tp=4)).kinds
    assert products(kind)["qkv"] == (3 * 64 / 4, 64)


def test_engines_fuse_what_they_say() -> None:
    def pieces(fusions: Fusions, tp: int = 8) -> list[Piece]:
        return [piece for kind in serve(DEEPSEEK, deployed(tp=tp), fusions).kinds for piece in kind.pieces]

    plain, merged = pieces(Fusions()), pieces(Fusions(latents=True))
    widths = {piece.name: piece.n for piece in plain if isinstance(piece, Product)}
    down = [
        piece for piece in merged if isinstance(piece, Product) and "down" in piece.name and "mlp" not in piece.name
    ]
    assert {piece.name for piece in down if piece.name.endswith(("latent_down", "q_down", "kv_down"))} == {
        "latent_down"
    }
    (width,) = {piece.n for piece in down if piece.name == "latent_down"}
    assert width == widths["q_down"] + widths["kv_down"] == 1536 + 512 + 64
    assert len(plain) - len(merged) == 2  # one in each of the two kinds of layers

    def norms(fusions: Fusions, tp: int) -> set[float]:
        found = pieces(fusions, tp)
        return {
            p.kernels for p in found if isinstance(p, ElementwisePiece) and p.name in ("attention_norm", "mlp_norm")
        }

    assert norms(Fusions(), 8) == {1.0}
    assert norms(Fusions(reduced_norm=True), 8) == {0.0}
    assert norms(Fusions(reduced_norm=True), 1) == {1.0}  # nothing is reduced
    residuals = {
        p.kernels
        for p in pieces(Fusions(norm=False))
        if isinstance(p, ElementwisePiece) and p.name.endswith("_residual")
    }
    assert residuals == {1.0}


def test_chains_are_as_many_kernels_as_the_graph_has_operators() -> None:
    """Eight operators of a norm, each with its width read and written; a residual alone is one as before.

    Gate and up, queries, keys and values are products of their own.
    """
    ops = {op.name: op for op in next(iter(LLAMA.graph.blocks.values())).ops}
    (kind,) = serve(LLAMA, deployed(), Fusions(norm=False, chains=True)).kinds
    found = {piece.name: piece for piece in kind.pieces if isinstance(piece, ElementwisePiece)}
    norm = ops["attention_norm"]
    assert found["attention_norm"].kernels == norm.kernels > 1
    assert found["attention_norm"].elements == 2.0 * norm.kernels * norm.write
    assert found["rotary"].kernels == ops["rotary"].kernels > 1
    assert found["attention_residual"].kernels == 1.0
    widths = [(p.name, p.n) for p in kind.pieces if isinstance(p, Product) and p.name in ("qkv", "mlp_up")]
    assert widths == [("qkv", 2048.0)] * 3 + [("mlp_up", 14336.0)] * 2
    (fused,) = serve(LLAMA, deployed(), Fusions()).kinds
    assert {piece.kernels for piece in fused.pieces if isinstance(piece, ElementwisePiece)} == {0.0, 1.0}


def test_operators_that_no_piece_stands_for_are_launched() -> None:
    """A layer of Llama has fewer pieces than llama.cpp has kernels; an engine that fuses more is left as it is."""
    (plain,) = serve(LLAMA, deployed()).kinds
    (apart,) = serve(LLAMA, deployed(), Fusions(layer_kernels=31)).kinds
    assert apart.pieces[:-1] == plain.pieces
    known = sum(piece.kernels if isinstance(piece, ElementwisePiece) else 1.0 for piece in plain.pieces)
    assert apart.pieces[-1] == ElementwisePiece(name="apart", elements=0.0, kernels=31.0 - known)
    (few,) = serve(LLAMA, deployed(), Fusions(layer_kernels=3)).kinds
    assert few.pieces == plain.pieces


def test_experts_in_a_latent_are_sent_and_computed_as_wide_as_it() -> None:
    """Nemotron 3 Super: D 4096, latent 1024, 512 experts of 2688 of which 22 are visited; the products are whole."""
    served = serve(load("nemotron-3-super-120b-a12b"), deployed(dp=4, ep=4))
    (routed,) = {kind for kind in served.kinds if any(isinstance(piece, Experts) for piece in kind.pieces)}
    assert [piece.width for piece in routed.pieces if isinstance(piece, ExpertAllToAll)] == [1024]
    assert (experts(served).hidden, experts(served).inner, experts(served).top_k) == (1024, 2688, 22)
    cut = serve(load("nemotron-3-super-120b-a12b"), deployed(tp=4))
    (routed,) = {kind for kind in cut.kinds if any(isinstance(piece, Experts) for piece in kind.pieces)}
    made = products(routed)
    assert (made["latent_in"], made["latent_out"]) == ((1024, 4096), (4096, 1024))
    assert experts(cut).inner == 2688 / 4
