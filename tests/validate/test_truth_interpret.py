"""Rows of public tables read as scenarios."""

from __future__ import annotations

import pytest

from ridgeline.graph.workload import Task
from ridgeline.validate.interpret import Interpretation, Refusal, interpret
from ridgeline.validate.rows import Row

DIMS = ("params_b", "layers", "hidden", "heads", "vocab", "seq_len")


def row(**cells: object) -> Row:
    text = {name: str(value) for name, value in cells.items()}
    return Row(line=2, id=text.pop("id", "t-x-0001"), cells={"metric": "step_time", "value": "1", "unit": "s", **text})


def job(**cells: object) -> Interpretation:
    found = interpret(row(**cells))
    assert isinstance(found, Interpretation), found
    return found


def test_layers_and_experts_of_a_truncated_model_are_those_of_its_name() -> None:
    words = {"hardware": "H100-SXM", "n_devices": 8, "dp": 8, "micro_batch": 1, "global_batch": 8, "seq_len": 4096}
    cut = job(model="Mixtral-8x7B truncated to 2 layers, 4 experts", **words).model
    assert (cut.dims["layers"], cut.dims["experts"]) == (2, 4)
    padded = job(model="Mixtral-8x7B truncated to 2 layers, 4 experts", vocab=32256, **words).model
    assert (padded.dims["layers"], padded.dims["experts"], padded.dims["vocab"]) == (2, 4, 32256)
    short = job(model="Llama 4 Scout 17Bx16E cut to 2 layers", layers=2, **words).model
    assert (short.dims["layers"], short.dims["experts"]) == (2, 16)


def test_experts_of_recipes_by_release() -> None:
    words = {"n_devices": 256, "pp": 8, "ep": 32, "micro_batch": 1, "global_batch": 2048, "seq_len": 4096}
    said = {"model": "Qwen3_235B_a22B", "engine": "Megatron-Bridge 25.11", "notes": "vp=3", **words}
    graphs = job(hardware="GB200 NVL72", **said).workload
    assert (graphs.captured, graphs.expert_dispatch) == ("attention", "hybridep")
    overlapped = job(hardware="H100 SXM 80GB", **{**said, "notes": "vp=4"})
    assert (overlapped.workload.captured, overlapped.stated["schedule"]) == ("none", "combined-1f1b")
    before = job(hardware="H100 SXM 80GB", **{**said, "engine": "Megatron-Bridge 25.09", "notes": "vp=4"})
    assert before.stated["schedule"] == "interleaved"


@pytest.mark.parametrize(("engine", "counted"), [("Megatron-Core r0.8.0", "full"), ("Megatron-Core", "causal")])
def test_flop_rates_count_attended_pairs_since_a_release(engine: str, counted: str) -> None:
    found = job(model="Llama 3 8B", hardware="H100-SXM", n_devices=8, dp=8, global_batch=8, seq_len=4096, engine=engine)
    assert found.engine.accounting == counted


@pytest.mark.parametrize(("local", "whole", "part"), [(8, 64, 1), (32, 256, 4)])
def test_the_local_batch_of_torchtitan_is_all_of_a_step(local: int, whole: int, part: int) -> None:
    found = job(
        model="Llama 3.1 405B", hardware="H100 SXM 80GB", n_devices=512, tp=8, pp=8, dp=8, micro_batch=local,
        engine="torchtitan 9dec370", seq_len=32768, precision="float8", recompute="full",
    )  # fmt: skip
    assert (found.workload.global_batch, found.stated["micro_batch"]) == (whole, part)


