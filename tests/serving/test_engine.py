"""Engines: whose choices win, what becomes a rule of the clock, and tables of several engines side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds
from ridgeline.errors import PlanError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engines import EngineUse, ModelTraits, engine_policy
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence, Fact
from ridgeline.graph.load import load
from ridgeline.lower.pieces import ElementwisePiece
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.serving import state
from ridgeline.serving.ends import engine_at, seconds_at
from ridgeline.serving.engine import Engine, engine, formats_of
from ridgeline.serving.policy_in_force import fusions_of
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.rule import copies_sent, pool_role, times_of
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.arrivals import burst
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Fixed

LLAMA = load("llama-3.1-8b")
EIGHT = machine(cluster("8xH100-SXM"))


def made(**words: Any) -> Engine:
    return engine(LLAMA, EIGHT, deployed(**words))


def tabled(**words: Any) -> tuple[Engine, StepTables]:
    one = made(**words)
    return one, one.tables(longest_prompt=512, longest=1024)


def rule(**words: Any) -> Any:
    one, tables = tabled(**words)
    return one.rule(tables)


# whose choices win -----------------------------------------------------------------------------------


def test_a_deployment_that_says_nothing_takes_the_policy() -> None:
    policy = engine_policy(
        "vLLM",
        "0.11",
        EngineUse(
            memory_bytes=EIGHT.cluster.accelerator.memory_bytes,
            context_tokens=LLAMA.max_positions or 0,
            device="H100-SXM",
            architecture="NVIDIA hopper",
        ),
    )
    assert made(version="0.11").policy == policy


@pytest.mark.parametrize(
    ("word", "value"), [("token_budget", 777), ("max_seqs", 9), ("chunked", False), ("memory_fraction", 0.5)]
)
def test_what_a_deployment_says_wins(word: str, value: object) -> None:
    assert getattr(made(**{word: value}).policy, word) == value


@pytest.mark.parametrize("said", [None, True, False])
def test_an_iteration_is_prepared_ahead_unless_a_deployment_says_not(said: bool | None) -> None:
    found = rule(engine="TensorRT-LLM", version="1.2", overlap=said)
    assert (bool(found["overlapped"]), bool(found["ahead"])) == ((said is not False,) * 2)


@pytest.mark.parametrize(
    ("engine", "version", "role", "draws", "holds"),
    [
        ("SGLang", "0.5.5", Role.PREFILL, 1, 1),
        ("SGLang", "0.5.5", Role.DECODE, 1, 1),
        ("SGLang", "0.5.8", Role.PREFILL, 1, 1),
        ("SGLang", "0.5.8", Role.DECODE, 0, 1),
        ("SGLang", "0.5.5", Role.WHOLE, 0, 1),
        ("TensorRT-LLM", "1.2", Role.PREFILL, 0, 0),
    ],
)
def test_pools_draw_ranks_and_hold_places_as_their_engines_do(
    engine: str, version: str, role: Role, draws: int, holds: int
) -> None:
    found = rule(engine=engine, version=version, role=role)
    assert (int(found["draws_rank"]), int(found["moving_holds"])) == (draws, holds)


@pytest.mark.parametrize(
    ("engine", "version", "role", "stands"),
    [
        ("SGLang", "0.5.8", Role.DECODE, 1),
        ("SGLang", "0.5.8", Role.PREFILL, 0),
        ("SGLang", "0.5.8", Role.WHOLE, 0),
        ("SGLang", "0.5.10", Role.DECODE, 0),
        ("TensorRT-LLM", "1.2", Role.DECODE, 0),
    ],
)
def test_ranks_of_sglangs_decode_pools_stood_when_they_took_caches_in(
    engine: str, version: str, role: Role, stands: int
) -> None:
    assert int(rule(engine=engine, version=version, role=role)["stands"]) == stands


def test_chunks_of_vllm_mix_with_decoding() -> None:
    """Before version 1, prompts ran first; with chunked prefill they shared iterations with decode tokens."""
    assert made(version="0.4.3").policy.scheduler == "prefill-first"
    assert made(version="0.4.3", chunked=True).policy.scheduler == "mixed"


def test_prompts_run_beside_sequences_where_a_deployment_says_so() -> None:
    def scheduler(name: str, mixed: bool | None) -> str:
        return engine(LLAMA, EIGHT, deployed(engine=name, mixed=mixed)).policy.scheduler

    assert [scheduler("SGLang", mixed) for mixed in (None, False, True)] == ["prefill-first", "prefill-first", "mixed"]
    assert scheduler("vLLM", False) == "prefill-first"
    assert scheduler("FasterTransformer", True) == scheduler("FasterTransformer", None) == "static"


def test_requests_handed_over_in_the_process_take_no_time_on_the_way() -> None:
    served, handed = made(), engine(LLAMA, EIGHT, deployed(), offline=True)
    assert served.policy.request_host_s > 0
    assert (handed.policy.request_host_s, handed.policy.prompt_token_host_s) == (0.0, 0.0)


def test_an_engine_of_one_sequence_runs_one() -> None:
    assert made(engine="gpt-fast").policy.max_seqs == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"tp": 16}, "one instance takes tp 16 * pp 1 * dp 1 = 16 devices, the cluster has 8"),
        ({"tp": 3}, "tp = 3 does not divide 32 attention heads"),
    ],
)
def test_degrees_that_cannot_be(words: dict[str, int], told: str) -> None:
    with pytest.raises(PlanError) as refused:
        made(**words)
    assert told in str(refused.value)


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'sglan'; nearest: SGLang"):
        made(engine="sglan")


@pytest.mark.parametrize(
    ("words", "formats"),
    [
        ({}, ("bf16", "bf16", "bf16")),
        ({"weights": "fp8"}, ("fp8", "fp8", "bf16")),
        ({"weights": "fp8", "other_weights": "bf16", "kv": "fp8"}, ("fp8", "bf16", "fp8")),
        ({"weights": "w4a16_mxfp4"}, ("w4a16_mxfp4", "bf16", "bf16")),  # such checkpoints narrow experts only
    ],
)
def test_formats(words: dict[str, str], formats: tuple[str, str, str]) -> None:
    found = formats_of(deployed(**words))  # type: ignore[arg-type]
    assert (found.feed, found.attention, found.cache) == formats


@pytest.mark.parametrize(("role", "gives_takes"), [(Role.WHOLE, (0, 1)), (Role.PREFILL, (1, 1)), (Role.DECODE, (0, 2))])
def test_what_an_instance_gives_and_takes(role: Role, gives_takes: tuple[int, int]) -> None:
    assert pool_role(deployed(role=role)) == gives_takes


# rules -----------------------------------------------------------------------------------------------


def test_a_rule_by_hand() -> None:
    """Blocks of 16 tokens out of the cache that is left; a step gains a token, so a block lasts 16 steps."""
    one, tables = tabled(token_budget=2048, max_seqs=64)
    found = one.rule(tables)
    assert (found["scheduler"], found["chunked"]) == (state.MIXED_BATCHES, 1)
    assert (found["token_budget"], found["max_seqs"]) == (2048, 64)
    assert (found["block_tokens"], found["capacity"]) == (16, one.capacity.cache_tokens // 16)
    assert (found["period"], found["gained"], found["drafted"], found["draft_share"]) == (16, 1.0, 0.0, 0.0)
    assert (found["balance"], found["hops"], found["send_s"]) == (1.0, 0.0, 0.0)
    assert found["eager_s"] == tables.kernels * one.policy.eager_kernel_host_s
    assert found["prefix_tokens"] == 0


@pytest.mark.parametrize(("named", "kept"), [(512, 512), (40, 32), (8, 0)])
def test_prefixes_are_kept_in_whole_blocks(named: int, kept: int) -> None:
    one, tables = tabled()
    assert one.rule(tables, prefix_tokens=named)["prefix_tokens"] == kept
    off, tables = tabled(prefix_cache=False)
    assert off.rule(tables, prefix_tokens=named)["prefix_tokens"] == 0


def test_drafts_verify_many_tokens_and_gain_some() -> None:
    """Three drafts of which each is accepted by half: 1.875 tokens a step; drafting one takes one layer of 32."""
    found = rule(draft_tokens=3, acceptance=0.5)
    assert (found["drafted"], found["gained"]) == (3.0, 1.875)
    assert found["draft_share"] == pytest.approx(3 / 32)
    assert rule(draft_tokens=3, acceptance=0.5, draft_share=0.2)["draft_share"] == pytest.approx(0.6)
    assert (found["period"], found["growth_blocks"]) == (17, 2)  # 31.9 of 32 tokens, the least excess


def test_beams_are_tokens_of_a_step_of_which_one_is_gained() -> None:
    found = rule(beam_width=4)
    assert (found["drafted"], found["gained"], found["draft_share"]) == (3.0, 1.0, 0.0)


def test_stages_share_the_layers() -> None:
    found = rule(pp=2)
    assert (found["hops"], found["balance"], found["ranks"]) == (1.0, 1.0, 2)
    assert found["send_s"] > 0
    assert rule(pp=3)["balance"] == pytest.approx(3 * 11 / 32)  # 11, 11 and 10 layers of 32


def test_a_cache_that_gives_way_goes_where_it_is_told() -> None:
    """Swapped out over the host's link, token by token."""
    one, tables = tabled(preemption="swap")
    found = one.rule(tables)
    assert found["swaps"] == 1
    assert found["swap_token_s"] == one.capacity.token_bytes / EIGHT.cluster.host.device_bytes_per_s
    assert rule()["swaps"] == 0


