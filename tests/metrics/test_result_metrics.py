"""Metrics against numbers worked by hand, exhaustive search and a simulated queue; tables in every form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError, PlanError, UnknownNameError
from ridgeline.facts.store import sources
from ridgeline.metrics.metric import metric, metrics
from ridgeline.metrics.results import Results, read_results, shipped
from ridgeline.metrics.sort_search import sample_order, thresholds


def table(*rows: dict[str, Any]) -> Results:
    return Results(name="here", rows=rows)


def values(key: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return dict(metric(key).score(table(*rows)).values)


@pytest.mark.parametrize("key", metrics())
def test_each_metric_has_a_page_a_source_columns_and_refuses_a_table_without_them(key: str) -> None:
    one = metric(key)
    assert one.summary().endswith(".")
    assert all(told in sources() for told in one.source)
    assert one.columns
    with pytest.raises(InputError):
        one.score(table({"other": "word"}))


def test_fast_p_counts_right_tasks_that_exceed_the_threshold() -> None:
    rows = [{"speedup": s, "correct": c} for s, c in ((0.5, 1), (1.0, 1), (3.0, 1), (9.0, 0), (None, 1))]
    found = values("fast-p(p=0/1/2)", *rows)
    assert (found["fast_0"], found["fast_1"], found["fast_2"]) == (0.8, 0.2, 0.2)
    assert found["geometric_mean"] == pytest.approx(1.5 ** (1 / 3))


def test_speedups_count_a_missing_task_as_told() -> None:
    rows = [{"speedup": s} for s in (2.0, 4.0, "-")]
    assert values("speedups", *rows)["mean"] == 3.0
    assert values("speedups(missing=1)", *rows)["mean"] == pytest.approx(7 / 3)
    assert values("speedups(missing=1)", *rows)["largest_share"] == pytest.approx(4 / 7)


def test_expert_ratio_is_harmonic_and_a_broken_change_counts_as_none() -> None:
    rows = [{"speedup": 4.0, "expert": 2.0, "task": "a"}, {"speedup": "-", "expert": 10.0, "task": "b"}]
    found = metric("expert-ratio").score(table(*rows))
    assert found.values["ratio"] == pytest.approx(2 / (0.5 + 10))
    assert found.rows[0]["task"] == "b"
    with pytest.raises(InputError, match="above 0"):
        values("expert-ratio", {"speedup": 1.0, "expert": 0.0})


def test_proficiency_levels() -> None:
    prompts = {
        "none": [(0, 1), (0, 1)], "mixed": [(1, 1), (1, 0)], "some": [(1, 1), (0, 1)],
        "all": [(1, 1), (1, 1)], "one": [(1, 1)],
    }  # fmt: skip
    rows = [{"task": t, "correct": c, "as_asked": a} for t, each in prompts.items() for c, a in each]
    found = metric("proficiency").score(table(*rows))
    assert [row["proficiency"] for row in found.rows] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert found.values["mean"] == 0.5


def test_translation_parity_asks_time_and_memory() -> None:
    native = {"native_seconds": 1.0, "native_bytes": 100}
    rows = [
        {"correct": 1, "seconds": 1.05, "bytes": 100, **native}, {"correct": 1, "seconds": 1.0, "bytes": 110, **native},
        {"correct": 1, "seconds": 1.2, "bytes": 100, **native}, {"correct": 0, "compiled": 1, "seconds": 1.0, **native},
    ]  # fmt: skip
    found = values("translation", *rows)
    assert (found["right"], found["compiled"], found["timed"]) == (0.75, 1.0, 3)
    assert found["parity"] == pytest.approx(1 / 3)
    pairs = values(
        "translation", {"cuda_source": "__global__ f\n", "hip_source": "x"}, {"cuda_source": "", "hip_source": ""}
    )
    assert (pairs["pairs"], pairs["whole_pairs"], pairs["with_a_kernel"]) == (2, 1, 1)


def test_reasoning_length_keeps_the_shortest_right_sample_of_a_task() -> None:
    rows = [
        {"task": "easy", "tokens": 10, "correct": 1}, {"task": "easy", "tokens": 30, "correct": 1},
        {"task": "hard", "tokens": 90, "correct": 1}, {"task": "hard", "tokens": 50, "correct": 0},
    ]  # fmt: skip
    found = values("reasoning-length", *rows)
    assert (found["kept"], found["mean_kept"], found["rank_correlation"]) == (2, 50.0, 1.0)


def by_all(answers: np.ndarray) -> list[int]:
    """The first threshold of most agreement, by trying all."""
    count = answers.shape[1]
    scores = [[(line[:k] == 1).sum() + (line[k:] == 0).sum() for k in range(count + 1)] for line in answers]
    return [int(np.argmax(each)) for each in scores]


def test_thresholds_are_those_of_exhaustive_search() -> None:
    answers = np.random.default_rng(1).integers(0, 2, (40, 23)).astype(float)
    assert thresholds(answers).tolist() == by_all(answers)


def test_sort_search_beats_random_samples_where_models_share_an_order() -> None:
    """Models that differ in ability alone, and with noise, are foretold better than by the mean of as many samples."""
    draw = np.random.default_rng(0)
    ability, hardness = draw.uniform(0.1, 0.9, 60), draw.permutation(np.linspace(0, 1, 4000))
    sharp = (ability[:, None] > hardness).astype(float)
    assert np.all(np.diff(sharp[:, sample_order(sharp)], axis=1) <= 0)  # right, then wrong, for every model
    noisy = (ability[:, None] + draw.normal(0, 0.05, sharp.shape) > hardness).astype(float)
    for cells in (sharp, noisy):
        found = metric("sort-search(samples=100)").score(Results(name="m", cells=cells)).values
        assert found["accuracy_error_all_samples"] <= found["accuracy_error"] + 0.005
        assert found["accuracy_error"] < 0.9 * found["accuracy_error_random"]
        assert found["agreement"] > found["agreement_chance"]
        assert found["work_ratio"] == 40
    with pytest.raises(InputError, match="4000 samples"):
        metric("sort-search(samples=5000)").score(Results(name="m", cells=sharp))


def trace(launch_us: float, kernel_us: float, count: int = 100, overhead_us: float = 5.0) -> dict[str, Any]:
    """Events of a host that launches every `launch_us` and a device that runs each kernel for `kernel_us`, in order."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": launch_us * count}
    ]
    free = 0.0
    for place in range(count):
        told = place * launch_us
        start = max(told + overhead_us, free)
        free = start + kernel_us
        link = {"correlation": place}
        events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": told, "dur": 2.0, "args": link}
        )
        events.append(
            {"ph": "X", "cat": "kernel", "name": f"k{place % 4}", "ts": start, "dur": kernel_us, "args": link}
        )
    return {"traceEvents": events}


