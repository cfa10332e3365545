"""The command `techniques`: a table of all, a page of one, the nearest names of none."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from ridgeline.api import techniques as command
from ridgeline.cli.main import run
from ridgeline.errors import PlanError
from ridgeline.facts.taxonomies import taxonomies
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.post_training_fields import POST_PLAN_FIELDS, POST_TRAINING_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS
from ridgeline.seams.power_limit import POWER_LIMITS, power_limit
from ridgeline.seams.registry import families, kind, names
from ridgeline.seams.states import OptimizerStates, Tensor
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class Toy(OptimizerStates):
    """Toy: every kind of parameter."""

    key: ClassVar[str] = "toy"
    source: ClassVar[tuple[str, ...]] = ("https://example.org/toy, page 3",)
    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})
    decay: float = param(0.5, "1", "share that stays")
    fused: bool = param(False, "", "one kernel")
    form: str = param("fp8", "", "number format")

    def state_bytes(self, tensor: Tensor) -> float:
        """State [byte]: none."""
        return 0.0


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["techniques", *words]) == 0
    return capsys.readouterr().out


def test_the_table_has_every_technique_of_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    rows = page(capsys).splitlines()[2:]
    entries = json.loads(page(capsys, "--json"))["entries"]
    known = [(key, family) for family in families() for key in names(family)]
    assert [tuple(row.split()[:2]) for row in rows] == known
    assert [(one["key"], one["family"]) for one in entries] == known
    assert all(one["summary"] and not one["error"] for one in entries)


def test_a_page_says_what_it_does_its_parameters_seams_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "muon")
    for told in (
        "muon: optimizers",
        "An iteration makes X X^T",
        "write   --optimizer 'muon(iterations=5)'",
        '[workload] optimizer = "muon(iterations=5)"',
        "iterations        5  iterations  1 to 100  Newton-Schulz iterations of each update",
        "states  update_flop",
        "owns     optimizers",
        "https://kellerjordan.github.io/posts/muon/",
    ):
        assert told in text
    assert "moved_bytes" not in text  # the seam's own, which it leaves


def test_a_page_names_what_a_seam_asks_and_gets(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(page(capsys, "zb-v", "--json"))
    assert found["declares"] == {"splits": True}
    assert {one["method"] for one in found["seams"]} >= {"places", "in_flight", "order"}
    assert {one["seam"] for one in found["seams"]} == {"schedule"}
    assert found["sources"][0] == {
        "key": "v-schedules-2024",
        "citation": found["sources"][0]["citation"],
        "url": "https://arxiv.org/abs/2405.15362",
    }
    assert "Pipeline parallelism with controllable memory" in found["sources"][0]["citation"]


def test_parameters_without_limits_and_sources_without_a_key() -> None:
    found = command.technique_as_dict(Toy)
    assert [command.range_text(one) for one in found["parameters"]] == [">= 0", "true, false", "a word"]
    assert [(one["low"], one["high"]) for one in found["parameters"]] == [(0.0, None), (None, None), (None, None)]
    address = "https://example.org/toy, page 3"
    assert found["sources"] == [{"key": None, "citation": address, "url": "https://example.org/toy"}]
    assert (found["owns"], found["needs"]) == (["optimizers"], ["gradients"])
    assert found["seams"] == [{"seam": "states", "method": "state_bytes", "says": "State [byte]: none."}]


@pytest.mark.parametrize("family", families())
def test_what_a_page_says_to_write_is_read(family: str) -> None:
    tables = {
        "workload": (*WORKLOAD_FIELDS, *POST_TRAINING_FIELDS),
        "plan": (*PLAN_FIELDS, *DEPLOYMENT_FIELDS, *POST_PLAN_FIELDS),
    }
    flags = {field.flag: field for fields in tables.values() for field in fields}
    for key in names(family):
        flagged, filed = command.written(kind(family, key))
        if family == POWER_LIMITS:  # of a machine, whose words are read with it
            assert power_limit(shlex.split(flagged)[1]).text == key
            continue
        flag, word = shlex.split(flagged)
        ((section, table),) = tomllib.loads(filed.replace("] ", "]\n", 1)).items()
        fields = {field.name: field for field in tables[section]}
        ((name, value),) = table.items()
        if family == "autoscalers":  # the first of several named values
            assert flags[flag].read(word) == fields[name].read(value) == {"rule": key}
            continue
        assert flags[flag].read(word) == fields[name].read(value) == (key if family in command.ALWAYS else (key,))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("adamx", "unknown technique 'adamx'; nearest: adam"),
        ("zbv", "unknown technique 'zbv'; nearest: zb-v"),
        ("", "unknown technique ''"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["techniques", name, "--json"]) == 2
    heard = capsys.readouterr()
    assert told in heard.err
    assert json.loads(heard.out)["exit_code"] == 2


def test_a_file_that_cannot_be_read_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(family: str, key: str) -> Any:
        if key == "muon":
            raise PlanError("technique 'muon': strangers.muon cannot be imported")
        return kind(family, key)

    monkeypatch.setattr(command, "kind", broken)
    text = re.sub(" +", " ", page(capsys))
    assert "muon optimizers technique 'muon': strangers.muon cannot be imported" in text
    assert "lion optimizers Lion" in text


def test_tags_sort_techniques_by_a_survey(capsys: pytest.CaptureFixture[str]) -> None:
    """Every tag of a technique is of a taxonomy; a tag's list holds those that say it, and options of commands."""
    found = json.loads(page(capsys, "--tag", "moe-inference", "--json"))
    known = {tag.key for tags in taxonomies().values() for tag in tags}
    for family in families():
        for key in names(family):
            assert set(kind(family, key).tags) <= known
    by_tag = {one["tag"]: one for one in found["tags"]}
    assert {"fused-experts", "expert-affinity"} <= set(by_tag["expert-parallelism"]["techniques"])
    assert "--offload computed" in by_tag["expert-offloading"]["options"]
    alone = json.loads(page(capsys, "--tag", "expert-parallelism", "--json"))
    assert alone["tags"] == [by_tag["expert-parallelism"]]
    assert run(["techniques", "--tag", "expert-paralelism"]) == 2
    assert "expert-parallelism" in capsys.readouterr().err
    assert run(["techniques", "muon", "--tag", "moe-inference"]) == 2
