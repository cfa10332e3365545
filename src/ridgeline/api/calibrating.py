"""The command `calibrate`: measures the machine at hand with progress on standard error, prints what it found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from ridgeline.api.answer import Answer
from ridgeline.api.progress import steps
from ridgeline.calibrate.here.run import calibrate as measure
from ridgeline.facts.fits import Fit
from ridgeline.facts.profiles import Profile, default_path
from ridgeline.report.as_json import picked
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.units import bytes_text, parse, rate_text, time_text

_WIDTH = 110  # columns when piped
_MANY = 1e6  # rows of a product, from which a bound is none


def calibrate(given: SimpleNamespace) -> Answer:
    """Measures within a budget of time, writes the profile and prints its rates, fits, noise and what was left out."""
    budget_s = parse(given.budget, "s", field="--budget")
    out, kind = Path(given.out) if given.out else None, given.device.casefold()
    with steps("start") as told:
        path, profile = measure(budget_s=budget_s, out=out, force=given.force, kind=kind, told=told)
    return Answer(lambda: _as_dict(path, profile), lambda: _blocks(path, profile), width=_WIDTH, value=profile)


def _on(path: Path) -> str:
    """How other commands name the machine of a profile."""
    return "here" if path == default_path() else f"profile:{path}"


def _blocks(path: Path, profile: Profile) -> Iterator[Block]:
    part, noise = profile.accelerator, profile.noise
    count = f"{profile.count} x " if profile.count > 1 else ""
    yield Line(text=f"{count}{part.name}: measured in {profile.spent_s:.0f} s, torch {profile.versions['torch']}")
    yield blank()
    rates = [
        (f"products in {form}", rate_text(rate, "FLOP/s"), part.facts[f"peak_flop_per_s.{form}"].conditions)
        for form, rate in part.peak_flop_per_s.items()
    ]
    rates.append(("memory", rate_text(part.memory_bytes_per_s, "B/s"), part.facts["memory_bytes_per_s"].conditions))
    for row in profile.samples:
        if row.kind == "launch":
            rates.append((f"one launch, {row.form}", time_text(row.seconds), f"mean of {row.sizes['kernels']:.0f}"))
        elif row.kind == "disk":
            rates.append((f"disk {row.form}", rate_text(row.bytes / row.seconds, "B/s"), bytes_text(row.bytes)))
    tier = profile.tiers[0]
    rates.append((f"link, {tier.name}", rate_text(tier.bytes_per_s, "B/s"), tier.fact.conditions if tier.fact else ""))
    yield Table(columns=("what", "rate", "from"), rows=tuple(rates), right=frozenset({"rate"}))
    if profile.fits:
        yield blank()
        yield Line(text="Fits, judged on rows that each has not seen:")
        rows = tuple(
            (fit.family, fit.form, _rows_text(fit), str(fit.rows), f"{fit.held_median:.1%}", f"{fit.held_p90:.1%}")
            for fit in profile.fits
        )
        columns = ("family", "format", "for", "rows", "median error", "p90")
        yield Table(columns=columns, rows=rows, right=frozenset(columns[3:]))
    yield blank()
    yield Line(
        text=f"Noise: repeats lie {noise.spread_median:.1%} around their median (p90 {noise.spread_p90:.1%}); a"
        f" reference product moved by {noise.drift:.1%} between start, middle and end; {noise.load:.1f} other processes"
        " ran at the start."
    )
    yield Line(text=f"Energy: {profile.energy}.")
    for text in profile.left_out:
        yield Line(text=f"Left out: {text}", hang=2)
    yield blank()
    yield Line(text=f"Profile: {path}. Use it with --on {_on(path)}", hang=2)


def _rows_text(fit: Fit) -> str:
    """Which products a fit is for, where it is not for all."""
    least, most, _ = fit.domain.get("m", (0.0, 0.0, 1.0))
    if not most:
        return ""
    if most >= _MANY:
        return "other m"
    return f"m = {least:.0f}" if least == most else f"m = {least:.0f} to {most:.0f}"


def _as_dict(path: Path, profile: Profile) -> dict[str, object]:
    part = profile.accelerator
    return {
        "profile": str(path), "on": _on(path), "device": part.name,
        **picked(profile, "kind", "count", "date", "budget_s", "spent_s", "versions"),
        **picked(part, "peak_flop_per_s", "memory_bytes_per_s"),
        "rows": len(profile.samples),
        "fits": [
            {**picked(fit, "family", "form", "kernel", "rows"), "median_ape": fit.held_median, "p90_ape": fit.held_p90}
            for fit in profile.fits
        ],
        "noise": picked(profile.noise, "spread_median", "spread_p90", "drift", "load"),
        **picked(profile, "energy", "left_out"),
    }  # fmt: skip
