"""`simulate` and `predict --serve`, end to end and in this process."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.facts.engines import newest_policy

MODEL = ["llama-3.1-8b", "--on", "2xH100-SXM"]
LENGTHS = ["--prompt", "128", "--output", "16"]
SMALL = ["simulate", *MODEL, "--rate", "4", "--requests", "50", *LENGTHS]
SLO = ["--slo", "ttft=1s,tpot=50ms"]
HEADER = "arrival_s,input_tokens,output_tokens\n"
KEYS = {
    "model", "cluster", "deployments", "engines", "traffic", "overloaded", "ttft", "tpot", "itl", "latency", "ends",
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "attained", "goodput_rps", "hit_share", "refused",
    "shares", "preemptions", "moves", "adapter_loads", "iterations", "span_s", "power_w", "energy_j", "carbon_kg",
    "water_l", "embodied_kg", "devices_worn",
    "usd_per_h", "usd_per_million_output_tokens", "goodput_per_usd", "loans", "merges", "failures", "starts",
    "techniques", "longest_tokens", "groups", "slo", "fixed", "sessions",
    "instances_up", "idle_devices", "known", "what_if", "sensitivities", "intervals", "sampling", "window_s", "steady",
    "reasons", "decode_parts_s", "prefill_parts_s", "capacities", "series_s", "series", "rungs", "evidence", "assumed",
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The clock is compiled once, outside the tests' own times."""
    with redirect_stdout(StringIO()):
        run([*SMALL, "--json"])


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = ask(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def trace(folder: Path, rows: str, name: str = "mine.csv") -> str:
    path = folder / name
    path.write_text(HEADER + rows, encoding="utf-8")
    return str(path)


# answers ---------------------------------------------------------------------------------------------


def test_a_replay_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *SMALL, *SLO)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("llama-3.1-8b on 2xH100-SXM: poisson arrivals at 4/s, 50 requests")
    for name in ("deployment", "engine", "TTFT", "TPOT", "throughput", "goodput", "power", "cost", "limited by"):
        assert any(line.startswith(f"  {name} ") for line in lines), name
    for title in ("Latency", "Memory per device", "Over time", "Where an iteration's time goes", "Notes"):
        assert title in lines
    assert "100.0% of all" in out
    assert "OVERLOADED" not in out
    assert "nan" not in out
    assert max(map(len, lines)) <= 100


def test_the_same_words_print_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, *SMALL) == ask(capsys, *SMALL)
    assert ask(capsys, *SMALL, "--json") == ask(capsys, *SMALL, "--json")


def test_json_keys_are_stable(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *SMALL, *SLO)
    assert set(answer) == KEYS
    for name in ("ttft", "tpot", "itl", "latency"):
        assert set(answer[name]) == {"mean_s", "p50_s", "p90_s", "p95_s", "p99_s"}
        assert 0 < answer[name]["p50_s"] <= answer[name]["p90_s"] <= answer[name]["p95_s"] <= answer[name]["p99_s"]
    assert (answer["attained"], answer["overloaded"], answer["refused"]) == (1.0, None, 0)
    assert answer["traffic"]["requests"] == 50
    assert answer["deployments"][0]["instances"] == 2
    assert answer["evidence"] == "assumed"


def test_numbers_that_follow_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """50 requests of 128 and 16 tokens; energy is power times time; two H100s at their hourly price."""
    answer = ask_json(capsys, *SMALL, *SLO)
    assert answer["output_tokens_per_s"] == pytest.approx(16 * answer["requests_per_s"])
    assert answer["total_tokens_per_s"] == pytest.approx(144 * answer["requests_per_s"])
    assert answer["energy_j"] == pytest.approx(answer["power_w"] * answer["span_s"])
    price = answer["usd_per_h"] / 3600 / answer["output_tokens_per_s"] * 1e6
    assert answer["usd_per_million_output_tokens"] == pytest.approx(price)
    latency = answer["ttft"]["mean_s"] + 15 * answer["tpot"]["mean_s"]
    assert answer["latency"]["mean_s"] == pytest.approx(latency)
    quick, slow = answer["ends"]
    for kind in ("ttft", "tpot", "latency"):
        assert quick[kind]["p50_s"] < answer[kind]["p50_s"] < slow[kind]["p50_s"]
    held = answer["capacities"][0]
    assert held["cache_tokens"] == int(held["cache_bytes"] / held["token_bytes"])


