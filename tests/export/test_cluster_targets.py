"""Targets that start all instances of an engine on a cluster: pools there and back, flags of the engine's own table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline as rl
from ridgeline.errors import InputError
from ridgeline.export.fleet import Fleet, flat_lists
from ridgeline.export.reading import read_config
from ridgeline.export.target import target, targets

FLEETS = tuple(key for key in targets() if isinstance(target(key), Fleet))
every = pytest.mark.parametrize("key", FLEETS)
TWO: dict[str, Any] = {"on": "2x8xH100-SXM", "prefill": "2xtp4", "decode": "1xtp8"}


def test_there_are_such_targets() -> None:
    assert {"dynamo", "llm-d", "kserve", "ray-llm"} <= set(FLEETS)


@every
def test_two_pools_are_one_file_that_reads_back_to_the_same(key: str, tmp_path: Path) -> None:
    answer = rl.export("qwen3-32b", to=key, out=str(tmp_path), **TWO)
    made, page = answer["files"]
    assert page == "README.md"
    found = read_config(str(tmp_path / made))
    assert found.target == key
    assert (found.unknown, found.notes) == ((), ())
    assert (found.words["plan.prefill"], found.words["plan.decode"]) == ("2xtp4,pp1,dp1,ep1", "1xtp8,pp1,dp1,ep1")
    again = rl.export("qwen3-32b", TWO["on"], to=key, from_config=f"{key}:{tmp_path / made}")
    assert again["files"][made] == answer["files"][made]


@every
def test_a_manifest_answers_why_it_is_slow(key: str, tmp_path: Path) -> None:
    rl.export("qwen3-32b", "4xH100-SXM", tp=2, max_seqs=48, to=key, out=str(tmp_path))
    made = target(key).file
    answer = rl.predict(None, "4xH100-SXM", from_config=str(tmp_path / made), batch=8)
    deployed = answer["deployments"][0]
    assert (deployed["tp"], deployed["instances"], deployed["max_seqs"]) == (2, 2, 48)


@every
def test_the_engines_limits_hold_inside(key: str, tmp_path: Path) -> None:
    rl.export("qwen3-32b", "2xH100-SXM", tp=2, memory_fraction=0.85, to=key, out=str(tmp_path))
    file = tmp_path / target(key).file
    file.write_text(file.read_text().replace("0.85", "8.5"))
    with pytest.raises(InputError, match="vLLM refuses it"):
        read_config(f"{key}:{file}")


@every
def test_a_field_that_is_not_there_is_told(key: str, tmp_path: Path) -> None:
    rl.export("qwen3-32b", "2xH100-SXM", tp=2, to=key, out=str(tmp_path))
    file = tmp_path / target(key).file
    document = yaml.safe_load(file.read_text())
    document["madeUp"] = {"inside": 1}
    file.write_text(yaml.safe_dump(document))
    assert read_config(f"{key}:{file}").unknown == ("madeUp.inside",)


@every
def test_it_is_not_wrapped_again(key: str) -> None:
    with pytest.raises(InputError, match="already"):
        rl.export("qwen3-32b", "2xH100-SXM", tp=2, to=key, around="kubernetes")


def test_instances_over_nodes_are_said_or_refused() -> None:
    asked: dict[str, Any] = {"subject": "qwen3-32b", "on": "16xH100-SXM", "tp": 8, "pp": 2}
    worker = yaml.safe_load(rl.export(**asked, to="dynamo")["files"]["dynamo.yaml"])["spec"]["components"][1]
    assert worker["multinode"] == {"nodeCount": 2}
    for key, why in (("kserve", "this takes 2"), ("llm-d", "no pipeline degree")):
        with pytest.raises(InputError, match=why):
            rl.export(**asked, to=key)


def test_pools_that_differ_in_a_limit_take_decodes_and_say_so(tmp_path: Path) -> None:
    rl.export("qwen3-32b", to="ray-llm", out=str(tmp_path), **TWO)
    file = tmp_path / "rayservice.yaml"
    file.write_text(file.read_text().replace("max_num_seqs: 1024", "max_num_seqs: 7", 1))
    found = read_config(str(file))
    assert found.words["plan.max_seqs"] == 1024
    assert found.notes == ("decode's plan.max_seqs is 1024, prefill's 7 is not taken",)
    answer = rl.predict(None, TWO["on"], from_config=str(file), batch=8)
    assert "prefill's 7 is not taken" in answer.table()


def test_serves_config_alone_is_read(tmp_path: Path) -> None:
    made = rl.export("qwen3-32b", "2xH100-SXM", tp=2, to="ray-llm")["files"]["rayservice.yaml"]
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_load(made)["spec"]["serveConfigV2"])
    found = read_config(str(file))
    assert (found.target, found.unknown) == ("ray-llm", ())
    assert found.words["plan.tp"] == 2


def test_tables_in_lists_are_named_through_them() -> None:
    document = {"a": [{"b": 1}, {"b": 2, "c": 3}], "d": {"e": {"f": 4}}, "g": [], "h": [1]}
    assert flat_lists(document, frozenset({"d.e"})) == {"a.b": 1, "a.c": 3, "d.e": {"f": 4}, "g": [], "h": [1]}
