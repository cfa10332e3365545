"""Errors of `ridgeline check` on rows of measured serving, and beside AIConfigurator on the rows that both are asked.

    ridgeline check SERVING.tsv --json > serving.json
    PYTHONPATH=src python benchmarks/accuracy_serving.py SERVING.tsv serving.json

Writes serving_accuracy.md beside this file. AIConfigurator answers the same rows when it is told where it is:
serving_peers.py says how; only the table named here is read, by both programs.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from serving_peers import aiconfigurator_rows, prose

Row = Mapping[str, Any]
HEAD = ("rows", "scored", "median", "mean", "p90", "bias", "within 10 %", "within 25 %", "covered")
SOURCES = ("IX", "NVSIL")  # InferenceX as NVIDIA collected it, and its own runs beside AIConfigurator
SCENARIO = "fixed-concurrency"
METRICS = ("tpot_ms", "ttft_ms")
FEWEST, REASONS = 20, 25  # rows of a group that is shown; reasons of refusals that are shown


def errors(rows: Iterable[Row]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Signed relative errors [1]."""
    return np.array([float(row["predicted"]) / float(row["measured"]) - 1 for row in rows])


def summary(rows: Sequence[Row]) -> str:
    """Counts and errors of rows, as cells."""
    scored = [row for row in rows if row["status"] == "scored" and row["ape"] is not None]
    if not scored:
        return f"{len(rows)} | 0 | | | | | | |"
    held = [row["low"] <= row["measured"] <= row["high"] for row in scored if row["low"] is not None]
    covered = f"{np.mean(held):.0%}" if held else ""
    return f"{len(rows)} | {len(scored)} | {spread(errors(scored))} | {covered}"