def test_twice_the_instances_cost_twice(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (ask_json(capsys, *SMALL, "--instances", count) for count in ("1", "2"))
    assert two["usd_per_h"] == pytest.approx(2 * one["usd_per_h"])
    assert one["ttft"]["mean_s"] >= two["ttft"]["mean_s"]


def test_a_scenario_file_equals_its_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'model = "llama-3.1-8b"\ncluster = "2xH100-SXM"\n[workload]\nrate = 4\nrequests = 50\nprompt = 128\n'
        'output = "16"\nslo = "ttft=1s,tpot=50ms"\n[plan]\nengine = "sglang"\ntp = 2\nkv = "fp8"\n',
        encoding="utf-8",
    )
    flags = [*SMALL, *SLO, "--engine", "sglang", "--tp", "2", "--kv", "fp8"]
    assert ask(capsys, "simulate", str(path)) == ask(capsys, *flags)
    assert ask(capsys, "simulate", str(path), "--tp", "1") == ask(capsys, *flags[:-4], "--tp", "1", "--kv", "fp8")


def test_a_trace_with_bad_rows_is_answered_and_the_rows_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = trace(tmp_path, "0,100,10\n1,-3,10\n2,many,3\n3,50,4\n")
    code, out, err = ask(capsys, "simulate", *MODEL, "--trace", path)
    assert (code, err) == (0, "")
    assert "mine.csv, 2 requests" in out
    assert "2 rows of the trace not used: line 3, input_tokens" in " ".join(out.split())
    dropped = ask_json(capsys, "simulate", *MODEL, "--trace", path)["traffic"]["dropped"]
    assert [row.split(":")[0] for row in dropped] == ["line 3, input_tokens", "line 4, input_tokens"]


def test_a_trace_of_one_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask_json(capsys, "simulate", *MODEL, "--trace", trace(tmp_path, "5,100,1\n"), *SLO)
    assert (answer["traffic"]["requests"], answer["attained"]) == (1, 1.0)
    assert answer["tpot"]["p50_s"] is None  # a single token has no interval


def test_a_shipped_trace_cut_and_stretched(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "simulate", *MODEL, "--trace", "azure-conv", "--requests", "100", "--rate", "5")
    assert answer["traffic"]["requests"] == 100
    assert answer["traffic"]["rate_per_s"] == pytest.approx(5.0)


def test_users_of_a_closed_loop(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "simulate", *MODEL, "--concurrency", "4", "--requests", "40", *LENGTHS)
    assert answer["traffic"]["name"] == "closed loop of 4"
    assert max(row[2] for row in answer["series"]) <= 4


def test_pools_send_every_cache_once(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *SMALL, "--prefill", "1xtp1", "--decode", "1xtp1")
    assert [one["role"] for one in answer["deployments"]] == ["prefill", "decode"]
    assert answer["moves"] == 50