def test_an_engine_told_to_let_caches_give_way_sets_no_room_for_answers_aside() -> None:
    """TensorRT-LLM's MAX_UTILIZATION beside its GUARANTEED_NO_EVICT; SGLang gives way anyway, and estimates."""
    assert rule(engine="TensorRT-LLM")["reserve"] == 1.0
    assert rule(engine="TensorRT-LLM", preemption="recompute")["reserve"] == 0.0
    words = {"engine": "SGLang"}
    assert rule(**words, preemption="recompute")["reserve"] == rule(**words)["reserve"] > 0.0


def test_a_cache_that_moves_takes_its_bytes_over_the_link() -> None:
    one, tables = tabled(tp=2)
    still, moves = one.rule(tables), one.rule(tables, stride=2)
    assert (still["move_token_s"], still["move_start_s"]) == (0.0, 0.0)
    assert moves["move_start_s"] > 0
    assert one.capacity.token_bytes / 450e9 < moves["move_token_s"] < one.capacity.token_bytes / 200e9


def test_recurrent_states_go_with_the_start_of_a_move() -> None:
    """Mamba-2 2.7B keeps 64 layers x 80 heads x 64 x 128 numbers of a sequence, and no token of it."""
    one = engine(load("mamba2-2.7b"), machine(cluster("2xH100-SXM")), deployed())
    moves = one.rule(one.tables(longest_prompt=100, longest=200), stride=1, takers=[one])
    assert moves["move_token_s"] == 0.0
    states = 2.0 * 64 * 80 * 64 * 128
    assert states / 450e9 < moves["move_start_s"] < 4.0 * states / 200e9


