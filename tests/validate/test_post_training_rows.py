"""Rows of post-training: read, answered through the function of `predict --task`, refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.api.verb import ask
from ridgeline.search.post_training import measured_iteration
from ridgeline.validate.machines import machines
from ridgeline.validate.post_training import PostTrainingRows, read_job
from ridgeline.validate.post_training_plan import stated_plan
from ridgeline.validate.rows import Row, read

CELLS = {
    "id": "x1", "algorithm": "GRPO", "model": "Llama-3.2-1B", "hardware": "H100 80GB (DGX)", "n_devices": "8",
    "train_engine": "Megatron-Core", "rollout_engine": "vLLM", "precision": "bf16",
    "layout": "generation [TP,PP] [2,1]; training [TP,CP,EP,PP,VPP] [2,1,1,2,n/a]",
    "prompts_per_step": "32", "samples_per_prompt": "8", "prompt_tokens": "200", "response_tokens_mean": "500",
    "response_tokens_max": "2000", "mode": "colocated", "metric": "step_s", "value": "6", "unit": "s",
    "notes": "training batch 128",
}  # fmt: skip


def row(**changed: str) -> Row:
    return Row(line=2, id="x1", cells={**CELLS, **changed})


def answer(**changed: str) -> dict[str, Any]:
    return PostTrainingRows(measured_iteration).answer(row(**changed))


def test_a_row_is_read_to_the_words_of_a_plan() -> None:
    job = read_job(row(), machines())
    stated = job.question.stated
    assert {name: stated[name] for name in ("tp", "pp", "cp", "rollout_tp")} == {
        "tp": 2,
        "pp": 2,
        "cp": 1,
        "rollout_tp": 2,
    }
    assert (job.question.asked.mini_batch, job.question.asked.sequences) == (128, 256)
    assert not job.searched
    words = read_job(row(layout="train sp4fsdp8; rollout tp4", train_engine="FSDP"), machines()).question.stated
    assert (words["cp"], words["zero"], words["context_style"], words["rollout_tp"]) == (4, 3, "ulysses", 4)
    assert words["recompute"] == "full"  # the trainer's own habit, which is told


def test_a_mini_batch_of_prompts_counts_their_responses() -> None:
    assert read_job(row(notes="mini batch 8"), machines()).question.asked.mini_batch == 64


def test_dapo_says_what_its_paper_does() -> None:
    job = read_job(row(algorithm="DAPO", samples_per_prompt=""), machines())
    assert job.question.asked.samples == 16
    assert not job.question.asked.reference
    assert job.question.stated["rollout_collection"] == "dynamic-sampling"
    assert any("16 responses" in text for text in job.assumptions)
    assert {"collection": "every-response"} in [one.words for one in job.others]


def test_scripts_of_dapo_for_a_model_of_mathematics_train_on_every_response() -> None:
    job = read_job(row(algorithm="DAPO", model="Qwen2.5-Math-7B"), machines())
    assert job.question.stated["rollout_collection"] == "every-response"
    assert {"collection": "dynamic-sampling"} in [one.words for one in job.others]


def test_a_mean_that_is_not_stated_lies_within_the_context_that_a_model_was_made_for() -> None:
    """Qwen2.5-Math has 4,096 positions, 200 of them for the prompt: the root of 250 * 3,896 tokens, whatever limit."""
    for limit in ("8192", "28672"):
        words = {"model": "Qwen2.5-Math-7B", "response_tokens_mean": "", "response_tokens_max": limit}
        asked = read_job(row(**words), machines()).question.asked
        assert asked.response == pytest.approx((250 * 3896) ** 0.5)
        assert asked.response_max == int(limit)


@pytest.mark.parametrize(
    ("trainer", "notes", "packing"),
    [
        ("FSDP", "mini-batch 256, micro-batch 4 a GPU", "packed-sequences(sequences=4)"),
        (
            "Megatron-Core",
            "train micro batch 2 sequences, log-prob micro batch 10 sequences",
            "packed-sequences(sequences=2)",
        ),
        ("Megatron-Core", "dynamic batch FALSE; train 10k tokens a GPU", "packed-sequences(sequences=2)"),
        ("FSDP", "no dynamic batching", "packed-sequences(sequences=16)"),
        ("verl", "20480 tokens a GPU", "packed-sequences(tokens=20480)"),
        ("verl", "ppo_max_token_len_per_gpu=24576", "packed-sequences(tokens=24576)"),
        ("Megatron", "miles; max_tokens_per_gpu 8192", "packed-sequences(tokens=8192)"),
        ("slime (Megatron)", "", "packed-sequences(tokens=9216)"),
        ("SkyRL, FSDP2", "", "packed-sequences(sequences=4)"),
        ("Megatron", "SkyRL 0.3", "packed-sequences(sequences=2)"),
        ("FSDP", "log-prob micro batch 10", "packed-sequences(tokens=16384)"),
        ("FSDP", "padding kept; micro-batch 4", "padded-sequences(tokens=2200)"),
    ],
)
def test_micro_batches_hold_the_sequences_that_a_row_states(trainer: str, notes: str, packing: str) -> None:
    job = read_job(row(train_engine=trainer, notes=notes), machines())
    assert job.question.stated["sequence_packing"] == packing


@pytest.mark.parametrize(
    ("trainer", "notes", "words"),
    [
        ("Megatron (vime)", "", {"recompute": "full", "rollout_memory": 0.7, "zero": 1}),
        ("Megatron-Core", "", {"rollout_memory": 0.6, "zero": 1}),
        ("SkyRL, FSDP2", "", {"recompute": "full", "rollout_memory": 0.8, "zero": 3}),
        ("verl", "", {"recompute": "full", "rollout_memory": 0.5, "zero": 3, "tp": 1, "ep": 1, "micro_batch": 1}),
        ("verl (Megatron)", "", {"rollout_memory": 0.6, "zero": 1}),
    ],
)
def test_programs_have_habits_of_their_own(trainer: str, notes: str, words: dict[str, object]) -> None:
    stated = read_job(row(train_engine=trainer, notes=notes, layout="8 colocated"), machines()).question.stated
    assert {name: stated[name] for name in words} == words
    assert ("recompute" in stated) == ("recompute" in words)


def test_a_program_that_notes_name_has_its_own_optimizer_steps() -> None:
    """64 prompts of 8: 8 sequences on each of 8 devices are DeepSpeed-Chat's, 128 in all OpenRLHF's."""
    words = {"train_engine": "DeepSpeed ZeRO-3", "layout": "8 colocated", "prompts_per_step": "64"}
    chat, other = (read_job(row(**words, notes=notes), machines()) for notes in ("", "OpenRLHF 0.9.3"))
    assert (chat.question.asked.mini_batch, other.question.asked.mini_batch) == (64, 128)
    assert any("max_seqs" in one.words for one in chat.others)
    assert not any("max_seqs" in one.words for one in other.others)
    assert other.question.job.execution == "eager"


def test_a_program_without_a_term_of_divergence_has_no_reference() -> None:
    assert not read_job(row(train_engine="TRL"), machines()).question.asked.reference
    assert read_job(row(train_engine="FSDP"), machines()).question.asked.reference


def test_scripts_of_the_largest_mixtures_compute_activations_again() -> None:
    named = {name: read_job(row(model=name), machines()).question.stated for name in ("DeepSeek V3", "Qwen3-32B")}
    assert named["DeepSeek V3"]["recompute"] == "full"
    assert "recompute" not in named["Qwen3-32B"]


def test_one_program_times_all_log_probabilities_together() -> None:
    words = {"train_engine": "DTensor (FSDP2)", "layout": "8 colocated"}
    both = answer(**words, metric="logprob_s", value="1")["predicted"]
    own = answer(**{**words, "train_engine": "FSDP2"}, metric="logprob_s", value="1")["predicted"]
    frozen = answer(**words, metric="ref_s", value="1")["predicted"]
    assert both == pytest.approx(own + frozen)


def test_what_a_row_leaves_open_is_assumed_and_widens_its_interval() -> None:
    stated, group, limit = answer(), answer(samples_per_prompt="", value="6"), answer(response_tokens_mean="")
    assert group["predicted"] == pytest.approx(stated["predicted"])  # 8 responses a prompt, as the row had
    width = [one["high"] / one["low"] for one in (stated, group, limit)]
    assert width[0] < width[1] < width[2]
    assert any("707 tokens on average (assumed: between 250 and 2,000 on" in text for text in limit["assumptions"])
    assert limit["predicted"] > stated["predicted"]  # of the root of 250 * 2,000 tokens, not 500
    words = [one.words for one in read_job(row(), machines()).others]
    assert words == [{"response_cv": 0.6}, {"graphs": False}, {"recompute": "full"}]
    known = [one.words for one in read_job(row(notes="recompute 20 blocks"), machines()).others]
    assert {"recompute": "full"} not in known


def test_habits_of_programs_fill_what_a_row_does_not_say() -> None:
    stated = read_job(row(), machines()).question.stated
    assert (stated["zero"], stated["micro_batch"], stated["rollout_engine"]) == (1, 1, "vLLM 0.11.2")
    said = read_job(row(rollout_engine="vLLM 0.8.5"), machines()).question.stated
    assert said["rollout_engine"] == "vLLM 0.8.5"
    packed = row(notes="training batch 128; train 20k tokens a GPU", response_tokens_max="8192")
    assert read_job(packed, machines()).question.stated["sequence_packing"] == "packed-sequences(tokens=20000)"


def test_trainers_on_fsdp_run_eager_modules_over_shards_and_share_half_of_the_device() -> None:
    job = read_job(row(train_engine="FSDP", layout="8 colocated", notes=""), machines()).question
    assert (job.job.execution, job.job.fused_optimizer) == ("eager", False)
    words = {name: job.stated[name] for name in ("zero", "pp", "tp", "cp", "rollout_memory", "sequence_packing")}
    assert words == {
        "zero": 3, "pp": 1, "tp": 1, "cp": 1, "rollout_memory": 0.5,
        "sequence_packing": "packed-sequences(tokens=16384)",
    }  # fmt: skip
    assert job.asked.mini_batch == 256  # 256 prompts of 8 responses are more than the iteration has
    assert "rollout_memory" not in read_job(row(train_engine="FSDP", mode="async"), machines()).question.stated


def test_deepspeed_chat_generates_what_one_optimizer_step_takes() -> None:
    said = {"train_engine": "DeepSpeed", "rollout_engine": "DeepSpeed hybrid engine", "layout": "8 colocated"}
    chat = row(**said, algorithm="PPO", model="OPT-1.3B", samples_per_prompt="1", prompts_per_step="1024",
               notes="critic and reward model of 350M")  # fmt: skip
    question = read_job(chat, machines()).question
    assert question.stated["rollout_engine"] == "DeepSpeed-Hybrid"
    assert (question.asked.mini_batch, question.asked.updates) == (64, 16)
    assert {"mini_batch": 32, "max_seqs": 4} in [one.words for one in read_job(chat, machines()).others]
    assert question.job.precision == "bf16"
    assert read_job(row(**{**chat.cells, "precision": "fp16"}), machines()).question.job.precision == "fp16"
    assert question.models.critic is not None
    assert question.models.critic.name == "opt-350m"


def test_layouts_without_a_role_are_the_trainers_and_blocks_are_computed_again() -> None:
    words = read_job(row(layout="8 colocated; tp 2, dp 4, pp 1", notes="recompute 20 blocks"), machines()).question
    assert (words.stated["tp"], words.stated["pp"], words.stated["recompute_layers"]) == (2, 1, 20)
    longer = row(layout="training [TP,CP,EP,PP,VPP] [1,1,1,1,1,2,n/a]")
    assert read_job(longer, machines()).question.stated["pp"] == 2  # names end where values end


def test_log_probabilities_may_be_timed_with_the_references() -> None:
    together, alone = answer(metric="logprob_s"), answer(metric="logprob_s", train_engine="FSDP2", layout="8 colocated")
    reference = answer(metric="ref_s")
    assert reference["predicted"] > together["predicted"]  # its weights are swapped in
    assert reference["high"] < together["high"] < 2 * reference["high"]
    assert alone["high"] / alone["predicted"] < together["high"] / together["predicted"]


def test_devices_of_each_side_are_read() -> None:
    job = read_job(row(mode="async", layout="3 rollout : 5 train"), machines())
    assert job.question.stated["rollout_devices"] == 3
    assert not job.searched
    half = read_job(row(mode="async"), machines())  # as NeMo RL's recipes have it
    assert half.question.stated["rollout_devices"] == 4
    assert not half.searched
    assert read_job(row(mode="async", train_engine="Megatron (realhf)"), machines()).searched


def test_an_answer_has_interval_and_evidence() -> None:
    found = answer()
    assert found["status"] == "scored"
    assert found["low"] <= found["predicted"] <= found["high"]
    parts = ("train_s", "rollout_s", "logprob_s", "ref_s")
    part = sum(answer(metric=name)["predicted"] for name in parts)
    assert part < found["predicted"]
    assert answer(unit="min", value="0.1")["predicted"] == pytest.approx(found["predicted"] / 60)
    rate = answer(metric="tokens_per_s", unit="tokens/s")["predicted"]
    assert rate * found["predicted"] == pytest.approx(256 * 700, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples_per_prompt": "", "algorithm": "PPO"}, "how many responses a prompt gets is not stated"),
        ({"response_tokens_mean": "", "response_tokens_max": ""}, "neither the mean length of responses nor their"),
        ({"prompts_per_step": ""}, "how many prompts"),
        ({"algorithm": "SWE"}, "no algorithm that is predicted"),
        ({"mode": "elsewhere"}, "known: colocated, apart, async"),
        ({"metric": "reward"}, "is not predicted"),
        ({"unit": "furlong"}, "is no unit of step_s"),
        ({"n_devices": ""}, "the number of devices is not stated"),
    ],
)
def test_a_row_without_what_is_needed_is_refused(changed: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        answer(**changed)


def test_check_knows_the_kind_of_table(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("\t".join(CELLS) + "\n" + "\t".join(CELLS.values()) + "\n", encoding="utf-8")
    assert read(file).kind == "post-training"
    (found,) = ask("check", table=str(file), blind=True).value
    predicted = ask(
        "predict", subject="llama-3.2-1b", on="8xH100-SXM", task="grpo", prompts="32", samples="8", prompt="200",
        response="500", response_max="2000", mini_batch="128", tp="2", pp="2", cp="1", ep="1", rollout_tp="2",
        framework="megatron-lm", rollout_engine="vLLM 0.11.2", zero="1", micro_batch="1",
    ).value  # fmt: skip
    assert found["predicted"] == pytest.approx(predicted.step.value, rel=0.05)


def test_padding_that_a_row_leaves_open_is_within_the_interval() -> None:
    job = read_job(row(train_engine="FSDP", layout="8 colocated"), machines())
    ends = [one for one in job.others if "packing" in one.words]
    assert [one.words for one in ends] == [{"packing": "padded-sequences(tokens=2200)", "micro_batch": 7}]
    assert not ends[0].both  # padding never makes it quicker
    said = read_job(row(train_engine="FSDP", layout="8 colocated", notes="16000 tokens a GPU"), machines())
    assert not [one for one in said.others if "packing" in one.words]
    limit = read_job(row(train_engine="FSDP", layout="8 colocated", response_tokens_mean=""), machines())
    assert not [one for one in limit.others if "packing" in one.words]  # its mean may be as long as the limit


def test_words_of_any_row_say_padding_offload_and_recompute() -> None:
    notes = "padding kept (no packing); Adam on CPU; all offload off; full recompute; max prompt 512"
    stated = read_job(row(notes=notes), machines()).question.stated
    assert stated["sequence_packing"] == "padded-sequences(tokens=2512)"
    assert stated["offload_optimizer"] is True
    assert stated["offload_trainer"] is False
    assert stated["recompute"] == "full"


def test_a_critic_is_named_or_as_large_as_a_row_says() -> None:
    ppo = {"algorithm": "PPO", "model": "OPT-1.3B", "layout": "8 colocated"}
    for changed, name in (({"notes": "value model of 350M"}, "opt-350m"), ({"critic_model": "350M"}, "opt-350m"),
                          ({"critic_model": "llama-3.2-1b"}, "llama-3.2-1b")):  # fmt: skip
        critic = read_job(row(**ppo, **changed), machines()).question.models.critic
        assert critic is not None
        assert critic.name == name


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        ("4 train (TP 2, DP 2), 4 rollout", {"rollout_devices": 4, "tp": 2}),
        ("16 H100 train (2 nodes), 16 H200 rollout (8 engines at TP 2)", {"rollout_devices": 16, "rollout_tp": 2}),
        ("64 rollout : 64 train", {"rollout_devices": 64}),
        ("128 cards colocated; train tp4ep8pp8; rollout dp64tp2ep128", {"rollout_tp": 2, "rollout_ep": 128, "pp": 8}),
    ],
)
def test_roles_share_devices_by_their_words(layout: str, found: dict[str, int]) -> None:
    row = Row(line=2, id="r", cells={"layout": layout, "mode": "colocated", "train_engine": "Megatron", "notes": ""})
    stated, _ = stated_plan(row, [])
    assert {name: stated.get(name) for name in found} == found