def test_torchtitan_pipeline_row() -> None:
    found = job(
        model="Llama 3.1 405B",
        params_b=405,
        layers=126,
        hidden=16384,
        heads=128,
        vocab=128256,
        hardware="H100 SXM 96GB HBM2e 2.4TB/s 500W cap",
        n_devices=512,
        interconnect="NVLink 8/node; 400Gb/s RDMA per GPU",
        tp=8,
        pp=8,
        dp=8,
        zero_stage="FSDP2",
        micro_batch=32,
        global_batch=256,
        recompute="full",
        precision="float8",
        engine="torchtitan 9dec370 / torch 1963fc8 (2024-12)",
        notes="1F1B; 3D + compile + Float8 + AsyncTP",
    )
    assert found.model.graph.params == pytest.approx(405.9e9, rel=1e-3)
    assert (found.workload.seq_len, found.workload.global_batch, found.workload.precision) == (8192, 256, "fp8")
    assert found.workload.execution == "compiled"
    assert {name: found.stated[name] for name in ("tp", "pp", "cp", "dp", "zero", "micro_batch", "chunks")} == {
        "tp": 8,
        "pp": 8,
        "cp": 1,
        "dp": 8,
        "zero": 3,
        "micro_batch": 4,
        "chunks": 1,
    }
    assert found.stated["schedule"] == "1f1b"
    assert found.stated["sequence_parallel"] is True
    assert found.cluster.accelerator.memory_bytes_per_s == 2.4e12
    assert found.cluster.accelerator.tdp_w == 500
    assert any("8192" in note for note in found.assumptions)


def test_megatron_2021_row_splits_model_parallel_size_and_counts_chunks() -> None:
    found = job(
        model="GPT 145B",
        params_b=145.6,
        layers=80,
        hidden=12288,
        vocab=51200,
        seq_len=2048,
        hardware="A100 SXM 80GB",
        n_devices=1536,
        dp=24,
        global_batch=2304,
        recompute="full",
        precision="fp16 mixed",
        engine="Megatron-LM (Apr 2021, interleaved 1F1B)",
        also_reported="pct_peak=47; model_parallel_size=64",
    )
    assert [found.stated[name] for name in ("tp", "pp", "dp", "chunks")] == [8, 8, 24, 2]
    assert found.stated["schedule"] == "interleaved"
    assert found.stated["recompute"] == "full"
    assert found.stated["sequence_parallel"] is False
    assert found.workload.attention_kernel == "unfused"
    assert found.model.dims["heads"] == 96
    assert found.model.graph.params == pytest.approx(145.6e9, rel=0.01)


def test_mlperf_lora_batch_follows_from_accumulation() -> None:
    found = job(
        model="Llama2-70B LoRA r16",
        params_b=70,
        layers=80,
        hidden=8192,
        heads=64,
        vocab=32000,
        seq_len=8192,
        hardware="H100-SXM5-80GB",
        n_devices=8,
        global_batch=8,
        engine="NGC MXNet 23.09, NGC PyTorch 23.09",
        source="mlcommons/training_results_v4.0@6fe9543",
        metric="throughput",
        unit="samples/s",
        also_reported="grad_accum=4",
    )
    assert (found.workload.task, found.workload.lora_rank, found.workload.precision) == (Task.LORA, 16, "fp8")
    assert (found.stated["dp"], found.stated["micro_batch"]) == (2, 1)
    assert found.stated["tp"] == 4  # as the published code divides it, which the accumulation agrees with


def test_mlperf_bert_drops_its_padding() -> None:
    found = job(
        model="BERT-large",
        params_b=0.34,
        layers=24,
        hidden=1024,
        heads=16,
        seq_len=512,
        hardware="A30-PCIE-24GB",
        n_devices=8,
        global_batch=448,
        engine="NGC MXNet 22.09 , NGC PyTorch 22.09",
        metric="throughput",
        unit="samples/s",
        source="mlcommons/training_results_v3.0@63e326c",
        also_reported="grad_accum=2",
    )
    assert found.workload.seq_len == 256
    assert found.workload.unpredicted == 0.85  # logits of the 15 % that are masked
    assert (found.stated["dp"], found.stated["micro_batch"], found.workload.precision) == (8, 28, "fp16")


