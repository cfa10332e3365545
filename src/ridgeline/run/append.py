"""Adds measured rows to a person's own truth file: the file is replaced whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.facts.records import Cluster
from ridgeline.facts.user_files import TRUTH, read_user_file
from ridgeline.run.gap import PlanComparison
from ridgeline.scenario.settings import COLUMN as SETTINGS
from ridgeline.scenario.settings import Settings

COLUMNS = (
    "id", "model", "params_b", "layers", "hidden", "heads", "vocab", "seq_len", "hardware", "n_devices", "interconnect",
    "tp", "pp", "dp", "cp", "ep", "zero_stage", "micro_batch", "global_batch", "recompute", "precision", "engine",
    "metric", "value", "unit", "source", "source_where", "confidence", "also_reported", "notes", SETTINGS,
)  # fmt: skip
"""Columns of tables of measured training runs, see docs/check.md; the last one holds all that was predicted from."""

_STAMP = r" \([0-9a-f]+\)(?: / \d+)?$"  # which profile, and which part of the machine

_NEEDED = ("id", "metric", "value", "unit")


def append_rows(path: str, rows: list[Mapping[str, str]]) -> None:
    """Adds rows under the columns of the file, which is made when it is not there; raises InputError for another table.

    The new content is written beside the file, synced and moved in its place, so a killed run leaves the old one.
    """
    file = Path(path)
    old = read_user_file(file, TRUTH).text() if file.exists() else "\t".join(COLUMNS) + "\n"
    header = old.split("\n", 1)[0].split("\t")
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise InputError(
            f"has no column {', '.join(missing)}; needs those of a table of training runs", file=path, line=1
        )
    if SETTINGS not in header:  # an older table: its rows have a blank there
        header.append(SETTINGS)
        old = "\t".join(header) + "".join(f"\n{line}" for line in old.split("\n")[1:])
    lines = ["\t".join(re.sub(r"\s+", " ", row.get(name, "")) for name in header) for row in rows]
    text = old + ("" if old.endswith("\n") else "\n") + "".join(f"{line}\n" for line in lines)
    try:
        _replace(file, text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path) from None


def _replace(file: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=file.resolve().parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if file.exists():
            os.chmod(name, file.stat().st_mode & 0o777)
        Path(name).replace(file.resolve())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def hardware_cell(cluster: Cluster) -> str:
    """How a table names a machine: the catalog's part, or the profile's word with the device's own name."""
    name = cluster.accelerator.name
    word = re.sub(r"^\d+x", "", cluster.name)
    if word != "here" and not word.startswith("profile:"):
        return name
    return f"{word} ({re.sub(_STAMP, '', name)})"


def rows_of(found: PlanComparison, *, engine: str) -> list[Mapping[str, str]]:
    """A comparison as rows of a table of training runs: step time [s] and tokens per second and device."""
    report, step = found.report, found.step
    plan, workload, model = report.plan, report.workload, report.model
    now = datetime.now(UTC)
    devices = report.cluster.count  # those that the plan leaves idle too
    rate = workload.step_tokens / step.measured / devices  # [token/s] of one
    common = {
        "model": model.name,
        "params_b": f"{model.graph.params / 1e9:.6g}",
        **{name: str(model.dims.get(name) or "") for name in ("layers", "hidden", "heads", "vocab")},
        "seq_len": str(workload.seq_len),
        "hardware": hardware_cell(report.cluster),
        "n_devices": str(devices),
        "interconnect": report.cluster.tiers[0].name if devices > 1 and report.cluster.tiers else "",
        **{name: str(getattr(plan, name)) for name in ("tp", "pp", "dp", "cp", "ep", "micro_batch")},
        "zero_stage": str(plan.zero),
        "global_batch": str(workload.global_batch),
        "recompute": plan.recompute,
        "precision": workload.precision,
        "engine": engine,
        "source": "measured here",
        "source_where": "ridgeline measure",
        "confidence": "high",
        "also_reported": f"peak_bytes={max(found.measured.memory_bytes):.0f}",
        SETTINGS: Settings(model=model, workload=workload, plan=plan).write(),
        "notes": f"{now:%Y-%m-%d}, median of {len(found.measured.phases_s)} steps, eager, {workload.optimizer}",
    }
    stamp = f"here-{now:%Y%m%dT%H%M%S%f}"
    return [
        {**common, "id": f"{stamp}a", "metric": "step_time", "value": f"{step.measured:.6g}", "unit": "s"},
        {**common, "id": f"{stamp}b", "metric": "tokens_per_s_per_gpu", "value": f"{rate:.6g}", "unit": "tok/s/GPU"},
    ]
