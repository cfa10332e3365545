"""What a sweep costs beside its scenarios: `ridgeline sweep`, a plain pool and Ray over the same training scenarios.

`python benchmarks/bench_sweep.py [CASES] [--rivals CASES]` prints the table of sweep.md. The sweep answers all cases on
two processes; the plain pool (and Ray, where it is installed) answers the first of them, with what the sweep takes for
the same ones beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

PROCESSES = 2
GRID: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8], "pp": [1, 2], "zero": [0, 1], "micro_batch": [1, 2, 4, 8],
    "seq_len": [256, 512, 768, 1024, 640], "global_batch": [128, 256, 384, 512, 640, 768, 896, 1024],
    "recompute": ["none", "full"], "precision": ["bf16", "fp32"],
}  # fmt: skip
WORDS = {"subject": "gpt2-medium", "on": "16xA100-SXM-80GB", "quick": True}


def cases(most: int) -> list[dict[str, Any]]:
    """The first scenarios of the grid."""
    found = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    return found[:most]


def asked(words: dict[str, Any]) -> Any:
    """One scenario, as a person's own script would ask it: the answer's JSON form, or the refusal."""
    import ridgeline as rl
    from ridgeline.errors import RidgelineError

    try:
        return rl.predict(**WORDS, **words).as_dict()["step_time_s"]
    except RidgelineError as error:
        return str(error)


def swept_s(some: list[dict[str, Any]], folder: Path, **more: Any) -> float:
    """Seconds of `ridgeline.sweep` over scenarios, from nothing to the table on disk [s]."""
    import ridgeline as rl

    folder.mkdir()
    lines = ["[sweep]", 'verb = "predict"', "[sweep.words]", *_toml(WORDS)]
    for each in some:
        lines += ["[[sweep.case]]", *_toml(each)]
    (folder / "s.toml").write_text("\n".join(lines), encoding="utf-8")
    begun_s = time.perf_counter()
    told = rl.sweep(str(folder / "s.toml"), processes=PROCESSES, out=str(folder / "s.csv"), **more).as_dict()
    assert told["answered"] + told["impossible"] + told["refused"] == len(some)
    print({name: told[name] for name in ("answered", "impossible", "refused")}, file=sys.stderr)
    return time.perf_counter() - begun_s


def _toml(words: dict[str, Any]) -> list[str]:
    return [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in words.items()
    ]


def pooled_s(some: list[dict[str, Any]]) -> float:
    """Seconds of `multiprocessing.Pool` over the same, answers kept in memory [s]."""
    begun_s = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        assert len(pool.map(asked, some, chunksize=64)) == len(some)
    return time.perf_counter() - begun_s


def rayed_s(some: list[dict[str, Any]]) -> float | None:
    """Seconds of plain Ray tasks over the same, one a scenario, its start apart [s]; None where it is not installed."""
    try:
        import ray
    except ImportError:
        return None
    ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, logging_level="error")
    task = ray.remote(asked)
    ray.get(task.remote(some[0]))
    begun_s = time.perf_counter()
    ray.get([task.remote(each) for each in some])
    taken_s = time.perf_counter() - begun_s
    ray.shutdown()
    return taken_s


def row(name: str, seconds: float, many: int) -> str:
    """A row of the table."""
    return (
        f"| {name} | {many:,} | {seconds:.1f} | {1e3 * seconds / many:.2f} | {1e3 * seconds * PROCESSES / many:.2f} |"
    )


def main() -> None:
    """Prints the table."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    few = int(sys.argv[sys.argv.index("--rivals") + 1]) if "--rivals" in sys.argv else many
    folder = Path(tempfile.mkdtemp())
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print("| way | scenarios | seconds | ms a scenario | ms a scenario and process |\n|---|---|---|---|---|")
    some = cases(few)
    print(row("`ridgeline sweep`", swept_s(some, folder / "few"), few), flush=True)
    print(row("`multiprocessing.Pool`", pooled_s(some), few), flush=True)
    print(row("`ridgeline sweep`, again", swept_s(some, folder / "again"), few), flush=True)
    print(row("`multiprocessing.Pool`, again", pooled_s(some), few), flush=True)
    taken_s = rayed_s(some)
    if taken_s is not None:
        print(row("Ray, a task a scenario", taken_s, few), flush=True)
        print(row("`ridgeline sweep --ray local`", swept_s(some, folder / "ray", ray="local"), few), flush=True)
    if many > few:
        print(row("`ridgeline sweep`", swept_s(cases(many), folder / "many"), many), flush=True)


if __name__ == "__main__":
    main()