def test_lambda_batch_cell_is_that_of_the_whole_job() -> None:
    found = job(
        model="BERT-large SQuAD fine-tune",
        hardware="H100 80GB SXM5",
        n_devices=8,
        micro_batch=512,
        precision="fp32 (TF32 on Ampere+)",
        engine="PyTorch NGC (DeepLearningExamples)",
        metric="throughput",
        unit="seq/s",
    )
    assert (found.stated["micro_batch"], found.workload.global_batch, found.workload.seq_len) == (64, 512, 384)
    assert found.workload.unpredicted == 1.0  # its head marks a span
    assert (found.workload.precision, found.workload.task) == ("tf32", Task.FULL)
    assert found.model.graph.params == pytest.approx(0.336e9, rel=0.02)
    assert (found.workload.fused_optimizer, found.workload.looped_optimizer) == (False, True)  # BertAdam


def test_a_newer_container_changes_neither_the_examples_attention_nor_its_fused_update_in_half_precision() -> None:
    found = job(
        model="BERT-large SQuAD fine-tune",
        hardware="H100 80GB SXM5",
        n_devices=1,
        precision="fp16/AMP",
        engine="PyTorch NGC 24.10 (DeepLearningExamples)",
        metric="throughput",
        unit="seq/s",
    )
    assert found.workload.attention_kernel == "unfused"
    assert (found.workload.fused_optimizer, found.workload.looped_optimizer) == (True, False)


def test_megatron_test_flags_shape_the_model_and_the_plan() -> None:
    found = job(
        model="mcore test moe",
        layers=12,
        hidden=512,
        heads=8,
        seq_len=1024,
        hardware="H100 SXM 80GB (DGX)",
        tp=2,
        pp=1,
        ep=2,
        micro_batch=4,
        global_batch=32,
        recompute="none",
        precision="bf16",
        engine="Megatron-Core + TE",
        notes="num-experts=8; moe-router-topk=2; moe-ffn-hidden-size=1024; num-query-groups=4; sequence-parallel;"
        " use-distributed-optimizer; swiglu; untie-embeddings-and-output-weights",
    )
    dims = found.model.dims
    assert (dims["experts"], dims["top_k"], dims["expert_ffn"], dims["kv_heads"], dims["tied"]) == (
        8,
        2,
        1024,
        4,
        False,
    )
    assert (found.cluster.count, found.stated["dp"], found.stated["etp"]) == (8, 4, 2)
    assert (found.stated["zero"], found.stated["sequence_parallel"]) == (1, True)
    assert any("n_devices not stated: 8 assumed" in note for note in found.assumptions)


def test_latent_attention_flag() -> None:
    found = job(
        model="mcore test gpt",
        layers=4,
        hidden=512,
        heads=8,
        seq_len=1024,
        hardware="GB200",
        tp=2,
        pp=2,
        micro_batch=4,
        global_batch=32,
        precision="bf16",
        engine="Megatron-Core + TE",
        notes="multi-latent-attention; sequence-parallel",
        source_where="gpt/x_1node/golden_values.json",
        metric="peak_mem_per_gpu",
        unit="GiB",
    )
    assert found.model.dims["kv_rank"] == 512
    assert (found.cluster.count, found.stated["dp"]) == (4, 1)


TEST = {
    "model": "mcore test gpt", "layers": 12, "hidden": 512, "heads": 8, "seq_len": 1024, "tp": 1, "pp": 1,
    "micro_batch": 4, "global_batch": 32, "precision": "bf16", "engine": "Megatron-Core + TE",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hardware", "machine"),
    [
        ("gpt3_mcore_te_tp2_pp2_resume_torch_dist", "H100 SXM 80GB (DGX)", "milan"),  # values of a run on GitHub
        ("gpt3_mcore_te_tp2_pp2_resume_torch_dist_defer_embedding_wgrad_compute", "H100 SXM 80GB (DGX)", ""),
        ("gpt3_mcore_te_tp2_pp2_resume_torch_dist", "A100 (DGX, size not stated)", ""),
    ],
)
def test_the_history_of_a_test_tells_its_host(name: str, hardware: str, machine: str) -> None:
    where = f"tests/functional_tests/test_cases/gpt/{name}/golden_values_dev_dgx.json"
    found = job(**TEST, hardware=hardware, source_where=where)
    assert found.cluster.host.processor == machine
    assert any("p5.48xlarge" in note for note in found.assumptions) == bool(machine)


