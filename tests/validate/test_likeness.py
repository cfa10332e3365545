"""Models that a row describes without a name of the catalog."""

import pytest

from ridgeline.facts.programs import training_program
from ridgeline.validate.likeness import alike_in_dimensions, alike_in_name
from ridgeline.validate.recipes import _named
from ridgeline.validate.serving_models import Mixture, routed

LLAMA_2_7B = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 32000}


def test_the_dimensions_of_another_name_are_those_of_the_catalogs_model():
    assert alike_in_dimensions("QwQ-32B", {"layers": 64, "hidden": 5120, "heads": 40, "vocab": 152064}, 32.8e9) == (
        "qwen2.5-32b"
    )


def test_of_models_with_the_same_dimensions_the_one_of_the_name_is_taken():
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 128256}
    assert alike_in_dimensions("Llama 3.0 8B", shape, 8e9) == "llama-3-8b"


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({**LLAMA_2_7B, "vocab": 90000}, 7e9),  # words are off by more than padding
        (LLAMA_2_7B, 9e9),  # 6.7e9 is more than a tenth off
        ({"layers": 32, "hidden": 4096}, 7e9),  # heads not stated
        ({**LLAMA_2_7B, "hidden": 4097}, 7e9),
    ],
)
def test_what_differs_is_no_likeness(given, params):
    assert alike_in_dimensions("some-model", given, params) is None


@pytest.mark.parametrize(
    ("name", "params", "found"),
    [
        ("Mistral-Small-3-24B", None, "mistral-small-24b"),
        ("Nemotron-3-Super-120B", None, "nemotron-3-super-120b-a12b"),
        ("Mistral-Small-5-190B", 190e9, None),  # a family's other sizes tell nothing of it
        ("my-model 24B", None, None),
        ("Mistral", None, None),
    ],
)
def test_family_and_size_name_a_model(name, params, found):
    assert alike_in_name(name, params) == found


def test_a_mixture_keeps_the_dimensions_that_are_stated():
    known = Mixture(params=129.2e9, active=14.6e9, layers=48, hidden=5120, count=64, top=4)
    model, said = routed("129B total, 14.6B active", known, 1)
    dims = model.dims
    assert [dims[name] for name in ("layers", "hidden", "experts", "top_k")] == [48, 5120, 64, 4]
    expert = (129.2e9 - 14.6e9) / 60 / (3 * 48 * 5120)  # what one expert holds of a layer over three products of D
    assert dims["expert_ffn"] == pytest.approx(expert, abs=8)
    assert "64 experts of which 4 are met" in said[0]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("bf16 compute, fp32 master", "bf16"),
        ("bf16, fp32 master weights", "bf16"),
        ("fp32", "fp32"),
        ("fp16 in the 4 highest resolutions, else fp32", "fp32"),
    ],
)
def test_what_is_kept_in_32_bits_beside_is_not_what_is_computed_in(cell, kind):
    assert _named(cell) == kind


@pytest.mark.parametrize(
    ("engine", "model", "name"),
    [
        ("PyTorch", "bert-large", "PyTorch"),
        ("PyTorch", "Llama-2-7B", "PyTorch (since 2.0)"),
        ("PyTorch", "LLaMA-7B", "PyTorch"),  # of February 2023, a month before PyTorch 2.0
        ("PyTorch FSDP", "Llama-2-7B", "PyTorch FSDP"),
        ("PyTorch, FSDP2", "Llama-2-7B", "PyTorch FSDP2"),
        ("axolotl, FSDP2", "Llama-2-7B", "Hugging Face"),
    ],
)
def test_a_result_is_no_older_than_its_model(engine, model, name):
    assert training_program(engine, model=model).name == name
