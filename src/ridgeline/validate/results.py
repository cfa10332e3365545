"""Result files of serving benchmarks as rows of a truth table: vLLM's, SGLang's, AIPerf's and GuideLLM's.

What a file does not say, above all the machine, is said beside it. Sources: vllm, vllm/benchmarks/serve.py; sglang,
python/sglang/bench_serving.py; aiperf 0.13, common/models/export_models.py; guidellm 0.8, benchmark/schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ridgeline.errors import InputError
from ridgeline.facts.user_files import UserFile
from ridgeline.validate.rows import Row, TruthTable

MOST_BYTES = 64 * 2**20  # of one file; `--save-detailed` of 100,000 requests is below it
MOST_RUNS = 10_000
_STATISTICS = {"mean": "mean", "median": "p50", "p50": "p50", "avg": "mean", "p90": "p90", "p95": "p95", "p99": "p99"}
_TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "latency", "e2e_latency": "latency"}
_OF_AIPERF = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "latency"}
_OF_GUIDELLM = {
    "time_to_first_token_ms": ("ttft", "ms"),
    "inter_token_latency_ms": ("tpot", "ms"),
    "request_latency": ("latency", "s"),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a benchmark: where it stands in its file, its cells of a truth table, and what it measured."""

    line: int
    field: str
    cells: Mapping[str, str]
    measured: Mapping[str, tuple[float, str]]  # metric -> value, unit


def is_results(file: UserFile) -> bool:
    """Whether a file is JSON, as no truth table is."""
    return file.raw[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def results_table(file: UserFile, said: Mapping[str, str]) -> TruthTable:
    """The rows of a file of results; `said` are cells of a person, over the file's.

    Raises `InputError` with file, line and field for what is no result, or says too little.
    """
    if len(file.raw) > MOST_BYTES:
        raise InputError(f"is {len(file.raw):,} bytes; at most {MOST_BYTES:,} are read", file=file.name)
    runs: list[Run] = []
    for line, place, content in _documents(file):
        runs += _runs(content, line, place, file.name)
        if len(runs) > MOST_RUNS:
            raise InputError(f"holds more than {MOST_RUNS:,} runs; split the file", file=file.name, line=line)
    rows = [row for number, run in enumerate(runs, start=1) for row in _rows(run, number, said, file.name)]
    return TruthTable(path=file.name, kind="serving", columns=tuple(rows[0].cells), rows=tuple(rows))


def _documents(file: UserFile) -> Iterator[tuple[int, str, Any]]:
    """JSON values of a file with their lines: one, a list of them, or one a line."""
    text = file.text()
    try:
        whole = json.loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        first = next((line for line in text.splitlines() if line.strip()), "")
        if not isinstance(error, json.JSONDecodeError) or not _is_object(first):
            line = getattr(error, "lineno", None)
            raise InputError(f"is not JSON: {getattr(error, 'msg', error)}", file=file.name, line=line) from None
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                if not _is_object(line):
                    raise InputError("is not an object of JSON", file=file.name, line=number) from None
                yield number, "", json.loads(line)
        return
    if not isinstance(whole, list):
        yield 1, "", whole
        return
    for number, one in enumerate(whole):
        yield 1, f"[{number}]", one


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class _Place:
    """Reads fields of a run; complaints name file, line and field."""

    file: str
    line: int
    at: str

    def fail(self, field: str, told: str) -> NoReturn:
        raise InputError(told, file=self.file, line=self.line, field=f"{self.at}.{field}".lstrip("."))

    def number(self, table: Mapping[str, Any], field: str, *, needed: bool = False) -> float | None:
        value = table.get(field)
        if not needed and (value is None or value != value):  # NaN, where a run has no such time
            return None
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not (0 <= number < math.inf):
            self.fail(field, f"'{str(value)[:40]}' is not a number from 0 up")
        return number

    def table(self, table: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        value = table.get(field)
        if value is None:
            return {}
        return value if isinstance(value, dict) else self.fail(field, "is not an object")


def _runs(content: Any, line: int, at: str, file: str) -> list[Run]:
    place = _Place(file, line, at)
    if not isinstance(content, dict):
        place.fail("", f"is a {type(content).__name__}; a result is an object")
    for known, read in _READERS:
        if known <= content.keys():
            return read(content, place)
    told = "is no result of vLLM's or SGLang's serving benchmark, AIPerf or GuideLLM"
    return place.fail(next(iter(content), ""), told)


def _of_server(found: Mapping[str, Any], place: _Place) -> list[Run]:
    """vLLM's and SGLang's: flat, with totals and `mean_ttft_ms`."""
    server = place.table(found, "server_info")
    completed = place.number(found, "completed", needed=True) or place.fail("completed", "no request was completed")
    tokens = {side: place.number(found, f"total_{side}_tokens", needed=True) or 0.0 for side in ("input", "output")}
    rate = found.get("request_rate")
    if isinstance(rate, str) and rate != "inf":
        place.fail("request_rate", f"'{rate[:40]}' is no rate; only Poisson arrivals, all at once and users are known")
    program = "sglang" if server or "total_output_tokens_retokenized" in found else str(found.get("backend") or "vllm")
    cells = {
        "model": str(found.get("model_id") or server.get("model_path") or ""),
        "engine": {"openai": "vllm", "openai-chat": "vllm", "sglang-oai": "sglang"}.get(program, program),
        "engine_version": str(server.get("version") or found.get("version") or ""),
        "tp": str(server.get("tp_size") or found.get("tensor_parallel_size") or ""),
        **_lengths(tokens["input"] / completed, tokens["output"] / completed),
        **_arrivals(place.number(found, "max_concurrency"), None if isinstance(rate, str) else rate, place),
    }
    measured = {
        f"{name}_{_STATISTICS[statistic]}_ms": (value, "ms")
        for key, name in _TIMES.items()
        for statistic in ("mean", "median", "p90", "p95", "p99")
        if (value := place.number(found, f"{statistic}_{key}_ms"))
    }
    output = place.number(found, "output_throughput")
    return [_run(place, cells, measured | ({"output_tok_s": (output, "tok/s")} if output else {}))]


def _of_aiperf(found: Mapping[str, Any], place: _Place) -> list[Run]:
    said, measured = place.table(found, "input_config"), {}
    for key, name in _OF_AIPERF.items():
        block = place.table(found, key)
        for statistic in ("avg", "p50", "p90", "p95", "p99"):
            if value := place.number(block, statistic):
                measured[f"{name}_{_STATISTICS[statistic]}_ms"] = (value, str(block.get("unit", "ms")))
    rate = place.number(place.table(found, "output_token_throughput"), "avg")
    measured |= {"output_tok_s": (rate, "tok/s")} if rate else {}
    lengths = [place.number(place.table(found, f"{side}_sequence_length"), "avg") for side in ("input", "output")]
    endpoint, load = place.table(said, "endpoint"), place.table(said, "loadgen")
    phases = said.get("phases")
    load = (
        load or next((one for one in phases or () if isinstance(one, dict)), {}) if isinstance(phases, list) else load
    )
    models = said.get("models") or endpoint.get("model_names") or [""]
    model = models[0] if isinstance(models, list) and models else models
    cells = {
        "model": str(model.get("name", "") if isinstance(model, dict) else model),
        **_lengths(lengths[0], lengths[1]),
        **_arrivals(place.number(load, "concurrency"), load.get("request_rate") or load.get("rate"), place),
    }
    return [_run(place, cells, measured)]


def _of_guidellm(found: Mapping[str, Any], place: _Place) -> list[Run]:
    benchmarks = found["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        place.fail("benchmarks", "is no list of benchmarks")
    runs = []
    for number, one in enumerate(benchmarks):
        at = _Place(place.file, place.line, f"benchmarks[{number}]")
        if not isinstance(one, dict):
            at.fail("", "is not an object")
        metrics = at.table(one, "metrics")
        done = {key: at.table(at.table(metrics, key), "successful") for key in metrics if metrics[key] is not None}
        measured = {}
        for key, (name, unit) in _OF_GUIDELLM.items():
            values = {**at.table(done.get(key, {}), "percentiles"), **done.get(key, {})}
            for statistic in ("mean", "median", "p90", "p95", "p99"):
                if value := at.number(values, statistic):
                    measured[f"{name}_{_STATISTICS[statistic]}_ms"] = (value, unit)
        rate = at.number(done.get("output_tokens_per_second", {}), "mean")
        measured |= {"output_tok_s": (rate, "tok/s")} if rate else {}
        strategy = at.table(at.table(one, "config"), "strategy")
        backend = place.table(place.table(found, "config") or place.table(found, "args"), "backend") or place.table(
            found, "args"
        )
        streams = 1.0 if strategy.get("type_") == "synchronous" else at.number(strategy, "streams")
        cells = {
            "model": str(backend.get("model") or ""),
            **_lengths(*(at.number(done.get(f"{side}_token_count", {}), "mean") for side in ("prompt", "output"))),
            **_arrivals(streams, strategy.get("rate"), at, even=strategy.get("type_") == "constant"),
        }
        runs.append(_run(at, cells, measured))
    return runs


_READERS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Any], _Place], list[Run]]], ...] = (
    (frozenset({"completed", "total_input_tokens", "total_output_tokens"}), _of_server),
    (frozenset({"request_throughput", "input_config"}), _of_aiperf),
    (frozenset({"benchmarks"}), _of_guidellm),
)