def test_pools_send_recurrent_states_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A model without attention leaves no token behind; its states of megabytes take as long as any bytes."""
    words = ["simulate", "mamba2-2.7b", *MODEL[1:], *SMALL[4:], "--prefill", "1xtp1", "--decode", "1xtp1"]
    answer = ask_json(capsys, *words)
    assert answer["moves"] == 50


def test_a_prompt_may_name_a_block_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,prefix_block_ids\n0,1600,20,1 1\n9,1600,20,1 1\n18,1600,20,2 1\n",
        encoding="utf-8",
    )
    answer = ask_json(capsys, "simulate", MODEL[0], "--on", "1xH100-SXM", "--trace", str(path))
    assert answer["hit_share"] == pytest.approx(2 * 512 / 4800)  # the second of three prompts


def test_a_divided_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "llama-3.1-8b", "--on", "1xH100-SXM", "--rate", "4", "--requests", "40"]
    _, out, _ = ask(capsys, *words, "--split", "--split-share", "0.4")
    assert "split, 40% for prompts" in " ".join(out.split())
    assert ask_json(capsys, *words, "--split")["deployments"][0]["split"] is True


def test_experts_on_devices_of_another_kind_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "mixtral-8x7b", "--on", "4xL40S", "--rate", "1", "--requests", "20", "--prompt", "128"]
    words += ["--output", "16", "--dp", "4", "--beside", "4xH100-SXM", *SLO]
    code, out, _ = ask(capsys, *words, "--expert-devices", "4")
    assert code == 0
    assert "1 x (dp 4) experts on 4 H100-SXM, 3 micro-batches" in out
    assert "requests that keep to the objective for a dollar" in " ".join(out.split())
    assert "experts   79.18 GiB" in out
    assert run(words) == 2
    assert "field '--beside': says nothing of how many of these devices" in capsys.readouterr().err


def test_experts_apart_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "mixtral-8x7b", "--on", "8xH100-SXM", "--rate", "4", "--requests", "40", "--dp", "4"]
    out = " ".join(ask(capsys, *words, "--expert-devices", "4", "--micro-batches", "2")[1].split())
    assert "experts on 4 devices, 2 micro-batches" in out
    assert "other micro-batches" in out
    found = ask_json(capsys, *words, "--expert-devices", "4")
    assert found["capacities"][0]["experts_bytes"] > 0
    assert run([*words, "--apart"]) == 2
    assert "field '--apart': says nothing of how many devices hold the experts" in capsys.readouterr().err


def test_placed_experts_are_paid_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    rows = [
        f"{layer},{expert},{load}" for layer in range(2) for expert, load in enumerate((30, 20, 12, 10, 9, 8, 6, 5))
    ]
    path.write_text("layer,expert,load\n" + "\n".join(rows) + "\n", encoding="utf-8")
    words = [
        "simulate",
        "mixtral-8x7b",
        "--on",
        "8xH100-SXM",
        "--rate",
        "4",
        "--requests",
        "40",
        "--dp",
        "8",
        "--ep",
        "8",
    ]
    words += ["--expert-loads", str(path), "--expert-placement"]
    order, even = (ask_json(capsys, *words, how) for how in ("linear", "balanced"))
    assert order["deployments"][0]["expert_imbalance"] == pytest.approx(2.4)
    assert order["tpot"] == even["tpot"]  # a rank holds one expert either way
    placed = ask_json(capsys, *words, "balanced", "--expert-redundant", "8")
    assert placed["deployments"][0]["expert_imbalance"] < 1.1
    assert placed["prefill_parts_s"]["experts"] < order["prefill_parts_s"]["experts"]
    assert "fullest expert rank 2.40 times the mean" in " ".join(ask(capsys, *words, "linear")[1].split())


def test_lengths_that_nobody_gave_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "simulate", *MODEL, "--arrivals", "burst", "--requests", "4")
    assert answer["assumed"] == ["prompt of 1024 tokens, as none was given", "output of 256 tokens, as none was given"]
    assert answer["traffic"]["rate_per_s"] is None


def test_overload_is_said_where_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Short prompts at leisure, then forty long ones at once: a minute of work at the end of a minute and a half."""
    calm, crowd = "".join(f"{second},100,10\n" for second in range(60)), "60,30000,10\n" * 40
    path = trace(tmp_path, calm + crowd)
    code, out, _ = ask(capsys, "simulate", "llama-3.1-8b", "--on", "1xH100-SXM", "--trace", path)
    assert (code, "\nOVERLOADED: " in out) == (0, True)
    words = ["simulate", "llama-3.1-8b", "--on", "1xH100-SXM", "--trace", trace(tmp_path, calm, "calm.csv")]
    assert ask_json(capsys, *words)["overloaded"] is None