def test_launch_and_queue_time_of_a_simulated_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Host-bound: kernels times the overhead. Device-bound: the queue grows by the difference with each kernel."""
    files = []
    for kernel_us in (2.0, 8.0, 30.0, 60.0):
        files.append(str(tmp_path / f"{kernel_us}.json"))
        Path(files[-1]).write_text(json.dumps(trace(10.0, kernel_us)), encoding="utf-8")
    assert run(["score", *files, "--metric", "tklqt(chain=4)", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    small, _, long, _ = answer["scores"]
    assert small["tklqt_s"] == pytest.approx(100 * 5e-6)
    assert small["bound"] == "host"
    assert long["tklqt_s"] == pytest.approx((100 * 5 + 20 * 99 * 100 / 2) * 1e-6)
    assert long["bound"] == "device"
    assert small["idle_s"] == pytest.approx(small["latency_s"] - 100 * 2e-6)
    assert long["idle_s"] == pytest.approx(5e-6)
    assert answer["knee"] == 3
    assert small["fusible_chains"] == 25
    assert small["fusion_speedup_limit"] == 4.0


def test_a_trace_without_links_is_refused() -> None:
    events = [one for one in trace(10.0, 2.0)["traceEvents"] if one["cat"] != "cuda_runtime"]
    with pytest.raises(InputError, match="no kernel with its launch"):
        metric("tklqt").score(table(*events))


def test_published_tables_give_what_their_authors_tell() -> None:
    assert shipped() == ("cuda-l1", "swe-fficiency")
    own = read_results("cuda-l1").renamed({"speedup": "compiled"})
    on_a100 = Results(name="", rows=tuple(row for row in own.rows if row["device"] == "A100-PCIe"))
    found = metric("speedups(missing=1)").score(on_a100).values
    assert [round(found[name], 2) for name in ("mean", "max", "p75", "median", "p25")] == [
        2.77,
        69.01,
        2.55,
        1.72,
        1.14,
    ]
    assert (found["tasks"], found["faster"]) == (250, 203)
    tasks = read_results("swe-fficiency")
    assert len(tasks.rows) == 498
    assert sum(1 / float(row["expert"]) for row in tasks.rows) == pytest.approx(498 / 2.65, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "# told\ntask\tspeedup\tcorrect\nx\t2\t1\ny\t-\t0\n"),
        ("a.csv", "task,speedup,correct\nx,2,yes\ny,,no\n"),
        ("a.jsonl", '{"task": "x", "speedup": 2, "correct": true}\n{"task": "y", "speedup": null, "correct": false}\n'),
        ("a.json", '[{"task": "x", "speedup": 2, "correct": true},\n {"task": "y", "correct": false}]'),
        ("b.json", '{"x": [{"speedup": 2, "correct": true}], "y": [{"correct": false}]}'),
        ("c.json", '{"level1": {"x": {"speedup": 2, "correct": true}, "y": {"speedup": "", "correct": false}}}'),
        (
            "d.json",
            '{"kernels": [{"task": "x", "speedup": 2, "correct": true, "findings": []},\n'
            ' {"task": "y", "correct": false, "findings": [{"name": "wrong"}]}], "fast_p": {"fast_1": 0.5}}',
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_tables_are_read_in_every_form(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = read_results(str(path))
    assert [row["task"] for row in found.rows] == ["x", "y"]
    assert metric("fast-p(p=1)").score(found).values["fast_1"] == 0.5


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "empty"), ("a\tb\n1\n", "1 cells"), ('{"a": 1}\n{"b"\n', "not JSON"), ("speedup\nword\n", "no number")],
)
def test_bad_tables_are_refused_with_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told) as refused:
        metric("fast-p").score(read_results(str(path)))
    assert refused.value.file == str(path)


def test_a_matrix_may_be_a_numpy_file(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.eye(4))
    assert read_results(str(tmp_path / "m.npy")).matrix().shape == (4, 4)
    np.save(tmp_path / "m.npy", np.zeros(4))
    with pytest.raises(InputError, match="1 axes"):
        read_results(str(tmp_path / "m.npy"))


def test_the_command_lists_shows_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["score", "--json"]) == 0
    assert {one["key"] for one in json.loads(capsys.readouterr().out)["metrics"]} == set(metrics())
    assert run(["score", "--metric", "tklqt"]) == 0
    assert "correlation" in capsys.readouterr().out
    with pytest.raises(UnknownNameError, match="fast-p"):
        metric("fast-q")
    with pytest.raises(PlanError, match="unknown parameter"):
        metric("fast-p(q=1)")
    assert run(["score", "cuda-l1", "--metric", "fast-p", "--column", "speedup=defalt"]) == 2
    assert "default" in capsys.readouterr().err
    assert run(["score", "cuda-l1"]) == 2


def test_a_speedup_may_be_two_times() -> None:
    rows = [
        {"seconds": 2.0, "reference_seconds": 3.0, "correct": 1},
        {"seconds": 1.0, "reference_seconds": 1.0, "correct": 0},
    ]
    assert values("fast-p(p=1)", *rows)["fast_1"] == 0.5
    assert values("speedups", *rows)["mean"] == 1.5
    with pytest.raises(InputError, match="--column speedup="):
        values("fast-p", {"seconds": 1.0, "correct": 1})


def routes(*experts: tuple[str, str], request: int = 0) -> list[dict[str, Any]]:
    """Rows of tokens, the experts of two layers each."""
    return [
        {"request": request, "token": token, "layer": layer, "experts": each}
        for token, both in enumerate(experts)
        for layer, each in enumerate(both)
    ]


def test_expert_routes_by_hand() -> None:
    """Layer 1's expert is layer 0's plus 2: foreseen always, by popularity half of the time."""
    rows = routes(("0", "2"), ("1", "3"), ("0", "2"), ("1", "3"))
    found = values("expert-routes", *rows)
    assert (found["tokens"], found["layers"], found["experts"], found["experts_of_a_token"]) == (4, 2, 4, 1.0)
    assert found["imbalance"] == 2.0
    assert (found["repeat_share"], found["repeat_by_popularity"]) == (0.0, 0.5)
    assert (found["next_layer_hits"], found["hits_by_popularity"]) == (1.0, 0.5)
    assert values("expert-routes(wide=2)", *rows)["hits_by_popularity"] == 1.0


def test_tokens_of_another_request_do_not_follow() -> None:
    rows = routes(("0 1", "2 3"), ("0 1", "2 3")) + routes(("2 3", "0 1"), request=1)
    assert values("expert-routes", *rows)["repeat_share"] == 1.0


def test_loads_and_traffic_are_what_a_deployment_reads() -> None:
    rows = routes(("[0, 1]", "2"), ("0 1", "3"))
    told = metric("expert-routes(rows=loads)").score(table(*rows)).rows
    assert [one["load"] for one in told] == [2, 2, 0, 0, 0, 0, 1, 1]
    passed = metric("expert-routes(rows=traffic)").score(table(*rows)).rows
    assert sum(one["tokens"] for one in passed) == 2.0
    assert dict(passed[0]) == {"layer": 0, "expert": 0, "next": 2, "tokens": 0.5}


@pytest.mark.parametrize("bad", [{"experts": "x"}, {"experts": "-1"}, {"layer": 0.5}, {"token": ""}])
def test_bad_routes_are_refused_by_column(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        values("expert-routes", {"token": 0, "layer": 0, "experts": "0", "line": 7, **bad})
    assert next(iter(bad)) in str(error.value)
    assert "7" in str(error.value)