def test_times_of_tests_that_wait_for_their_data_are_refused() -> None:
    where = "tests/functional_tests/test_cases/gpt/x_1node/golden_values_dev_dgx_gb200.json"
    found = interpret(row(**TEST, hardware="GB200", source_where=where))
    assert isinstance(found, Refusal)
    assert "waits for its data" in found.reason
    assert job(**TEST, hardware="GB200", source_where=where.replace("_1node", "")).cluster.count == 8
    assert job(**TEST, hardware="GB200", source_where=where, metric="peak_mem", unit="GiB").cluster.count == 4


def test_rows_that_differ_in_their_host_alone_are_asked_apart() -> None:
    where = "tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist{}/golden.json"
    first, second = (job(**TEST, hardware="H100", source_where=where.format(end)) for end in ("", "_x"))
    assert (first.workload, first.stated) == (second.workload, second.stated)
    assert first.key != second.key


def test_virtual_stages_from_layers_per_stage() -> None:
    found = job(
        model="mcore test gpt",
        layers=12,
        hidden=512,
        heads=8,
        seq_len=1024,
        hardware="GB200",
        tp=1,
        pp=4,
        micro_batch=4,
        global_batch=32,
        precision="bf16",
        engine="Megatron-Core + TE",
        notes="num-layers-per-virtual-pipeline-stage=1",
    )
    assert (found.stated["chunks"], found.stated["schedule"]) == (3, "interleaved")


def test_dimensions_follow_from_parameters_alone_and_divide_the_degrees() -> None:
    found = job(
        model="GPT-2 style 52B",
        params_b=52,
        seq_len=1024,
        hardware="V100 SXM2 32GB (Jean Zay)",
        n_devices=64,
        tp=4,
        pp=16,
        dp=1,
        micro_batch=4,
        global_batch=1024,
        recompute="full",
        precision="fp16",
        engine="Megatron-LM",
        source="bigscience-workshop/bigscience@9e64ede",
        notes="4 GPUs/node, 4x100Gb OPA",
    )
    assert found.derived
    assert found.model.graph.params == pytest.approx(52e9, rel=0.05)
    assert len(found.model.graph.layers) % 16 == 0
    assert int(str(found.model.dims["heads"])) % 4 == 0
    assert found.cluster.node_devices == 4


def test_the_row_s_layers_win_over_the_catalog_and_long_positions_over_the_published() -> None:
    cut = job(
        model="Llama2-7B (profiling, truncated layers)",
        layers=2,
        hidden=4096,
        heads=32,
        vocab=32000,
        seq_len=2048,
        hardware="A100 SXM 80GB",
        n_devices=8,
        tp=2,
        pp=1,
        dp=4,
        global_batch=8,
        precision="bf16",
        engine="Galvatron",
    )
    assert len(cut.model.graph.layers) == 2
    assert cut.stated["micro_batch"] == 2
    long = job(
        model="MPT-1b",
        params_b=1.446,
        layers=24,
        hidden=2048,
        heads=16,
        vocab=50368,
        seq_len=65536,
        hardware="H100 SXM 80GB",
        n_devices=8,
        tp=1,
        pp=1,
        dp=8,
        zero_stage="FSDP FULL_SHARD",
        micro_batch=1,
        global_batch=16,
        recompute="full",
        precision="amp_bf16",
        engine="llm-foundry/Composer FSDP (DEFAULT)",
    )
    assert long.model.graph.params == pytest.approx(1.446e9, rel=1e-3)
    assert "dp" in long.stated