def test_speculation_and_narrow_formats_help(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ask_json(capsys, *SMALL)
    drafted = ask_json(capsys, *SMALL, "--draft-tokens", "3", "--acceptance", "0.8")
    narrow = ask_json(capsys, *SMALL, "--weights", "fp8", "--kv", "fp8")
    assert drafted["tpot"]["p50_s"] < plain["tpot"]["p50_s"]
    assert narrow["tpot"]["p50_s"] < plain["tpot"]["p50_s"]
    assert narrow["capacities"][0]["token_bytes"] == plain["capacities"][0]["token_bytes"] / 2


def test_instances_that_the_load_does_not_need_are_not_paid(capsys: pytest.CaptureFixture[str]) -> None:
    """One of four is enough for 4 requests a second: the others are never started, nor paid."""
    words = ["simulate", "llama-3.1-8b", "--on", "4xH100-SXM", "--rate", "4", "--requests", "100", *LENGTHS]
    always = ask_json(capsys, *words)
    idle = ask_json(capsys, *words, "--autoscale", "high=50,low=1,start=5s")
    assert idle["usd_per_h"] == pytest.approx(always["usd_per_h"] / 4)


def test_a_fleet_that_starts_late_pays_less_and_waits_longer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "llama-3.1-8b", "--on", "4xH100-SXM", "--rate", "60", "--requests", "600"]
    words += ["--prompt", "1000", "--output", "100"]
    scale = ["--autoscale", "high=4,low=1,period=5s,start=3s"]
    always, late = ask_json(capsys, *words), ask_json(capsys, *words, *scale)
    assert always["usd_per_h"] / 4 < late["usd_per_h"] < always["usd_per_h"]
    assert late["ttft"]["mean_s"] > always["ttft"]["mean_s"]
    assert " starts of instances; " in ask(capsys, *words, *scale)[1]


def test_the_fewest_instances_are_always_up(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "llama-3.1-8b", "--on", "4xH100-SXM", "--rate", "4", "--requests", "100", *LENGTHS]
    one = ask_json(capsys, *words, "--instances", "1")["usd_per_h"]
    assert ask_json(capsys, *words, "--autoscale", "high=0.1,low=0.01,period=1s,start=5s")["usd_per_h"] >= one


def test_requests_outlive_their_instances(capsys: pytest.CaptureFixture[str]) -> None:
    """Up for five seconds and down for one, on average: every request still ends with all its tokens, and later."""
    words = ["simulate", *MODEL, "--rate", "20", "--requests", "500", "--prompt", "500", "--output", "200"]
    calm, broken = ask_json(capsys, *words), ask_json(capsys, *words, "--failures", "up=5s,down=1s")
    assert broken["refused"] == 0
    tokens = [answer["output_tokens_per_s"] / answer["requests_per_s"] for answer in (calm, broken)]
    assert tokens == pytest.approx([200.0, 200.0])
    assert broken["latency"]["mean_s"] > calm["latency"]["mean_s"]
    assert "failures and " in ask(capsys, *words, "--failures", "up=5s,down=1s")[1]


def test_front_ends_that_do_not_know_of_each_other_let_requests_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """Two instances with one place each: of one front end turns alternate, of many two requests in a row may meet."""
    fleet = [
        "simulate",
        "llama-3.1-8b",
        "--on",
        "2xH100-SXM",
        "--max-seqs",
        "1",
        "--arrivals",
        "closed",
        "--concurrency",
        "2",
    ]
    words = [*fleet, "--requests", "200", "--prompt", "100", "--output", "50"]
    one, same, many = (ask_json(capsys, *words, *more) for more in ([], ["--fronts", "1"], ["--fronts", "50"]))
    assert same["ttft"] == one["ttft"]
    assert many["ttft"]["mean_s"] > 2 * one["ttft"]["mean_s"]
    assert many["requests_per_s"] < one["requests_per_s"]


# batches ---------------------------------------------------------------------------------------------

BATCH = ["predict", "llama-3.1-8b", "--serve", "--on", "1xH100-SXM"]


def test_a_static_batch(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *BATCH, "--batch", "32", "--prompt", "1024", "--output", "128")
    assert set(answer) == KEYS
    assert (answer["traffic"]["requests"], answer["attained"]) == (32, None)
    assert max(row[2] for row in answer["series"]) == 32
    code, out, _ = ask(capsys, *BATCH, "--batch", "32", "--prompt", "1024", "--output", "128")
    assert (code, "a burst, 32 requests" in out) == (0, True)


def test_a_queue_that_never_runs_dry_is_no_slower_than_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--prompt", "512", "--output", "64"]
    queue = ask_json(capsys, *BATCH, *lengths)
    batch = ask_json(capsys, *BATCH, "--batch", "8", *lengths)
    assert queue["traffic"]["requests"] >= 64
    assert queue["output_tokens_per_s"] > batch["output_tokens_per_s"]


