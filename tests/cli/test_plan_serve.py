"""`plan --serve`, end to end and in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

ASKED = ["plan", "llama-3.1-8b", "--serve", "--on", "4xH100-SXM"]
TRAFFIC = ["--rate", "50", "--requests", "200", "--prompt", "500-1500", "--output", "50-150"]
SLO = ["--slo", "ttft=300ms,tpot=30ms"]
SMALL = [*ASKED, *TRAFFIC, *SLO]
RANKED = {
    "deployments", "devices", "goodput_rps", "goodput_per_usd", "attained", "overloaded", "ttft", "tpot", "latency",
    "output_tokens_per_s", "energy_j_per_token", "carbon_kg_per_token", "kept",
}  # fmt: skip


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, _ = ask(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)


def test_the_best_deployments_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *SMALL)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "llama-3.1-8b on 4xH100-SXM: poisson arrivals at 50/s, 200 requests"
    for name in ("best", "goodput", "fewest devices"):
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert "deployments replayed with their queues" in out
    assert max(map(len, lines)) <= 100


def test_the_same_words_print_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, *SMALL) == ask(capsys, *SMALL)


def test_json_keys_are_stable(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *SMALL, "--top", "3")
    assert set(answer) == {
        "best",
        "fewest",
        "bound_devices",
        "bound_spent",
        "considered",
        "pruned",
        "refused",
        "assumed",
    }
    assert len(answer["best"]) == 3
    known = {"known", "what_if", "sensitivities"}
    assert all(set(one) - known == RANKED for one in [*answer["best"], answer["fewest"]])
    assert known <= set(answer["best"][0]) & set(answer["fewest"])
    assert answer["considered"] > 36  # 36 without pools
    first = answer["best"][0]
    assert first["devices"] == sum(one["tp"] * one["pp"] * one["dp"] * one["instances"] for one in first["deployments"])


def test_better_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Who keeps to the objective, on fewer devices, with shorter gaps."""
    best = ask_json(capsys, *SMALL, "--top", "20")["best"]
    keys = [(-min(one["attained"] / 0.99, 1.0), one["devices"], one["tpot"]["p99_s"]) for one in best]
    assert [(round(kept, 2), devices) for kept, devices, _ in keys] == sorted(
        (round(kept, 2), devices) for kept, devices, _ in keys
    )


def test_the_best_deployment_replays_as_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Given back to `simulate` under the search's router, it has the same quantiles."""
    best = ask_json(capsys, *SMALL, "--no-pools")["best"][0]
    (one,) = best["deployments"]
    words = [f"--{name}={one[name]}" for name in ("tp", "pp", "instances")]
    words += [f"--{name.replace('_', '-')}={one[name]}" for name in ("token_budget", "max_seqs") if one[name]]
    again = ask_json(capsys, "simulate", "llama-3.1-8b", *ASKED[3:], *TRAFFIC, *SLO, *words, "--router=least-loaded")
    assert again["tpot"] == pytest.approx(best["tpot"], rel=1e-9)
    assert again["attained"] == best["attained"]


def test_what_is_stated_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tp", "2", "--max-seqs", "32", "--kv", "fp8", "--engine", "sglang", "--no-pools", "--top", "50"]
    best = ask_json(capsys, *SMALL, *words)["best"]
    stated = {(d["tp"], d["max_seqs"], d["kv"], d["engine"]) for one in best for d in one["deployments"]}
    assert stated == {(2, 32, "fp8", "sglang")}


def test_formats_are_narrowed_where_it_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    def formats(*words: str) -> set[str]:
        best = ask_json(capsys, *SMALL, "--tp", "1", "--pp", "1", "--no-pools", "--top", "50", *words)["best"]
        return {one["weights"] for each in best for one in each["deployments"]}

    assert (formats(), formats("--quantize")) == ({""}, {"", "fp8"})


def test_pools_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *SMALL, "--no-pools", "--top", "100")
    assert {len(one["deployments"]) for one in answer["best"]} == {1}
    assert answer["considered"] == 36


