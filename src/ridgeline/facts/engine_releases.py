"""Which release of an engine was the newest on a day, from `data/engine_releases.tsv`."""

from __future__ import annotations

from ridgeline.facts import store


def release_at(engine: str, day: str) -> str | None:
    """The newest release of an engine on a day such as '2025-10-29', a month or a year; None before the first known."""
    rows = [row for row in store.read_tsv("engine_releases.tsv") if row["engine"] == engine and row["day"] <= day]
    return max(rows, key=lambda row: row["day"])["release"] if rows else None
