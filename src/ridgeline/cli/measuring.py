"""The command `measure`: candidate kernels against their reference, or a plan run for real on local devices."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ridgeline.errors import InputError
from ridgeline.facts.clusters import cluster
from ridgeline.report.blocks import Block, Line, Table, blank, show
from ridgeline.units import time_text

if TYPE_CHECKING:
    from ridgeline.run.verdict import Settings, Verdict

_WIDTH = 120  # columns when piped


def measure(kernel: str | None, *, device: str, **given: Any) -> None:
    """Judges kernels; raises InputError for a device that is not known or not there."""
    if kernel is None:
        raise InputError("say what: --kernel FILE", field="--kernel")
    from ridgeline.run.kernels import require_device

    require_device(device)
    measure_kernels(kernel, device=device, **given)


def measure_kernels(
    path: str,
    *,
    candidate: str,
    on: str | None,
    device: str,
    repeats: int,
    limit_s: float,
    compiled: bool,
    as_json: bool,
) -> None:
    """Judges a kernel file or a folder of them; ends with 1 when a candidate is wrong or cheats."""
    from ridgeline.run.kernels import judge_files, kernel_files
    from ridgeline.run.verdict import as_dict, fast_p

    files = kernel_files(path)
    settings = _settings(on, device=device, repeats=repeats, limit_s=limit_s, compiled=compiled)
    verdicts = judge_files(files, candidate, settings)
    shares = fast_p(verdicts)
    if as_json:
        rows = [as_dict(one) for one in verdicts]
        print(json.dumps({"kernels": rows, "fast_p": shares}, indent=1, allow_nan=False))
    else:
        show([*_kernel_blocks(verdicts), *_shares(shares, len(verdicts))], sys.stdout, width=_WIDTH)
    if not all(one.correct for one in verdicts):
        raise typer.Exit(1)


def _settings(on: str | None, **given: Any) -> Settings:
    from ridgeline.run.verdict import Settings

    if on is None:
        return Settings(**given)
    part = cluster(on).accelerator
    sustained = {name: fact.value for name, fact in part.sustained.items()}
    rates = {name: sustained.get(f"matrix.{name}", peak) for name, peak in part.peak_flop_per_s.items()}
    if not rates:
        raise InputError(f"{part.name} has no product rate, so there is no roofline", field="--on")
    moved = sustained.get("hbm", part.memory_bytes_per_s)
    source = f"rates of {part.name}, measured where they are known"
    return Settings(flop_per_s=rates, bytes_per_s=moved, rates_source=source, **given)


def _kernel_blocks(verdicts: Sequence[Verdict]) -> Iterator[Block]:
    rows = []
    for one in verdicts:
        spent = one.candidate_time
        rows.append(
            (
                Path(one.file).stem,
                one.candidate,
                "right" if one.correct else ", ".join(found.name for found in one.findings),
                "" if spent is None else time_text(spent.median_s),
                "" if spent is None else f"{time_text(spent.low_s)} to {time_text(spent.high_s)}",
                "" if one.speedup is None else f"{one.speedup:.2f}",
                _compiled(one),
                "" if one.roof_share is None else f"{one.roof_share:.0%}",
            )
        )
    columns = ("task", "candidate", "judged", "median", "p10 to p90", "x eager", "x compiled", "of roofline")
    yield Table(columns=columns, rows=tuple(rows), right=frozenset({"median", "x eager", "x compiled", "of roofline"}))
    yield blank()
    for one in verdicts:
        for found in one.findings:
            text = f"{Path(one.file).stem} {one.candidate}: {found.kind}, {found.name}: {found.detail}"
            yield Line(text=text, indent=2, hang=2)
        for remark in one.remarks:
            yield Line(text=f"{Path(one.file).stem}: {remark}", indent=2, hang=2)
    roofs = {one.roof.source for one in verdicts if one.roof is not None}
    for source in sorted(roofs):
        yield Line(text=f"roofline: {source}", indent=2, hang=2)


def _compiled(verdict: Verdict) -> str:
    if verdict.compiled_time is None or verdict.candidate_time is None:
        return ""
    return f"{verdict.compiled_time.median_s / verdict.candidate_time.median_s:.2f}"


def _shares(shares: dict[str, float], count: int) -> Iterator[Line]:
    if count > 1:
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield Line(text=f"of {count} tasks: {told} (share that is right and more than p times as fast as eager)")
