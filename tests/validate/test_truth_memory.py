"""What programs and tests hold in memory, read from rows that ask for bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.programs import training_program
from ridgeline.graph.workload import Task
from ridgeline.scenario.settings import changed_memory
from ridgeline.validate.interpret import Interpretation, Refusal, interpret
from ridgeline.validate.metrics import find_metric
from ridgeline.validate.notes import TrainingRow, is_language, read_notes
from ridgeline.validate.recipes import bytes_precision
from ridgeline.validate.rows import Row

GPT = {
    "model": "mcore test gpt", "layers": 12, "hidden": 512, "heads": 8, "seq_len": 1024, "tp": 1, "pp": 1,
    "micro_batch": 4, "global_batch": 32, "precision": "bf16", "recompute": "none", "hardware": "H100 SXM 80GB (DGX)",
    "engine": "Megatron-Core + TE",
}  # fmt: skip
LLAMA = {
    "model": "Llama 3.1 8B", "layers": 32, "hidden": 4096, "heads": 32, "vocab": 128256, "seq_len": 8192,
    "hardware": "H200 SXM", "n_devices": 8, "micro_batch": 1, "precision": "bf16",
}  # fmt: skip


def read(**cells: object) -> Interpretation | Refusal:
    text = {"metric": "peak_mem_per_gpu", "value": "9", "unit": "GiB"} | {
        key: str(value) for key, value in cells.items()
    }
    return interpret(Row(line=2, id=text.pop("id", "m-x-0001"), cells=text))


def job(**cells: object) -> Interpretation:
    found = read(**cells)
    assert isinstance(found, Interpretation), found
    return found


def named(name: str, **cells: object) -> Interpretation:
    return job(**{**GPT, "source_where": f"tests/functional_tests/test_cases/gpt/{name}/golden_values.json", **cells})


def test_names_of_megatron_tests_shape_the_model() -> None:
    plain = named("gpt3_mcore_te_tp2_pp2", tp=2)
    assert plain.model.graph.vocab == 50432  # 50257 rounded up to a multiple of 128 * 2
    assert plain.model.dims["max_positions"] == 1024
    assert any(
        saved.element_bytes == 1
        for block in plain.model.graph.blocks.values()
        for op in block.ops
        for saved in op.saved
    )
    modern = named("gpt3_release", notes="untie-embeddings-and-output-weights; swiglu")
    assert modern.model.dims["ffn"] == 1344  # 4 * 512 * 2 / 3, down to a multiple of 64
    layer = 4 * 512 * 512 + 3 * 512 * 1344 + 2 * 512  # no bias, norms of one vector
    assert modern.model.graph.params == 2 * 50304 * 512 + 12 * layer + 512
    bare = named("gpt3_rope_embeddings_disable_bias_linear")
    table, biases = 1024 * 512, 12 * (3 * 512 + 512 + 4 * 512 + 512)
    vocabulary = (50432 - 50304) * 512
    assert plain.model.graph.params - bare.model.graph.params == table + biases + vocabulary


def test_flags_of_megatron_tests_change_what_is_held() -> None:
    assert changed_memory(named("a").workload.policy) == {}
    assert changed_memory(named("a", notes="deterministic-mode").workload.policy) == {"deterministic": True}
    assert changed_memory(named("a", engine="Megatron-Core + local").workload.policy) == {"transformer_engine": False}
    assert changed_memory(named("a_cross_entropy_loss_fusion").workload.policy) == {"logit_fp32_copies": 2}
    kept = named("a", recompute="selective [mlp moe_act]")
    assert kept.stated["recompute"] == "none"
    assert any("core alone" in note for note in kept.assumptions)
    assert named("a", notes="use-megatron-fsdp").stated["zero"] == 3


def test_names_of_megatron_tests_divide_layers_states_and_experts() -> None:
    uneven = named("gpt3_te_tp1_pp4_vp1_uneven_pipeline", pp=4)
    assert (uneven.stated["layer_split"], uneven.stated["chunks"]) == ((2, 4, 4, 2), 1)
    assert named("gpt3_tp1_pp4_vp1_x", pp=4).stated["chunks"] == 3
    half = named("gpt3_multi_dist_optimizer_instances", notes="use-distributed-optimizer")
    assert (half.stated["dp"], half.stated["zero_group"]) == (8, 4)
    assert named("moe_ep4_fine_grained_offloading").stated["offload_activations"] is True
    assert "offload_activations" not in half.stated
    experts = {"notes": "num-experts=8; moe-router-topk=2", "tp": 2, "ep": 8}
    assert (named("moe_te", **experts).cluster.count, named("moe_te", **experts).stated["etp"]) == (16, 2)
    assert (named("moe_etp1", **experts).cluster.count, named("moe_etp1", **experts).stated["etp"]) == (8, 1)


@pytest.mark.parametrize(
    ("name", "notes", "reason"),
    [
        ("gpt3_15b_release", "use-distributed-optimizer", "number of devices of a release"),
        ("gpt3_modelopt_distill", "", "teacher"),
        ("gpt_grpo_tp4", "", "generates"),
    ],
)
def test_megatron_tests_that_do_not_say_what_they_run_are_refused(name: str, notes: str, reason: str) -> None:
    found = read(**{**GPT, "source_where": f"tests/functional_tests/test_cases/gpt/{name}/golden.json", "notes": notes})
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_times_of_a_release_need_its_world_and_whole_states_do_not() -> None:
    where = {"source_where": "tests/functional_tests/test_cases/mixtral/mixtral_8x7b_release/golden.json"}
    timed = read(**{**GPT, **where, "metric": "step_time", "unit": "s"})
    assert isinstance(timed, Refusal)
    assert "number of devices of a release" in timed.reason
    assert job(**{**GPT, **where}).cluster.count == 8


def test_torchtitan_counts_fp32_shards_only_where_bytes_are_asked() -> None:
    titan = {**LLAMA, "engine": "torchtitan", "precision": "float8", "zero_stage": "FSDP2", "recompute": "selective"}
    bytes_of, time_of = job(**titan), job(**{**titan, "metric": "step_time", "unit": "s"})
    assert (bytes_of.workload.precision, time_of.workload.precision) == ("bf16-amp", "fp8")
    assert (bytes_of.stated["recompute"], time_of.stated["recompute"]) == ("selective", "selective")
    assert changed_memory(bytes_of.workload.policy) == {}
    piped = job(**{**titan, "n_devices": 64, "tp": 1, "pp": 8, "dp": 8, "micro_batch": 8})
    assert changed_memory(piped.workload.policy) == {"gathered_layers": math.inf, "unreduced_layers": math.inf}
    later = job(**{**titan, "source_where": "benchmarks/llama3-8b_h200_202506_x.md"})
    assert later.workload.execution == "compiled"
    assert changed_memory(later.workload.policy) == {"logit_copies": 1, "logit_fp32_copies": 1}


def test_torchtune_flags() -> None:
    tune = {**LLAMA, "engine": "torchtune", "n_devices": 1, "metric": "peak_mem_active_per_gpu"}
    steps = "full finetune + Packed Dataset + Compile + Chunked Cross Entropy + Fuse optimizer step into backward"
    stated = job(**tune, notes=steps).stated
    assert (stated["loss"], stated["optimizer_in_backward"]) == ("chunked", True)
    lora = job(**tune, notes="LoRA (all of the above except optimizer-in-backward and 8-bit AdamW)")
    assert (lora.workload.task, lora.workload.execution) == (Task.LORA, "compiled")
    assert (lora.stated["offload_activations"], lora.stated["loss"]) == (True, "chunked")
    assert isinstance(read(**tune, notes="full finetune baseline (not packed)"), Refusal)


def test_torchtune_recipes_run_as_their_configurations_say() -> None:
    tune = {**LLAMA, "n_devices": 1, "micro_batch": 2}
    full = job(**tune, engine="torchtune (torch.compile) Full finetune").stated
    assert (full["loss"], full["optimizer_in_backward"]) == ("chunked", True)
    lora = job(**tune, engine="torchtune (torch.compile) LoRA").workload
    assert (lora.lora_rank, lora.lora_targets) == (8, "qkv")
    away = job(**{**tune, "n_devices": 8}, engine="torchtune (torch.compile) Full finetune", offload="CPU offload")
    assert (away.stated["offload_weights"], away.stated["offload_optimizer"]) == (True, False)
    assert changed_memory(away.workload.policy) == {"gathered_ends": False}


def test_liger_fuses_the_loss_and_what_a_source_offloads() -> None:
    found = job(
        **LLAMA, engine="HF + DeepSpeed ZeRO-3 + Liger", zero_stage=3, recompute="full", offload="CPU (see source)",
        source="stas00/ml-engineering@744d01e",
    )  # fmt: skip
    assert found.stated["loss"] == "fused"
    assert (found.stated["offload_optimizer"], found.stated.get("offload_activations")) == (True, None)
    assert found.workload.execution == "compiled"


def test_mlperf_adapters_on_blackwell_divide_data_and_context_alone() -> None:
    cells = {
        "model": "Llama2-70B LoRA r16", "layers": 80, "hidden": 8192, "heads": 64, "vocab": 32000, "seq_len": 8192,
        "hardware": "Blackwell GPU (GB200)", "n_devices": 64, "global_batch": 8, "engine": "NGC Pytorch 25.04",
        "source": "mlcommons/training_results_v5.0@0fdc28f",
    }  # fmt: skip
    found = job(**cells)
    assert [found.stated[name] for name in ("tp", "pp", "cp", "dp")] == [1, 1, 8, 8]
    assert found.stated["recompute"] == "none"
    assert changed_memory(found.workload.policy) == {"gradient_bytes": 2}
    assert job(**{**cells, "metric": "step_time", "unit": "s"}).stated["recompute"] == "none"
    assert "cp" not in job(**{**cells, "hardware": "H100-SXM5-80GB", "n_devices": 16}).stated


@pytest.mark.parametrize(("hardware", "width"), [("Blackwell GPU (GB200)", 1.0), ("H100-SXM5-80GB", None)])
def test_weights_in_8_bits_have_no_transposed_copy_on_blackwell(hardware: str, width: float | None) -> None:
    found = job(
        model="Llama 3.1 405B", layers=126, hidden=16384, heads=128, vocab=128256, seq_len=8192, hardware=hardware,
        n_devices=1024, global_batch=768, engine="NGC Pytorch 25.04", source="mlcommons/training_results_v5.0@0fdc28f",
    )  # fmt: skip
    assert changed_memory(found.workload.policy).get("weight_bytes") == width
    assert found.stated["recompute"] == "none"


@pytest.mark.parametrize(
    ("hardware", "interconnect", "tiers"),
    [
        ("H200-NVL-141GB", "4-way NVIDIA NVLINK bridge", [("mesh", 4, 450e9), ("bus", 8, 63e9)]),
        ("H100-NVL-94GB", "NVLink bridge", [("mesh", 2, 300e9), ("bus", 8, 63e9)]),
        ("H200-NVL-141GB", "PCIe", [("bus", 8, 63e9)]),
    ],
)
def test_boards_with_bridges_are_joined_by_them(
    hardware: str, interconnect: str, tiers: list[tuple[str, int, float]]
) -> None:
    found = job(**{**GPT, "hardware": hardware, "n_devices": 8, "interconnect": interconnect})
    assert [(tier.topology, tier.size, tier.bytes_per_s) for tier in found.cluster.tiers] == tiers


def test_a_batch_counted_by_device_grows_with_tensor_parallelism() -> None:
    cells = {
        "model": "GPT-2 13B", "layers": 40, "hidden": 5120, "heads": 128, "seq_len": 512, "hardware": "V100",
        "n_devices": 32, "zero_stage": 2, "micro_batch": 8, "engine": "DeepSpeed + Megatron", "metric": "fits",
        "value": "OOM", "unit": "", "source": "OpenBMB/BMTrain@30e6469",
    }  # fmt: skip
    found = job(**cells, tp=4)
    assert (found.stated["micro_batch"], found.stated["dp"], found.stated["pp"]) == (32, 8, 1)
    assert found.cluster.accelerator.memory_bytes > 30e9
    assert (found.workload.policy.name, changed_memory(found.workload.policy)) == ("DeepSpeed", {})
    assert job(**cells, tp=1).stated["micro_batch"] == 8


def test_rows_that_ask_for_bytes_are_told_by_unit_and_metric() -> None:
    def asks(metric: str, unit: str) -> bool:
        row = Row(line=2, id="a", cells={"metric": metric, "unit": unit, "value": "1"})
        find_metric(row)
        return row.asks_bytes

    assert asks("peak_mem_per_gpu", "MiB")
    assert asks("fits", "")
    assert asks("max_seq_len", "tokens")
    assert not asks("step_time", "s")
    assert not asks("tokens_per_s", "tok/s")


def test_language_models_are_told_from_others() -> None:
    assert [is_language(name) for name in ("Llama 3 8B", "GNMT train", "mcore test hybrid")] == [True] * 3
    assert [is_language(name) for name in ("ResNet-50", "DLRM-DCNv2", "Stable Diffusion v2", "")] == [False] * 4


@pytest.mark.parametrize(
    ("hardware", "devices", "source", "degrees"),
    [
        ("H100-SXM5-80GB", 8, "v4.0", (4, 1, 2)),
        ("H100-SXM5-80GB", 64, "v4.1", (4, 2, 8)),
        ("H200-SXM5-141GB", 8, "v4.0", (2, 1, 4)),
        ("H200-SXM5-141GB", 8, "v4.1", (1, 2, 4)),
    ],
)
def test_lora_of_mlperf_runs_in_the_degrees_that_its_maker_published(
    hardware: str, devices: int, source: str, degrees: tuple[int, int, int]
) -> None:
    found = job(
        model="Llama2-70B LoRA r16", layers=80, hidden=8192, heads=64, vocab=32000, seq_len=8192, hardware=hardware,
        n_devices=devices, global_batch=8, engine="NGC Pytorch 24.09", metric="throughput", unit="samples/s",
        source=f"mlcommons/training_results_{source}@0",
    )  # fmt: skip
    assert (found.stated["tp"], found.stated["cp"], found.stated["dp"]) == degrees
    assert any("of the published code" in note for note in found.assumptions)


@pytest.mark.parametrize(
    ("hardware", "devices", "source", "style", "execution", "recompute", "kept"),
    [
        ("B200-SXM-180GB", 8, "v5.0", "ulysses", "compiled", ("none", None), 1.0),
        ("Blackwell GPU (GB200)", 72, "v5.0", "ulysses", "graph", ("none", None), None),
        ("H100-SXM5-80GB", 64, "v4.0", "ring", "compiled", ("none", None), None),
        ("H100-SXM5-80GB", 64, "v4.1", "ring", "graph", ("none", None), None),
        ("MI300X 192GB HBM3", 8, "v5.0", "ring", "compiled", ("full", 21), 1.0),
    ],
)
def test_lora_of_mlperf_runs_as_its_maker_published(
    hardware: str, devices: int, source: str, style: str, execution: str, recompute: tuple[str, int | None],
    kept: float | None,
) -> None:  # fmt: skip
    cells = {
        "model": "Llama2-70B LoRA r16", "layers": 80, "hidden": 8192, "heads": 64, "vocab": 32000, "seq_len": 8192,
        "hardware": hardware, "n_devices": devices, "global_batch": 8 if devices != 72 else 9, "metric": "throughput",
        "unit": "samples/s", "source": f"mlcommons/training_results_{source}@0",
    }  # fmt: skip
    found = job(**cells, engine="NGC Pytorch 24.09")
    assert (found.stated["context_style"], found.workload.execution) == (style, execution)
    assert (found.stated["recompute"], found.stated.get("recompute_layers")) == recompute
    assert changed_memory(found.workload.policy).get("mlp_input_bytes") == kept
    assert "recompute" not in job(**cells, engine="NGC Pytorch 24.01 Deepspeed").stated  # the reference's code


@pytest.mark.parametrize(
    ("devices", "batch", "source", "degrees", "chunks"),
    [
        (768, 3072, "v3.1", (4, 8, 24, 1), None),
        (3072, 3072, "v4.0", (4, 8, 96, 2), 4),
        (3072, 3072, "v4.1", (4, 8, 96, 2), 6),
        (10752, 2688, "v4.0", (4, 6, 448, 1), 8),
    ],
)
def test_gpt3_of_mlperf_runs_in_the_degrees_that_its_maker_published(
    devices: int, batch: int, source: str, degrees: tuple[int, int, int, int], chunks: int | None
) -> None:
    found = job(
        model="GPT-3 175B", layers=96, hidden=12288, heads=96, vocab=51200, seq_len=2048, hardware="H100-SXM5-80GB",
        n_devices=devices, global_batch=batch, engine="NVIDIA NeMo Framework Release 24.09", metric="step_time",
        unit="s", source=f"mlcommons/training_results_{source}@0",
    )  # fmt: skip
    assert tuple(found.stated[name] for name in ("tp", "pp", "dp", "micro_batch")) == degrees
    assert found.stated.get("chunks") == chunks  # where the code does not say, they are chosen


def test_degrees_of_other_programs_are_not_those_of_mlperf() -> None:
    found = job(
        model="Llama2-70B LoRA r16", layers=80, hidden=8192, heads=64, vocab=32000, seq_len=8192,
        hardware="H100-SXM5-80GB", n_devices=8, global_batch=8, engine="torchtitan", metric="throughput",
        unit="samples/s", source="a page",
    )  # fmt: skip
    assert not any("of the published code" in note for note in found.assumptions)


@pytest.mark.parametrize(
    ("program", "precision", "counted"),
    [
        ("torchtitan", "bf16", "bf16-amp"),
        ("torchtitan", "fp8", "bf16-amp"),
        ("torchtitan", "fp32", "fp32"),
        ("NeMo", "bf16", "bf16"),
        ("NeMo", "fp8", "fp8"),
    ],
)
def test_bytes_of_another_recipe_are_one_program_s_and_one_recipe_s(program: str, precision: str, counted: str) -> None:
    asks = Row(line=2, id="m-x-0001", cells={"metric": "peak_mem_per_gpu", "value": "40", "unit": "GiB"})
    engine, part = training_program(program), accelerator("H100-SXM")
    told = TrainingRow(row=asks, notes=read_notes(asks), engine=engine, device=part)
    assert bytes_precision(told, precision) == counted
    assert bool(told.said) == (counted != precision)
    times = Row(line=2, id="m-x-0002", cells={"metric": "step_time", "value": "40", "unit": "s"})
    assert bytes_precision(replace(told, row=times), precision) == precision
