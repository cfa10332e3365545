"""Result files of serving benchmarks become rows of a truth table, or are refused by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.facts.user_files import TRUTH, as_user_file
from ridgeline.validate.results import is_results, results_table
from ridgeline.validate.rows import TruthTable

SAID = {"hardware": "H100-SXM", "n_devices": "1", "tp": "1"}
VLLM: dict[str, Any] = {
    "date": "20260101-000000", "endpoint_type": "openai", "backend": "openai", "model_id": "Qwen/Qwen3-8B",
    "request_rate": "inf", "max_concurrency": 16, "duration": 50.0, "completed": 100, "total_input_tokens": 102400,
    "total_output_tokens": 25600, "output_throughput": 512.0, "mean_ttft_ms": 90.0, "median_ttft_ms": 80.0,
    "p99_ttft_ms": 200.0, "mean_tpot_ms": 9.0, "std_tpot_ms": 1.0, "mean_e2el_ms": 2400.0,
}  # fmt: skip
SGLANG = {
    **{key: VLLM[key] for key in ("completed", "total_input_tokens", "total_output_tokens", "duration")},
    "backend": "sglang", "request_rate": 4.0, "max_concurrency": None, "total_output_tokens_retokenized": 25590,
    "server_info": {"model_path": "Qwen/Qwen3-8B", "tp_size": 2, "version": "0.5.1"}, "output_throughput": 512.0,
    "mean_e2e_latency_ms": 2400.0, "mean_itl_ms": 9.0, "p95_itl_ms": 20.0, "mean_tpot_ms": float("nan"),
}  # fmt: skip
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 512.0},
    "time_to_first_token": {"unit": "ms", "avg": 90.0, "p50": 80.0, "p99": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.0}, "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "output_sequence_length": {"unit": "tokens", "avg": 256.0},
    "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-8B"]}, "loadgen": {"concurrency": 16}},
}  # fmt: skip


def _status(mean: float, **more: float) -> dict[str, Any]:
    return {"successful": {"mean": mean, "median": mean, "percentiles": more}, "errored": {"mean": 0.0}}


GUIDELLM = {
    "args": {"model": "Qwen/Qwen3-8B"},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": kind, **more}},
            "metrics": {
                "time_to_first_token_ms": _status(90.0, p99=200.0), "inter_token_latency_ms": _status(9.0),
                "request_latency": _status(2.4), "output_tokens_per_second": _status(512.0),
                "prompt_token_count": _status(1024.0), "output_token_count": _status(256.0), "text": None,
            },
        }
        for kind, more in (("synchronous", {}), ("concurrent", {"streams": 16}), ("constant", {"rate": 4.0}))
    ],
}  # fmt: skip


def _table(*contents: object) -> TruthTable:
    raw = "\n".join(json.dumps(one) for one in contents).encode()
    file = as_user_file(raw, TRUTH, "r.json")
    assert is_results(file)
    return results_table(file, SAID)


def _cells(table: TruthTable, metric: str) -> dict[str, str]:
    return dict(next(row for row in table.rows if row.text("metric") == metric).cells)


@pytest.mark.parametrize(
    "content", [VLLM, AIPERF, {"benchmarks": GUIDELLM["benchmarks"][1:2], "args": GUIDELLM["args"]}]
)
def test_a_closed_loop_is_one_of_users(content: dict[str, Any]) -> None:
    found = _cells(_table(content), "ttft_mean_ms")
    told = {"model": "Qwen/Qwen3-8B", "scenario": "fixed-concurrency", "batch_or_concurrency": "16", "isl": "1024"}
    assert told.items() <= found.items()
    assert (found["osl"], found["value"], found["unit"]) == ("256", "90", "ms")
    assert _cells(_table(content), "output_tok_s")["value"] == "512"
    assert _cells(_table(content), "ttft_p99_ms")["value"] == "200"


def test_a_rate_a_server_and_lines_of_runs_are_read() -> None:
    table = _table(SGLANG, {**SGLANG, "request_rate": float("inf"), "max_concurrency": 8})
    found = _cells(table, "itl_p95_ms")
    assert (found["scenario"], found["rate_rps"], found["engine"], found["engine_version"]) == (
        "poisson-rate", "4", "sglang", "0.5.1",
    )  # fmt: skip
    assert {row.line for row in table.rows} == {1, 2}
    assert not any(row.text("metric").startswith("tpot") for row in table.rows)
    assert table.rows[-1].text("scenario") == "fixed-concurrency"


def test_every_benchmark_of_guidellm_is_a_run() -> None:
    rows = _table(GUIDELLM).rows
    assert list(dict.fromkeys((row.text("scenario"), row.text("batch_or_concurrency")) for row in rows)) == [
        ("fixed-concurrency", "1"), ("fixed-concurrency", "16"), ("open-loop-rate", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "r.json:1: is not JSON"),
        ("[" * 100_000, "r.json"),
        ("{}", "r.json:1: .*is no result of"),
        ("[3]", r"r.json:1: .*is a int"),
        (json.dumps(VLLM) + "\n[1]", "r.json:2: is not an object"),
        (json.dumps({**VLLM, "completed": 0}), "field 'completed'"),
        (json.dumps({**VLLM, "mean_ttft_ms": "fast"}), "field 'mean_ttft_ms': 'fast' is not a number"),
        (json.dumps({**VLLM, "request_rate": "trace"}), "field 'request_rate'"),
        (json.dumps({**VLLM, "model_id": ""}), "field 'model': .*--model"),
        (json.dumps({"benchmarks": [1]}), r"benchmarks\[0\]"),
        (json.dumps({"benchmarks": {}}), "field 'benchmarks'"),
        (json.dumps({**AIPERF, "time_to_first_token": 3}), "field 'time_to_first_token'"),
    ],
)
def test_bad_files_are_refused_by_place(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        results_table(as_user_file(text.encode(), TRUTH, "r.json"), SAID)


def test_results_are_predicted_beside_the_machine_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(VLLM))
    found = rl.check(str(file), on="1xH100-SXM", engine="vllm 0.11").as_dict()
    assert {row["status"] for row in found["rows"]} == {"scored"}
    (rate,) = (row for row in found["rows"] if row["metric"] == "output_tok_s")
    assert rate["measured"] == 512
    assert rate["low"] < rate["predicted"] < rate["high"]
    assert run(["check", str(file)]) == 2
    assert "say --on" in capsys.readouterr().err
    table = tmp_path / "t.tsv"
    table.write_text("model\tscenario\tisl\tosl\tmetric\tvalue\tunit\n")
    assert run(["check", str(table), "--on", "1xH100-SXM"]) == 2