@pytest.mark.parametrize(
    ("model", "gives", "takes", "copies"),
    [
        ("deepseek-v3", {"dp": 8, "ep": 8}, {"tp": 8}, 8.0),  # one attention rank sends to each of eight
        ("deepseek-v3", {"tp": 4}, {"tp": 8}, 2.0),
        ("deepseek-v3", {"tp": 8}, {"tp": 8}, 1.0),  # each sends its own
        ("deepseek-v3", {"tp": 8}, {"dp": 8, "ep": 8}, 1.0),
        ("llama-3.1-8b", {"tp": 1}, {"tp": 8}, 1.0),  # eight heads, a rank each
        ("llama-3.1-8b", {"tp": 8}, {"tp": 1}, 1.0),
    ],
)
def test_a_cache_is_sent_as_often_as_it_is_held(
    model: str, gives: dict[str, int], takes: dict[str, int], copies: float
) -> None:
    on = machine(cluster("2x8xB200-SXM"))
    giver, taker = (engine(load(model), on, deployed(weights="fp8", **words)) for words in (gives, takes))
    assert copies_sent(giver, taker) == pytest.approx(copies)
    tables = giver.tables(longest_prompt=100, longest=200)
    alone = giver.rule(tables, stride=8)["move_token_s"]
    assert giver.rule(tables, stride=8, takers=[taker])["move_token_s"] == pytest.approx(copies * alone)


def test_graphs_can_be_left_out() -> None:
    assert made().graphs
    assert made(graphs=False).graphs == ()
    assert all(size <= made().policy.graph_max for size in made().graphs)


