"""Rows of image classifiers read as scenarios."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.graph.ops import Op
from ridgeline.validate.images import counted_times, network
from ridgeline.validate.interpret import Interpretation, Refusal, interpret
from ridgeline.validate.metrics import counted_by_one
from ridgeline.validate.rows import Row


def read(**cells: object) -> Interpretation | Refusal:
    text = {name: str(value) for name, value in cells.items()}
    basic = {"metric": "throughput", "value": "1", "unit": "img/s", "hardware": "A100 SXM 80GB"}
    return interpret(Row(line=2, id="t-x-0001", cells={**basic, **text}))


def job(**cells: object) -> Interpretation:
    found = read(**cells)
    assert isinstance(found, Interpretation), found
    return found


def layouts(found: Interpretation) -> list[Op]:
    return [op for op in found.model.graph.blocks["stage-1"].ops if op.name.endswith(".layout")]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("ResNet-50 v1.5", "resnet-50"),
        ("RN50v1.5", "resnet-50"),
        ("ResNet-50 train", "resnet-50"),
        ("timm resnet18", "resnet-18"),
        ("timm wide_resnet50_2", "wide-resnet-50-2"),
        ("resnext101-32x4d", "resnext-101-32x4d"),
        ("se-resnext101-32x4d", "se-resnext-101-32x4d"),
        ("timm vit_small_patch32_384", "vit-small-patch32-384"),
        ("timm deit_base_patch16_224", "vit-base-patch16-224"),
        ("timm beit_base_patch16_224", "beit-base"),
        ("timm mobilenetv2_100", "mobilenet-v2"),
        ("mobilenetv2", "mobilenet-v2"),
        ("efficientnet efficientnet-widese-b4", "efficientnet-widese-b4"),
        ("timm tf_efficientnetv2_s", "efficientnet-v2-s"),
        ("timm swin_base_patch4_window7_224", "swin-base"),
        ("timm levit_256", None),
        ("GNMT train", "gnmt"),
        ("RNN-T", "rnn-t"),
        ("Transformer", "transformer-translation-big"),
        ("NCF", "ncf"),
        ("DLRM large", "dlrm-large"),
        ("DLRM-DCNv2", "dlrm-dcnv2"),
        ("Stable Diffusion v2", "stable-diffusion-2"),
        ("SSD ResNet-50 train", "ssd-resnet-50"),
        ("SSD300 ResNet-50 train", "ssd-resnet-50"),
        ("RetinaNet", "retinanet-resnet-50"),
        ("Mask R-CNN", "mask-rcnn"),
        ("MaskRCNN", "mask-rcnn"),
        ("faster_rcnn", "faster-rcnn"),
        ("3D U-Net", "unet-3d"),
        ("Transformer-XL Base model", "transformer-xl-base"),
        ("Transformer-XL large train", "transformer-xl-large"),
        ("timm resnet50d", None),
        ("resnet500", None),
        ("Llama 3 8B", None),
    ],
)
def test_names_of_networks(cell: str, name: str | None) -> None:
    assert network(cell) == name


def test_an_image_is_one_token_and_states_are_whole() -> None:
    found = job(
        model="ResNet-50 v1.5",
        n_devices=8,
        global_batch=3200,
        engine="MXNet NVIDIA Release 23.04",
        hardware="H100-SXM5-80GB",
        source="mlcommons/training_results_v3.0@6fe9543",
    )
    assert (found.workload.seq_len, found.workload.global_batch, found.stated["micro_batch"]) == (1, 3200, 400)
    assert (found.stated["dp"], found.stated["zero"]) == (8, 0)
    assert (found.workload.precision, found.workload.optimizer) == ("fp16-amp", "sgd-momentum")  # not 8 bits
    names = [op.name for op in found.model.graph.blocks["stage-1"].ops]
    assert "residual" not in names  # one compiled graph: the shortcut is added in the norm
    assert not layouts(found)


def test_patches_are_tokens() -> None:
    found = job(
        model="timm vit_base_patch16_224", n_devices=1, global_batch=192, precision="AMP nchw", engine="PyTorch"
    )
    assert (found.workload.seq_len, found.stated["micro_batch"]) == (197, 192)


def test_a_batch_that_is_not_stated_is_assumed_and_said() -> None:
    found = job(model="RN50v1.5", n_devices=4, precision="mixed (AMP fp16)", engine="PaddlePaddle")
    assert found.workload.global_batch == 4 * 256
    assert any("256 images" in said for said in found.assumptions)


def test_memory_without_a_batch_is_refused() -> None:
    asked = {"model": "RN50v1.5", "n_devices": 4, "precision": "fp32", "engine": "PyTorch", "unit": "GiB"}
    refused = read(metric="peak_mem_gib", **asked)
    assert isinstance(refused, Refusal)
    assert "batch is not stated" in refused.reason
    assert job(metric="peak_mem_gib", micro_batch=64, **asked).stated["micro_batch"] == 64


def test_channels_first_is_turned_for_matrix_units_alone() -> None:
    lambda_ = {"model": "ResNet-50 train", "n_devices": 1, "engine": "PyTorch NGC (DeepLearningExamples)",
               "source": "lambdal/deeplearning-benchmark@f18c3a7"}  # fmt: skip
    half = layouts(job(precision="fp16/AMP", **lambda_))
    tensor = layouts(job(precision="fp32 (TF32 on Ampere+)", **lambda_))
    plain = layouts(job(precision="fp32 (TF32 on Ampere+)", hardware="V100 16GB", **lambda_))
    assert half[0].read > tensor[0].read > 0  # TF32 kernels write channels first themselves
    assert not plain
    assert not layouts(job(model="timm resnet50", n_devices=1, precision="AMP nhwc", engine="PyTorch 1.12 cu113"))
    assert layouts(job(model="timm resnet50", n_devices=1, precision="AMP nchw", engine="PyTorch 1.12 cu113"))


def test_a_diffusion_model_trains_in_16_bits_with_adam() -> None:
    found = job(
        model="Stable Diffusion v2",
        n_devices=8,
        global_batch=256,
        engine="NVIDIA NeMo Framework Release 24.04",
        hardware="H200-SXM5-141GB",
        source="mlcommons/training_results_v4.0@6fe9543",
        unit="samples/s",
    )
    assert (found.workload.precision, found.workload.optimizer) == ("fp16", "adamw")
    assert (found.workload.seq_len, found.workload.global_batch, found.stated["dp"]) == (1, 256, 8)
    assert found.workload.attention_kernel == "flash2"


@pytest.mark.parametrize(
    ("devices", "source", "sharding"),
    [(512, "v3.1", (0, None)), (8, "v4.0", (1, None)), (512, "v4.0", (1, 8)), (4, "v5.0", (1, None))],
)
def test_states_of_a_diffusion_model_are_divided_within_a_node_since_round_4(
    devices: int, source: str, sharding: tuple[int, int | None]
) -> None:
    found = job(
        model="Stable Diffusion v2", n_devices=devices, global_batch=2048, hardware="H100-SXM5-80GB", unit="samples/s",
        engine="NVIDIA NeMo Framework Release 24.04", source=f"mlcommons/training_results_{source}@0",
    )  # fmt: skip
    assert (found.stated["zero"], found.stated.get("zero_group")) == sharding


def test_what_decoding_images_holds_is_refused() -> None:
    cells = {"model": "RetinaNet", "n_devices": 8, "global_batch": 256, "engine": "PyTorch NVIDIA Release 25.04"}
    refused = read(metric="peak_mem_per_gpu", unit="GiB", **cells)
    assert isinstance(refused, Refusal)
    assert "decoding images" in refused.reason


@pytest.mark.parametrize("value", ["276.3772", "2186.0"])
@pytest.mark.parametrize(
    ("model", "engine", "mlperf_round", "alone"),
    [
        ("RetinaNet (ssd)", "PyTorch NVIDIA Release 23.04", "3.0", True),
        ("RetinaNet (ssd)", "pytorch", "3.0", True),
        ("RetinaNet", "NVIDIA Release 24.09 MxNet, pytorch, dgl and 23.09 pytorch", "5.0", True),
        ("RetinaNet", "NVIDIA PyTorch Release 25.04", "5.0", False),
        ("RetinaNet", "PyTorch", "5.0", False),
        ("Mask R-CNN", "PyTorch NVIDIA Release 23.04", "3.0", False),
    ],
)
def test_a_rate_of_one_device_is_told_by_the_code_that_logs_it(
    model: str, engine: str, mlperf_round: str, alone: bool, value: str
) -> None:
    """Whatever the rate is: a measured value never chooses its own unit."""
    cells = {
        "model": model,
        "engine": engine,
        "source": f"mlcommons/training_results_v{mlperf_round}@0",
        "value": value,
    }
    assert counted_by_one(Row(line=2, id="t-x-0001", cells=cells)) is alone


def test_the_benchmark_of_transformer_xl_updates_after_each_micro_batch() -> None:
    """Its training config cuts 128 sequences into chunks; `trainbench`, which makes the table, does not."""
    found = job(
        model="Transformer-XL Large model", n_devices=4, micro_batch=8, precision="TF32", engine="PyTorch",
        unit="tok/s", source="NVIDIA/DeepLearningExamples@729963d",
    )  # fmt: skip
    assert (found.workload.seq_len, found.workload.global_batch, found.stated["micro_batch"]) == (384, 4 * 8, 8)
    assert (found.workload.optimizer, found.workload.looped_optimizer) == ("adam", True)


def test_devices_share_volumes_in_powers_of_two_and_the_rest_evaluate() -> None:
    """By hand: 84 volumes on 432 devices, four to a volume; 336 train, each a quarter of one."""
    asked = {"model": "3D U-Net", "engine": "MXNet", "unit": "samples/s", "hardware": "H100-SXM5-80GB"}
    found = job(**asked, n_devices=432, global_batch=84, source="mlcommons/training_results_v3.0")
    assert (found.cluster.count, found.workload.global_batch, found.stated["micro_batch"]) == (336, 336, 1)
    assert found.model.dims["parts"] == 4
    whole = job(**asked, n_devices=72, global_batch=56, source="mlcommons/training_results_v3.0")
    assert (whole.cluster.count, whole.model.dims["parts"]) == (56, 1)
    one = job(**asked, n_devices=8, global_batch=56, source="mlcommons/training_results_v3.0")
    assert (one.cluster.count, one.workload.global_batch) == (8, 56)
    assert not any("evaluate" in text for text in one.assumptions)


def test_a_batch_that_a_table_leaves_out_is_that_of_its_published_config() -> None:
    cells = {
        "model": "mobilenetv2",
        "n_devices": 8,
        "precision": "fp32",
        "engine": "pytorch",
        "source": "flagos-ai/FlagPerf@1b5a030",
        "source_where": "training/nvidia/mobilenetv2-pytorch/README.md L43",
    }
    silent, stated = job(**cells), job(**cells, micro_batch=512)
    assert (silent.workload.global_batch, silent.stated["micro_batch"]) == (8 * 32, 32)
    assert (stated.workload.global_batch, stated.stated["micro_batch"]) == (8 * 512, 512)


def test_sides_of_an_encoder_and_a_decoder_have_their_own_length() -> None:
    found = job(
        model="t5_small", n_devices=1, precision="fp32", engine="pytorch", source="flagos-ai/FlagPerf@1b5a030",
        source_where="training/nvidia/t5_small-pytorch/README.md",
    )  # fmt: skip
    assert (found.workload.seq_len, found.workload.encoder_seq_len, found.workload.global_batch) == (128, 1024, 32)


def test_sentences_are_counted_where_batches_are_filled_with_tokens() -> None:
    found = job(model="Transformer", n_devices=8, micro_batch=10240, precision="TF32", engine="PyTorch", unit="tok/s")
    assert (found.stated["micro_batch"], found.workload.seq_len, found.workload.encoder_seq_len) == (341, 30, 30)
    assert found.workload.optimizer == "adam"


def test_tables_lie_on_all_devices() -> None:
    found = job(
        model="DLRM-DCNv2", n_devices=8, global_batch=55296, engine="HugeCTR", source="mlcommons/training_results_v3.0"
    )
    assert (found.stated["ep"], found.stated["etp"], found.stated["zero"]) == (8, 1, 0)
    assert found.model.graph.blocks["tables"].experts == 8


def test_a_source_whose_host_chooses_regions_is_refused() -> None:
    cells = {"model": "MaskRCNN", "n_devices": 8, "micro_batch": 12, "precision": "TF32", "engine": "PyTorch"}
    refused = read(**cells, source="NVIDIA/DeepLearningExamples@729963d")
    assert isinstance(refused, Refusal)
    assert "run on the host" in refused.reason
    assert job(**cells, source="flagos-ai/FlagPerf@1b5a030").model.name == "mask-rcnn"


def test_flagperf_programs_do_what_their_released_configs_say() -> None:
    """ViT's config_common.py sets amp, EfficientNet's a crop of 300; RetinaNet's images are padded as Mask R-CNN's."""
    flagperf = {"n_devices": 1, "micro_batch": 16, "engine": "pytorch", "source": "flagos-ai/FlagPerf@1b5a030"}
    vit = job(model="vit", precision="fp32", **flagperf)
    assert vit.workload.precision == "fp16-amp"
    assert any("released program computes in fp16-amp" in said for said in vit.assumptions)
    assert job(model="mobilenetv2", precision="fp32", **flagperf).workload.precision != "fp16-amp"
    assert job(model="efficientnet", precision="fp32", **flagperf).model.dims["image"] == 300
    assert job(model="retinanet", precision="fp32", **flagperf).model.dims["image"] == 986


def test_a_meter_that_counts_a_sample_twice_and_for_each_device() -> None:
    cells = {"model": "dlrm", "micro_batch": "65536", "source": "flagos-ai/FlagPerf@1b5a030"}
    one = Row(line=2, id="t-x-0001", cells={**cells, "n_devices": "1"})
    assert counted_times(one) == 2
    with pytest.raises(InputError, match="counted once for each"):
        counted_times(Row(line=2, id="t-x-0002", cells={**cells, "n_devices": "8"}))
    elsewhere = {**cells, "n_devices": "8", "source": "NVIDIA/DeepLearningExamples@1"}
    assert counted_times(Row(line=2, id="t-x-0003", cells=elsewhere)) == 1


def test_a_classifier_of_sentences_makes_no_logits_over_the_vocabulary() -> None:
    cells = {"model": "distilbert", "micro_batch": 96, "n_devices": 1, "engine": "pytorch", "precision": "fp32"}
    sst = job(source="flagos-ai/FlagPerf@1b5a030", **cells)
    assert sst.workload.unpredicted == 1.0
    assert any("classifies sentences" in said for said in sst.assumptions)
    assert job(source="someone/else@1", **cells).workload.unpredicted < 1.0


def test_mlperfs_residual_networks_count_statistics_in_convolutions() -> None:
    cells = {"model": "ResNet-50 v1.5", "n_devices": 8, "global_batch": 3200, "hardware": "H100-SXM5-80GB"}
    mlperf = job(engine="MXNet NVIDIA Release 23.04", source="mlcommons/training_results_v3.0@6fe9543", **cells)
    example = job(engine="MxNet", precision="mixed (AMP fp16)", source="NVIDIA/DeepLearningExamples@1", **cells)
    reads = [
        next(op.read for op in each.model.graph.blocks["stage-1"].ops if op.name == "norm1")
        for each in (mlperf, example)
    ]
    assert reads[1] == 2 * reads[0]
    assert mlperf.key != example.key
