"""The format that is trained in where none is said, and what is said of formats that a device lacks."""

from __future__ import annotations

import pytest

from ridgeline.cli.main import run
from ridgeline.cost.machine import device
from ridgeline.errors import DomainError, InputError
from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.clusters import cluster
from ridgeline.graph.workload import PRECISIONS
from ridgeline.predict.operator import operator_cost
from ridgeline.scenario.training import Scenario, scenario_from_words


def asked(name: str, **workload: object) -> Scenario:
    return scenario_from_words({"model": {"name": "gpt2"}, "cluster": {"name": name}, "workload": workload})


@pytest.mark.parametrize(
    ("name", "precision"),
    [("8xV100-SXM2-32GB", "fp16"), ("1xT4", "fp16"), ("1xRTX-2080-Ti", "fp16"), ("1xP40", "fp32"), ("1xA100", "bf16")],
)
def test_training_falls_to_what_the_device_multiplies_and_says_so(name: str, precision: str) -> None:
    scenario = asked(name)
    assert scenario.workload.precision == precision
    assert any("multiplies no bf16" in text for text in scenario.assumed) == (precision != "bf16")


@pytest.mark.parametrize(
    ("name", "precision", "nearest"),
    [
        ("1xV100-SXM2-32GB", "tf32", "fp32"),
        ("1xT4", "tf32", "fp32"),
        ("1xT4", "bf16", "fp16"),
        ("1xA100", "fp8", "bf16"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused_at_its_word(name: str, precision: str, nearest: str) -> None:
    with pytest.raises(
        InputError, match=f"'--precision': .* has no {precision} matrix rate; nearest: {nearest}; it has"
    ):
        asked(name, precision=precision)


@pytest.mark.parametrize("name", ["V100-SXM2-32GB", "T4"])
def test_an_operator_in_tf32_is_refused_where_there_is_none(name: str) -> None:
    with pytest.raises(DomainError, match="has no tf32 matrix rate; nearest: fp32"):
        operator_cost("gemm", "1024x1024x1024", "tf32", cluster(name))


def test_every_device_of_the_catalog_trains_in_what_it_is_given() -> None:
    for name, part in accelerators().items():
        if part.peak_flop_per_s:
            recipe = PRECISIONS[asked(f"1x{name}").workload.precision]
            assert device(part).matrix_rate(recipe.compute) > 0


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "gpt2", "--on", "WSE-2"],
        ["predict", "gpt2", "--serve", "--on", "WSE-2"],
        ["simulate", "gpt2", "--rate", "1", "--on", "WSE-2"],
        ["op", "gemm", "64x64x64", "--on", "WSE-2"],
        ["op", "decode", "4x4096x32x8x128", "--on", "WSE-2"],
        ["op", "gemm", "64x64x64", "fp32", "--on", "WSE-2"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_machine_without_any_matrix_rate_is_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(words) == 2
    assert "WSE-2 has no published matrix rate" in capsys.readouterr().err
