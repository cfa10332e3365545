"""Steps by hand: gathers before, reductions behind, the update last; and the bound beneath every simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.lower.params import optimizer_states
from ridgeline.lower.work import Layout
from ridgeline.plan.plan import Plan
from ridgeline.seams.registry import names
from ridgeline.seams.states import Tensor
from ridgeline.timeline.simulate import simulate
from ridgeline.training.bounds import step_bound_s
from ridgeline.training.exchanges import ShardExchange, Sharding, exchange_rules
from ridgeline.training.optimizer import OPERATIONS, RankUpdate, optimizer_seconds
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageTimes
from ridgeline.training.stages import StageModel
from ridgeline.training.step import step_tasks

ONE = pipeline_schedule("1f1b")
SLOW = constant("overlap.compute_slowdown")
ROUNDING = 1 + 1e-9


def times(
    *,
    forward: float = 4.0,
    inputs: float = 4.0,
    weights: float = 4.0,
    send: float = 0.0,
    gather: float = 0.0,
    reduce: float = 0.0,
    pieces: int = 4,
    update: float = 1.0,
    stages: int = 1,
) -> StageTimes:
    """The same seconds on every stage; a chunk has four layers, so exchanges come in four pieces."""
    grid = np.ones((stages, 1))
    return StageTimes(
        forward_s=forward * grid,
        backward_input_s=inputs * grid,
        backward_weight_s=weights * grid,
        send_forward_s=send * grid,
        send_backward_s=send * grid,
        gather_s=gather * grid,
        reduce_s=reduce * grid,
        pieces=np.full((stages, 1), pieces),
        optimizer_s=np.full(stages, update),
    )


def step_s(plan: Plan, micro_batches: int, seconds: StageTimes) -> float:
    return simulate(step_tasks(plan, micro_batches, seconds)).makespan_s


def bound_s(plan: Plan, micro_batches: int, seconds: StageTimes) -> float:
    return float(step_bound_s(pipeline_schedule(plan.schedule), micro_batches, seconds, exchange_rules(plan)))


def both(plan: Plan, micro_batches: int, seconds: StageTimes) -> float:
    """The simulated step, after checking that the bound of one stage equals it."""
    simulated = step_s(plan, micro_batches, seconds)
    assert bound_s(plan, micro_batches, seconds) == pytest.approx(simulated)
    return simulated


# one stage -----------------------------------------------------------------------------------------


def test_without_exchanges_work_and_update_add_up() -> None:
    assert both(Plan(), 3, times()) == pytest.approx(3 * 12 + 1)


def test_exposed_reduction_comes_once_after_the_last_backward() -> None:
    assert both(Plan(overlap_gradients=False), 3, times(reduce=5.0)) == pytest.approx(36 + 5 + 1)


def test_hidden_reduction_leaves_its_last_piece() -> None:
    # 2 s over a backward of 8 s: three of four pieces hide, 0.5 s is left; the backward is slowed while it runs
    assert both(Plan(), 3, times(reduce=2.0)) == pytest.approx(36 + SLOW * 2.0 + 0.5 + 1)


def test_a_reduction_longer_than_the_backward_shows_what_is_left() -> None:
    # the backward of 8 s, slowed by 12.56 %, makes its first layer's gradients after a quarter; then the link runs 20 s
    assert both(Plan(), 1, times(reduce=20.0)) == pytest.approx(4 + 8 * (1 + SLOW) / 4 + 20 + 1)


def test_exposed_gather_of_sharded_states_follows_the_update() -> None:
    plan = Plan(zero=1, overlap_weights=False, overlap_gradients=False)
    assert both(plan, 2, times(gather=3.0, reduce=2.0)) == pytest.approx(24 + 2 + 1 + 3)


def test_hidden_gather_of_sharded_states_delays_the_first_forward_by_a_piece() -> None:
    # 2 s in four pieces under a forward of 4 s: 0.5 s before it starts, and the forward is slowed by 12.56 % of 2 s
    assert both(Plan(zero=1), 2, times(gather=2.0)) == pytest.approx(24 + 0.5 + SLOW * 2.0 + 1)


def test_sharded_weights_are_gathered_before_each_forward_and_backward() -> None:
    plan = Plan(zero=3, overlap_weights=False, overlap_gradients=False)
    # per micro-batch: gather, forward, gather, backward, reduce
    assert both(plan, 3, times(gather=2.0, reduce=1.0)) == pytest.approx(3 * (2 + 4 + 2 + 8 + 1) + 1)


def test_sharded_gradients_are_reduced_after_every_backward() -> None:
    plan = Plan(zero=2, overlap_weights=False, overlap_gradients=False)
    assert both(plan, 3, times(reduce=1.0)) == pytest.approx(3 * 13 + 1)


def test_hidden_exchanges_of_sharded_weights_cost_ends_and_slowing() -> None:
    found = both(Plan(zero=3), 2, times(gather=2.0, reduce=2.0))
    # each micro-batch: forward slowed by one gather, backward by a gather and a reduction; 0.5 s before the first
    # forward, 0.5 s behind the last backward
    assert found == pytest.approx(2 * (12 + SLOW * (2 + 2 + 2)) + 0.5 + 0.5 + 1)


def test_a_link_that_must_carry_more_than_the_work_sets_the_step() -> None:
    seconds = times(gather=30.0, reduce=30.0)
    # each micro-batch gathers twice and reduces once
    assert both(Plan(zero=3), 4, seconds) >= 4 * 90


def test_one_layer_cannot_hide_behind_itself() -> None:
    # one piece: nothing of the gather overlaps its own forward
    found = both(Plan(zero=1), 1, times(gather=2.0, pieces=1))
    assert found == pytest.approx(2.0 + 12 + SLOW * 2.0 + 1)


# pipelines -----------------------------------------------------------------------------------------


def test_a_pipeline_of_equal_stages_pays_its_bubble() -> None:
    # (m + P - 1) * 12 s
    assert step_s(Plan(pp=4), 8, times(stages=4)) == pytest.approx((8 + 3) * 12 + 1)
    assert bound_s(Plan(pp=4), 8, times(stages=4)) == pytest.approx((8 + 3) * 12 + 1)


def test_the_update_waits_for_the_slowest_stage() -> None:
    seconds = times(stages=2, reduce=5.0)
    plan = Plan(pp=2, overlap_gradients=False)
    tasks = step_tasks(plan, 4, seconds)
    timeline = simulate(tasks)
    updates = [i for i in range(tasks.tasks) if tasks.label[tasks.kind[i]] == "update"]
    others = [i for i in range(tasks.tasks) if i not in updates]
    assert len(updates) == 2
    assert min(timeline.start_s[updates]) >= max(timeline.end_s[others]) - 1e-12


def test_compute_seconds_are_kept_when_tasks_are_split() -> None:
    plan, seconds = Plan(zero=3), times(gather=2.0, reduce=2.0)
    tasks = step_tasks(plan, 3, seconds)
    compute = tasks.duration_s[(tasks.stream == 0) & (tasks.kind < 6)].sum()
    assert compute == pytest.approx(3 * (12 + SLOW * 6.0))
    assert tasks.stream_names[-1] == "data link 0"


def test_streams_of_links_belong_to_their_stage() -> None:
    tasks = step_tasks(Plan(pp=2, zero=1), 2, times(stages=2, gather=1.0, reduce=1.0))
    found = {n: d for n, d in zip(tasks.stream_names, tasks.stream_device, strict=True) if n.startswith("data link")}
    assert found == {"data link 0": 0, "data link 1": 1}


# the bound -----------------------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, int, StageTimes]:
    schedule = draw(st.sampled_from(names("schedules")))
    stages = 2 * draw(st.integers(1, 2)) if pipeline_schedule(schedule).paired else draw(st.integers(1, 4))
    chunks = next(iter(pipeline_schedule(schedule).chunk_counts(stages, 2)))
    rounds = draw(st.integers(1, 3))
    micro_batches = stages * rounds if schedule in ("interleaved", "combined-1f1b") else draw(st.integers(1, 8))
    if schedule in ("dualpipe", "dualpipev"):
        micro_batches = 2 * (stages + rounds - 1)
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    shape = (stages, chunks)
    exchange = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    send = draw(st.sampled_from([0.0, 0.1, 5.0]))
    seconds = StageTimes(
        forward_s=random.uniform(0.5, 2, shape),
        backward_input_s=random.uniform(0.5, 2, shape),
        backward_weight_s=random.uniform(0.5, 2, shape),
        send_forward_s=send * random.exponential(1.0, shape),
        send_backward_s=send * random.exponential(1.0, shape),
        gather_s=exchange * random.uniform(0.5, 1, shape),
        reduce_s=exchange * random.uniform(0.5, 1, shape),
        pieces=random.integers(1, 6, shape),
        optimizer_s=random.uniform(0, 1, stages),
    )
    plan = Plan(
        pp=stages,
        chunks=chunks,
        schedule=schedule,
        zero=draw(st.integers(0, 3)),
        overlap_gradients=draw(st.booleans()),
        overlap_weights=draw(st.booleans()),
    )
    return plan, micro_batches, seconds


@settings(deadline=None, max_examples=300)
@given(steps())
def test_bound_never_exceeds_the_simulation(step: tuple[Plan, int, StageTimes]) -> None:
    plan, micro_batches, seconds = step
    assert bound_s(plan, micro_batches, seconds) <= step_s(plan, micro_batches, seconds) * ROUNDING


@settings(deadline=None, max_examples=150)
@given(
    zero=st.integers(0, 3),
    hidden=st.tuples(st.booleans(), st.booleans()),
    micro_batches=st.integers(1, 6),
    parts=st.tuples(*[st.floats(0.1, 5.0)] * 3),
    exchanges=st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)),
    pieces=st.integers(1, 8),
)
def test_bound_of_one_stage_whose_exchanges_can_hide_is_the_simulation(
    zero: int,
    hidden: tuple[bool, bool],
    micro_batches: int,
    parts: tuple[float, float, float],
    exchanges: tuple[float, float],
    pieces: int,
) -> None:
    forward, inputs, weights = parts
    # shorter than what they hide behind; longer ones queue on the link, where the bound is a bound
    gather = min(exchanges[0], forward / 2, (inputs + weights) / 4)
    reduce = min(exchanges[1], (inputs + weights) / 4, forward / 2)
    seconds = times(forward=forward, inputs=inputs, weights=weights, gather=gather, reduce=reduce, pieces=pieces)
    plan = Plan(zero=zero, overlap_gradients=hidden[0], overlap_weights=hidden[1])
    if zero == 3 and any(hidden):
        assert bound_s(plan, micro_batches, seconds) <= step_s(plan, micro_batches, seconds) * ROUNDING
    else:
        both(plan, micro_batches, seconds)


def test_a_table_of_plans_is_bounded_as_each_plan() -> None:
    random = np.random.default_rng(3)
    plans = [
        Plan(pp=2, zero=z, overlap_gradients=g, overlap_weights=w)
        for z in range(4)
        for g in (False, True)
        for w in (False, True)
    ]
    one = times(stages=2, gather=1.0, reduce=2.0, send=0.1)
    scale = random.uniform(0.5, 2.0, (len(plans), 1, 1))
    stacked = StageTimes(
        **{
            name: value if name == "pieces" else value * (scale if np.ndim(value) != 1 else scale[:, 0])
            for name, value in vars(one).items()
            if value is not None
        }
    )
    rules = [exchange_rules(plan) for plan in plans]
    together = step_bound_s(
        ONE,
        4,
        stacked,
        ShardExchange(**{n: np.array([getattr(r, n) for r in rules]) for n in vars(rules[0])}),
    )
    for index, plan in enumerate(plans):
        factor = float(scale[index, 0, 0])
        alone = StageTimes(**{n: v if n == "pieces" else v * factor for n, v in vars(one).items() if v is not None})
        assert float(together[index]) == pytest.approx(bound_s(plan, 4, alone))


# the update ----------------------------------------------------------------------------------------

NODE = machine(cluster("8xA100-SXM-80GB"))
MEMORY = NODE.device.memory_bytes_per_s


def update_s(
    numbers: float,
    *,
    offload: int = 0,
    flop: float = 0.0,
    tensors: int = 0,
    shards: int = 1,
    hidden: float = 0.0,
    **choices: object,
) -> float:
    workload = Workload(seq_len=1024, global_batch=8, **({"framework": "torch"} | choices))  # type: ignore[arg-type]
    states = optimizer_states(workload)
    inside = Tensor(count=hidden, rows=int(hidden), columns=1, hidden=True)
    update = RankUpdate(
        numbers=numbers,
        offload=offload,
        moved_bytes=states.moved_bytes(inside) + states.moved_bytes(Tensor(count=numbers - hidden)),
        flop=flop,
        tensors=tensors,
        shards=shards,
    )
    return float(optimizer_seconds(update, workload=workload, machine=NODE))


@pytest.mark.parametrize(
    ("precision", "optimizer", "moved"),
    [
        # gradient three times, states and master read and written, the computed copy written
        ("bf16", "adamw", 3 * 4 + 2 * (8 + 4) + 2),
        ("fp32", "adamw", 3 * 4 + 2 * 8 + 2 * 4),  # no master: the weights are read and written
        ("bf16", "sgd", 3 * 4 + 2 * 4 + 2),
        ("bf16", "adamw-8bit", 3 * 4 + 2 * (2 + 4) + 2),
        ("bf16", "lion", 3 * 4 + 2 * (4 + 4) + 2),
        ("bf16-pure", "adamw-bf16", 3 * 2 + 2 * 4 + 2 * 2),
    ],
)
def test_bytes_of_an_update(precision: str, optimizer: str, moved: float) -> None:
    assert update_s(1e9, precision=precision, optimizer=optimizer) == pytest.approx(1e9 * moved / MEMORY)


@pytest.mark.parametrize(
    ("precision", "optimizer", "moved"),
    [
        # four passes over the weight, fourteen over moments, the gradient read twice, its norm and clearing
        ("fp32", "adamw", 4 * 4 + 14 * 4 + 4 * 4),
        ("bf16", "adamw", 4 * 4 + 14 * 4 + 4 * 4 + 2),  # and the computed copy written
        ("bf16-pure", "adamw-bf16", 4 * 2 + 14 * 2 + 4 * 2),
        ("bf16", "sgd", 3 * 4 + 2 * 4 + 2),  # as if fused
    ],
)
def test_an_update_of_separate_passes(precision: str, optimizer: str, moved: float) -> None:
    found = update_s(1e9, precision=precision, optimizer=optimizer, fused_optimizer=False)
    assert found == pytest.approx(1e9 * moved / MEMORY)


def test_an_update_of_one_weight_after_another_waits_for_the_host() -> None:
    looped = {"precision": "fp32", "fused_optimizer": False, "looped_optimizer": True}
    slower = 1.75  # the host of a DGX A100
    launched = 300 * OPERATIONS * constant("launch.host.kernel") * slower
    assert update_s(1e6, tensors=300, **looped) == pytest.approx(launched)
    assert update_s(1e9, tensors=3, **looped) == pytest.approx(1e9 * 88 / MEMORY)  # the device is slower
    assert update_s(1e6, tensors=300, precision="fp32") < launched / 100


def test_megatron_reads_norms_of_each_step_and_may_count_zeros() -> None:
    slower = 1.75
    alone = update_s(1e6)
    step_s = slower * (40 * 8e-6 + 1.55e-3) + 15 * constant("collective.issue.ampere")
    assert update_s(1e6, framework="megatron") == pytest.approx(alone + step_s)
    each_s = slower * (10e-6 + 16e-6)  # all of the model, all of them updated here
    assert update_s(1e6, tensors=148, framework="megatron") == pytest.approx(alone + step_s + 148 * each_s)
    counted = update_s(1e6, tensors=148, framework="megatron", counts_zeros=True)
    assert counted == pytest.approx(alone + step_s + 148 * (each_s + 4 * 8e-6 * slower))


def test_a_captured_step_runs_no_python() -> None:
    none, some = (update_s(1e6, tensors=n, framework="megatron", execution="graph") for n in (0, 160))
    assert none == some == pytest.approx(update_s(1e6, framework="megatron") - 1.75 * 1.55e-3)


def test_a_sharded_optimizer_loops_over_its_own_tensors() -> None:
    choices = {"framework": "megatron", "counts_zeros": True}
    none, whole, eighth = (update_s(1e6, tensors=n, shards=k, **choices) for n, k in ((0, 1), (160, 1), (160, 8)))
    assert eighth - none == pytest.approx(1.75 * (160 * 10e-6 + 20 * (16e-6 + 4 * 8e-6)))
    assert whole - none == pytest.approx(1.75 * 160 * (10e-6 + 16e-6 + 4 * 8e-6))


def test_an_offloaded_update_runs_at_the_hosts_rates() -> None:
    host = NODE.cluster.host
    # states 12 twice, gradient 4 and copy 2 at an eighth of what the host reaches; gradient and copy over the link
    reached, link = host.dram_bytes_per_s * constant("host.update_share"), constant("efficiency.pcie.ring")
    per_number = 30 * 8 / reached + 6 / (host.device_bytes_per_s * link)
    assert update_s(1e9, offload=1) == pytest.approx(1e9 * per_number)


def test_paged_states_are_updated_on_the_device_and_cross_the_host_link_both_ways() -> None:
    crossing = 2 * 8e9 / (NODE.cluster.host.device_bytes_per_s * constant("efficiency.pcie.ring"))
    assert update_s(1e9, optimizer="paged-adamw") == pytest.approx(update_s(1e9) + crossing)


def test_muon_moves_its_states_and_works_on_the_matrix_units() -> None:
    moved = 3 * 4 + 2 * (4 + 4) + 2
    expected = 1e9 * moved / MEMORY + 1e15 / NODE.device.matrix["bf16"]
    assert update_s(1e9, optimizer="muon", flop=1e15, hidden=1e9) == pytest.approx(expected)
    more = 2 * 0.25e9 * 4 / MEMORY  # a quarter of the numbers are no hidden matrices: 8 bytes of state, not 4
    assert update_s(1e9, optimizer="muon", flop=1e15, hidden=0.75e9) == pytest.approx(expected + more)


def test_states_of_experts_shard_over_all_ranks_that_hold_them() -> None:
    # tp 8, dp 1, ep 1: every expert is on eight ranks, each updates an eighth of it; dense weights have one owner
    model = from_dims(
        layers=2, hidden=256, heads=8, vocab=1024, max_positions=1024, experts=8, top_k=2, expert_ffn=1024
    )
    workload = Workload(seq_len=1024, global_batch=8, framework="torch")  # which copies no gradients
    stages = StageModel(model, NODE, workload)
    cost = stages.price(Layout(tp=8, sequence_parallel=1))
    split, schedule = (2,), pipeline_schedule("1f1b")
    params = next(iter(cost.block_params.values()))
    dense = 2 * params.trained_dense + cost.embedding_params.trained_dense + cost.head_params.trained_dense
    for zero, share in ((0, 1), (1, 8)):
        found = stages.times(
            stages.held(cost, split, schedule, 1),
            sharding=Sharding(zero=zero),
            schedule=pipeline_schedule("1f1b"),
        ).optimizer_s
        assert float(found[0]) == pytest.approx(update_s(float(dense + 2 * params.trained_expert / share)))


def chunk_times(hidden: int, framework: str) -> StageTimes:
    """Two stages of two chunks of one layer each, for one micro-batch of 4096 tokens."""
    model = from_dims(layers=4, hidden=hidden, heads=8, vocab=1024, max_positions=4096)
    stages = StageModel(model, NODE, Workload(seq_len=4096, global_batch=8, framework=framework))
    split, schedule = (1, 1, 1, 1), pipeline_schedule("interleaved")
    return stages.times(
        stages.held(stages.price(Layout()), split, schedule, 2),
        sharding=Sharding(pp=2),
        schedule=schedule,
    )


def test_each_chunk_of_a_micro_batch_waits_for_the_program_around_its_layers() -> None:
    assert chunk_times(64, "megatron").turn_s == pytest.approx(np.full((2, 2), 1.75 * 700e-6))
    assert np.all(np.asarray(chunk_times(16384, "megatron").turn_s) == 0.0)  # the device has more to do than that
    assert np.all(np.asarray(chunk_times(64, "torch").turn_s) == 0.0)


def sharded_times(hidden: int, zero: int) -> StageTimes:
    """One stage of two layers with biases under Megatron-LM, of whose states or weights nobody else has a part."""
    model = from_dims(layers=2, hidden=hidden, heads=8, vocab=1024, max_positions=4096, bias=True)
    stages = StageModel(model, NODE, Workload(seq_len=4096, global_batch=8, framework="megatron"))
    split, schedule = (2,), pipeline_schedule("1f1b")
    return stages.times(
        stages.held(stages.price(Layout()), split, schedule, 1),
        sharding=Sharding(zero=zero),
        schedule=pipeline_schedule("1f1b"),
    )


def test_sharded_weights_are_collected_by_python_around_each_layer_and_its_tensors() -> None:
    states, weights = (sharded_times(64, zero) for zero in (1, 3))
    slow, tensors = 1.75e-6, 12  # four products and two norms, with a bias each
    forward = 1000 + 2 * (590 + tensors * 25)
    assert float((weights.turn_s - states.turn_s).sum()) == pytest.approx(slow * forward)
    assert np.all(np.asarray(states.back_turn_s) == 0.0)
    backward = 2 * (970 + tensors * 19)
    assert float(np.sum(weights.back_turn_s)) == pytest.approx(slow * backward)
    assert float((weights.backward_input_s - states.backward_input_s).sum()) == pytest.approx(slow * backward)
    looped = slow * 2 * (350 + tensors * 76)
    assert float((weights.optimizer_s - states.optimizer_s).sum()) == pytest.approx(looped)
    busy = sharded_times(16384, 3)
    assert np.all(np.asarray(busy.turn_s) == np.asarray(busy.back_turn_s) == 0.0)