def test_the_fewest_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """One fewer instance of the same deployment does not keep to the objective."""
    answer = ask_json(capsys, *SMALL[:5], "--rate", "80", *TRAFFIC[2:], *SLO, "--min-devices", "--no-pools")
    (one,) = answer["fewest"]["deployments"]
    assert answer["fewest"]["attained"] >= 0.99
    assert one["instances"] > 1
    fewer = [f"--{name}={one[name]}" for name in ("tp", "pp")] + [f"--instances={one['instances'] - 1}"]
    fewer += [f"--{name.replace('_', '-')}={one[name]}" for name in ("token_budget", "max_seqs") if one[name]]
    words = ["--rate", "80", *TRAFFIC[2:], *SLO, *fewer, "--router=least-loaded"]
    assert ask_json(capsys, "simulate", "llama-3.1-8b", *ASKED[3:], *words)["attained"] < 0.99


@pytest.mark.parametrize("more", [[], ["--min-devices"]])
def test_an_objective_that_nothing_keeps_ends_with_1(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    words = [*ASKED[:3], "--on", "1xH100-SXM", "--rate", "400", *TRAFFIC[2:], "--slo", "ttft=1ms", *more]
    code, out, err = ask(capsys, *words)
    assert (code, "Best deployments" in out) == (1, True)
    assert err.startswith(
        "error: no deployment keeps 99% of requests to TTFT <= 1 ms, the best keeps 0.0%; the least of"
    )
    code, out, _ = ask(capsys, *words, "--json")
    answer = json.loads(out)
    assert (code, answer["fewest"]) == (1, None)
    assert answer["best"]
    assert answer["error"] in err


def test_nothing_that_starts_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3.1-405b", "--serve", "--on", "1xRTX-4090", "--rate", "1"]
    code, out, err = ask(capsys, *words)
    assert (code, out) == (1, "")
    assert err.startswith("error: no deployment of llama-3.1-405b can serve on 1xRTX-4090: weights and workspace leave")
    code, out, _ = ask(capsys, *words, "--json")
    answer = json.loads(out)
    assert (code, answer["best"], answer["fewest"]) == (1, [], None)
    assert answer["error"] in err


def test_reasons_of_refusal_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """70B in 16 bits starts on 2 of 80 GB at least: the shapes of one device are refused."""
    words = ["plan", "llama-3.1-70b", "--serve", "--on", "4xH100-SXM", "--rate", "1", "--requests", "50", "--no-pools"]
    answer = ask_json(capsys, *words)
    assert all(one["deployments"][0]["tp"] * one["deployments"][0]["pp"] > 1 for one in answer["best"])
    assert answer["refused"]["weights and workspace leave no room for the cache"] >= 6
    assert "not possible: weights and workspace leave no room" in ask(capsys, *words)[1]


def test_a_scenario_file_equals_its_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'model = "llama-3.1-8b"\ncluster = "4xH100-SXM"\n[workload]\nrate = 50\nrequests = 200\nprompt = "500-1500"\n'
        'output = "50-150"\nslo = "ttft=300ms,tpot=30ms"\n[plan]\ntp = 2\n',
        encoding="utf-8",
    )
    assert ask(capsys, "plan", str(path), "--serve") == ask(capsys, *SMALL, "--tp", "2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prefill", "1xtp1", "--decode", "1xtp1"], "field '--prefill': the search chooses pools itself"),
        (["--autoscale", "high=9,low=1"], "field '--autoscale': a search leaves the fleet as it is"),
        (["--rent", "H100-SXM"], "field '--on': --rent chooses among its own offers"),
        (["--global-batch", "8"], "field '--global-batch': is an option of training, not of serving"),
        (["--engine", "vlm"], "unknown engine 'vlm'; nearest: vLLM"),
        (["--slo", "ttft"], "'ttft' is no bound"),
        (["--tp", "16"], "16 devices are asked for"),
        (["--trace", "azure-conv"], "prompt is said beside a trace"),
    ],
)
def test_words_that_cannot_be_used(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, out, err = ask(capsys, *SMALL, *words)
    assert (code, out) == (2, "")
    assert told in err


def test_the_fewest_of_what_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *ASKED, *TRAFFIC, "--min-devices")
    assert (code, out) == (2, "")
    assert "field '--slo': --min-devices needs an objective" in err


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = ask(capsys, *SMALL)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = ask(capsys, *SMALL)
    assert (piped[2], piped[1]) == ("", shown[1])
    assert "replaying deployments" in shown[2]


def test_formats_that_the_devices_lack_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rate", "1", "--requests", "10", "--prompt", "64", "--output", "4"]
    found = ask_json(capsys, "plan", "llama-3.2-1b", "--serve", "--on", "1xT4", *few)
    assert any("T4 multiplies no bf16" in text for text in found["assumed"])