def test_how_a_scenario_arrives_does_not_matter_to_a_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'model = "llama-3.1-8b"\ncluster = "1xH100-SXM"\n[workload]\nrate = 4\nprompt = 512\noutput = 64\n',
        encoding="utf-8",
    )
    from_flags = ask_json(capsys, *BATCH, "--batch", "8", "--prompt", "512", "--output", "64")
    assert ask_json(capsys, "predict", str(path), "--serve", "--batch", "8") == from_flags


# what is impossible, and what cannot be used ---------------------------------------------------------


def test_an_engine_that_will_not_start_names_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, "simulate", "llama-3.1-70b", "--on", "1xH100-SXM", "--rate", "1")
    assert (code, out) == (1, "")
    assert err.startswith("error: llama-3.1-70b will not start on 1xH100-SXM: weights take 131.4 GiB")
    for part in ("workspace", "of 79.18 GiB a device", "leaves 0 B for the cache", "(tp, pp)"):
        assert part in err


def test_requests_that_no_rank_can_hold_end_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *SMALL[:-4], "--prompt", "2M", "--output", "16")
    assert (code, "50 requests refused" in out, "nan" not in out) == (1, True, True)
    assert err.startswith("error: every request is longer than the ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "vlm"], "unknown engine 'vlm'; nearest: vLLM"),
        (["--engine-file", "/no/such.toml"], "/no/such.toml: no such file"),
        (["--slo", "soon"], "field '--slo': 'soon' is no bound; write ttft=1s, tpot.p90=50ms, itl.p99=80ms"),
        (["--slo", "ttft=1kg"], "unknown unit 'kg'; wanted s"),
        (["--prefill", "1xtp1"], "a prefill pool alone cannot serve; give both"),
        (["--prefill", "1xtp1", "--decode", "1xtp1", "--instances", "1"], "instances are said beside pools"),
        (["--tp", "16"], "16 devices are asked for, 2xH100-SXM has 2"),
        (["--instances", "5"], "5 devices are asked for"),
        (["--ep", "2"], "ep = 2 does not divide"),
        (["--arrivals", "poison"], "nearest: poisson"),
        (["--concurrency", "4"], "rate is said, which arrivals 'closed' do not have"),
        (["--cv", "2"], "cv is said, which arrivals 'poisson' do not have"),
        (["--sessions", "chained"], "sessions is said, but no trace"),
        (["--trace", "azure-conv"], "prompt is said beside a trace, which has its own"),
        (["--rate", "1e-9"], "the last request arrives at "),
        (["--prompt", "1200-800"], "field '--prompt': '1200-800' ends before it begins"),
        (["--memory-fraction", "2"], "field '--memory-fraction': '2' is out of range"),
        (["--autoscale", "high=16"], "leaves out the load at which instances start or stop; write high=16,low=4"),
        (["--autoscale", "high=1,low=4"], "low < high"),
        (["--autoscale", "queue-scalin"], "unknown autoscaler 'queue-scalin'; nearest: queue-scaling"),
        (["--autoscale", "queue-scaling,high=4"], "write it in its brackets, queue-scaling(high=4)"),
        (["--autoscale", "trend-scaling(window_s=0),start=9s"], "window_s = 0"),
        (["--autoscale", "ttft-scaling"], "the objective has no TTFT; say one, such as --slo ttft=1s"),
        (["--failures", "up=30d"], "needs both; write up=30d,down=10min"),
        (["--fronts", "4", "--router", "prefix"], "turns are taken under --router round-robin alone, this is prefix"),
        (["--fronts", "0"], "fronts"),
        (["--weights", "fp3"], "'fp3' is no number format"),
        (["--on", "2xH900"], "field '--on': unknown cluster 'H900'; nearest: "),
    ],
)
def test_words_that_cannot_be_used(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, out, err = ask(capsys, *SMALL, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert "'--'" not in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["simulate", "llama-3.1-8b"], "field '--on': say which machine"),
        (["simulate", "llama-9", "--on", "1xH100-SXM"], "field 'MODEL': unknown model 'llama-9'"),
        (["simulate", *MODEL], "no traffic is said; give --rate, --concurrency, --trace, or --arrivals burst"),
        (["simulate", *MODEL, "--trace", "azure-con"], "unknown trace 'azure-con'; nearest: azure-conv"),
        (["simulate", *MODEL, "--trace", "/no/such.csv"], "/no/such.csv: no such file"),
        (["simulate", *MODEL, "--arrivals", "closed"], "give --concurrency"),
        (["simulate", *MODEL, "--trace", "azure-conv", "--rate", "1", "--concurrency", "2"], "rate and concurrency"),
        (
            ["simulate", "llama-3.1-8b", "--on", "4xH100-SXM", "--tp", "3", "--rate", "1"],
            "does not divide 32 attention",
        ),
        (["simulate", "missing.toml"], "missing.toml: no such file"),
        ([*BATCH, "--batch", "3", "--zero", "1"], "field '--zero': is an option of training, not of serving"),
        ([*BATCH, "--batch", "0"], "field '--batch': '0' is out of range"),
    ],
)
def test_commands_that_cannot_be_answered(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, out, err = ask(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    ("rows", "told"),
    [("", "no rows below the header"), ("x,y,z\n", ":2: field 'arrival_s': no row can be used (1 dropped)")],
)
def test_a_trace_without_a_request(capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: str, told: str) -> None:
    path = trace(tmp_path, rows)
    code, out, err = ask(capsys, "simulate", *MODEL, "--trace", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert told in err


def test_a_bad_word_of_a_file_is_told_by_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'model = "llama-3.1-8b"\ncluster = "1xH100-SXM"\n[workload]\nrate = 4\n[plan]\nmax_seq = 64\n', encoding="utf-8"
    )
    code, out, err = ask(capsys, "simulate", str(path))
    assert (code, out) == (2, "")
    assert err == f"error: {path}:6: field 'plan.max_seq': unknown field; nearest: max_seqs, mixed\n"


def test_a_fair_queue_and_the_urgent_are_told_by_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nine requests of one client are there before one of another, which is served second all the same."""
    rows = [f"0.0,500,100,{'few' if place == 9 else 'many'},{0 if place == 9 else 1}" for place in range(10)]
    file = tmp_path / "asked.csv"
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,client,priority", *rows]))
    words = ["simulate", "llama-3.1-8b", "--on", "1xH100-SXM", "--trace", str(file), "--max-seqs", "1"]
    fair = ask_json(capsys, *words, "--queue", "fair")
    assert [(one["name"], one["requests"]) for one in fair["shares"]] == [("many", 9), ("few", 1)]
    assert fair["shares"][1]["ttft"]["p50_s"] < 0.25 * fair["shares"][0]["ttft"]["p99_s"]
    assert [one["name"] for one in ask_json(capsys, *words, "--displaces")["shares"]] == ["0", "1"]
    assert ask_json(capsys, *words)["shares"] == []
    assert "By client" in ask(capsys, *words, "--queue", "fair")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--queue", "fair"], "names none; give a trace with a column client or session"),
        (["--displaces"], "have the same priority"),
        (["--swap-blocks", "1"], "about preemption swap, which is not said"),
        (["--adapters", "2", "--adapter-slots", "3"], "needs 1 to the number of adapters, 2"),
        (["--kv-rank", "160"], "say kv_fetched as well"),
        (["--kv-kept", "64", "--preemption", "swap"], "preemption swap"),
        (
            ["--nano-tokens", "64", "--draft-tokens", "1", "--acceptance", "0.5"],
            "nano-batches (nano_tokens) both fill",
        ),
    ],
)
def test_queues_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, _, err = ask(
        capsys, "simulate", "llama-3.1-8b", "--on", "1xH100-SXM", "--rate", "1", "--requests", "9", *words
    )
    assert code == 2
    assert told in err


def test_the_backend_assumed_for_many_ranks_is_told_with_the_flag_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SGLang itself gathers all tokens unless it is told otherwise; text and JSON say what was taken instead."""
    asked = [
        "predict", "deepseek-v3", "--serve", "--on", "2x8xH200-SXM", "--engine", "sglang", "--dp", "16", "--ep", "16",
        "--weights", "fp8_block", "--batch", "16", "--prompt", "64", "--output", "8",
    ]  # fmt: skip
    told = (
        "experts on 16 ranks run by deepep, which SGLang's documentation advises for so many; SGLang's own default is"
        " 'none': --expert-backend none prices that"
    )
    assert told in ask_json(capsys, *asked)["assumed"]
    assert told in " ".join(ask(capsys, *asked)[1].split())
    assert not [text for text in ask_json(capsys, *asked, "--expert-backend", "none")["assumed"] if "backend" in text]


def test_two_batches_overlap_with_attention_data_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    """What SGLang and vLLM do was refused with `--dp`."""
    asked = [
        "simulate", "deepseek-v3", "--on", "2x8xH200-SXM", "--engine", "sglang", "--dp", "16", "--ep", "16",
        "--weights", "fp8_block", "--arrivals", "burst", "--requests", "64", "--prompt", "2048", "--output", "4",
    ]  # fmt: skip
    plain, cut = (ask_json(capsys, *asked, *words) for words in ([], ["--two-batch-overlap"]))
    assert cut["ttft"]["p50_s"] < 0.9 * plain["ttft"]["p50_s"]
    assert cut["deployments"][0]["two_batch_overlap"] is True


def test_requests_beyond_the_model_s_positions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """llama-3.1-8b has 131,072 positions: 131,000 + 72 fit, one more does not."""
    words = ("simulate", "llama-3.1-8b", "--on", "2xH100-SXM", "--tp", "2", "--arrivals", "burst", "--requests", "1")
    fits = ask_json(capsys, *words, "--prompt", "131000", "--output", "72")
    longer = ask_json(capsys, *words, "--prompt", "131000", "--output", "73")
    told = [text for text in longer["assumed"] if text not in fits["assumed"]]
    assert len(told) == 1
    assert "up to 131,073 tokens" in told[0]
    assert "131,072 positions" in told[0]


def test_a_checkpoint_in_few_bits_is_served_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    """gpt-oss-120b in mxfp4 starts on one H100; in 16 bits its 233 GB do not."""
    words = ("simulate", "gpt-oss-120b", "--on", "1xH100-SXM", "--concurrency", "1", "--requests", "2")
    lengths = ("--prompt", "100", "--output", "10")
    answer = ask_json(capsys, *words, *lengths)
    assert answer["deployments"][0]["weights"] == "w4a16_mxfp4"
    assert any("as in the checkpoint" in text for text in answer["assumed"])
    assert run([*words, *lengths, "--weights", "bf16"]) == 1
    assert "217.5 GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "told"), [("99.1", True), (newest_policy("vllm"), False), ("0.11", False), ("nightly", False)]
)
def test_a_version_beyond_what_is_known_is_told(capsys: pytest.CaptureFixture[str], version: str, told: bool) -> None:
    words = ("--rate", "1", "--requests", "9", "--engine", f"vllm {version}")
    code, out, _ = ask(capsys, "simulate", "gpt2", "--on", "1xH100-SXM", *words)
    assert code == 0
    said = f"vllm {version} does as {newest_policy('vllm')}, the newest whose habits are known"
    assert (said in " ".join(out.split())) is told


