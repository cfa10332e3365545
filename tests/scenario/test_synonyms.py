"""Other programs' words: each names a word that is read here, in files and as flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.scenario import synonyms
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, near, nearest
from ridgeline.scenario.serving_fields import BATCH_FIELDS, DEPLOYMENT_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS
from ridgeline.scenario.synonyms import called_here

FIELDS = (*WORKLOAD_FIELDS, *PLAN_FIELDS, *TRAFFIC_FIELDS, *BATCH_FIELDS, *DEPLOYMENT_FIELDS, *OFFLOAD_FIELDS)


def test_every_word_that_is_named_is_read() -> None:
    read = {"on", *(field.name for field in FIELDS), *(choice for field in FIELDS for choice in field.choices)}
    assert {word for words in synonyms.synonyms().values() for word in words} <= read


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ("tensor_parallel", "tp"), ("tensor-parallel-size", "tp"), ("--tensor_model_parallel_size", "tp"),
        ("pipeline_parallel", "pp"), ("context_parallel_size", "cp"), ("data_parallel", "dp"),
        ("expert_parallel_size", "ep"), ("per_device_train_batch_size", "micro_batch"),
        ("gradient_accumulation_steps", "global_batch"), ("seq_length", "seq_len"), ("max_seq_len", "seq_len"),
        ("dtype", "precision"), ("gradient_checkpointing", "recompute"), ("virtual_pipeline", "chunks"),
    ],
)  # fmt: skip
def test_the_word_of_another_program_names_ours(theirs: str, here: str) -> None:
    known = [field.name for field in (*WORKLOAD_FIELDS, *PLAN_FIELDS)]
    assert nearest(theirs, known)[0] == here
    assert near(theirs, known).startswith(f"here it is called {here}")


def test_a_word_that_means_nothing_here_is_left_to_its_spelling() -> None:
    assert called_here("tensor_parallel", ("prompt", "rate")) == ()
    assert nearest("micro_bach", ("micro_batch", "zero")) == ("micro_batch",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "gpt2", "--tensor-parallel", "2"], "(Possible options: --tp)"),
        (["plan", "gpt2", "--per_device_train_batch_size", "2"], "(Possible options: --micro-batch)"),
        (["predict", "gpt2", "--dtype", "fp16"], "(Possible options: --precision, --weights)"),
        (["predict", "gpt2", "--on", "1xH100-SXM", "--task", "peft"], "here it is called lora or qlora"),
    ],
)
def test_a_command_names_the_flag(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[workload]\ntensor_parallel = 2", "here it is called tp, which is an option of [plan]; write it there"),
        ("[workload]\nzero = 1", "is an option of [plan]; write it there"),
        ("[plan]\nseq_len = 512", "is an option of [workload]; write it there"),
        ("[plan]\nmax_seqs = 16", "is an option of serving"),
    ],
)
def test_a_word_in_the_wrong_table_is_sent_to_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'model = "gpt2"\ncluster = "8xH100-SXM"\n{line}\n', encoding="utf-8")
    assert run(["predict", str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("A100-40", "A100-PCIe-40GB"), ("V100-SXM2-32", "V100-SXM2-32GB"), ("MI300", "MI300X"), ("H200 SX", "H200-SXM"),
    ],
)  # fmt: skip
def test_one_card_comes_before_a_box_of_eight(asked: str, first: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        cluster(f"1x{asked}")
    assert error.value.nearest[0] == first