def _lengths(prompt: float | None, output: float | None) -> dict[str, str]:
    return {"isl": "" if not prompt else f"{prompt:.6g}", "osl": "" if not output else f"{output:.6g}"}


def _arrivals(users: float | None, rate: Any, place: _Place, *, even: bool = False) -> dict[str, str]:
    """How requests arrive: a bound on those in flight, a rate, or all at once."""
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf:
        name = "open-loop-rate" if even else "poisson-rate"
        return {"scenario": name, "rate_rps": f"{rate:.6g}", "batch_or_concurrency": f"{users:g}" if users else ""}
    if users:
        return {"scenario": "fixed-concurrency", "rate_rps": "", "batch_or_concurrency": f"{users:g}"}
    return {"scenario": "burst-all-at-once", "rate_rps": "", "batch_or_concurrency": ""}


def _run(place: _Place, cells: Mapping[str, str], measured: Mapping[str, tuple[float, str]]) -> Run:
    if not measured:
        place.fail("", "holds no time to first token, time per token, latency or throughput")
    return Run(line=place.line, field=place.at, cells=cells, measured=measured)


def _rows(run: Run, number: int, said: Mapping[str, str], file: str) -> Iterator[Row]:
    """A row for each metric of a run."""
    place = _Place(file, run.line, run.field)
    own = {**run.cells, **{name: value for name, value in said.items() if value}}
    flags = {"model": "--model NAME", "hardware": "--on, e.g. --on 2xH100-SXM"}
    for name, flag in flags.items():
        if not own.get(name):
            place.fail(name, f"is not said by the file; say {flag}")
    for metric, (value, unit) in run.measured.items():
        name = f"run{number}-{metric}"
        cells = {"id": name, **own, "metric": metric, "value": f"{value:.10g}", "unit": unit, "source": "", "note": ""}
        yield Row(line=run.line, id=name, cells=cells)