def test_tpu_cores_become_chips() -> None:
    found = job(
        model="GPT-2 style 1.4B",
        params_b=1.4,
        hardware="TPU v3",
        n_devices=256,
        metric="mfu",
        unit="%",
        value=40,
        engine="Levanter FSDP (JAX)",
        interconnect="TPU v3-256 slice (256 = TensorCores; 128 chips)",
    )
    assert (found.cluster.count, found.stated["dp"], found.stated["zero"]) == (128, 128, 3)


@pytest.mark.parametrize(
    ("model", "width", "seq_len"), [("GPT-2 style 1.4B", 1536, 1024), ("GPT-2 style 20B", 6144, 2048)]
)
def test_levanter_s_sizes_have_the_dimensions_of_its_configs(model: str, width: int, seq_len: int) -> None:
    found = job(
        model=model, params_b=float(model.split()[-1][:-1]), hardware="TPU v3", n_devices=256, engine="Levanter FSDP",
        source="stanford-crfm/levanter@9263f81",
    )  # fmt: skip
    assert (found.model.graph.hidden, found.workload.seq_len) == (width, seq_len)
    assert found.workload.attention_kernel == "unfused"


def test_llama_3_runs_interleaved_stages_and_keeps_weights_gathered() -> None:
    found = job(
        model="Llama 3 405B", params_b=405, layers=126, hidden=16384, heads=128, vocab=128256, n_devices=8192, tp=8,
        pp=16, cp=1, precision="bf16", engine="Meta in-house", hardware="H100 SXM 80GB",
        notes="16M tokens per batch; paper states MFU 38-43%",
    )  # fmt: skip
    assert {name: found.stated[name] for name in ("chunks", "zero", "recompute", "dp")} == {
        "chunks": 7, "zero": 2, "recompute": "none", "dp": 64,
    }  # fmt: skip
    assert found.stated["schedule"] == "interleaved"
    assert found.workload.global_batch == 2048


@pytest.mark.parametrize(
    ("model", "notes", "capacity"),
    [
        ("Mixtral 8X7B", "", 1.25),
        ("Mixtral 8X7B", "dropless", 1.0),
        ("Mixtral 8X7B", "capacity 1.5; 4 pods", 1.5),
        ("Llama 2 70B", "", 1.0),
    ],
)
def test_experts_of_maxtext_have_a_capacity(model: str, notes: str, capacity: float) -> None:
    found = job(model=model, hardware="TPU v6e", n_devices=256, seq_len=4096, engine="MaxText", notes=notes)
    assert found.workload.expert_capacity == capacity


@pytest.mark.parametrize(
    ("hardware", "precision", "each"),
    [("B200 192GB", "fp32 (TF32)", 384), ("GH200 96GB", "fp16/AMP", 384), ("V100", "fp32", 36), ("A10", "fp32", None)],
)
def test_lambda_s_batches_are_those_of_its_scripts(hardware: str, precision: str, each: int | None) -> None:
    found = job(
        model="BERT-base SQuAD fine-tune", hardware=hardware, n_devices=2, precision=precision, metric="throughput",
        engine="PyTorch NGC 24.10 (DeepLearningExamples)", unit="seq/s",
        source="lambdal/deeplearning-benchmark@aa5addb",
    )  # fmt: skip
    assert found.stated.get("micro_batch") == each
    assert each is None or found.workload.global_batch == 2 * each


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "timm levit_256", "hardware": "A100"}, "image classification"),
        ({"model": "Llama 3 8B", "hardware": "N/A"}, "hardware is not stated"),
        ({"model": "Llama 3 8B", "hardware": "A100"}, "number of devices is not stated"),
        ({"model": "Gizmo", "hardware": "A100", "n_devices": 8, "seq_len": 512}, "neither dimensions nor parameters"),
        ({"model": "Gizmo 7B", "hardware": "A100", "n_devices": 8}, "sequence length is not stated"),
        ({"model": "GPT-3 13B", "hardware": "RTX 4090", "n_devices": 1, "notes": "NVMe + CPU offload"}, "NVMe"),
        ({"model": "GPT 22B", "hardware": "A100", "n_devices": 12, "tp": 8, "pp": 1}, "does not divide"),
        ({"model": "Llama 3 8B", "hardware": "A100", "n_devices": 8, "precision": "posit"}, "names no precision"),
    ],
)
def test_refusals_say_why(cells: dict[str, object], reason: str) -> None:
    found = interpret(row(**{"engine": "Megatron-Core", **cells}))
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_equal_questions_have_equal_keys_and_other_batches_do_not() -> None:
    base = {
        "model": "Llama 3 8B",
        "hardware": "H100 SXM 80GB",
        "n_devices": 8,
        "tp": 1,
        "pp": 1,
        "seq_len": 8192,
        "global_batch": 128,
        "micro_batch": 1,
        "precision": "bf16",
        "engine": "NeMo 24.07",
    }
    one, same = job(**base), job(**{**base, "metric": "tokens_per_s", "unit": "tok/s", "value": "9"})
    assert one.key == same.key
    assert job(**{**base, "global_batch": 256}).key != one.key


