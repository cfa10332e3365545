"""An iteration of post-training: tokens that are kept, sides that add up, and what more of a thing must not do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError, WorkloadError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.plan.post_training import PostTraining, Roles
from ridgeline.predict.post_training import Models, PostTrainingQuestion, predict_post_training
from ridgeline.predict.post_training_memory import weight_shards
from ridgeline.predict.post_training_moves import offload_s, swap_s, transfer_s
from ridgeline.predict.post_training_passes import batch_workload, forward_report, mini_batch_lengths, sequence_lengths
from ridgeline.predict.rollouts import by_instance, response_lengths
from ridgeline.report.post_training import PostTrainingReport
from ridgeline.report.report import StageMemory
from ridgeline.search.post_training import roles_of, search_post_training

MODEL, NODE = load("llama-3.2-1b"), cluster("8xH100-SXM")
JOB = Workload(seq_len=1, global_batch=1)
ASKED = PostTraining(prompts=32, samples=8, prompt=200, response=500, response_max=2000, mini_batch=128)
TURNS = Roles(train=Plan(dp=8, zero=1, micro_batch=2), rollout=Deployment(engine="vllm", instances=8))
APART = Roles(
    train=Plan(dp=4, zero=1, micro_batch=2), rollout=Deployment(engine="vllm", instances=4), colocated=False
)  # fmt: skip


def iteration(asked: PostTraining = ASKED, roles: Roles = TURNS, **more: Any) -> PostTrainingReport:
    where = more.pop("where", NODE)
    return predict_post_training(Models(policy=MODEL, **more), where, asked, roles, JOB)


# lengths --------------------------------------------------------------------------------------------


def test_responses_keep_their_mean_below_the_cut() -> None:
    found = response_lengths(replace(ASKED, prompts=500, response_cv=1.2))
    assert found.mean() == pytest.approx(500, rel=1e-3)
    assert found.max() == 2000  # cut there
    assert set(response_lengths(replace(ASKED, response_cv=0.0))) == {500}


def test_a_longer_tail_has_longer_responses_and_never_quicker_rollouts() -> None:
    narrow, wide = (iteration(replace(ASKED, response_cv=cv)) for cv in (0.2, 1.0))
    assert wide.tail is not None
    assert narrow.tail is not None
    assert wide.tail.p99 > narrow.tail.p99
    assert wide.seconds_of("generation") > narrow.seconds_of("generation")
    assert wide.tail.cost_s > narrow.tail.cost_s


def test_instances_take_whole_prompts_whose_responses_are_alike() -> None:
    output = response_lengths(ASKED)
    found = by_instance(ASKED, output, 4)
    assert sorted(found) == sorted(output)  # no length is made or lost
    turns = found.reshape(-1, 4)  # request i goes to instance i mod 4
    prompts = turns[:, 0].reshape(8, 8)  # eight prompts of eight responses each
    assert prompts.mean(axis=1).std() > output[:64].reshape(8, 8).mean(axis=1).std()
    assert (by_instance(ASKED, output, 1) == output).all()


def test_an_engine_in_the_trainers_process_makes_texts_in_turn_with_its_steps() -> None:
    serial = replace(APART, rollout=Deployment(engine="vllm", version="0.11.2", instances=4))  # no overlap with steps
    turns, off = iteration(roles=serial), iteration(roles=replace(serial, mode="off-policy"))
    spent = turns.seconds_of("generation") - off.seconds_of("generation")
    tokens = ASKED.sequences * ASKED.response / 4  # of one instance, 14.2 us each; instances end unevenly
    assert 0.8 < spent / (14.2e-6 * tokens) < 1.5


# batches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["packed-sequences", "padded-sequences"])
def test_no_token_is_lost_between_rollouts_and_training(packing: str) -> None:
    lengths = sequence_lengths(ASKED, response_lengths(ASKED))
    made = batch_workload(JOB, lengths, Plan(dp=4, tp=2, micro_batch=2), packing)
    assert made.step_tokens * (1.0 - made.padding) == pytest.approx(lengths.sum())
    assert made.global_batch % 8 == 0


def test_mini_batches_stand_for_all_sequences() -> None:
    lengths = sequence_lengths(ASKED, response_lengths(ASKED))
    part = mini_batch_lengths(lengths, ASKED)
    assert len(part) == 128
    assert part.sum() * 2 == pytest.approx(lengths.sum(), rel=0.01)


def test_a_forward_takes_less_than_half_of_an_update() -> None:
    lengths = sequence_lengths(ASKED, response_lengths(ASKED))
    found = forward_report(MODEL, NODE, JOB, lengths, (TURNS.train, TURNS.packing))
    assert found.step_time.value < 0.5 * sum(p.seconds for p in iteration().phases if p.name == "updates")


# the iteration --------------------------------------------------------------------------------------


def test_phases_in_turn_add_up_to_the_iteration() -> None:
    found = iteration()
    assert found.step.value == pytest.approx(sum(one.seconds for one in found.phases))
    assert found.updates == 2
    assert {one.name for one in found.phases} >= {"rollouts", "old log-probabilities", "reference", "updates"}
    assert found.step.low <= found.step.value <= found.step.high
    assert found.tokens == pytest.approx(256 * 700, rel=0.01)


def test_epochs_repeat_updates_alone() -> None:
    once, twice = iteration(), iteration(replace(ASKED, epochs=2))
    spent = [next(p.seconds for p in one.phases if p.name == "updates") for one in (once, twice)]
    assert spent[1] == pytest.approx(2 * spent[0])
    assert twice.step.value - once.step.value == pytest.approx(spent[0])


def test_apart_one_step_off_takes_the_longer_side() -> None:
    turns, off = iteration(roles=APART), iteration(roles=replace(APART, mode="off-policy"))
    sides = [turns.seconds_of(side) for side in ("generation", "training")]
    assert turns.step.value == pytest.approx(sum(sides) + turns.seconds_of("transfer"))
    engine_apart = max(off.seconds_of(side) for side in ("generation", "training"))
    assert engine_apart <= off.step.value < turns.step.value
    assert iteration(roles=replace(APART, mode="off-policy(staleness=0)")).step.value == turns.step.value


def test_more_bandwidth_is_never_slower() -> None:
    tiers = tuple(replace(tier, bytes_per_s=2 * tier.bytes_per_s) for tier in NODE.tiers)
    wide = replace(NODE, tiers=tiers)
    for roles in (TURNS, APART):
        assert iteration(roles=roles, where=wide).step.value <= iteration(roles=roles).step.value * (1 + 1e-9)


def test_a_rule_on_the_host_takes_its_time() -> None:
    slow = iteration(replace(ASKED, reward_s=0.01))
    assert slow.step.value - iteration().step.value == pytest.approx(2.56)


def test_ppo_trains_a_critic_in_turn_or_beside() -> None:
    asked = replace(ASKED, task="ppo")
    turn = iteration(asked, replace(APART, mode="synchronous"))
    beside = iteration(asked, replace(APART, rollout=Deployment(engine="vllm", instances=2), critic=Plan(dp=2, zero=1)))
    names = {one.name: one for one in turn.phases}
    assert names["critic updates"].seconds == pytest.approx(names["updates"].seconds, rel=0.05)
    assert beside.roles.devices == 8
    assert any(one.beside for one in beside.phases)
    assert {one.role for one in beside.memory} == {"trainer", "critic", "engine"}


def test_a_critic_on_the_policys_devices_takes_turns_with_it_or_its_memory() -> None:
    asked = replace(ASKED, task="ppo")
    moved, apart, kept = (iteration(asked, roles) for roles in (TURNS, APART, replace(TURNS, offload=False)))
    swaps = [
        next((p.seconds for p in one.phases if p.name == "critic swapped in"), 0.0) for one in (moved, apart, kept)
    ]
    host = next(p.seconds for p in moved.phases if p.name == "states to host and back")
    assert swaps[0] == pytest.approx(host)  # as large as the policy, whose own way is priced already
    assert swaps[1] > swaps[0]  # apart, the policy's states make that way for the critic alone; ZeRO-1 over fewer ranks
    assert swaps[2] == 0.0
    trainer = [next(m for m in one.memory if m.role == "trainer") for one in (moved, kept)]
    assert "critic" not in trainer[0].parts
    assert trainer[1].parts["critic"] > 12e9 / 8  # 18 bytes of 1.24e9 parameters, 12 of them over eight ranks, at least


def test_a_reward_model_is_a_forward_more() -> None:
    found, kept = (iteration(reward=MODEL, roles=roles) for roles in (TURNS, replace(TURNS, offload=False)))
    assert next(p for p in found.phases if p.name == "reward model").seconds > 0
    loaded = next(p.seconds for p in found.phases if p.name == "reward model loaded")
    size = 2.0 * MODEL.graph.params  # whole on each device: by a core into pinned memory, then over the link
    link_s = offload_s(machine(NODE), StageMemory(stage=0, categories={"weights": size}, capacity_bytes=8e10)) / 2
    assert loaded == pytest.approx(size / 1.3e10 + link_s, rel=0.01)
    assert "reward model loaded" not in {p.name for p in kept.phases}


def test_the_limit_is_of_the_side_that_the_other_waits_for() -> None:
    off = iteration(roles=replace(APART, mode="off-policy"))
    longer = max(("generation", "training"), key=off.seconds_of)
    shorter = "training" if longer == "generation" else "generation"
    assert off.limit.endswith(f"; {shorter} takes {off.seconds_of(shorter) / off.step.value:.0%} beside")
    assert "beside" not in iteration().limit


def test_a_trainer_leaves_room_for_the_reference_that_stays_with_it() -> None:
    asked = replace(ASKED, task="dpo", prompts=64, samples=2, response=800, response_max=3200, mini_batch=None)
    question = PostTrainingQuestion(models=Models(policy=load("qwen3-8b")), cluster=NODE, asked=asked, job=JOB)
    roles, _ = roles_of(question)
    found = predict_post_training(question.models, NODE, asked, roles, JOB)
    assert found.fits
    assert found.memory[0].parts["reference"] == pytest.approx(2 * 8.19e9 / weight_shards(roles.train), rel=0.01)


@pytest.mark.parametrize(
    ("task", "phases"), [("dpo", ["reference", "updates"]), ("sft", ["updates"]), ("reward", ["updates"])]
)
def test_tasks_without_rollouts_are_training_with_forwards(task: str, phases: list[str]) -> None:
    found = iteration(replace(ASKED, task=task, samples=2, mini_batch=64))
    assert [one.name for one in found.phases] == phases
    assert found.tail is None
    assert found.step.value == pytest.approx(sum(one.seconds for one in found.phases))


def test_states_that_stay_leave_the_engine_less_cache() -> None:
    moved, kept = iteration(), iteration(roles=replace(TURNS, offload=False))
    caches = [next(m for m in one.memory if m.role == "engine").parts["KV cache"] for one in (moved, kept)]
    assert caches[1] < caches[0]
    assert "reference" in next(m for m in kept.memory if m.role == "trainer").parts
    assert "states to host and back" not in {one.name for one in kept.phases}


def test_shards_of_the_weights() -> None:
    assert weight_shards(Plan(tp=4, pp=2, dp=8, zero=1)) == 8
    assert weight_shards(Plan(tp=2, dp=8, zero=3)) == 16


def test_weights_go_over_tensor_by_tensor() -> None:
    graph = MODEL.graph
    assert graph.tensors == 16 * 9 + 2  # norms, q, k, v, o, gate, up, down of a layer; embedding and last norm
    assert load("qwen3-30b-a3b").graph.tensors == pytest.approx(18_867, rel=0.003)  # of its checkpoint
    found = transfer_s(machine(NODE), TURNS, MODEL, 1e9)
    assert found == pytest.approx(2.1e-4 * graph.tensors)  # every rank has the weights whole
    split = transfer_s(machine(NODE), replace(TURNS, train=Plan(dp=8, zero=3)), MODEL, 1e9)
    assert split - found == pytest.approx(2 * graph.params * 7 / 8 / 450e9, rel=0.5)  # gathered over NVLink
    assert transfer_s(machine(NODE), APART, MODEL, 1e9) > found


def test_states_pass_through_a_core_and_weights_do_not() -> None:
    held = StageMemory(stage=0, categories={"weights": 2.6e9, "optimizer": 5.2e9}, capacity_bytes=8e10)
    link = offload_s(machine(NODE), StageMemory(stage=0, categories={"weights": 7.8e9}, capacity_bytes=8e10))
    staged = 2 * 5.2e9 / 1.3e10 + 5.2e9 / 8.3e9  # by a core each way; pages of the host's memory are new
    assert offload_s(machine(NODE), held) - link == pytest.approx(staged)


# what cannot be -------------------------------------------------------------------------------------


def test_a_reference_is_swapped_in_through_memory_that_is_not_pinned() -> None:
    memory = StageMemory(stage=0, categories={"weights": 16e9, "optimizer": 9e9}, capacity_bytes=8e10)
    link = offload_s(machine(NODE), StageMemory(stage=0, categories={"weights": 8e9}, capacity_bytes=8e10))  # 16 GB
    assert swap_s(machine(NODE), memory) == pytest.approx(3 * link + 16 * (3 / 13 + 1 / 8.3))
    assert swap_s(machine(NODE), replace(memory, categories={})) == 0.0


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(WorkloadError, match="raise response_max"):
        PostTraining(response=5000, response_max=4096)
    with pytest.raises(WorkloadError, match="mini_batch = 2000 sequences, needs 1 to prompts"):
        PostTraining(prompts=10, samples=10, mini_batch=2000)
    with pytest.raises(PlanError, match="the roles take 12 devices"):
        iteration(roles=replace(APART, train=Plan(dp=8)))


# the split ------------------------------------------------------------------------------------------


def question(**stated: Any) -> PostTrainingQuestion:
    return PostTrainingQuestion(models=Models(policy=MODEL), cluster=NODE, asked=ASKED, job=JOB, stated=stated)


def test_what_is_stated_of_the_roles_is_kept() -> None:
    roles, _ = roles_of(question(rollout_devices=4, rollout_tp=2, dp=4, zero=3, rollout_mode="streaming"))
    assert (roles.rollout.instances, roles.rollout.tp, roles.train.dp, roles.train.zero) == (2, 2, 4, 3)
    assert not roles.colocated
    assert roles.mode == "streaming"
    with pytest.raises(PlanError, match="leave the trainer none of 8"):
        roles_of(question(rollout_devices=8))


def test_the_search_finds_no_worse_than_every_split_that_it_predicts() -> None:
    found = search_post_training(question())
    times = [one.step.value for one in found.best]
    assert times == sorted(times)
    assert found.on_policy is not None
    assert all(one.fits for one in found.best)
    again, _ = roles_of(question(rollout_tp=found.on_policy.roles.rollout.tp))
    assert found.best[0].step.value <= iteration(roles=again).step.value * 1.01


def test_splits_are_ordered_by_the_aim() -> None:
    for aim, of in (("joules", "energy_j"), ("carbon", "carbon_kg"), ("dollars", "usd")):
        found = [getattr(one, of) for one in search_post_training(question(), aim=aim).best]
        assert found == sorted(found)
    unpriced = replace(question(), cluster=replace(NODE, price_usd_per_device_h=None))
    with pytest.raises(NoPlanError, match="no price is known"):
        search_post_training(unpriced, aim="dollars")


@pytest.mark.parametrize("roles", [TURNS, APART, replace(APART, mode="off-policy")])
def test_an_iteration_ends_no_sooner_than_any_of_its_phases(roles: Roles) -> None:
    found = iteration(roles=roles)
    for one in found.phases:
        assert one.beside or (found.step.low >= one.low_s and found.step.high >= one.high_s)


def test_a_search_keeps_a_mode() -> None:
    found = search_post_training(question(rollout_mode="streaming"))
    assert {one.roles.mode for one in found.best} == {"streaming"}
    assert np.isfinite(found.best[0].step.value)
