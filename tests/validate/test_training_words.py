"""Words of training rows that any source may use: attention, adapters after other notes, classes of devices."""

from __future__ import annotations

import pytest

from ridgeline.search.complete import complete
from ridgeline.validate.check import Checker
from ridgeline.validate.interpret import Interpretation, Refusal, interpret
from ridgeline.validate.rows import Row, TruthTable

CELLS = {
    "model": "llama-3-8b", "seq_len": "8192", "hardware": "A100 80GB", "n_devices": "1", "tp": "1", "pp": "1",
    "dp": "1", "micro_batch": "1", "global_batch": "1", "recompute": "full", "precision": "bf16", "engine": "PyTorch",
    "metric": "peak_mem_per_gpu", "unit": "GiB", "value": "40",
}  # fmt: skip


def read(**changes: str) -> Interpretation:
    found = interpret(Row(line=2, id="u", cells=CELLS | changes))
    assert not isinstance(found, Refusal), found.reason
    return found


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ({"engine": "PyTorch, torch.compile, flash_attention_2"}, "flash2"),
        ({"engine": "PyTorch DDP, SDPA or flash"}, "flash2"),
        ({"notes": "packed; flash attention"}, "flash"),
        ({"notes": "no flash attention"}, "unfused"),
        ({"notes": "eager attention"}, "unfused"),
        ({}, "flash2"),  # a model since PyTorch 2.0
        ({"model": "bert-large"}, "unfused"),
    ],
)
def test_attention_by_its_words(words: dict[str, str], kernel: str) -> None:
    assert read(**words).workload.attention_kernel == kernel


def test_an_adapter_may_be_named_after_other_notes() -> None:
    assert read(notes="a step on fake data; LoRA rank 32 on all linear layers").workload.lora_rank == 32
    assert read(notes="full parameter, packed").workload.task.value == "full"


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ({"notes": "framework config none; lora r=16 on q_proj k_proj v_proj o_proj"}, "lora"),
        ({"notes": "Q-LoRA; gradient accumulation 8", "precision": "fp16 + GPTQ Int4 base"}, "qlora"),
        ({"notes": "LoRA on a quantised base", "precision": "bf16 + int8 GPTQ base"}, "qlora"),
        ({"notes": "full fine-tune"}, "full"),
    ],
)
def test_adapters_and_bases_in_few_bits_by_their_usual_words(words: dict[str, str], task: str) -> None:
    assert read(**words).workload.task.value == task


def test_an_adapter_lies_on_the_layers_that_a_row_names() -> None:
    found = read(notes="LoRA r=16 on q_proj k_proj v_proj o_proj").workload
    assert (found.lora_rank, found.lora_targets) == (16, "attention")
    assert read(notes="LoRA rank 8 on all linear layers").workload.lora_targets == "all"


def test_hugging_face_weights_are_in_16_bits_unless_a_row_says_amp() -> None:
    plain, amp = (read(engine="HF trainer", precision=words).workload for words in ("bf16", "bf16 AMP"))
    assert (plain.precision, plain.optimizer, amp.precision) == ("bf16-pure", "adamw-bf16", "bf16-amp")
    assert not plain.fused_optimizer


def test_torchtitan_compiles_its_loss_where_a_row_says_compiled_and_no_earlier_year() -> None:
    copies = [
        read(engine=f"torchtitan{words}").workload.policy.logit_fp32_copies
        for words in (", torch.compile", " (2024-12), torch.compile", "")
    ]
    assert copies == [1, 3, 3]


def test_a_class_of_devices_by_its_memory() -> None:
    found = read(hardware="80GB class (not stated)")
    assert found.cluster.accelerator.name == "A100-SXM-80GB"
    assert any("80 GB" in line for line in found.assumptions)


def test_words_in_parentheses_name_variants_not_families() -> None:
    assert read(model="Llama 3 8B (UNet skips)").model.name == "llama-3-8b"
    refused = interpret(Row(line=2, id="u", cells=CELLS | {"model": "U-Net medical"}))
    assert isinstance(refused, Refusal)


def test_vision_transformers_by_the_paper_s_names() -> None:
    found = read(model="ViT-H/14 224", seq_len="257", metric="samples_per_s", unit="img/s")
    assert found.model.name == "vit-huge-patch14-224"