def spread(signed: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Median, mean and 90 % quantile of the absolute error, median signed error, shares within 10 and 25 %."""
    size = np.abs(signed)
    shown = [f"{np.median(size):.1%}", f"{np.mean(size):.1%}", f"{np.quantile(size, 0.9):.0%}"]
    shown += [f"{np.median(signed):+.1%}", f"{np.mean(size <= 0.1):.0%}", f"{np.mean(size <= 0.25):.0%}"]
    return " | ".join(shown)


def grouped(rows: Sequence[Row], names: Sequence[str], key: Callable[[Row], tuple[str, ...]], least: int) -> list[str]:
    """A table of errors by some key; groups with fewer than `least` rows are put together."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    few = [row for group in groups.values() if len(group) < least for row in group]
    lines = ["| " + " | ".join((*names, *HEAD)) + " |", "|---" * (len(names) + len(HEAD)) + "|"]
    for name, group in sorted(groups.items()):
        if len(group) >= least:
            lines.append("| " + " | ".join(name) + " | " + summary(group) + " |")
    if few:
        lines.append("| fewer rows |" + " |" * (len(names) - 1) + " " + summary(few) + " |")
    return lines


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why rows were not answered, most frequent first."""
    count = Counter((row["status"], plain(row["reason"])) for row in rows if row["status"] != "scored")
    lines = ["| status | reason | rows |", "|---|---|---|"]
    lines += [f"| {status} | {why} | {number} |" for (status, why), number in count.most_common(REASONS)]
    rest = sum(count.values()) - sum(number for _, number in count.most_common(REASONS))
    return [*lines, f"| | {len(count) - REASONS} other reasons | {rest} |"] if rest else lines


def plain(reason: str) -> str:
    """A reason without the numbers that make each of its rows different, and without what breaks a table."""
    if " will not start on " in reason:
        return "will not start: weights and workspace leave no room for the cache"
    if "has no accelerator" in reason or "small computers" in reason:
        return "hardware without an accelerator, or a cluster of small computers"
    return re.sub(r"\b\d[\d.,]*", "N", reason).replace("|", "/")[:140]


def beside(rows: Sequence[Row], theirs: Mapping[str, Any]) -> list[str]:
    """Both programs on the same rows: those that each answers, and those that both answer."""
    lines = [
        "| rows | program | answered | median | mean | p90 | bias | within 10 % | within 25 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    first = next(iter(theirs["predicted"].values()))
    own = {row["id"]: float(row["predicted"]) for row in rows if row["status"] == "scored"}
    programs = {"Ridgeline": own, **{f"AIConfigurator, {name}": each for name, each in theirs["predicted"].items()}}
    cases = [(source, metric) for metric in METRICS for source in (*SOURCES, "both")]
    for source, metric in cases:
        asked = [row for row in rows if row["metric"] == metric and source in (row["source"], "both")]
        common = [row for row in asked if row["id"] in own and row["id"] in first]
        for subset, which in ((asked, "all"), (common, "both answer")):
            name = f"{metric}, {source if source != 'both' else ' and '.join(SOURCES)}: {which} {len(subset)}"
            for program, found in programs.items():
                known = [{**row, "predicted": found[row["id"]]} for row in subset if row["id"] in found]
                share = f"{len(known) / len(subset):.0%}" if subset else ""
                cells = spread(errors(known)) if known else "| | | | |"
                lines.append(f"| {name} | {program} | {share} | {cells} |")
    return lines


def by_model(rows: Sequence[Row], theirs: Mapping[str, Any]) -> list[str]:
    """Median errors of both on common rows, by model, engine and metric."""
    first = next(iter(theirs["predicted"].values()))
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] == "scored" and row["id"] in first:
            groups[row["metric"], row["model"], row["engine"]].append(row)
    lines = ["| metric | model | engine | rows | Ridgeline | AIConfigurator |", "|---|---|---|---|---|---|"]
    for name, group in sorted(groups.items()):
        other = errors({**row, "predicted": first[row["id"]]} for row in group)
        ours, peer = (f"{np.median(np.abs(one)):.1%} ({np.median(one):+.1%})" for one in (errors(group), other))
        lines.append(f"| {' | '.join(name)} | {len(group)} | {ours} | {peer} |")
    return lines


def peer_lines(table: Path, rows: Sequence[Row]) -> list[str]:
    """The comparison, where the other program is installed."""
    with table.open(encoding="utf-8", newline="") as text:
        known = {line["id"]: line for line in csv.DictReader(text, delimiter="\t")}
    fixed = [row for row in rows if row["source"] in SOURCES and row["scenario"] == SCENARIO]
    asked = [row for row in fixed if row["metric"] in METRICS]
    theirs = aiconfigurator_rows([known[row["id"]] for row in asked])
    if theirs is None:
        return ["AIConfigurator was not told where it is."]
    first = next(iter(theirs["refused"].values()))
    refused = [f"| {why.replace('|', '/')} | {count} |" for why, count in Counter(first.values()).most_common(8)]
    seconds = ", ".join(f"{spent:.0f} s with {name}" for name, spent in theirs["seconds"].items())
    return [
        prose(
            f"AIConfigurator {theirs['version']} (`cli_estimate`, aggregated, its current tables of each engine;"
            f" {theirs['points']} configurations, {seconds}) and Ridgeline on the same {len(asked)} rows: all of"
            f" {' and '.join(SOURCES)} at fixed concurrency that are not disaggregated. It is given the concurrency"
            " over the ranks of attention as its batch, and tp, ep and formats as the row states. *ctx_tokens* is its"
            " budget of prompt tokens in a step: the prompt by default, 8,192 in most engines."
        ),
        "",
        "What is not even between the two, and what is not out of sample:",
        "",
        "- Ridgeline replays rows with the flags that their benchmarks published (`benchmark_settings.tsv`): nearly",
        "  all of those are of IX. NVSIL's runs get the token budget of AIConfigurator's own generator, assumed with",
        "  these rows in view. AIConfigurator is told none of them; its tables are of newer engines than most rows.",
        "- Ridgeline's operators are fitted to AIConfigurator's published tables of kernels. Its rules of serving were",
        "  worked on with such rows in view, so its errors are in sample; those of an unseen source may be larger.",
        "- Both sources are in the sample of runs that AIConfigurator ships, and may have shaped it as well. Here both",
        "  programs only read the rows of the table.",
        "- AIConfigurator's checkpoints of Qwen3-32B and Llama-3.1-8B in fp8, where there was a choice, were those",
        "  with the smaller error of TPOT on some of these rows. It refuses a batch that does not fit in memory; an",
        "  engine, and Ridgeline, lets requests wait.",
        "- A median hides outliers: where means are far above medians, some rows are wrong by factors.",
        "",
        *beside(asked, theirs),
        "",
        "By model and engine, rows that both answer: median absolute error (and bias).",
        "",
        *by_model(asked, theirs),
        "",
        "What AIConfigurator does not answer:",
        "",
        "| reason | rows |",
        "|---|---|",
        *refused,
    ]


def page(table: Path, answer: Mapping[str, Any]) -> list[str]:
    """The lines of the page."""
    rows: list[Row] = answer["rows"]
    counts = ", ".join(f"{count:,} {name}" for name, count in Counter(row["status"] for row in rows).most_common())
    parts = (
        ("By metric and scenario", ("metric", "scenario"), lambda row: (row["metric"], row["scenario"] or ""), FEWEST),
        ("By engine", ("metric", "engine"), lambda row: (row["metric"], row["engine"] or ""), FEWEST),
        ("By device", ("metric", "device"), lambda row: (row["metric"], row["device"] or ""), 2 * FEWEST),
        ("By source", ("metric", "source"), lambda row: (row["metric"], row["source"] or ""), FEWEST),
    )
    lines = [
        "# Accuracy of serving",
        "",
        prose(
            f"`ridgeline check` on {table.name}: {counts}. All rows counted; errors are absolute percentage errors,"
            " never pooled over metrics; bias is the median signed error; covered is the share of rows inside the 80 %"
            " interval. Written by `accuracy_serving.py`; groups of few rows stand together."
        ),
        "",
        "## By metric",
        "",
        *grouped(rows, ("metric",), lambda row: (row["metric"],), 1),
        "",
        "## Not answered",
        "",
        *reasons(rows),
        "",
        "## Beside AIConfigurator",
        "",
        *peer_lines(table, rows),
        "",
    ]
    for title, names, key, least in parts:
        lines += [f"## {title}", "", *grouped(rows, names, key, least), ""]
    return lines


def main() -> None:
    """Reads the table and the check of it, asks the other program, and writes the page."""
    table, checked = Path(sys.argv[1]), Path(sys.argv[2])
    lines = page(table, json.loads(checked.read_text(encoding="utf-8")))
    Path(__file__).with_name("serving_accuracy.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