@given(seqs=st.integers(1, 4096), budget=st.integers(1, 20_000))
def test_tables_reach_the_widest_iteration(seqs: int, budget: int) -> None:
    """Grids end at or beyond the largest batch and the largest budget that traffic can fill."""
    one = made(max_seqs=seqs, token_budget=budget)
    tables = one.tables(longest_prompt=300, longest=400)
    assert tables.sequences[-1] >= seqs
    assert tables.contexts[-1] >= 400
    assert tables.tokens[-1] >= min(budget, 300 * seqs)


# several engines side by side ------------------------------------------------------------------------


def test_tables_of_several_engines_keep_their_own_sizes() -> None:
    pairs = [tabled(tp=1, max_seqs=8), tabled(tp=4, max_seqs=256)]
    times, places = times_of([one for one, _ in pairs], [tables for _, tables in pairs])

    def laid(name: str, kind: int, size: int) -> Any:
        return times[places[name][kind] :][:size]

    for kind, (one, tables) in enumerate(pairs):
        for name in ("tokens", "sequences", "contexts", "chunks", "pasts"):
            grid = getattr(tables, name)
            assert places[f"{name}_size"][kind] == len(grid)
            np.testing.assert_array_equal(laid(name, kind, len(grid)), grid)
        decode = np.ravel(tables.decode.mid)
        np.testing.assert_array_equal(laid("decode", kind, decode.size), decode)
        lane = tables.lane.mid + one.policy.exposed_host_s
        np.testing.assert_array_equal(laid("lane", kind, lane.size), lane)


@pytest.mark.parametrize(("name", "static"), [("tensorrt-llm", True), ("vllm", False)])
def test_an_engine_says_whether_checkpoints_hold_the_scales_of_inputs(name: str, static: bool) -> None:
    assert made(engine=name, weights="fp8").formats.static is static


def test_a_dense_model_fuses_as_its_engine_does_for_it() -> None:
    """Pull request 6205 of TensorRT-LLM leaves models of a hidden size of 4096 out, and dense Qwen3 was never in."""
    words = {"engine": "TensorRT-LLM", "version": "1.2.0", "tp": 8}
    assert [engine(load(name), EIGHT, deployed(**words)).policy.fused_all_reduce_norm for name in _SIZES] == [
        True, False, False, True,
    ]  # fmt: skip


_SIZES = ("llama-3.1-70b", "llama-3.1-8b", "qwen3-32b", "qwen3-235b-a22b")


@pytest.mark.parametrize(("end", "host", "launches"), [(-1.0, 0.5, 0.5), (1.0, 2.0, 2.5), (2.0, 4.0, 6.25)])
def test_hosts_and_launches_have_ends_of_their_own(end: float, host: float, launches: float) -> None:
    one, tables = tabled(version="0.12")
    at = engine_at(one, end)
    assert at.policy.step_host_s == pytest.approx(host * one.policy.step_host_s)
    assert at.policy.request_host_s == pytest.approx(host * one.policy.request_host_s)
    assert at.rule(tables)["eager_s"] == pytest.approx(launches * one.rule(tables)["eager_s"])


def test_times_between_ends_are_in_proportion_of_logarithms() -> None:
    """A middle of 4 with a high end of 9: half way is 6, the end 9, as far again 20.25; a middle of 0 grows evenly."""
    time = Seconds(**{name: np.array(value) for name, value in TIMES.items()})
    assert seconds_at(time, 0.5).mid == pytest.approx([6.0, 1.0])
    assert seconds_at(time, 1.0).mid == pytest.approx([9.0, 2.0])
    assert seconds_at(time, 2.0).mid == pytest.approx([20.25, 4.0])
    assert seconds_at(time, -1.0).mid == pytest.approx([1.0, 0.0])
    assert seconds_at(time, 0.0).mid == pytest.approx([4.0, 0.0])


TIMES = {"mid": [4.0, 0.0], "low": [1.0, 0.0], "high": [9.0, 2.0], "compute": [0.0, 0.0], "memory": [0.0, 0.0]}


