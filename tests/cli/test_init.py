"""`init`: the file that it writes is read back, predicted, and names every word."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.cli.main import run
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.sampling_fields import SAMPLING_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

KINDS = {
    "training": (["llama-3.1-8b"], (*WORKLOAD_FIELDS, *PLAN_FIELDS)),
    "network": (["resnet-50", "--on", "h100"], (*WORKLOAD_FIELDS, *PLAN_FIELDS)),
    "serving": (["qwen3-32b", "--serve", "--on", "2xH100-SXM"], (*TRAFFIC_FIELDS, *DEPLOYMENT_FIELDS)),
    "pictures": (["flux.1-dev", "--on", "h100"], SAMPLING_FIELDS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_names_every_word_with_its_help_and_runs(kind: str, tmp_path: Path) -> None:
    words, fields = KINDS[kind]
    file = tmp_path / "s.toml"
    assert run(["init", *words, "-o", str(file)]) == 0
    text = file.read_text()
    for field in fields:
        assert f"\n{field.name} = " in text or f"\n# {field.name} = " in text, field.name
        assert field.help.split()[0] in text
    asked = rl.simulate if kind == "serving" else rl.predict
    assert asked(str(file)).impossible is None


def test_it_says_what_is_assumed_without_it(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    rl.init("llama-3.1-8b", on="8xH100-SXM", out=str(file))
    said, bare = rl.predict(str(file)), rl.predict("llama-3.1-8b", on="8xH100-SXM", zero=3)
    assert said["step_time_s"] == bare["step_time_s"]
    assert (bare["assumed"], said["assumed"]) != ([], bare["assumed"])


def test_words_behind_a_hash_can_be_said(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    rl.init(out=str(file))
    text = file.read_text().replace("# tokens = ...", 'tokens = "1B"').replace("# price = 1.99", "price = 1.99")
    file.write_text(text)
    tables = tomllib.loads(text)
    assert tables["cluster"]["price"] == 1.99
    assert rl.predict(str(file))["run_usd"]


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text("mine")
    assert run(["init", "-o", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run(["init", "-o", str(file), "--force"]) == 0
    assert run(["init", "-o", str(tmp_path / "no" / "s.toml")]) == 2
    assert run(["init", "llama-9", "-o", str(tmp_path / "t.toml")]) == 2
    assert not (tmp_path / "t.toml").exists()
