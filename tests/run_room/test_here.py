"""A command line and a file that name no machine mean this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.api.measuring import _machine


@pytest.mark.parametrize(
    ("text", "words", "machine"),
    [
        ("[plan]\ndp = 2\n", {}, "2xhere"),
        ("[plan]\ndp = 2\n", {"dp": "3", "tp": "2"}, "6xhere"),
        ("", {}, "1xhere"),
        ('[cluster]\nname = "8xH100-SXM"\n', {}, None),
    ],
)
def test_a_scenario_without_a_cluster_runs_here(
    tmp_path: Path, text: str, words: dict[str, str], machine: str | None
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('model = "gpt2"\n' + text, encoding="utf-8")
    assert _machine(str(file), None, words) == machine
    assert _machine(str(file), "4xhere", words) == "4xhere"