def test_prompts_replay_pieces_up_to_the_budget_where_they_are_captured() -> None:
    """Of vLLM pieces up to its largest decode graph; where a deployment says so up to the budget, or none."""

    def tokens(captured: bool | None) -> float:
        one = engine(LLAMA, EIGHT, deployed(tp=8, token_budget=4096, prefill_graphs=captured))
        return float(one.rule(one.tables(longest_prompt=512, longest=1024))["prefill_graphs"])

    assert [tokens(captured) for captured in (None, True, False)] == [512.0, 4096.0, 0.0]


def test_graphs_go_on_in_the_last_step_up_to_the_size_that_a_deployment_states() -> None:
    """SGLang 0.5.2's sizes on 80 GB end in steps of 8 at 152 and 160."""

    def sizes(most: int | None) -> tuple[int, ...]:
        return engine(LLAMA, EIGHT, deployed(engine="SGLang", version="0.5.2", tp=2, graph_max=most)).graphs

    assert sizes(None)[-2:] == (152, 160)
    assert sizes(20)[-3:] == (8, 16, 20)
    assert sizes(175)[-3:] == (160, 168, 175)
    with pytest.raises(PlanError, match="graph_max = 0"):
        deployed(graph_max=0)


@pytest.mark.parametrize(
    ("name", "version", "slower"),
    [("vLLM", "0.11", 1.29), ("SGLang", "0.5.8", 1.29), ("TensorRT-LLM", "1.0", 1.29), ("TensorRT-LLM", "0.17", 1.0),
     ("llama.cpp", "b6930", 1.0)],
)  # fmt: skip
def test_schedulers_in_python_run_slower_on_grace(name: str, version: str, slower: float) -> None:
    """Halfway between a call in Python, 1.06 to 1.09, and operators that modules issue, 1.55."""
    assert math.sqrt(1.075 * constant("launch.slowness.grace")) == pytest.approx(1.29, abs=5e-3)
    here, grace = (
        engine(LLAMA, machine(cluster(there)), deployed(engine=name, version=version)).policy
        for there in ("8xH100-SXM", "4xGB200")
    )
    for key in ("step_host_s", "seq_host_s", "group_host_s", "exposed_host_s"):
        assert getattr(grace, key) == pytest.approx(slower * getattr(here, key))
    assert grace.eager_kernel_host_s == here.eager_kernel_host_s  # another ratio, of launches


@pytest.mark.parametrize(
    ("version", "room", "more"),
    [("1.0", 4096, (256, 512, 768)), ("1.0", 640, (256, 512, 640)), ("1.0", 512, (256, 512)), ("1.3", 640, (192, 256))],
)
def test_tensorrt_llm_captured_powers_of_two_up_to_its_batch(version: str, room: int, more: tuple[int, ...]) -> None:
    """Of 768 that are asked for; the largest batch is one of them. From 1.3 on steps are of 64."""
    one = deployed(engine="TensorRT-LLM", version=version, tp=8, graph_max=768, max_seqs=room)
    beyond = [size for size in engine(LLAMA, EIGHT, one).graphs if size > 128]
    assert beyond[: len(more)] == list(more)
    assert (len(beyond) > len(more)) is (version == "1.3")


def test_kernels_of_deepseek_take_longer_to_launch() -> None:
    """58 us, the geometric mean of 40 and 85; of models without experts 34."""
    deepseek, dense = (
        engine_policy(
            "SGLang", "0.5.9", EngineUse(memory_bytes=8e10, ranks=8, model=ModelTraits(name=name, experts=experts))
        )
        for name, experts in (("deepseek-r1", True), ("llama-3.1-8b", False))
    )
    assert (deepseek.eager_kernel_host_s, dense.eager_kernel_host_s) == (5.8e-5, 3.4e-5)
    assert deepseek.eager_kernel_host_s == pytest.approx(((82.6e-3 / 2052) * (174e-3 / 2052)) ** 0.5, rel=0.01)