def test_the_datasheets_rates_alone_answer_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """No fit of the device's own answers, and a step is still within a factor of two of what those say."""
    asked = ["predict", *MODEL, "--serve", *LENGTHS, "--batch", "8", "--json"]
    usual, bare = (json.loads(ask(capsys, *asked, *more)[1]) for more in ([], ["--evidence", "datasheet"]))
    assert set(usual["rungs"].values()) == {"fitted"}
    assert set(bare["rungs"].values()) == {"borrowed"}
    for name in ("ttft", "tpot"):
        assert 0.5 < bare[name]["p50_s"] / usual[name]["p50_s"] < 2.0
        assert bare[name]["p50_s"] != usual[name]["p50_s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", *MODEL, "--serve", "--trace", "timeline.json"], "--trace"),
        (["plan", *MODEL, "--serve", "--rate", "1", "--exhaustive"], "--exhaustive"),
        (["plan", MODEL[0], "--serve", "--rate", "1", "--rent", "H100-SXM=2", "--evidence", "datasheet"], "--rent"),
        (["predict", *MODEL, "--serve", "--offload", "computed", "--evidence", "datasheet"], "--offload"),
    ],
)
def test_words_that_would_change_nothing_of_serving_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, _, err = ask(capsys, *words)
    assert code == 2
    assert said in err
