"""Conventions of training programs and published dimensions: each is reached by its name and says where it is from."""

from __future__ import annotations

import re

import pytest

from ridgeline.errors import InputError
from ridgeline.facts import benchmarks, store
from ridgeline.facts.benchmarks import published_dimensions, style_of
from ridgeline.facts.programs import before_flash_attention, training_program, training_programs
from ridgeline.graph.build import from_dims


def test_every_engine_gives_a_reason_and_is_found_by_its_own_name() -> None:
    assert all(len(engine.reason) > 20 for engine in training_programs())
    assert len({engine.name for engine in training_programs()}) == len(training_programs())
    assert training_program("something new").name == "not stated"
    mindspore = training_program("MindSpore, MindFormers, flash attention")
    assert (mindspore.name, mindspore.execution, mindspore.zero) == ("MindFormers", "compiled", 1)
    assert training_program("PyTorch", "mlcommons/training_results_v4.0@6fe9543").name == "MLPerf (NVIDIA code)"
    assert training_program("Megatron-LM", "bigscience-workshop/bigscience@9e64ede").name == "Megatron-LM (2021)"


def test_a_convention_that_no_program_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "[[program]]\nname = 'x'\npattern = 'x'\nreason = 'a page'\nzeros = 3\n"
    store.read_toml.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(store, "read_text", lambda _: wrong)
        with pytest.raises(InputError, match="'zeros' is no convention"):
            training_programs.__wrapped__()
    store.read_toml.cache_clear()


def test_sources_tell_their_time() -> None:
    assert before_flash_attention("bigscience-workshop/bigscience@9e64ede")
    assert not before_flash_attention("pytorch/torchtitan")


@pytest.mark.parametrize("entry", store.read_toml("dimensions.toml")["model"], ids=lambda entry: entry["pattern"])
def test_every_published_model_is_built_as_its_family(entry: dict[str, object]) -> None:
    shared = benchmarks.style(str(entry["style"])) if "style" in entry else {}
    dims = {"max_positions": 2048, **shared, **entry["dims"]}  # type: ignore[dict-item]
    model = from_dims(name="x", source=str(entry["source"]), **dims)
    assert model.graph.params > 1e7
    assert len(str(entry["source"])) > 10


def test_names_find_dimensions_and_styles() -> None:
    found = published_dimensions("GPT-3 175B")
    assert found is not None
    assert found.dims["layers"] == 96
    assert re.search("2005.14165", found.source)
    assert published_dimensions("GPT-3 176B") is None
    assert (style_of("mcore test bert")["placement"], style_of("BERT")["placement"]) == ("pre", "post")


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("PyTorch, transformers", "Hugging Face"),
        ("TRL SFT, accelerate FSDP2", "Hugging Face"),
        ("Transformer Engine", "not stated"),
        ("PyTorch", "PyTorch"),
    ],
)
def test_programs_are_found_by_their_libraries(engine: str, name: str) -> None:
    assert training_program(engine).name == name