def test_a_processor_launches_kernels_and_then_runs_them() -> None:
    """Each of a chain's operators takes 3 us more to issue, and an iteration so much longer; nothing is hidden."""

    def with_dispatch(seconds: float) -> tuple[Engine, StepTables]:
        fact = Fact(value=seconds, unit="s", source="by hand", conditions="", evidence=Evidence.HERE)
        device = EIGHT.device
        sustained = {**device.accelerator.sustained, "dispatch": fact}
        part = replace(device.accelerator, architecture="cpu", sustained=sustained)
        own = replace(EIGHT, device=replace(device, accelerator=part), cluster=replace(EIGHT.cluster, accelerator=part))
        one = engine(LLAMA, own, deployed(engine="Transformers"))
        return one, one.tables(longest_prompt=512, longest=1024)

    (slow, slower), (quick, quicker) = with_dispatch(5e-6), with_dispatch(2e-6)
    assert slow.rule(slower)["eager_s"] == quick.rule(quicker)["eager_s"] == 0.0
    served = slow.steps.served
    layers = [(kind.count, kind.pieces) for kind in served.kinds]
    kernels = sum(
        count * piece.kernels
        for count, pieces in [*layers, (1, served.embedding), (1, served.head)]
        for piece in pieces if isinstance(piece, ElementwisePiece)
    )  # fmt: skip
    assert kernels > 20 * len(LLAMA.graph.layers)  # norms and rotary embeddings in pieces
    longer = slower.lane.mid[0] + slower.head.mid[0] - quicker.lane.mid[0] - quicker.head.mid[0]
    assert longer == pytest.approx(3e-6 * kernels)


