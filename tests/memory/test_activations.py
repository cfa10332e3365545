"""Activation bytes against Korthikanti et al. 2022 (arXiv:2205.05198), section 4 and figure 1."""

from __future__ import annotations

import pytest

from ridgeline.graph.build import build, from_dims
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Workload
from ridgeline.memory.profile import profile_graph
from ridgeline.memory.stage import stage_memory

GIB = 2.0**30
SEQ = 2048
# table 3: heads, hidden, layers, tensor degree, pipeline degree, micro-batch, chunks of the interleaved schedule
MODELS = {
    "22B": (64, 6144, 48, 8, 1, 4, 1),
    "175B": (96, 12288, 96, 8, 8, 1, 3),
    "530B": (128, 20480, 105, 8, 35, 1, 3),
    "1T": (128, 25600, 128, 8, 64, 1, 1),
}
FIGURE_1_GIB = {"22B": (59.25, 9.5625), "175B": (66.84375, 12.3515625), "530B": (114.0234375, 23.076171875)}


def gpt(heads: int, hidden: int, layers: int) -> Graph:
    return from_dims(layers=layers, hidden=hidden, heads=heads, vocab=51200, max_positions=SEQ, dropout=True).graph


def activations(name: str, *, sequence_parallel: bool, recompute: str) -> float:
    """Bytes held by the first stage's layers, embedding apart [byte]."""
    heads, hidden, layers, tp, pp, micro_batch, chunks = MODELS[name]
    kept = stage_memory(
        gpt(heads, hidden, layers),
        Workload(seq_len=SEQ, global_batch=1024, precision="fp16", attention_kernel="unfused"),
        layers={"dense": layers / pp},
        first=False,
        last=False,
        tp=tp,
        micro_batch=micro_batch,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        in_flight=pp if chunks == 1 else pp * (1 + (pp - 1) / (pp * chunks)),
    )
    return float(kept["activations"])


def paper(name: str, factor: str) -> float:
    """The paper's closed forms [byte]: s b h L times a factor per layer."""
    heads, hidden, layers, tp, pp, micro_batch, chunks = MODELS[name]
    scores = 5 * heads * SEQ / hidden
    per_layer = {
        "tensor": 10 + 24 / tp + scores / tp,  # equation 2
        "sequence": (34 + scores) / tp,  # equation 4
        "tensor selective": 10 + 24 / tp,
        "sequence selective": 34 / tp,  # equation 6 without its last factor
        "full": 2.0,
        "full sequence": 2.0 / tp,
    }[factor]
    held = 1.0 if chunks == 1 else 1 + (pp - 1) / (pp * chunks)
    return SEQ * micro_batch * hidden * layers * per_layer * held


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("factor", "sequence_parallel", "recompute"),
    [
        ("tensor", False, "none"),
        ("sequence", True, "none"),
        ("tensor selective", False, "selective"),
        ("sequence selective", True, "selective"),
        ("full", False, "full"),
        ("full sequence", True, "full"),
    ],
)
def test_closed_forms_are_exact(name: str, factor: str, sequence_parallel: bool, recompute: str) -> None:
    ours = activations(name, sequence_parallel=sequence_parallel, recompute=recompute)
    assert ours == pytest.approx(paper(name, factor), rel=1e-12)


@pytest.mark.parametrize("name", FIGURE_1_GIB)
def test_figure_1(name: str) -> None:
    whole = activations(name, sequence_parallel=False, recompute="none") / GIB
    least = activations(name, sequence_parallel=True, recompute="selective") / GIB
    assert (whole, least) == pytest.approx(FIGURE_1_GIB[name], rel=1e-9)


def test_flash_attention_keeps_statistics_instead_of_scores() -> None:
    """34 s b h less nothing, plus one fp32 number per head and token."""
    graph = gpt(16, 1024, 1)
    workload = Workload(seq_len=SEQ, global_batch=1, precision="fp16")
    kept = stage_memory(graph, workload, layers={"dense": 1}, first=False, last=False)["activations"]
    assert float(kept) == SEQ * (34 * 1024 + 4 * 16)


