"""Names of the catalog, and how they are found."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.graph.build import EXPLICIT
from ridgeline.graph.load import catalog, catalog_config, find, load


def test_the_catalog_is_wide() -> None:
    assert len(catalog()) >= 170
    assert len({str(catalog_config(name)["model_type"]) for name in catalog()}) >= 30


@pytest.mark.parametrize("name", catalog())
def test_every_entry_builds_under_its_own_name_with_a_source(name: str) -> None:
    model = load(name)
    assert find(name) == name
    assert model.name == name
    assert len(model.source) > 10
    assert model.graph.params > 1e6
    assert model.dims["layers"] == len(model.graph.layers)


def test_aliases_lead_to_entries_and_shadow_none() -> None:
    aliases = store.read_json("models/_aliases.json")
    assert set(aliases.values()) <= set(catalog())
    assert not set(aliases) & set(catalog())
    assert {alias: find(alias) for alias in aliases} == aliases


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("Llama 2 70b-chat-hf", "llama-2-70b"),
        ("opt-1.3b", "opt-1.3b"),
        ("OPT 13B", "opt-13b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("MT-NLG", "mt-nlg-530b"),
        ("microsoft/phi-1_5", "phi-1.5"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert find(text) == name


def test_a_typo_names_neighbours() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: llama-3\.1-70b"):
        load("lama-3.1-70b")


@pytest.mark.parametrize("text", ["", "/", "~nobody-here/x", "\x00", "a" * 10_000, "..", "nothing like it at all"])
def test_strange_names_are_refused_with_our_own_errors(text: str) -> None:
    from ridgeline.errors import RidgelineError

    with pytest.raises(RidgelineError):
        load(text)


def test_building_is_quick() -> None:
    load("llama-3-8b")
    for name in ("llama-3.1-405b", "deepseek-v3", "qwen3-235b-a22b", "t5-11b"):
        begin = time.perf_counter()
        load(name)
        assert time.perf_counter() - begin < 0.1  # 20 ms wanted; room for a busy machine


def test_no_heavy_imports() -> None:
    code = "import sys, ridgeline.graph.load; print([m for m in ('pydantic', 'torch', 'numba') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_explicit_entries_say_where_their_numbers_are_printed() -> None:
    for name in catalog():
        config = catalog_config(name)
        if config["model_type"] == EXPLICIT:
            assert "arXiv" in str(config["source"]) or "/" in str(config["source"]), name
