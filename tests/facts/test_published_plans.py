"""Degrees and padding of published code."""

from __future__ import annotations

import pytest

from ridgeline.facts.padding import Padding, padding
from ridgeline.facts.published_plans import published_plan

LORA, ROUND = "Llama2-70B LoRA r16", "mlcommons/training_results_{}@6fe9543"


@pytest.mark.parametrize(
    ("device", "rounds", "devices", "degrees"),
    [
        ("H100-SXM5-80GB", "v4.1", 8, (4, 1)),
        ("H200-SXM5-141GB", "v4.0", 8, (2, 1)),
        ("H200-SXM5-141GB", "v5.0", 8, (1, 2)),
        ("H200-SXM5-141GB", "v5.0", 512, (4, 2)),
        ("H100-SXM5-80GB", "v4.1", 16, None),
        ("B200-SXM-180GB", "v5.0", 8, None),
    ],
)
def test_degrees_of_each_count_and_round(
    device: str, rounds: str, devices: int, degrees: tuple[int, int] | None
) -> None:
    found = published_plan(LORA, device=device, results=ROUND.format(rounds), devices=devices)
    assert (None if found is None else (found.tp, found.cp)) == degrees


def test_padding_is_dropped_by_the_code_of_one_benchmark() -> None:
    assert padding("BERT-large", results=ROUND.format("v4.1")) == Padding(positions=512, tokens=256, predicted=0.15)
    assert padding("BERT-large", results="NVIDIA/DeepLearningExamples@729963d") is None
    assert padding("Llama2-70B LoRA r16", results=ROUND.format("v4.1")) is None