def test_flagperf_fine_tunes_llama_2_with_adapters() -> None:
    cells = {"model": "llama2_7b_finetune", "n_devices": 1, "hardware": "A100 40GB", "engine": "pytorch"}
    assert job(**cells, source="flagos-ai/FlagPerf@1b5a030").workload.task is Task.LORA
    assert job(**cells).workload.task is Task.FULL


@pytest.mark.parametrize(
    ("hardware", "devices", "sharding"),
    [("H100-SXM5-80GB", 512, (1, 8)), ("H100-SXM5-80GB", 8, (1, None)), ("Intel Gaudi2", 64, (1, None))],
)
def test_nvidia_s_bert_of_mlperf_shares_states_within_a_node(
    hardware: str, devices: int, sharding: tuple[int, int | None]
) -> None:
    found = job(
        model="BERT-large", hardware=hardware, n_devices=devices, global_batch=6 * devices, metric="throughput",
        unit="samples/s", engine="PyTorch NVIDIA Release 23.04", source="mlcommons/training_results_v3.0@63e326c",
    )  # fmt: skip
    assert (found.stated["zero"], found.stated.get("zero_group")) == sharding


@pytest.mark.parametrize(
    ("hardware", "model", "recipe"),
    [
        ("L40S", "BERT-large", ("fp16", "unfused")),
        ("H100-SXM5-80GB", "BERT-large", ("fp8", "flash")),
        ("L40S", "Llama2-70B LoRA r16", ("fp8", "flash")),
    ],
)
def test_boards_of_mlperf_train_bert_without_8_bit_products(hardware: str, model: str, recipe: tuple[str, str]) -> None:
    found = job(
        model=model, hardware=hardware, n_devices=64, global_batch=64, metric="throughput", unit="samples/s",
        engine="NGC MXNet 23.04 , NGC Pytorch 23.04", source="mlcommons/training_results_v3.1@d06288b",
    )  # fmt: skip
    assert (found.workload.precision, found.workload.attention_kernel) == recipe


@pytest.mark.parametrize(
    ("hardware", "model", "precision"),
    [("TPU-v5p", "GPT-3 175B", "int8"), ("TPU-v5p", "Llama2-70B LoRA r16", "bf16"), ("H100 SXM", "GPT-3 175B", "fp8")],
)
def test_gpt_3_of_mlperf_multiplies_in_int8_on_tpus(hardware: str, model: str, precision: str) -> None:
    found = job(
        model=model, hardware=hardware, n_devices=512, global_batch=2048, seq_len=2048, metric="time_to_train",
        unit="min", engine="maxtext", source="mlcommons/training_results_v4.0@6fe9543",
    )  # fmt: skip
    assert found.workload.precision == precision
