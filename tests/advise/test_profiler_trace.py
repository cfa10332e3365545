"""Traces of a profiler: what steps spend, whether the host bounds them, damaged files, and the command."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ridgeline.advise.trace_steps import kind_of, read_steps
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.facts.profiler_trace import trace_events

REAL = Path(__file__).parent / "traces" / "minitoy_mi250.json.gz"


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": args}


def launched(number: int, name: str, at: float, ts: float, dur: float) -> list[dict[str, Any]]:
    """A kernel that a call of 5 us at `at` launched."""
    call = event("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number)
    return [call, event("kernel", name, ts, dur, correlation=number, device=0)]


def two_steps() -> list[dict[str, Any]]:
    """Two steps of 100 us: a product 10 to 50, a collective 40 to 70 (20 exposed), idle 70 to 110 for a late launch."""
    found = []
    for step, start in enumerate((0.0, 100.0)):
        found.append(event("user_annotation", f"ProfilerStep#{step}", start, 100))
        found += launched(10 * step + 1, "sm90_gemm_bf16", start + 2, start + 10, 40)
        found += launched(10 * step + 2, "ncclDevKernel_AllReduce", start + 8, start + 40, 30)
    return found


def written(path: Path, events: list[dict[str, Any]], *, packed: bool = False) -> str:
    raw = json.dumps({"schemaVersion": 1, "deviceProperties": [{"name": "x"}], "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return str(path)


@pytest.mark.parametrize("packed", [False, True])
def test_parts_of_a_step_add_up_and_hidden_collectives_are_apart(tmp_path: Path, packed: bool) -> None:
    found = read_steps(written(tmp_path / "t.json", two_steps(), packed=packed))
    assert found.steps_s == pytest.approx((100e-6, 100e-6))
    assert found.parts_s["products"] == pytest.approx(40e-6)
    assert found.parts_s["collectives"] == pytest.approx(20e-6)
    assert found.collectives_s == pytest.approx(30e-6)
    assert found.parts_s["idle"] == pytest.approx(40e-6)
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)


def test_launch_and_queue_time_and_who_bounds(tmp_path: Path) -> None:
    found = read_steps(written(tmp_path / "t.json", two_steps()))
    assert found.tklqt_s == pytest.approx((8 + 32) * 1e-6)  # a step: product and collective wait from their calls on
    assert found.launch_gap_s == pytest.approx((107 - 70) / 2 * 1e-6)  # the second step's call returns at 107
    assert found.bound == "CPU-bound"
    queued = [one for step in range(40) for one in launched(step, "gemm", step, 100.0 + 50 * step, 50)]
    assert read_steps(written(tmp_path / "q.json", queued)).bound == "GPU-bound"


def test_real_trace_of_rocm() -> None:
    found = read_steps(str(REAL))
    assert found.marked
    assert found.kernels == 16
    assert found.bound == "CPU-bound"
    assert found.parts_s["products"] == pytest.approx(30.24e-6, rel=1e-3)  # one Cijk kernel
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)


def test_a_processor_alone_is_read_by_operators(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::linear", 0, 60),
        event("cpu_op", "aten::t", 0, 10),
        event("cpu_op", "aten::add", 70, 30),
    ]
    found = read_steps(written(tmp_path / "c.json", events))
    assert found.parts_s["products"] == pytest.approx(60e-6)
    assert found.parts_s["other kernels"] == pytest.approx(30e-6)
    assert found.parts_s["idle"] == pytest.approx(10e-6)
    assert found.bound == ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "products"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("ncclDevKernel_AllGather_RING_LL", "collectives"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", "other kernels"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "is empty"),
        (b"\x0a\x0bperfetto", "traceconv"),
        (b'{"schemaVersion": 1}', "no field 'traceEvents'"),
        (b'{"traceEvents": {}}', "is no list"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1', "end is missing"),
        (b'{"traceEvents": [\n{"ph": "X"} {"ph": "X"}]}', "bad.json:2"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "soon"}]}', "field 'ts'"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": -5}]}', "field 'dur'"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e999}]}', "field 'ts'"),
        (b'{"traceEvents": []}', "holds no kernel"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "its end is missing"),
    ],
)
def test_damaged_files_are_refused_with_their_place(tmp_path: Path, raw: bytes, told: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=told.replace("(", r"\(")) as caught:
        read_steps(str(path))
    assert str(path) in str(caught.value)


def test_a_list_may_lack_its_end(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(two_steps())[:-1])
    assert len(list(trace_events(str(path)))) == len(two_steps())


def test_a_long_trace_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "long.json.gz"
    with gzip.open(path, "wt") as out:
        out.write('{"traceEvents": [' + ",".join(['{"ph": "i", "name": "' + "x" * 1000 + '"}'] * 30_000) + "]}")
    tracemalloc.start()
    assert sum(1 for _ in trace_events(str(path))) == 30_000
    assert tracemalloc.get_traced_memory()[1] < 12e6  # of 30 MB
    tracemalloc.stop()


def ran(line: str) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = run(shlex.split(line))
    return code, out.getvalue(), error.getvalue()


def test_the_command_puts_the_largest_gap_first(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", two_steps())
    words = "gpt2 --on 1xH100-SXM --micro-batch 1 --global-batch 1 --execution graph"
    code, out, error = ran(f"advise {words} --trace-file {path} --trace-file {REAL} --json")
    assert code == 0, error
    found = json.loads(out)["trace"]
    gaps = [abs(one["gap_s"]) for one in found["gaps"]]
    assert gaps == sorted(gaps, reverse=True)
    assert sum(one["predicted_s"] for one in found["gaps"]) == pytest.approx(found["predicted_s"]["value"], rel=1e-6)
    assert sum(one["measured_s"] for one in found["gaps"]) == pytest.approx(found["files"][1]["step_s"])
    assert found["knee"] == 2


def test_the_command_compares_a_decode_step_and_refuses_with_two(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", two_steps())
    code, out, error = ran(f"advise qwen2.5-0.5b --serve --on 1xH100-SXM --batch 4 --trace-file {path}")
    assert code == 0, error
    assert "predicted for a decode step" in out
    assert "weights and links" in out
    code, _, error = ran(f"advise gpt2 --on 1xH100-SXM --global-batch 8 --trace-file {tmp_path / 'none.json'}")
    assert code == 2
    assert "no such file" in error
