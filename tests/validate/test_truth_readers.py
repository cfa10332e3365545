"""Free-text cells: hardware, interconnect, notes, names, recipes."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.programs import training_program
from ridgeline.validate.hardware import find_device
from ridgeline.validate.machines import machines, place, read_network
from ridgeline.validate.notes import TrainingRow, named_params, plain_name, read_notes, refuse_unsupported
from ridgeline.validate.recipes import Recipe, read_recipe
from ridgeline.validate.rows import Row

GB, GIGABIT = 1e9, 1e9 / 8


def device(text: str) -> tuple[str, tuple[str, ...]]:
    found = find_device(text, machines().accelerators(), machines().usual)
    return found.accelerator.name, found.assumptions


def row(**cells: str) -> Row:
    return Row(line=2, id="t-x-0001", cells=cells)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM-80GB CTS", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100 - PCIe - 80 GB", "A100-PCIe-80GB"),
        ("A100 80GB SXM4", "A100-SXM-80GB"),
        ("A100 SXM 40GB (DGX-A100)", "A100-SXM-40GB"),
        ("A100 40GB PCIe", "A100-PCIe-40GB"),
        ("A800", "A800-SXM-80GB"),
        ("H100-SXM5-80GB", "H100-SXM"),
        ("H100", "H100-SXM"),
        ("H100 80GB PCIe Gen5", "H100-PCIe"),
        ("H100 NVL Tensor Core GPU (PCIe)", "H100-NVL"),
        ("H100 SXM 80GB (A3 Mega)", "H100-SXM"),
        ("H200-SXM5-141GB", "H200-SXM"),
        ("H200 140GB SXM", "H200-SXM"),
        ("Blackwell GPU (GB200)", "GB200"),
        ("Blackwell GPU (B200-SXM-180GB)", "B200-SXM"),
        ("GB200 NVL72", "GB200"),
        ("B200 192GB", "B200-SXM"),
        ("B200 (table cell: H200)", "B200-SXM"),
        ("GH200 96GB", "GH200-96GB"),
        ("V100 SXM2 16GB (Jean Zay)", "V100-SXM2-16GB"),
        ("V100 SXM3 32GB (DGX-2)", "V100-SXM2-32GB"),
        ("2080Ti", "RTX-2080-Ti"),
        ("TitanRTX", "TITAN-RTX"),
        ("RTX 4060 (laptop/desktop not stated)", "RTX-4060"),
        ("RTX 6000 Ada", "RTX-6000-Ada"),
        ("L40S", "L40S"),
        ("8x H100", "H100-SXM"),
        ("8xA100-SXM4-80GB", "A100-SXM-80GB"),
        ("16 x L40S", "L40S"),
        ("L4", "L4"),
        ("TPU-trillium", "TPU-v6e"),
        ("TPU v7", "TPU-v7x"),
        ("DGX Spark", "GB10"),
        ("M4 Max", "Apple-M4-Max-40-core"),
        ("M2 MacBook Air", "Apple-M2-10-core"),
        ("Mac Studio M3 Ultra", "Apple-M3-Ultra-80-core"),
        ("Apple M3 Ultra 512GB", "Apple-M3-Ultra-80-core"),
        ("NVIDIA A2", "A2"),
        ("a2-highgpu-8g", "A100-SXM-80GB"),
        ("RTX 4090", "RTX-4090"),
        ("RTX 4090 Laptop GPU", "RTX-4090-Laptop"),
        ("RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-Max-Q"),
        ("RTX 4060 Ti 8GB", "RTX-4060-Ti-8GB"),
        ("Intel(R) Arc(TM) B580 Graphics", "Arc-B580"),
        ("H20 141GB", "H20-141GB"),
        ("Ascend 910B3", "Ascend-910B"),
        ("TPU v5p", "TPU-v5p"),
        ("Intel Gaudi 2 AI Accelerator", "Gaudi2"),
        ("AMD Instinct MI325X 256GB HBM3E DLC", "MI325X"),
    ],
)
def test_hardware_names(text: str, name: str) -> None:
    assert device(text)[0] == name


@pytest.mark.parametrize("text", ["RTX 4090", "RTX-4090-24GB", "GeForce RTX 4060 8GB"])
def test_a_part_of_a_laptop_is_meant_only_where_it_is_said(text: str) -> None:
    name, assumptions = device(text)
    assert "Laptop" not in name
    assert not any("form factor" in words for words in assumptions)


@pytest.mark.parametrize("text", ["", "N/A", "not stated", "Ascend NPU (table cell copied as A100)", "a fast GPU"])
def test_hardware_that_cannot_be_named_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="hardware"):
        device(text)


def test_stated_memory_rate_and_power_cap_replace_the_catalog() -> None:
    found = find_device("A100 SXM 48GB 1.2TB/s 250W cap", machines().accelerators(), machines().usual)
    part = found.accelerator
    assert part.name in ("A100-SXM-40GB", "A100-SXM-80GB")
    catalog = accelerator(part.name)
    nominal = 40 if part.name.endswith("40GB") else 80
    assert part.memory_bytes == pytest.approx(catalog.memory_bytes * 48 / nominal)
    assert part.memory_bytes_per_s == 1.2e12
    assert part.tdp_w == 250.0
    assert part.peak_flop_per_s == catalog.peak_flop_per_s
    assert [word in " ".join(found.assumptions) for word in ("48 GB", "1.2 TB/s", "250 W")] == [True] * 3


def test_an_open_cell_is_chosen_and_said() -> None:
    name, said = device("not stated (A100-class by p2p bandwidth)")
    assert name == "A100-SXM-80GB"
    assert "assumed" in said[0]
    assert "form factor not stated" in " ".join(device("V100 16GB")[1])


@pytest.mark.parametrize(
    ("text", "node", "node_gbit", "device_gbit"),
    [
        ("NVLink3+NVSwitch 8/node; 8x HDR 200Gb/s IB per node", 8, 1600, None),
        ("NVLink 8/node; 400Gb/s RDMA per GPU", 8, None, 400),
        ("1600 Gbps node-node interconnect (RoCE)", None, 1600, None),
        ("4 GPUs/node, 4x100Gb OPA; author warns", 4, 400, None),
        ("Azure NDm A100 v4 (8x200Gb/s HDR IB)", None, 1600, None),
        (
            "NVLINK Gen4 900 GB/s + NVSWITCH Gen3; Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR"
            " 400Gb/s, Management: 100Gb/s Ethernet NIC",
            None,
            3200,
            None,
        ),
        ("NVLINK 4.0; 1x Ethernet 80Gb/Sec, 8x NVIDIA NDR (400Gb/s)", None, 3200, None),
        ("NVLINK Gen4 900 GB/s; ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", None, None, None),
        ("XGMI; 10G Ethernet", None, 10, None),
        ("4 servers x 8 V100", 8, None, None),
        ("32 DGX-2", 16, None, None),
        ("PCIe 5.0", None, None, None),
    ],
)
def test_interconnect(text: str, node: int | None, node_gbit: float | None, device_gbit: float | None) -> None:
    said = read_network(text)
    assert said.node_devices == node
    assert said.node_bytes_per_s == (None if node_gbit is None else node_gbit * GIGABIT)
    assert said.device_bytes_per_s == (None if device_gbit is None else device_gbit * GIGABIT)


def test_tpu_slices_count_cores_or_chips_by_generation() -> None:
    assert read_network("2 slice(s) of v5p-128 over DCN").slice_devices == 64
    assert read_network("16 slices of v5e-256 over DCN").slice_devices == 256
    assert read_network("TPU v3-256 slice (256 = TensorCores; 128 chips)").slice_devices == 128


def test_places_follow_what_is_stated() -> None:
    part = accelerator("A100-SXM-80GB")
    cluster, said = place(part, 64, ("8x EDR 100Gb/s IB per node",), machines())
    assert cluster.count == 64
    assert cluster.tiers[-1].bytes_per_s == 100 * GIGABIT
    assert said == ("100 Gb/s a device between nodes as stated",)
    four, said = place(accelerator("V100-SXM2-32GB"), 64, ("", "V100 SXM2 32GB (Jean Zay)", "4 GPUs/node"), machines())
    assert (four.node_devices, four.tiers[0].size) == (4, 4)
    slices, _ = place(accelerator("TPU-v5p"), 128, ("2 slice(s) of v5p-128 over DCN",), machines())
    assert [tier.size for tier in slices.tiers] == [64, 128]
    big, said = place(accelerator("V100-SXM2-32GB"), 32, ("", "V100 SXM3 32GB (DGX-2)"), machines())
    assert (big.node_devices, said) == (16, ("machine: dgx-2",))


def test_a_part_without_a_machine_of_its_own_sits_on_its_sibling_s_board() -> None:
    found = find_device("H100 SXM 96GB", machines().accelerators(), machines().usual).accelerator
    cluster, _ = place(found, 8, ("",), machines())
    assert cluster.accelerator == found
    assert cluster.tiers[0].topology == "switch"


def test_notes_hold_pairs_switches_and_tokens() -> None:
    notes = read_notes(
        row(notes="vp=5; ga=64; num-query-groups=8; swiglu; per_device_bs=4, accumulate=64, (global bs = 4M tokens)")
    )
    assert (notes.count("vp"), notes.count("ga", "gas"), notes.count("num-query-groups")) == (5, 64, 8)
    assert "swiglu" in notes.switches
    assert notes.tokens(r"global ?bs ?= ?(\d[\w.]*) tokens") == 4 * 2**20
    assert notes.count("absent") is None
    assert read_notes(row(notes="vp=n/a; ga=8")).count("vp") is None
    both = row(value="3546", notes="vp=1 (5); ga=1 (16) (0) (3546)")
    assert (read_notes(both).count("vp"), read_notes(both).count("ga")) == (5, 16)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama2-70B LoRA r16", "Llama2-70B"),
        ("BERT-large SQuAD fine-tune", "BERT-large"),
        ("DeepSeekV3 (w/o MTP)", "DeepSeekV3"),
        ("bigscience/bloomz-7b1 (7B params)", "bloomz-7b1"),
        ("aquila2_7b_finetune", "aquila2_7b"),
        ("custom dense 32B model", "32B"),
        ("llama2_7b-megatron", "llama2_7b"),
    ],
)
def test_plain_names(text: str, name: str) -> None:
    assert plain_name(text) == name


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("GPT-like 400B", 400e9),
        ("GPT 1.7B", 1.7e9),
        ("GPT-like 1T", 1e12),
        ("GPT-2 style 345M", 345e6),
        ("LLaMA", None),
    ],
)
def test_sizes_in_names(text: str, params: float | None) -> None:
    assert named_params(text) == params


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("EfficientNet-B0", "image classification"),
        ("timm vit_small_patch32_224", "image classification"),
        ("Mask R-CNN", "object detection"),
        ("RNN-T", "speech"),
        ("DLRM-DCNv2", "recommendation"),
        ("R-GAT (gnn)", "graph network"),
        ("Stable Diffusion v2", "diffusion"),
        ("Transformer-XL Large model", "Transformer-XL"),
        ("GNMT train", "recurrent"),
        ("mcore test multimodal-llava", "multimodal"),
        ("GPT (size not stated)", "size is not stated"),
    ],
)
def test_models_that_are_no_language_models_are_refused_by_family(text: str, family: str) -> None:
    with pytest.raises(InputError, match=family):
        refuse_unsupported(text)


@pytest.mark.parametrize(
    ("engine", "part", "cell", "name"),
    [
        ("torchtitan 9dec370", "H100-SXM", "float8 rowwise", "fp8"),
        ("Megatron-Bridge 25.11", "GB200", "FP8-MX", "mxfp8"),
        ("Megatron-Bridge 25.11", "GB200", "NVFP4", "nvfp4"),
        ("Megatron-Core/NeMo", "H100-SXM", "fp8 hybrid", "fp8"),
        ("Megatron-LM 2022", "A100-SXM-80GB", "fp16", "fp16"),
        ("Megatron-LM Sep 2020", "V100-SXM2-32GB", "fp16 mixed", "fp16"),
        ("llm-foundry/Composer FSDP (DEFAULT)", "A100-SXM-40GB", "amp_bf16", "bf16"),
        ("PyTorch NGC (DeepLearningExamples)", "A100-SXM-80GB", "fp32 (TF32 on Ampere+)", "tf32"),
        ("PyTorch NGC (DeepLearningExamples)", "V100-SXM2-16GB", "fp32 (TF32 on Ampere+)", "fp32"),
        ("TensorFlow2", "A100-SXM-40GB", "mixed (AMP fp16)", "fp16-amp"),
        ("PaddlePaddle", "A100-SXM-80GB", 'fp16, level="O2"', "fp16"),
        ("torchtune (torch.compile) QLoRA", "RTX-4090", "bf16 + NF4 base", "bf16-pure"),
        ("torchtune", "A100-SXM-80GB", "bf16", "bf16-pure"),
        ("megatron", "H100-SXM", "bf16+fp8", "fp8"),
        ("MaxText GPU", "B200-SXM", "fp8 or bf16 (not stated for this line)", "bf16"),
        ("DeepSpeed", "V100-SXM2-32GB", "", "fp16"),
        ("Megatron-Core r0.8.0", "H100-SXM", "", "bf16"),
    ],
)
def test_precision(engine: str, part: str, cell: str, name: str) -> None:
    cells = row(engine=engine, precision=cell)
    recipe = recipe_told(cells, engine, part)
    assert recipe.workload["precision"] == name


def test_unknown_words_are_refused_by_field() -> None:
    for name, cell in {"precision": "posit8", "recompute": "sometimes", "zero_stage": "many"}.items():
        cells = row(engine="NeMo", **{name: cell})
        with pytest.raises(InputError, match=f"field '{name}': '{cell}'"):
            recipe_told(cells, "NeMo", "H100-SXM")


def recipe_told(cells: Row, engine: str, part: str) -> Recipe:
    program = training_program(engine, cells.text("source"))
    return read_recipe(TrainingRow(row=cells, notes=read_notes(cells), engine=program, device=accelerator(part)))


def recipe_of(part: str = "A100-SXM-80GB", **cells: str) -> tuple[dict[str, object], dict[str, object]]:
    one = row(**cells)
    found = recipe_told(one, one.text("engine"), part)
    return dict(found.workload), dict(found.plan)


def test_recompute_sharding_and_overlap_words() -> None:
    _, plan = recipe_of(engine="Megatron-LM 2022", recompute="selective + sequence parallel")
    assert (plan["recompute"], plan["sequence_parallel"], plan["zero"]) == ("selective", True, 0)
    _, plan = recipe_of(engine="torchtitan", recompute="selective per-op", zero_stage="FSDP2", notes="3D + AsyncTP")
    assert (plan["recompute"], plan["zero"]) == ("selective", 3)
    assert plan["overlap_tensor"] is True
    _, plan = recipe_of(engine="llm-foundry/Composer FSDP", recompute="none", zero_stage="FSDP SHARD_GRAD_OP")
    assert (plan["recompute"], plan["zero"]) == ("none", 2)
    _, plan = recipe_of(engine="Megatron-Core + TE", notes="use-distributed-optimizer; overlap-grad-reduce")
    assert (plan["zero"], plan["overlap_gradients"], plan["overlap_weights"]) == (1, True, False)
    for notes, zero in (("use-megatron-fsdp; ", 3), ("use-distributed-optimizer; ", 1)):
        said = f"{notes}data-parallel-sharding-strategy=optim_grads_params"
        assert recipe_of(engine="Megatron-Core + TE", notes=said)[1]["zero"] == zero
    _, plan = recipe_of(engine="HF + DeepSpeed ZeRO-3", zero_stage="3", offload="CPU (activations; see source)")
    assert plan["offload_activations"] is True
    assert "offload_optimizer" not in plan
    _, plan = recipe_of(engine="HF Transformers + DeepSpeed ZeRO-3 full offload", zero_stage="3")
    assert plan["offload_optimizer"] is True


def test_tasks_kernels_and_optimizers() -> None:
    workload, _ = recipe_of(engine="NVIDIA NeMo", model="Llama2-70B LoRA r16", source="mlcommons/training_results_v5.0")
    assert (workload["task"].value, workload["lora_rank"], workload["lora_targets"]) == ("lora", 16, "attention")
    workload, _ = recipe_of(engine="torchtune (torch.compile) Full finetune", model="Llama 3.1 8B")
    assert (workload["task"].value, workload["optimizer"], workload["execution"]) == (
        "full",
        "paged-adamw-8bit",
        "compiled",
    )
    workload, _ = recipe_of(engine="Megatron-Core + TE", notes="attention-backend=unfused; cuda-graph-impl=local")
    assert (workload["attention_kernel"], workload["execution"]) == ("unfused", "graph")
    for said in ("router load forced even; CUDA graphs off", "no CUDA graphs", "without CUDA graphs"):
        assert recipe_of(engine="Megatron-Core", notes=said)[0]["execution"] == "compiled"
    workload, _ = recipe_of(part="V100-SXM2-32GB", engine="DeepSpeed")
    assert workload["attention_kernel"] == "unfused"
    workload, _ = recipe_of(engine="NeMo 24.07", notes="task=LoRA; dims from the public model card")
    assert (workload["task"].value, workload["lora_targets"], workload["lora_rank"]) == ("lora", "qkv", 32)


def test_graphs_of_the_engine_capture_parts_of_layers_and_tests_count_zeros() -> None:
    workload, _ = recipe_of(engine="Megatron-Core + TE", notes="cuda-graph-impl=transformer_engine")
    assert workload["execution"] != "graph"
    assert workload["counts_zeros"]
    assert not recipe_of(engine="Megatron-LM")[0].get("counts_zeros")


def test_a_laptops_part_is_meant_only_where_the_cell_says_so() -> None:
    catalog = machines().accelerators()
    assert find_device("RTX 4090", catalog, machines().usual).assumptions == ()
    assert find_device("RTX 4090 Laptop GPU", catalog, machines().usual).accelerator.name == "RTX-4090-Laptop"


def test_a_tests_experts_follow_its_switches_and_the_programs_defaults() -> None:
    def experts_of(notes: str) -> tuple[object, ...]:
        workload = recipe_of(engine="Megatron-Core + TE", source="NVIDIA/Megatron-LM@d98e8a6", notes=notes)[0]
        return tuple(workload.get(f"expert_{name}") for name in ("choice", "dispatch", "modules"))

    assert experts_of("num-experts=8; moe-router-topk=1") == ("sinkhorn", "allgather", "single")
    switches = "num-experts=8; moe-router-topk=2; moe-grouped-gemm; moe-token-dispatcher-type=alltoall"
    assert experts_of(switches) == ("top", "alltoall", "grouped")
    assert experts_of("swiglu") == (None, None, None)


def read(**cells: str) -> Recipe:
    one = row(**cells)
    return recipe_told(one, "NeMo", "H100-SXM")


@pytest.mark.parametrize(
    ("cell", "recompute"),
    [
        ("uniform", "full"), ("block", "full"), ("activation checkpointing", "full"),
        ("AC", "full"), ("core_attn", "selective"), ("SAC", "selective"),
        ("none", "none"),
    ],
)  # fmt: skip
def test_words_for_what_is_computed_again(cell: str, recompute: str) -> None:
    assert read(recompute=cell).plan["recompute"] is recompute


@pytest.mark.parametrize(
    ("cell", "zero"),
    [("zero3+offload", 3), ("ZeRO-2 + CPU", 2), ("zero1", 1), ("distributed optimizer", 1), ("FSDP2", 3), ("HSDP", 3)],
)
def test_words_for_what_is_divided(cell: str, zero: int) -> None:
    assert read(zero_stage=cell).plan["zero"] == zero


def test_int8_is_a_precision_and_4bit_an_adapter_s_base() -> None:
    assert read(precision="int8").workload["precision"] == "int8"
    assert read(precision="4bit").workload["precision"] == "bf16-pure"
