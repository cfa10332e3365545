"""Degrees and padding of published code."""

from __future__ import annotations

import pytest

from ridgeline.facts.benchmarks import kept_tokens, predicted_share
from ridgeline.facts.published_plans import published_plan

LORA, ROUND = "Llama2-70B LoRA r16", "mlcommons/training_results_{}@6fe9543"


@pytest.mark.parametrize(
    ("device", "rounds", "devices", "degrees"),
    [
        ("H100-SXM5-80GB", "v4.1", 8, (4, 1)),
        ("H200-SXM5-141GB", "v4.0", 8, (2, 1)),
        ("H200-SXM5-141GB", "v5.0", 8, (1, 2)),
        ("H200-SXM5-141GB", "v5.0", 512, (4, 2)),
        ("H100-SXM5-80GB", "v4.0", 16, (None, None)),
        ("H100-SXM5-80GB", "v4.1", 16, (None, None)),
        ("B200-SXM-180GB", "v5.0", 8, (1, 1)),
        ("A100-SXM4-80GB", "v4.0", 8, None),
    ],
)
def test_degrees_of_each_count_and_round(
    device: str, rounds: str, devices: int, degrees: tuple[int | None, int | None] | None
) -> None:
    found = published_plan(LORA, device=device, results=ROUND.format(rounds), devices=devices)
    assert (None if found is None else (found.tp, found.cp)) == degrees


def test_a_submitter_has_configurations_of_its_own() -> None:
    where = {"device": "H200-SXM5-141GB", "results": ROUND.format("v5.0"), "devices": 32}
    found = {name: published_plan(LORA, submitter=name, **where) for name in ("HPE", "Lenovo", "Dell")}  # type: ignore[arg-type]
    assert {name: plan and (plan.tp, plan.cp) for name, plan in found.items()} == {
        "HPE": (2, 1), "Lenovo": (4, 1), "Dell": (None, None),
    }  # fmt: skip


def test_a_configuration_of_other_degrees_is_of_another_run() -> None:
    where = {"device": "H200-SXM5-141GB", "results": ROUND.format("v5.0"), "devices": 8}
    own = published_plan(LORA, stated={"tp": 1, "pp": 1, "cp": 2}, **where)  # type: ignore[arg-type]
    other = published_plan(LORA, stated={"tp": 4, "pp": 1, "cp": 1}, **where)  # type: ignore[arg-type]
    assert own is not None
    assert (own.tp, own.mlp_input_bytes) == (1, 1.0)
    assert other is not None
    assert (other.tp, other.recompute, other.mlp_input_bytes) == (None, "none", None)


def test_padding_is_dropped_by_the_code_of_two_benchmarks() -> None:
    mlperf = ROUND.format("v4.1")
    assert kept_tokens("BERT-large", results=mlperf, positions=512) == 256
    assert kept_tokens("BERT-large", results=mlperf, positions=128) is None
    assert predicted_share("BERT-large", results=mlperf) == 0.15
    assert kept_tokens(LORA, results=mlperf, positions=512) is None


@pytest.mark.parametrize(("program", "model", "kept", "share"), [
    ("PyTorch", "BERT", (128, 288), 0.15),
    ("TensorFlow2", "BERT", (None, None), None),
    ("PyTorch", "BERT fine-tuning", (None, None), None),
])  # fmt: skip
def test_bins_of_64_positions(
    program: str, model: str, kept: tuple[int | None, int | None], share: float | None
) -> None:
    where = f"NVIDIA/DeepLearningExamples@729963d; {program}/LanguageModeling/BERT/README.md L1"
    assert tuple(kept_tokens(model, results=where, positions=count) for count in (128, 512)) == kept
    assert predicted_share(model, results=where) == share