@pytest.mark.parametrize(("batch", "even", "lanes"), [(4, True, 1), (6, True, 3), (4, False, 3), (None, True, 3)])
def test_a_batch_that_stages_do_not_divide_passes_them_whole(batch: int | None, even: bool, lanes: int) -> None:
    one = engine(LLAMA, EIGHT, deployed(engine="FasterTransformer", pp=3))
    made = replace(one, batch=batch, policy=replace(one.policy, even_parts=even))
    assert made.lanes == lanes
    built = made.rule(made.tables(longest_prompt=64, longest=128))
    assert (built["ranks"], built["part_tokens"]) == (lanes, 1024)
    assert built["capacity"] == made.capacity.cache_tokens * (3 // lanes)


def test_parts_of_a_whole_batch_follow_each_other_through_a_pipeline() -> None:
    """4 prompts of 1,000 tokens on 3 stages: 4 parts take 6 cycles of a stage where the batch alone takes 12."""
    one = replace(engine(LLAMA, EIGHT, deployed(engine="FasterTransformer", pp=3)), batch=4)

    def first_s(part_tokens: int) -> float:
        made = replace(one, policy=replace(one.policy, part_tokens=part_tokens))
        tables = made.tables(longest_prompt=1000, longest=1001)
        traffic = synthetic(burst(4), Fixed(tokens=1000), Fixed(tokens=1))
        return float(replay_tables((made,), [tables], traffic, router="least-loaded").first_s[0])

    host = one.policy.step_host_s + one.policy.group_host_s + 4 * one.policy.seq_host_s
    assert first_s(1024) - host == pytest.approx((first_s(0) - host) * 6 / 12, rel=1e-3)
    assert first_s(4096) == first_s(0)


@pytest.mark.parametrize(("tokens", "cycles"), [(400, 3 + 2), (1000, (6 + 2) / 2)])
def test_a_batch_that_stages_divide_fills_the_pipeline_first(tokens: int, cycles: float) -> None:
    """6 prompts on 3 stages: 3 parts of 2 leave after 3 + 2 cycles of a stage, 6 of 1 after 8 that are half as long."""
    one = replace(engine(LLAMA, EIGHT, deployed(engine="FasterTransformer", pp=3)), batch=6)

    def first_s(part_tokens: int) -> float:
        made = replace(one, policy=replace(one.policy, part_tokens=part_tokens))
        tables = made.tables(longest_prompt=tokens, longest=tokens + 1)
        traffic = synthetic(burst(6), Fixed(tokens=tokens), Fixed(tokens=1))
        return float(replay_tables((made,), [tables], traffic, router="least-loaded").first_s.max())

    host = one.policy.step_host_s + one.policy.group_host_s + 6 * one.policy.seq_host_s
    assert first_s(1024) - host == pytest.approx((first_s(0) - host) * cycles / 3, rel=1e-3)


def test_chunks_of_one_prompt_follow_each_other_through_a_pipeline() -> None:
    """llama.cpp on 4 devices: of 1,024 tokens the second pass of 512 begins when the first has left a quarter."""
    where = machine(cluster("4xA100-SXM-80GB"))
    one = engine(load("llama-3.1-8b"), where, deployed(engine="llama.cpp", version="b2900", pp=4))
    assert (one.policy.chunks_follow, one.policy.token_budget) == (True, 512)

    def first_s(tokens: int, follows: bool) -> float:
        made = replace(one, policy=replace(one.policy, chunks_follow=follows))
        tables = made.tables(longest_prompt=tokens, longest=tokens + 1)
        traffic = synthetic(burst(1), Fixed(tokens=tokens), Fixed(tokens=1))
        return float(replay_tables((made,), [tables], traffic, router="least-loaded").first_s[0])

    assert first_s(512, True) == first_s(512, False)
    host = one.policy.step_host_s + one.policy.group_host_s + one.policy.seq_host_s
    spared = first_s(1024, False) - first_s(1024, True)
    assert spared == pytest.approx(0.75 * (first_s(512, False) - host), rel=1e-3)


@pytest.mark.parametrize(
    ("words", "backend"),
    [({}, "CUTLASS"), ({"expert_backend": "TRTLLM"}, "TRTLLM"), ({"engine": "SGLang", "version": "0.5.5"}, "")],
)
def test_experts_are_computed_by_the_backend_of_the_engine_unless_one_is_named(
    words: dict[str, str], backend: str
) -> None:
    """Kernels made for few tokens are three times quicker than CUTLASS's for 3,072 of Qwen3-30B-A3B in NVFP4."""
    stated = {"engine": "TensorRT-LLM", "version": "1.2", "weights": "nvfp4"} | words
    one = engine(load("qwen3-30b-a3b"), machine(cluster("1xB200-SXM")), deployed(**stated))  # type: ignore[arg-type]
    assert one.deployment.options.expert_backend == backend


@pytest.mark.parametrize(
    ("name", "version", "role", "backend"),
    [
        ("SGLang", "", "whole", "deepep"),
        ("SGLang", "0.4.1", "whole", ""),
        ("vLLM", "", "whole", "deepep_low_latency"),
        ("vLLM", "", "decode", "deepep_low_latency"),
        ("vLLM", "", "prefill", "deepep_high_throughput"),
        ("TensorRT-LLM", "", "whole", "WIDEEP"),
    ],
)
def test_experts_on_many_ranks_run_by_the_backend_for_many(name: str, version: str, role: str, backend: str) -> None:
    """From 16 on, unless one is named; with fewer ranks as before."""
    model, where = load("deepseek-v3"), machine(cluster("16xH200-SXM"))
    few, many = (
        deployed(engine=name, version=version, dp=ranks, ep=ranks, weights="fp8_block", role=Role(role))
        for ranks in (8, 16)
    )
    assert engine(model, where, many).deployment.options.expert_backend == backend
    assert engine(model, where, few).deployment.options.expert_backend == ("CUTLASS" if name == "TensorRT-LLM" else "")
    said = {"SGLang": "none", "vLLM": "allgather_reducescatter", "TensorRT-LLM": "CUTLASS"}[name]
    assert engine(model, where, replaced(many, expert_backend=said)).deployment.options.expert_backend == said


@pytest.mark.parametrize(
    ("device", "version", "ep", "backend"),
    [
        ("H100-SXM", "", 1, "triton_kernel"),
        ("H100-SXM", "0.4.6", 1, ""),
        ("H100-SXM", "", 2, ""),
        ("B200-SXM", "", 1, ""),
    ],
)
def test_sglang_takes_triton_kernels_by_itself_on_hopper(device: str, version: str, ep: int, backend: str) -> None:
    """From 0.5.3 on, and where no rank holds whole experts alone; a backend that is named stays."""
    where = machine(cluster(f"2x{device}"))
    one = deployed(engine="SGLang", version=version, tp=2, ep=ep, weights="mxfp4")
    assert engine(load("gpt-oss-20b"), where, one).deployment.options.expert_backend == backend
    said = replaced(one, expert_backend="deepep")
    assert engine(load("gpt-oss-20b"), where, said).deployment.options.expert_backend == "deepep"


@pytest.mark.parametrize(
    ("name", "device", "feed"),
    [
        ("TensorRT-LLM", "B200-SXM", "w4a8_mxfp4_mxfp8"),
        ("TensorRT-LLM", "RTX-PRO-6000", "w4a8_mxfp4_mxfp8"),
        ("TensorRT-LLM", "H100-SXM", "w4a16_mxfp4"),
        ("SGLang", "GB300", "w4a8_mxfp4_mxfp8"),
        ("SGLang", "RTX-PRO-6000", "w4a16_mxfp4"),
        ("SGLang", "H200-SXM", "w4a16_mxfp4"),
        ("vLLM", "B200-SXM", "w4a16_mxfp4"),
    ],
)
def test_experts_of_mxfp4_meet_inputs_as_narrow_as_the_engine_casts_them(name: str, device: str, feed: str) -> None:
    """What 64 tokens of gpt-oss-120b take in a layer on a B200, by TensorRT-LLM's table: 0.89 ms with inputs of 16
    bits, which it does not use there, 0.21 ms with 8; weights are as many bytes either way."""
    model, where = load("gpt-oss-120b"), machine(cluster(f"1x{device}"))
    made = engine(model, where, deployed(engine=name, weights="mxfp4"))
    assert (made.formats.feed, made.formats.attention) == (feed, "bf16")
    assert made.capacity.weights_bytes == pytest.approx(65.2e9, rel=0.01)
    other = engine(model, where, deployed(engine=name, weights="fp8"))
    assert other.formats.feed == "fp8"


def test_drafts_turn_sglang_s_overlap_off_until_0_5_11() -> None:
    def overlaps(**words: Any) -> bool:
        return made(engine="SGLang", **words).policy.overlapped_host

    assert [overlaps(version=name, draft_tokens=2) for name in ("0.3", "0.5.9", "0.5.11")] == [False, False, True]
    assert overlaps(version="0.5.9")
    assert overlaps(version="0.5.9", draft_tokens=2, overlap=True)
    assert made(engine="TensorRT-LLM", version="1.0", draft_tokens=2).policy.overlapped_host


@pytest.mark.parametrize(
    ("words", "late"),
    [
        ({"engine": "SGLang"}, True),
        ({"engine": "SGLang", "overlap": False}, False),
        ({"engine": "SGLang", "role": Role.PREFILL}, False),
        ({"engine": "TensorRT-LLM", "version": "1.0"}, True),
        ({"engine": "TensorRT-LLM", "version": "1.0", "prefill_graphs": True}, False),
        ({"engine": "TensorRT-LLM", "version": "0.21"}, False),
        ({"engine": "vLLM"}, False),
    ],
)
def test_results_are_late_where_the_next_iteration_is_launched_before(words: dict[str, Any], late: bool) -> None:
    one = made(**words)
    assert bool(one.rule(one.tables(longest_prompt=100, longest=200))["late_results"]) is late


def test_scans_launch_their_copies_and_are_compiled_where_nothing_is_kept() -> None:
    """Qwen3.5-397B: 45 of 60 layers are scans, ten launches more each than the operators that are priced."""
    rules = []
    for fresh in (False, True):
        words = deployed(engine="SGLang", version="0.5.9", tp=8, weights="fp8_block", fresh_kernels=fresh)
        made = engine(load("qwen3.5-397b-a17b"), machine(cluster("8xH200")), words)
        tables = made.tables(longest_prompt=100, longest=200)
        rules.append(made.rule(tables))
    assert [float(rule["build_s"]) for rule in rules] == [0.0, 0.09]
    launched_s = (tables.kernels + 45 * 10) * 5.8e-5
    assert [float(rule["eager_s"]) for rule in rules] == [pytest.approx(launched_s)] * 2
    dense = engine(load("llama-3.1-8b"), machine(cluster("8xH200")), deployed(engine="SGLang", fresh_kernels=True))
    assert float(dense.rule(dense.tables(longest_prompt=100, longest=200))["build_s"]) == 0.0


def test_modules_of_python_launch_chains_and_native_programs_do_not() -> None:
    """Without fused norms: Transformers runs each operator of PyTorch, llama.cpp a kernel of its own for a norm."""

    part = cluster("1xH20").accelerator
    use = EngineUse(memory_bytes=96e9, offline=True, context_tokens=0, ranks=1, device=part.name)
    chains = {name: fusions_of(engine_policy(name, "", use), part).chains for name in ("transformers", "llama.cpp")}
    assert chains == {"transformers": True, "llama.cpp": False}