def test_compiled_pytorch_has_the_attention_that_came_with_it() -> None:
    assert read(engine="PyTorch compile").workload.attention_kernel == "flash2"


def test_states_in_16_bits_have_no_master_copy() -> None:
    assert read(optimizer="AdamW (bf16 states)").workload.precision == "bf16-pure"


def test_a_mixture_is_told_by_its_active_parameters() -> None:
    model = read(model="Some MoE 90B-A5.3B", params_b="90").model
    assert model.graph.params == pytest.approx(90e9, rel=0.15)
    assert model.dims["experts"]


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ({"engine": "Axolotl"}, "bf16-pure"),
        ({"engine": "Axolotl", "optimizer": "AdamW, fp32 master"}, "bf16-amp"),
        ({"engine": "Megatron-LM"}, "bf16"),
        ({"engine": "Megatron-LM", "optimizer": "AdamWBF16"}, "bf16-pure"),
        ({"engine": "Megatron-LM", "optimizer": "bf16 AdamW"}, "bf16-pure"),
        ({"engine": "Megatron-LM", "optimizer": "AdamW, bf16 moments"}, "bf16"),
    ],
)
def test_master_copies_by_words_and_program(words: dict[str, str], precision: str) -> None:
    assert read(**words).workload.precision == precision


@pytest.mark.parametrize(("engine", "copies"), [("torchtitan, no compile", 3.0), ("torchtitan, compile", 1.0)])
def test_no_compile_compiles_nothing(engine: str, copies: float) -> None:
    found = read(engine=engine).workload
    assert found.policy.logit_fp32_copies == copies
    assert (found.execution == "compiled") == (copies == 1.0)


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        ({"engine": "TRL SFT, accelerate FSDP2", "notes": "chunked NLL"}, "token-chunks"),
        ({"engine": "TRL 1.10 SFT"}, "token-chunks"),
        ({"engine": "TRL 1.6 SFT"}, "whole"),
        ({"engine": "TRL 1.8 SFT, Liger"}, "fused"),
        ({"engine": "torchtitan", "notes": "eight loss chunks"}, "head-chunks"),
    ],
)
def test_losses_by_words(words: dict[str, str], loss: str) -> None:
    assert read(**words).stated.get("loss", "whole") == loss


def test_programs_without_expert_parallelism_divide_no_experts() -> None:
    cells = {"model": "qwen3-30b-a3b", "n_devices": "2", "dp": "2", "global_batch": "2"}
    assert read(**cells, engine="Unsloth, DDP").stated["ep"] == 1
    assert "ep" not in read(**cells, engine="Megatron-LM").stated


def test_inputs_of_layers_may_be_away() -> None:
    assert read(offload="checkpointed layer inputs to CPU").stated["offload_activations"] is True


def peaks(**changes: str) -> tuple[float, float, float]:
    """The predicted peak of a row and both ends of its interval [GiB]."""
    row = Row(line=2, id="u", cells=CELLS | changes)
    table = TruthTable(path="t.tsv", kind="memory", columns=tuple(CELLS), rows=(row,))
    found = Checker(completer=complete, strict=True, blind=True).answer(row, table)
    assert found["status"] == "scored", found["reason"]
    return found["predicted"], found["low"], found["high"]


@pytest.mark.parametrize("unsaid", [{"recompute": ""}, {"micro_batch": "", "global_batch": "4"}, {"precision": "bf16"}])
def test_what_a_row_leaves_open_widens_its_interval(unsaid: dict[str, str]) -> None:
    said = {
        "engine": "transformers, flash attention", "precision": "pure bf16", "metric": "max_memory_allocated",
        "hardware": "B300",
    }  # fmt: skip
    _, low, high = peaks(**said)
    other, least, most = peaks(**said | unsaid)
    assert most / least > high / low
    assert least <= other <= most


def test_primus_prints_what_its_last_rank_holds() -> None:
    """The first of eight ranks keeps activations of eight micro-batches, the last those of one."""
    stages = {"n_devices": "8", "pp": "8", "global_batch": "16", "recompute": "none", "seq_len": "4096"}
    first, *_ = peaks(**stages, engine="Megatron-LM, 1F1B")
    last, *_ = peaks(**stages, engine="Primus (Megatron-LM), 1F1B")
    assert last < first
