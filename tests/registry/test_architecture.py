"""The page on architecture names files and functions that exist, and counts what its worked example has."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from ridgeline.lower.shard import Sharder
from ridgeline.predict.predictor import Predictor
from ridgeline.scenario.training import scenario_from_words

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+)\.py: ([\w.]+)`", PAGE)
FILES = sorted(set(re.findall(r"`((?:[\w-]+/)+[\w.-]*)", PAGE)))


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 150


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[".".join(pair) for pair in NAMED])
def test_what_the_page_names_exists(file: str, name: str) -> None:
    module = import_module("ridgeline." + file.replace("/", ".").removesuffix(".__init__"))
    assert reduce(getattr, name.split("."), module) is not None


@pytest.mark.parametrize("file", FILES)
def test_files_of_the_page_exist(file: str) -> None:
    for written, meant in (
        ("FAMILY/NAME.py", "optimizers/muon.py"),
        ("export/NAME.py", "export/vllm.py"),
        ("NAME.tsv", "vllm.tsv"),
        ("NAME.json", "dbrx.json"),
        ("NNN-NAME.toml", ""),
        ("NAME.toml", ""),
    ):
        file = file.replace(written, meant)
    assert any((folder / file).exists() for folder in (ROOT, ROOT / "src" / "ridgeline"))


def test_the_worked_example_has_what_the_page_counts() -> None:
    asked = scenario_from_words(
        {
            "model": {"name": "llama-3.1-8b"},
            "cluster": {"name": "8xH100-SXM"},
            "workload": {},
            "plan": {"zero": 3, "micro_batch": 1},
        }
    )
    assert asked.plan is not None
    predictor, block = Predictor(asked.model, asked.cluster, asked.workload), asked.model.graph.blocks["dense"]
    found = predictor.evaluate(asked.plan)
    work = Sharder(asked.workload, predictor.layout(asked.plan)).block(block)
    assert found.bound_s == pytest.approx(found.timeline.makespan_s)
    told = " ".join(PAGE.split())
    for count in (
        f"sequences of {asked.workload.seq_len:,} tokens and {asked.workload.global_batch:,} of them",
        f"eight devices to dp {asked.plan.dp}",
        f"All {len(asked.model.graph.layers)} layers are alike",
        f"of {len(block.ops)} operators",
        f"Each of {asked.plan.dp} ranks runs {found.micro_batches} micro-batches",
        f"{len(work)} pieces of work",
        f"{found.tasks.tasks:,} tasks on two streams",
        f"in {len(predictor.memory(asked.plan))} categories",
        f"about {found.timeline.makespan_s:.0f} s a step",
    ):
        assert count in told