def test_recompute_of_some_layers_is_between_none_and_all() -> None:
    graph = gpt(16, 1024, 8)
    workload = Workload(seq_len=SEQ, global_batch=1)
    none, three, every = (
        float(
            stage_memory(
                graph, workload, layers={"dense": 8}, first=False, last=False, recompute=code, recompute_layers=limit
            )["activations"]
        )
        for code, limit in (("none", None), ("full", 3), ("full", None))
    )
    assert three == pytest.approx(none + 3 / 8 * (every - none))
    assert every < three < none


def test_loss_tensors_are_six_bytes_per_logit_in_megatron() -> None:
    """A 16-bit tensor and its fp32 copy, which becomes probabilities and gradient in place."""
    graph = gpt(16, 1024, 2)
    kept = stage_memory(graph, Workload(seq_len=512, global_batch=1), layers={"dense": 2}, micro_batch=4, tp=2)
    assert float(kept["logits"]) == 6 * 512 * 4 * 51200 / 2


def test_a_middle_stage_holds_no_logits_but_a_working_set() -> None:
    graph = gpt(16, 1024, 2)
    kept = stage_memory(
        graph, Workload(seq_len=512, global_batch=1), layers={"dense": 1}, first=False, last=False, recompute="full"
    )
    assert float(kept["logits"]) == 0
    assert float(kept["buffers"]) > float(kept["activations"])  # one layer again, against its input alone


LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 704, "vocab_size": 1024, "num_hidden_layers": 2, "max_position_embeddings": 4096,
}  # fmt: skip
STATISTICS = 8  # 1 / rms of two norms in fp32: left out


@pytest.mark.parametrize(
    ("precision", "kernel", "measured"),
    [
        ("bf16-pure", "flash2", 11048),
        ("bf16-amp", "flash2", 13608),
        ("bf16-pure", "unfused", 24072),
        ("bf16-amp", "unfused", 26632),
    ],
)
def test_a_layer_of_transformers_keeps_what_pytorch_saves(precision: str, kernel: str, measured: int) -> None:
    """Bytes a token that live from forward to backward, counted tensor by tensor in PyTorch 2.13 on a block written as
    transformers writes it (256 tokens; autocast's 16-bit weights apart).

    In 16 bits, D = 256: input 2 D, fp32 norm 4 D, its product 2 D, q, k, v 3 D, output 2 D, fp32 statistic 32; then
    input, norm and product 8 D, gate, up, act(gate) and their product 4 x 1408: 11040. Autocast: inputs are 4 D, and
    q, k, v, gate and up each cast theirs: 2 x 2 D + (2 + 1) x 2 D = 2560 more. Eager: keys and values of all heads,
    3 D more, 256 x 8 scores in 4 + 2 bytes, no statistic.
    """
    job = Workload(
        seq_len=256, global_batch=1, precision=precision, execution="eager", attention_kernel=kernel,
        framework="Transformers",
    )  # fmt: skip
    graph = build(LLAMA, name="block", source="a test").graph
    kept = profile_graph(graph, job).blocks["dense"].kept()
    assert kept.sequence + kept.tensor == measured - STATISTICS


def test_scores_in_fp32_are_those_of_a_program() -> None:
    """Megatron-LM's fused softmax keeps 16-bit scores alone: 256 x 8 x 2 bytes a token."""
    graph = build(LLAMA, name="block", source="a test").graph
    jobs = [
        Workload(seq_len=256, global_batch=1, execution="eager", attention_kernel=kernel, framework="Megatron-LM")
        for kernel in ("unfused", "flash2")
    ]
    plain, flash = (profile_graph(graph, job).blocks["dense"].kept().tensor for job in jobs)
    assert plain - flash == 256 * 8 * 2 - 8 * 4
