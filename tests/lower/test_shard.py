"""What one rank does: widths, tokens, experts, adapters and collectives, by hand on a GPT of four heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ridgeline.errors import WorkloadError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.build import from_dims
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.ops import ScanOp
from ridgeline.graph.recurrent import gated_delta_ops, lightning_ops, state_space_ops
from ridgeline.graph.spec import GatedDelta, Lightning, StateSpace
from ridgeline.graph.vision import residual
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.lower.chains import Chains
from ridgeline.lower.networks import scan
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Layout, Phase, Stream, Work
from ridgeline.seams.resolve import rewritten

LAUNCHES = framework_policy("megatron").launches
SEQ = 256  # tokens
DELTA = GatedDelta(key_heads=1, value_heads=3, key_dim=4, value_dim=8, conv_kernel=4, parts=4)
DENSE = from_dims(layers=2, hidden=64, heads=4, vocab=1000, max_positions=SEQ)
EXPERTS = from_dims(
    layers=2, hidden=64, heads=4, vocab=1000, max_positions=SEQ, experts=8, top_k=2, expert_ffn=128, gated=True
)
FORWARD, INPUT, WEIGHT = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT


def workload(**choices: object) -> Workload:
    return Workload(seq_len=SEQ, global_batch=8, **choices)  # type: ignore[arg-type]


def work_of(model: Model, layout: Layout, **choices: object) -> list[Work]:
    return Sharder(workload(**choices), layout).block(next(iter(model.graph.blocks.values())))


def gemms(work: Iterable[Work], name: str) -> dict[Phase, tuple[float, float, float, float]]:
    """(m, n, k, count) of a product by phase."""
    return {
        piece.phase: tuple(float(np.asarray(x)) for x in (piece.m, piece.n, piece.k, piece.count))
        for piece in work
        if isinstance(piece, Gemm) and piece.name == name
    }


def links(work: Iterable[Work], name: str) -> dict[Phase, Collective]:
    return {piece.phase: piece for piece in work if isinstance(piece, Collective) and piece.name == name}


def gemm_flop(work: Iterable[Work]) -> float:
    pieces = (piece for piece in work if isinstance(piece, Gemm))
    return sum(float(np.asarray(2.0 * p.m * p.n * p.k * p.count)) for p in pieces)


def attention_flop(work: Iterable[Work]) -> float:
    pieces = (piece for piece in work if isinstance(piece, Attention))
    return sum(float(np.asarray(p.sequences * p.heads * p.q_tokens * p.mean_context * p.qk_dim)) for p in pieces)


def test_a_scan_moves_what_its_kernels_hand_on_once_forward_and_twice_back() -> None:
    """Two heads of 4 with 8 states in one group, chunks of 16: 12 x 64 / 16 of states, 8 x 16 of scores, 2 x 24 in."""
    spec = StateSpace(heads=2, head_dim=4, state=8, groups=1, conv_kernel=4, chunk=16)
    (op,) = (one for one in state_space_ops(spec, 8, ()) if isinstance(one, ScanOp))
    assert op.handed == 12 * 64 / 16 + 8 * 16 + 2 * 24
    forward, backward = scan(op, PRECISIONS["bf16"], rows=np.array([32.0]))
    assert float(forward.bytes[0]) == 32 * (2 * (24 + 2 + 8) + op.handed)
    assert float(backward.bytes[0]) == 32 * (2 * (op.backward_read + op.backward_write) + 2 * op.handed)
    assert (forward.kernels, backward.kernels) == (5.0, 10.0)
    (rule,) = (one for one in gated_delta_ops(DELTA, 8, ()) if isinstance(one, ScanOp))
    assert rule.handed == 3 * (12 * 64 + 4 * (4 + 2 * 8 + 4 * 8 / 64)) + 2 * (2 * 4 + 3 * 8)
    (light,) = (one for one in lightning_ops(Lightning(heads=2, head_dim=8), 16, ()) if isinstance(one, ScanOp))
    assert light.handed == 16 * 2 * 8 * 8 / 256 + 2 * 5 * 16


# tensor parallelism --------------------------------------------------------------------------------


def test_column_products_divide_n_and_row_products_k() -> None:
    work = work_of(DENSE, Layout(tp=2, micro_batch=3))
    tokens = 3 * SEQ
    assert gemms(work, "qkv")[FORWARD] == (tokens, 192 / 2, 64, 1)
    assert gemms(work, "attention_out")[FORWARD] == (tokens, 64, 64 / 2, 1)
    assert gemms(work, "mlp_up")[FORWARD] == (tokens, 256 / 2, 64, 1)
    assert gemms(work, "mlp_down")[FORWARD] == (tokens, 64, 256 / 2, 1)


def test_backward_is_two_products_of_the_same_size() -> None:
    found = gemms(work_of(DENSE, Layout(tp=2)), "mlp_up")
    assert found[INPUT] == (SEQ, 64, 128, 1)  # gradient (T, 128) times the weight turned
    assert found[WEIGHT] == (64, 128, SEQ, 1)  # input turned times gradient
    assert len({np.prod(shape) for shape in found.values()}) == 1


def test_gradients_of_weights_are_accumulated_in_four_bytes() -> None:
    pieces = [p for p in work_of(DENSE, Layout()) if isinstance(p, Gemm) and p.phase is WEIGHT]
    assert pieces
    assert all(piece.accumulate and piece.output_bytes == 4 for piece in pieces)


def test_attention_divides_its_heads() -> None:
    found = next(p for p in work_of(DENSE, Layout(tp=2, micro_batch=3)) if isinstance(p, Attention))
    assert (found.sequences, found.heads, found.kv_heads) == (3, 2, 2)
    assert (found.q_tokens, found.kv_tokens, found.mean_context) == (SEQ, SEQ, (SEQ + 1) / 2)


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    grouped = from_dims(layers=1, hidden=64, heads=4, kv_heads=2, vocab=1000, max_positions=SEQ)
    found = next(p for p in work_of(grouped, Layout(tp=4)) if isinstance(p, Attention))
    assert (found.heads, found.kv_heads) == (1, 1)


@pytest.mark.parametrize(("parallel", "tokens"), [(0, SEQ), (1, SEQ / 2)])
def test_sequence_parallelism_divides_the_tokens_of_norms(parallel: int, tokens: float) -> None:
    work = work_of(DENSE, Layout(tp=2, sequence_parallel=parallel))
    norm = next(p for p in work if isinstance(p, Stream) and p.name == "mlp_norm")
    assert norm.bytes == tokens * 2 * 64 * 2  # read and write 64 numbers of two bytes


def test_sequence_parallelism_trades_one_all_reduce_for_gather_and_scatter() -> None:
    whole = SEQ * 64 * 2  # bytes of the activations of one micro-batch
    plain = work_of(DENSE, Layout(tp=2, sequence_parallel=0))
    sharded = work_of(DENSE, Layout(tp=2, sequence_parallel=1))
    for phase in (FORWARD, INPUT):
        assert links(plain, "tensor.all_reduce")[phase].ranks == 2
        assert links(plain, "tensor.all_gather")[phase].ranks == 1
        assert links(sharded, "tensor.all_reduce")[phase].ranks == 1
        for kind in ("all_gather", "reduce_scatter"):
            piece = links(sharded, f"tensor.{kind}")[phase]
            assert (piece.ranks, piece.bytes, piece.stride) == (2, whole, 1)


def test_a_dense_layer_has_two_pairs_of_boundaries() -> None:
    work = work_of(DENSE, Layout(tp=2))
    assert sum(isinstance(p, Collective) and p.name == "tensor.all_reduce" and p.phase is FORWARD for p in work) == 2


def test_inputs_are_gathered_again_for_weight_gradients() -> None:
    found = links(work_of(DENSE, Layout(tp=2, sequence_parallel=1)), "tensor.regather")
    assert set(found) == {WEIGHT}
    assert found[WEIGHT].hidden_behind == "gemm"


# context parallelism -------------------------------------------------------------------------------


def test_a_context_shard_has_its_share_of_the_tokens() -> None:
    work = work_of(DENSE, Layout(cp=4))
    assert gemms(work, "mlp_up")[FORWARD][0] == SEQ / 4
    found = next(p for p in work if isinstance(p, Attention))
    assert (found.heads, found.q_tokens, found.kv_tokens) == (4, SEQ / 4, SEQ)


def test_a_ring_passes_keys_and_values_and_twice_as_much_backward() -> None:
    work = work_of(DENSE, Layout(tp=2, cp=4))
    found = links(work, "attention.ring")
    # a shard's 64 tokens x 2 kv heads x (16 + 16) x 2 bytes, from all four shards
    assert found[FORWARD].bytes == 64 * 2 * 32 * 2 * 4
    assert found[INPUT].bytes == 2 * found[FORWARD].bytes
    assert (found[FORWARD].kind, found[FORWARD].ranks, found[FORWARD].stride) == (CollectiveKind.ALL_GATHER, 4, 2)
    assert not links(work, "attention.all_to_all")


def test_all_to_all_trades_heads_for_tokens() -> None:
    work = work_of(DENSE, Layout(tp=2, cp=2, context="ulysses"))
    core = next(p for p in work if isinstance(p, Attention))
    assert (float(core.heads), float(core.q_tokens)) == (1, SEQ)
    found = [p for p in work if isinstance(p, Collective) and p.name == "attention.all_to_all" and p.phase is FORWARD]
    # q and o, then k and v: 128 tokens x 16 x 4 heads / 2 x 2 bytes each
    assert [(p.ranks, p.bytes, p.repeats) for p in found] == [(2, 128 * 16 * 2 * 2, 2), (2, 128 * 16 * 2 * 2, 2)]
    copied = next(p for p in work if isinstance(p, Stream) and p.name == "attention.trade" and p.phase is FORWARD)
    assert (copied.bytes, copied.kernels) == (4 * 4 * 128 * 16 * 2 * 2, 8)  # four tensors read and written twice
    alone = [p for p in work_of(DENSE, Layout(tp=2, cp=2)) if isinstance(p, Stream) and p.name == "attention.trade"]
    assert not alone  # rings trade nothing
    assert not links(work, "attention.ring")


def test_an_all_gather_shows_keys_and_values_and_reduces_their_gradients() -> None:
    work = work_of(DENSE, Layout(tp=2, cp=4, context="allgather"))
    ring = links(work_of(DENSE, Layout(tp=2, cp=4)), "attention.ring")[FORWARD]
    gathered, scattered = (links(work, f"attention.{name}") for name in ("gather", "scatter"))
    assert gathered[FORWARD].bytes == gathered[INPUT].bytes == scattered[INPUT].bytes == ring.bytes
    assert FORWARD not in scattered
    assert {one.hidden_behind for one in (*gathered.values(), *scattered.values())} == {""}
    core = next(p for p in work if isinstance(p, Attention))
    assert (float(core.heads), float(core.q_tokens)) == (2, SEQ / 4)


def test_arrays_of_layouts_have_the_exchanges_of_each_style() -> None:
    """What a style exchanges is of the ranks that have it alone."""
    both = work_of(DENSE, Layout(tp=2, cp=2, context=np.array(["ring", "ulysses"])))
    assert links(both, "attention.ring")[FORWARD].ranks.tolist() == [2, 1]
    assert links(both, "attention.all_to_all")[FORWARD].ranks.tolist() == [1, 2]


def test_packed_documents_do_not_see_each_other() -> None:
    found = next(p for p in work_of(DENSE, Layout(), mean_document=100) if isinstance(p, Attention))
    assert found.mean_context == 101 / 2


# conservation --------------------------------------------------------------------------------------


LAYOUTS = [
    (2, 1, "ring"), (4, 1, "ring"), (1, 2, "ring"), (2, 2, "allgather"), (2, 2, "ulysses"), (4, 4, "ring"),
]  # fmt: skip


@pytest.mark.parametrize(("tp", "cp", "context"), LAYOUTS)
@pytest.mark.parametrize("parallel", [0, 1])
def test_flop_over_all_ranks_is_the_flop_of_one(tp: int, cp: int, context: str, parallel: int) -> None:
    whole = work_of(DENSE, Layout(micro_batch=2))
    layout = Layout(tp=tp, cp=cp, context=context, sequence_parallel=parallel, micro_batch=2)
    one = work_of(DENSE, layout)
    assert gemm_flop(one) * tp * cp == pytest.approx(gemm_flop(whole))
    assert attention_flop(one) * tp * cp == pytest.approx(attention_flop(whole))


@pytest.mark.parametrize(
    ("tp", "cp", "dp", "ep", "etp"), [(1, 1, 4, 4, 1), (2, 1, 4, 4, 2), (2, 2, 2, 8, 1), (4, 1, 2, 2, 4)]
)
def test_expert_flop_over_all_ranks_is_conserved(tp: int, cp: int, dp: int, ep: int, etp: int) -> None:
    names = ("experts_up", "experts_down")
    whole = [p for p in work_of(EXPERTS, Layout()) if p.name in names]
    one = [p for p in work_of(EXPERTS, Layout(tp=tp, cp=cp, ep=ep, etp=etp)) if p.name in names]
    # tp * cp * dp ranks work on dp micro-batches
    assert gemm_flop(one) * tp * cp * dp == pytest.approx(gemm_flop(whole) * dp)
    assert gemm_flop(whole) == 3 * 2 * (SEQ * 2) * (64 * 256 + 128 * 64)


def test_repeated_products_are_not_divided() -> None:
    router = gemms(work_of(EXPERTS, Layout(tp=2)), "router")[FORWARD]
    assert router == (SEQ, 8, 64, 1)
    assert gemms(work_of(EXPERTS, Layout(tp=2, sequence_parallel=1)), "router")[FORWARD][0] == SEQ / 2


@pytest.mark.parametrize(("ep", "local", "rows"), [(1, 8, 64), (2, 4, 128), (8, 1, 512)])
def test_experts_of_a_rank_get_the_rows_of_the_others(ep: int, local: int, rows: float) -> None:
    # 256 tokens x 2 choices = 512 rows reach every rank, whatever ep; over 8 / ep local experts
    assert gemms(work_of(EXPERTS, Layout(ep=ep)), "experts_up")[FORWARD] == (rows, 256, 64, local)


def test_experts_divide_their_width_over_their_own_degree() -> None:
    work = work_of(EXPERTS, Layout(tp=2, ep=2, etp=2))
    assert gemms(work, "experts_up")[FORWARD] == (SEQ * 2 / 4, 128, 64, 4)
    assert gemms(work, "experts_down")[FORWARD] == (SEQ * 2 / 4, 64, 64, 4)


def test_dispatch_and_combine_move_each_choice_once() -> None:
    work = work_of(EXPERTS, Layout(tp=2, ep=4, etp=2))
    for name, phase in product(("moe.dispatch", "moe.combine"), (FORWARD, INPUT)):
        piece = links(work, name)[phase]
        assert (piece.kind, piece.ranks, piece.stride) == (CollectiveKind.ALL_TO_ALL, 4, 2)
        assert piece.bytes == SEQ / 2 * 2 * 64 * 2  # half the tokens, two choices, 64 numbers of two bytes


# adapters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [Task.LORA, Task.QLORA])
def test_frozen_weights_have_no_gradients(task: Task) -> None:
    work = work_of(DENSE, Layout(), task=task, lora_rank=8)
    products = [p for p in work if isinstance(p, Gemm)]
    assert {p.name.split(".")[-1] for p in products if p.phase is WEIGHT} == {"lora_a", "lora_b"}
    assert set(gemms(work, "mlp_up")) == {FORWARD, INPUT}


def test_an_adapter_is_two_thin_products_for_each_merged_layer() -> None:
    work = work_of(DENSE, Layout(tp=2), task=Task.LORA, lora_rank=8)
    assert gemms(work, "mlp_down.lora_a")[FORWARD] == (SEQ, 8, 128, 1)
    assert gemms(work, "mlp_down.lora_b")[FORWARD] == (SEQ, 64, 8, 1)
    parts = next(op.parts for op in next(iter(DENSE.graph.blocks.values())).ops if op.name == "qkv")
    assert gemms(work, "qkv.lora_b")[FORWARD] == (SEQ, 96 / parts, 8, parts)


def test_adapters_of_attention_alone_leave_the_mlp_bare() -> None:
    work = work_of(DENSE, Layout(), task=Task.LORA, lora_targets="attention")
    assert gemms(work, "qkv.lora_a")
    assert not gemms(work, "mlp_up.lora_a")


def test_four_bit_base_weights_are_expanded_in_both_directions() -> None:
    work = work_of(DENSE, Layout(tp=2), task=Task.QLORA, lora_rank=8)
    found = {p.phase: p.weight_rows for p in work if isinstance(p, Gemm) and p.name == "mlp_up"}
    assert found == {FORWARD: 64 * 128, INPUT: 64 * 128}
    plain = work_of(DENSE, Layout(tp=2), task=Task.LORA, lora_rank=8)
    assert all(p.weight_rows == 0 for p in plain if isinstance(p, Gemm))


# ends ----------------------------------------------------------------------------------------------


def test_logits_divide_the_vocabulary() -> None:
    sharder = Sharder(workload(), Layout(tp=2, micro_batch=3))
    work = sharder.end(DENSE.graph.head)
    logits = next(p for p in work if isinstance(p, Gemm) and p.phase is FORWARD)
    assert (logits.m, logits.n, logits.k) == (3 * SEQ, 500, 64)
    assert not logits.quantized
    loss = [p for p in work if isinstance(p, Stream) and p.name == "cross_entropy"]
    assert {float(p.bytes) / (3 * SEQ * 500) for p in loss} == {38.0, 14.0}  # Megatron-LM's loss is not fused


def test_compiled_frameworks_fuse_their_loss() -> None:
    work = Sharder(workload(framework="torch"), Layout()).end(DENSE.graph.head)
    loss = {p.phase: float(p.bytes) for p in work if isinstance(p, Stream) and p.name == "cross_entropy"}
    assert loss == {FORWARD: SEQ * 1000 * 8.0, INPUT: SEQ * 1000 * 6.0}


def test_eight_bit_recipes_cast_layers_but_not_logits() -> None:
    layer = work_of(DENSE, Layout(), precision="fp8")
    assert all(p.quantized for p in layer if isinstance(p, Gemm))


def test_eager_chains_move_the_width_once_a_kernel() -> None:
    gated = from_dims(layers=1, hidden=64, heads=4, vocab=1000, max_positions=SEQ, gated=True, activation="silu")
    fused = work_of(gated, Layout(), framework="torch")
    eager = work_of(gated, Layout(), framework="torch", execution="eager")

    def norm(work: list[Work]) -> Stream:
        return next(p for p in work if isinstance(p, Stream) and p.name == "mlp_activation" and p.phase is FORWARD)

    assert norm(fused).kernels == 1
    assert norm(eager).kernels == 2
    # fused: reads gate and up, writes one; eager: two kernels read and write the width each
    assert norm(fused).bytes == SEQ * 3 * 256 * 2
    assert norm(eager).bytes == SEQ * 4 * 256 * 2


def test_arrays_of_layouts_shard_as_each_layout() -> None:
    layouts = [
        Layout(tp=t, cp=c, sequence_parallel=s, micro_batch=b) for t, c, s, b in product((1, 2), (1, 2), (0, 1), (1, 3))
    ]
    names = ("tp", "cp", "sequence_parallel", "micro_batch")
    stacked = replace(Layout(), **{name: np.array([getattr(x, name) for x in layouts], dtype=float) for name in names})
    together = work_of(DENSE, stacked)
    for index, layout in enumerate(layouts):
        for one, many in zip(work_of(DENSE, layout), together, strict=True):
            for name, value in vars(one).items():
                if isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
                    found = np.broadcast_to(getattr(many, name), (len(layouts),))[index]
                    assert float(found) == float(np.asarray(value)), (one.name, name)


# convolutions --------------------------------------------------------------------------------------


def test_a_convolution_is_three_implicit_products_of_equal_flop() -> None:
    # 128 channels, 3 x 3 at stride 2 from 56 to 28 pixels, two images
    job = Workload(seq_len=1, global_batch=2)
    block = residual("resnet-50").graph.blocks["stage-2-first"]
    work = Sharder(job, Layout(micro_batch=2)).block(block)
    products = gemms(work, "conv2")
    pixels = 2 * 28 * 28
    assert products[FORWARD] == (pixels, 128, 128 * 9, 1)
    assert products[INPUT] == (4 * pixels, 128, 128 * 9 / 4, 1)
    assert products[WEIGHT] == (128 * 9, 128, pixels, 1)
    taps = {piece.phase: piece.taps for piece in work if isinstance(piece, Gemm) and piece.name == "conv2"}
    assert taps == {FORWARD: 9 / 4, INPUT: 9, WEIGHT: 9 / 4}


def test_a_small_filter_with_a_stride_reads_its_input_once_and_the_stem_gives_no_gradient() -> None:
    job, net = Workload(seq_len=1, global_batch=1), residual("resnet-50").graph
    sharder = Sharder(job, Layout())
    shortcut = [piece for piece in sharder.block(net.blocks["stage-2-first"]) if piece.name == "shortcut"]
    assert [piece.taps for piece in shortcut if isinstance(piece, Gemm)] == [1, 1, 1]
    stem = [piece for piece in sharder.end(net.embedding) if piece.name == "stem"]
    assert [piece.phase for piece in stem] == [FORWARD, WEIGHT]


def test_grouped_convolutions_are_counted_products() -> None:
    work = Sharder(Workload(seq_len=1, global_batch=1), Layout()).block(
        residual("resnext-50-32x4d").graph.blocks["stage-1"]
    )
    assert gemms(work, "conv2")[FORWARD] == (56 * 56, 4, 36, 32)


# routing -------------------------------------------------------------------------------------------


def test_megatrons_routing_is_a_chain_of_operators_and_a_fused_programs_one_kernel() -> None:
    def kernels(**choices: object) -> dict[tuple[str, Phase], float]:
        pieces = work_of(EXPERTS, Layout(), **choices)
        names = ("route", "dispatch", "combine")
        return {(p.name, p.phase): p.kernels for p in pieces if isinstance(p, Stream) and p.name in names}

    chain = kernels(framework="megatron", execution="compiled")
    assert chain["route", FORWARD] == LAUNCHES["route.forward"]
    assert chain["dispatch", INPUT] == LAUNCHES["dispatch.backward"]
    assert set(kernels(framework="fsdp", execution="compiled").values()) == {1.0}


def test_megatrons_chains_follow_the_choice_of_experts_and_their_dispatch() -> None:
    def kernels(**choices: object) -> dict[tuple[str, Phase], float]:
        pieces = work_of(EXPERTS, Layout(ep=4), **{"framework": "megatron", **choices})
        return {(p.name, p.phase): float(np.asarray(p.kernels)) for p in pieces if isinstance(p, Stream)}

    plain, sorted_ = kernels(), kernels(framework=replace(framework_policy("megatron"), deterministic=True))
    put = constant("launch.moe.sorted_put")
    more = {key: sorted_[key] - count for key, count in plain.items() if sorted_[key] != count}
    assert more == {("route", FORWARD): 2 * put, ("combine", FORWARD): put, ("dispatch", INPUT): put}
    gathered = kernels(
        expert_choice="sinkhorn",
        expert_dispatch="allgather",
        framework=replace(framework_policy("megatron"), deterministic=True),
    )
    assert gathered["route", FORWARD] == LAUNCHES["sinkhorn.forward"]  # it scatters, which needs no order
    assert gathered["dispatch", FORWARD] == LAUNCHES["allgather.forward"]
    biases = LAUNCHES["grouped.forward"] + 2 * LAUNCHES["biased.forward"]  # two of 8 experts
    assert gathered["experts_activation", FORWARD] == biases
    single = kernels(expert_modules="single")["experts_activation", INPUT]
    assert single == 2 * LAUNCHES["expert.backward"]


def test_rows_that_came_rank_by_rank_are_sorted_by_expert_and_back() -> None:
    def sorting(ep: int, **choices: object) -> dict[Phase, Stream]:
        pieces = work_of(EXPERTS, Layout(ep=ep), **choices)
        return {p.phase: p for p in pieces if isinstance(p, Stream) and p.name == "moe.sort" and np.any(p.bytes)}

    found = sorting(4)  # two of 8 experts a rank: read and written once each way
    sent = links(work_of(EXPERTS, Layout(ep=4)), "moe.dispatch")[FORWARD].bytes
    assert [float(np.asarray(found[phase].bytes)) for phase in (FORWARD, INPUT)] == [4 * sent, 4 * sent]
    assert found[FORWARD].kernels == 0  # those of Megatron-LM's dispatch hold them
    assert sorting(4, framework="torch")[FORWARD].kernels == 2
    assert not sorting(1)
    assert not sorting(8)
    assert not sorting(4, expert_dispatch="deepep")


@pytest.mark.parametrize(
    ("choices", "together"),
    [({"framework": "torch"}, 0), ({"framework": "megatron"}, 4), ({"expert_modules": "single"}, 1)],
)
def test_experts_run_in_one_kernel_on_streams_or_one_by_one(choices: dict[str, object], together: float) -> None:
    pieces = [p for p in work_of(EXPERTS, Layout(ep=4), **choices) if isinstance(p, Gemm) and p.routed]
    assert {(p.together, p.uneven) for p in pieces} == {(together, True)}
    padded = work_of(EXPERTS, Layout(ep=4), expert_capacity=1.25, **choices)
    assert not any(p.uneven for p in padded if isinstance(p, Gemm))


def test_a_loop_over_experts_launches_each_alone_and_sums_gradients_of_all_tokens() -> None:
    def streams(name: str, **choices: str) -> dict[Phase, Stream]:
        pieces = work_of(EXPERTS, Layout(micro_batch=1), framework="transformers", **choices)
        return {p.phase: p for p in pieces if isinstance(p, Stream) and p.name == name}

    each = streams("experts_activation", execution="eager")
    assert [float(np.asarray(each[phase].kernels)) for phase in (FORWARD, INPUT)] == [8 * 12, 8 * 19]
    assert float(np.asarray(streams("experts_activation", execution="compiled")[FORWARD].kernels)) < 12
    adapted = rewritten(load("llama-2-7b"), ("mixlora",))  # sums of adapters and weights: a kernel or two an expert
    pieces = work_of(adapted, Layout(micro_batch=1), framework="transformers", execution="eager", task=Task.LORA)
    sums = {p.name: float(np.asarray(p.kernels)) for p in pieces if isinstance(p, Stream) and p.phase is FORWARD}
    assert sums["mlp_activation"] == 8 * 12
    assert sums["mlp_down.lora_sum"] <= 8 * 2
    one, all_ = (streams("dispatch", execution=how)[INPUT].bytes for how in ("eager", "compiled"))
    # zeros written, two sums read and one written for each of 8 experts, of all tokens of 64 numbers in 16 bits
    assert float(np.asarray(one)) > float(np.asarray(all_)) + 0.9 * 8 * 4 * workload().seq_len * 64 * 2


def test_python_of_a_megatron_layer_follows_its_attention_its_experts_and_their_dispatch() -> None:
    def parts(model: Model, ep: int = 1, **choices: object) -> dict[str, float]:
        found = Chains(workload(framework="megatron", **choices), Layout(ep=ep))
        return {name: float(np.asarray(n)) for name, n in found.python(next(iter(model.graph.blocks.values()))).items()}

    assert parts(DENSE) == {"layer": 1}
    assert parts(load("deepseek-v3")) == {"layer": 1, "latent": 1}  # its first layers are dense
    assert parts(EXPERTS, ep=4) == {"layer": 1, "route": 1, "alltoall": 1}
    balanced = {"expert_choice": "sinkhorn", "expert_dispatch": "allgather", "expert_modules": "single"}
    # two of 8 experts, of which one has the place of a dense layer's product
    assert parts(EXPERTS, ep=4, **balanced) == {"layer": 1, "sinkhorn": 1, "allgather": 1, "expert": 1}


def test_gathered_tokens_reach_every_rank_of_experts_and_their_sums_come_back() -> None:
    layout = Layout(tp=2, ep=4, etp=2, micro_batch=4)
    work = work_of(EXPERTS, layout, expert_dispatch="allgather")
    for name, phase in product(("moe.gather", "moe.scatter"), (FORWARD, INPUT)):
        link = links(work, name)[phase]
        # what each of 4 x 2 ranks brings: half of 4 sequences, in 16 bits
        tokens = 4 * workload().seq_len / 2
        assert float(np.asarray(link.bytes)) == 8 * tokens * 64 * 2
        assert float(np.asarray(link.ranks)) == 8
    calls = {
        p.phase: p.calls
        for p in work_of(EXPERTS, layout, framework="megatron", expert_dispatch="allgather")
        if isinstance(p, Stream) and p.name == "dispatch"
    }
    assert calls == {FORWARD: 2, INPUT: 1}


def test_a_masked_language_model_makes_logits_of_masked_positions_alone() -> None:
    layout = Layout(micro_batch=4)
    whole, masked = (Sharder(workload(unpredicted=share), layout).head(DENSE.graph.head) for share in (0.0, 0.85))
    assert gemms(whole, "lm_head")[FORWARD] == (4 * SEQ, 1000, 64, 1)
    assert gemms(masked, "lm_head")[FORWARD] == pytest.approx((0.15 * 4 * SEQ, 1000, 64, 1))
    loss, less = (next(piece for piece in work if piece.name == "cross_entropy") for work in (whole, masked))
    assert isinstance(loss, Stream)
    assert isinstance(less, Stream)
    assert float(np.asarray(less.bytes)) == pytest.approx(0.15 * float(np.asarray(loss.bytes)))
    assert len(whole) == len(masked)


def test_without_logits_there_is_no_head() -> None:
    assert Sharder(workload(unpredicted=1.0), Layout(micro_batch=4)).head(DENSE.graph.head) == []


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_the_head_leaves_out_a_share(share: float) -> None:
    with pytest.raises(WorkloadError, match="unpredicted"):
        workload(unpredicted=share)


def test_experts_of_a_fixed_capacity_compute_and_receive_padding() -> None:
    even, padded = (work_of(EXPERTS, Layout(ep=4), expert_capacity=share) for share in (1.0, 1.25))
    assert gemms(even, "experts_down")[FORWARD] == (SEQ * 2 / 2, 64, 128, 2)
    assert gemms(padded, "experts_down")[FORWARD] == (1.25 * SEQ, 64, 128, 2)
    assert gemms(padded, "qkv") == gemms(even, "qkv")
    sent, more = (float(np.asarray(links(work, "moe.dispatch")[FORWARD].bytes)) for work in (even, padded))
    assert more == pytest.approx(1.25 * sent)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_a_capacity_is_positive(share: float) -> None:
    with pytest.raises(WorkloadError, match="expert_capacity"):
        workload(expert_capacity=share)


# adapters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("execution", "framework", "scaled"), [("graph", "megatron", 2), ("compiled", "torch", 0)])
def test_results_of_adapters_are_scaled_and_added_and_so_are_gradients_of_their_input(
    execution: str, framework: str, scaled: int
) -> None:
    choices = {"task": Task.LORA, "execution": execution, "framework": framework, "lora_targets": "qkv"}
    work = work_of(DENSE, Layout(), **choices)
    sums = {p.phase: p for p in work if isinstance(p, Stream) and "lora_sum" in p.name}
    assert {p.name for p in sums.values()} == {"qkv.lora_sum"}
    (_, wide, narrow, _), tokens = gemms(work, "qkv")[FORWARD], float(SEQ)
    assert float(np.asarray(sums[FORWARD].bytes)) == tokens * 2 * (scaled + 3) * wide
    assert float(np.asarray(sums[INPUT].bytes)) == tokens * 2 * (scaled * wide + 3 * narrow)


def test_a_merged_layer_has_one_adapter_where_it_is_one_module() -> None:
    model = load("llama-3-8b")  # queries, keys and values are layers of their own in its checkpoints
    counts = {}
    for framework in ("megatron", "torch"):
        work = work_of(model, Layout(), task=Task.LORA, framework=framework, lora_targets="qkv")
        counts[framework] = gemms(work, "qkv.lora_a")[FORWARD][3]
    assert counts == {"megatron": 1, "torch": 3}


@pytest.mark.parametrize(("overlapped", "gathered"), [(0, 1), (1, 2)])
def test_adapters_pass_over_shards_where_sequences_are_divided(overlapped: int, gathered: int) -> None:
    layout = Layout(tp=2, sequence_parallel=1, overlap_tensor=overlapped)
    work = work_of(DENSE, layout, task=Task.LORA, execution="graph", lora_dropout=True)
    moved = {(p.name, p.phase): float(np.asarray(p.bytes)) for p in work if isinstance(p, Stream) and "lora" in p.name}
    read = SEQ * 64 / gathered  # what reaches the adapter of the first layer of a feed-forward, 64 wide
    assert moved["mlp_up.lora_dropout", FORWARD] == moved["mlp_up.lora_dropout", INPUT] == 5 * read
    assert moved["mlp_up.lora_sum", INPUT] == 2 * (2 * SEQ * 128 + 3 * read)  # 256 / 2 results
    assert moved["mlp_down.lora_sum", FORWARD] == 2 * 5 * SEQ * 64 / 2


def test_what_activation_functions_keep_in_8_bits_is_cast_there_and_back() -> None:
    narrow = replace(framework_policy("megatron"), mlp_input_bytes=1.0)
    moved = [
        {(p.name, p.phase): float(np.asarray(p.bytes)) for p in work if isinstance(p, Stream)}
        for work in (work_of(DENSE, Layout()), work_of(DENSE, Layout(), framework=narrow))
    ]
    more = {where: moved[1][where] - before for where, before in moved[0].items() if moved[1][where] != before}
    kept = 256  # the width of the feed-forward, whose gate DENSE does not have
    assert more == {("mlp_activation", phase): SEQ * kept * (2 + 1) for phase in (FORWARD, INPUT)}


def test_operands_are_cast_once_for_all_products_that_read_them() -> None:
    layouts = {
        task: {p.phase: p.cast_layouts for p in work_of(DENSE, Layout(), task=task, precision="fp8")
               if isinstance(p, Gemm) and p.name == "mlp_up"}
        for task in (Task.PRETRAIN, Task.LORA)
    }  # fmt: skip
    assert layouts[Task.PRETRAIN] == {FORWARD: 2, INPUT: 2, WEIGHT: 0}
    assert layouts[Task.LORA] == {FORWARD: 1, INPUT: 1}  # no gradients of weights: nothing is needed transposed


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("fp16-amp", 4), ("fp32", 4)])
def test_a_lookup_is_in_the_format_of_its_table_under_autocast_too(precision: str, size: int) -> None:
    """256 tokens of 64 numbers, read and written; their gradient is read so and added to one in fp32."""
    work = Sharder(workload(precision=precision), Layout()).end(DENSE.graph.embedding)
    looked = {piece.phase: float(np.asarray(piece.bytes)) for piece in work if isinstance(piece, Stream)
              and piece.name == "embed_tokens"}  # fmt: skip
    assert looked[FORWARD] == SEQ * 64 * 2 * size
    assert looked[WEIGHT] == SEQ * 64 * (size + 2 * 4)


def test_scores_are_dropped_as_the_model_says_where_operators_run_one_by_one() -> None:
    masked = from_dims(layers=1, hidden=64, heads=4, vocab=1000, max_positions=SEQ, dropout=True)
    dropped = {
        (model is masked, execution): piece.dropout
        for model, execution in product((DENSE, masked), ("eager", "compiled"))
        for piece in work_of(model, Layout(), framework="torch", execution=execution, attention_kernel="unfused")
        if isinstance(piece, Attention) and piece.phase is FORWARD
    }
    assert dropped == {
        (False, "eager"): False,
        (True, "eager"): True,
        (False, "compiled"): True,
        (True, "compiled"): True,
    }
