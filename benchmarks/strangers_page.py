"""The page of `bench_strangers.py`: first answers beside those of now, by metric and by group."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.validate.rows import Row, TruthTable

Answer = Mapping[str, Any]
Key = tuple[str, str]
Asked = dict[Key, Row]

GROUPS = (
    ("TPOT", "serving", r"tpot_"),
    ("TTFT", "serving", r"ttft_"),
    ("ITL", "serving", r"itl_"),
    ("output tokens/s", "serving", r"output_tok_s|decode_tok_s"),
    ("prompt tokens/s", "serving", r"prefill_tok_s"),
    ("other throughput", "serving", r".*(tok_s|samples_s|req_s|throughput)"),
    ("latency", "serving", r".*latency|e2e"),
    ("memory of serving", "serving", r"memory"),
    ("training step", "training", r"step_time"),
    ("time to train", "training", r"time_to_train|gpu_hours"),
    ("power", "training", r"mean_node_power"),
    ("power of serving", "serving", r"avg_power"),
    ("other of serving", "serving", r""),
    ("training throughput", "training", r""),
    ("memory of training", "memory", r""),
    ("offload", "offload", r""),
    ("pictures", "diffusion", r"latency"),
    ("memory of pictures", "diffusion", r"memory"),
    ("pictures a second", "diffusion", r""),
    ("post-training step", "rl", r"step_s"),
    ("post-training tokens/s", "rl", r".*tok"),
    ("post-training, parts", "rl", r""),
)
"""Name of a group of metrics, table, and what its metrics begin with; the first that fits is a row's."""

LIMITS = {
    "TPOT": 0.12, "TTFT": 0.22, "output tokens/s": 0.12, "prompt tokens/s": 0.12, "other throughput": 0.12,
    "training step": 0.13, "training throughput": 0.13, "memory of serving": 0.08, "memory of training": 0.08,
    "offload": 0.25, "post-training step": 0.20,
}  # fmt: skip
"""Largest median error that is aimed at [1]."""

FEWEST = 3  # answered rows of a group that has a line of its own
WORST = 20
_LONG = 150

TITLE = """# Sources that nothing here was made with

Rows of [unseen](unseen/README.md), answered by `ridgeline check --blind`: nothing is used that a row does not say.
**First** is the answer of commit {first}, before anything was changed because of these rows, whatever was refused or
misread; **now** is that of commit {now}, whose readers were mended with these rows in view: it is no stranger's error,
and where more rows are answered the two columns are not of the same rows. Rows of confidence `low` are not counted.
A row is answered or refused;
*error* is the median of |predicted / measured - 1| of what is answered, *bias* the median of predicted / measured - 1,
*p90* the 90th percentile of the error, *inside* the share of measured values in the 80 % interval, *width* the
median of its high / low. Post-training rows were not answered at first: `check` had no such workload.

Written by `bench_strangers.py --page`; first answers are in `unseen/first-answers.tsv.gz`.
"""

_FIGURES = ("error", "bias", "p90", "inside", "width")

SEALED = """# Sources that stayed sealed until the end

First answers of commit {at} to the `{side}` tables of [unseen](unseen/README.md), by `ridgeline check --blind`: nothing
is used that a row does not say, and nobody had seen a prediction of these sources before. Rows of confidence `low`
are not counted. *Error* is the median of |predicted / measured - 1| of what is answered, *bias* the median of
predicted / measured - 1, *p90* the 90th percentile of the error, *inside* the share of measured values in the 80 %
interval, *width* the median of its high / low.

Written by `bench_strangers.py --unseal {side} --page`; answers are in `unseen/first-answers.tsv.gz`.
"""

BEFORE = """
The columns without a name are the answers of commit {before}, asked at the same time: what was mended in between was
mended without these rows, so that the difference is what it is worth to strangers.
"""

Answers = Mapping[str, Mapping[Key, Answer]]
"""Answers by the name of their columns, the last those of now: `first` and `now`, or one without a name."""


def group_of(table: str, metric: str) -> str:
    """The group of metrics that a row is counted in."""
    return next(name for name, of, begins in GROUPS if of == table and re.match(begins, metric))


def page(asked: Iterable[tuple[str, TruthTable]], answers: Answers, title: str, peer: Path) -> str:
    """The whole page in Markdown; what weighs most where there are answers of two commits, the peer's where told."""
    rows = {
        (name, row.id): row for name, table in asked for row in table.rows if row.text("confidence").casefold() != "low"
    }
    found: dict[str, list[Key]] = defaultdict(list)
    for (name, id_), row in rows.items():
        found[group_of(name, row.text("metric"))].append((name, id_))
    groups = {name: found[name] for name, *_ in GROUPS if name in found}
    parts = [title, "## By metric", _by_metric(groups, answers)]
    if len(answers) > 1:
        parts += ["## Largest misses", _worst(groups, rows, answers)]
    for what, key in _kinds(rows, _now(answers)).items():
        parts += [f"## By {what}", _by(what, key, groups, answers)]
    parts += ["## Beside AIConfigurator", _beside(groups, answers, peer)] if peer.exists() else []
    return "\n\n".join([*parts, "## Refused", _refused(rows, answers), *_sources(rows)]) + "\n"


def _now(answers: Answers) -> Mapping[Key, Answer]:
    return list(answers.values())[-1]


def _head(what: str, answers: Answers) -> list[str]:
    """The head of a table of errors and the rule below it."""
    figures = [word for name in answers for word in ((f"{name}: " if name == "now" else "") + "answered", *_FIGURES)]
    return [f"| {' | '.join((what, 'rows', *figures))} |", "|---|" + "---|" * (1 + len(figures))]


def _kinds(rows: Asked, now: Mapping[Key, Answer]) -> dict[str, Callable[[Key], str]]:
    """How rows are grouped: a name, and the group of a row."""

    def said(field: str, *cells: str) -> Callable[[Key], str]:
        def of(key: Key) -> str:
            known = now.get(key, {}).get(field)
            return str(known or next(filter(None, map(rows[key].text, cells)), "not stated"))

        return of

    return {
        "rung of evidence": lambda key: str(now.get(key, {}).get("rung") or said("evidence")(key)),
        "source": lambda key: rows[key].source,
        "device": said("device", "hardware", "gpu"),
        "engine": said("engine", "engine"),
    }


def _by_metric(groups: Mapping[str, list[Key]], answers: Answers) -> str:
    limits = {name: f" ({LIMITS[name]:.0%})" if name in LIMITS else "" for name in groups}
    lines = [_line(name + limits[name], keys, answers) for name, keys in groups.items()]
    return "\n".join([*_head("metric (limit of the error)", answers), *lines])


def _by(what: str, key: Callable[[Key], str], groups: Mapping[str, list[Key]], answers: Answers) -> str:
    lines = _head(f"metric, {what}", answers)
    for name, all_keys in groups.items():
        parts: dict[str, list[Key]] = defaultdict(list)
        for each in all_keys:
            parts[key(each)].append(each)
        for part, keys in sorted(parts.items()):
            if any(len(_scored(keys, one)) >= FEWEST for one in answers.values()):
                lines.append(_line(f"{name}, {part}", keys, answers))
    return "\n".join(lines)


def _line(name: str, keys: Sequence[Key], answers: Answers) -> str:
    figures = [cell for one in answers.values() for cell in _figures(keys, one)]
    return f"| {' | '.join((name.replace('|', '/'), str(len(keys)), *figures))} |"


def _scored(keys: Iterable[Key], answers: Mapping[Key, Answer]) -> list[Key]:
    return [key for key in keys if key in answers and answers[key]["status"] == "scored"]


def ratios(keys: Iterable[Key], answers: Mapping[Key, Answer]) -> np.ndarray:
    """Predicted over measured [1] of the rows that are answered with a number."""
    found = [answers[key] for key in _scored(keys, answers)]
    return np.array([row["predicted"] / row["measured"] for row in found if isinstance(row["predicted"], float | int)])


def _figures(keys: Sequence[Key], answers: Mapping[Key, Answer]) -> list[str]:
    """Answered share, median error, bias, 90th percentile, share inside, width."""
    answered = _scored(keys, answers)
    share = f"{len(answered)} ({len(answered) / len(keys):.0%})"
    found = ratios(keys, answers)
    if not found.size:
        return [share, "", "", "", "", ""]
    errors = np.abs(found - 1)
    ranged = [answers[key] for key in answered if answers[key]["low"] not in (None, "")]
    inside = [row["low"] <= row["measured"] <= row["high"] for row in ranged]
    widths = [row["high"] / row["low"] for row in ranged if row["low"] > 0]
    held = [f"{np.mean(inside):.0%}", f"{np.median(widths):.2f}"] if widths else ["", ""]
    return [share, f"{np.median(errors):.1%}", f"{np.median(found - 1):+.1%}", f"{np.quantile(errors, 0.9):.0%}", *held]


def _worst(groups: Mapping[str, list[Key]], rows: Asked, answers: Answers) -> str:
    """Metric, source, device and engine whose errors weigh most: answered rows times the median above its limit."""
    now = _now(answers)
    kinds = _kinds(rows, now)
    parts: dict[str, list[Key]] = defaultdict(list)
    limit: dict[str, float] = {}
    for name, keys in groups.items():
        for key in keys:
            label = ", ".join((name, *(kinds[kind](key) for kind in ("source", "device", "engine"))))
            parts[label].append(key)
            limit[label] = LIMITS.get(name, 0.12)
    weights = {}
    for label, keys in parts.items():
        found = ratios(keys, now)
        if found.size >= FEWEST:
            weights[label] = found.size * max(0.0, float(np.median(np.abs(found - 1))) - limit[label])
    lines = ["Rows answered times what their median error is above the limit, the heaviest first.", ""]
    lines += _head("metric, source, device, engine", answers)
    heaviest = sorted(weights, key=lambda label: -weights[label])[:WORST]
    return "\n".join([*lines, *(_line(label, parts[label], answers) for label in heaviest if weights[label])])


_BESIDE = """AIConfigurator 0.12.0 (`strangers_peer.py`) on the same rows: time to first token and per output token
of its `cli_estimate`, with each row's lengths, degrees, formats and concurrency; a batch that its memory model
refuses is halved until it holds. Its successor AISimulate 0.12 keeps those commands; installing it failed,
as its package fetches a wheel from an index that was out of reach, so it is not what is compared. A steady estimate is
asked of AIConfigurator also where a row is a burst that drains with requests of unlike lengths (most rows of output
tokens/s): there it answers another question than the row's. Only rows that both answer are compared."""


def _beside(groups: Mapping[str, list[Key]], answers: Answers, peer: Path) -> str:
    """Errors of both programs on the rows that both answer, by metric."""
    with peer.open(encoding="utf-8", newline="") as lines:
        told = {row["id"]: row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)}
    theirs: dict[Key, Answer] = {}
    for key, answer in _now(answers).items():
        row = told.get(key[1])
        if key[0] == "serving" and row is not None and row["status"] == "scored" and answer["status"] == "scored":
            theirs[key] = answer | {"predicted": float(row["predicted"]), "low": None}
    heads = [f"{name or 'now'}: {' | '.join(_FIGURES[:3])}" for name in (*answers, "AIConfigurator")]
    lines_ = [_BESIDE, "", "| metric | rows of both | " + " | ".join(heads) + " |"]
    lines_.append("|---|---|" + "---|" * 3 * len(heads))
    for name, keys in groups.items():
        both = [key for key in keys if key in theirs and all(_scored([key], one) for one in answers.values())]
        if len(both) >= FEWEST:
            figures = [" | ".join(_figures(both, one)[1:4]) for one in (*answers.values(), theirs)]
            lines_.append(f"| {name} | {len(both)} | " + " | ".join(figures) + " |")
    return "\n".join(lines_)


def _refused(rows: Asked, answers: Answers) -> str:
    """Reasons with their rows, by each column of answers; digits and names of a reason are as one row gives them."""

    def reasons(of: Mapping[Key, Answer]) -> Counter[tuple[str, str]]:
        return Counter(
            (key[0], _short(of[key]["reason"])) for key in rows if of.get(key, {}).get("status") == "refused"
        )

    counts = [reasons(one) for one in answers.values()]
    lines = [
        f"| table | reason | {' | '.join(name or 'rows' for name in answers)} |",
        "|---|---|" + "---|" * len(counts),
    ]
    for each in sorted(
        {each for one in counts for each in one}, key=lambda each: (-max(one[each] for one in counts), each)
    ):
        lines.append(f"| {' | '.join((*each, *(str(one[each] or '') for one in counts)))} |")
    return "\n".join(lines)


def _short(reason: str) -> str:
    told = " ".join(reason.replace("|", "/").split())
    told = re.sub(r"; known: .*", "", told)
    return told if len(told) <= _LONG else told[:_LONG] + "..."


def _sources(rows: Asked) -> list[str]:
    """Titles of the sources that are named by a code."""
    path = Path(__file__).parent / "unseen" / "sources-serving.tsv"
    with path.open(encoding="utf-8", newline="") as lines:
        titles = {row["code"]: row["title"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)}
    named = sorted({row.source for row in rows.values()} & titles.keys())
    return ["## Sources named by a code", "\n".join(f"- {code}: {titles[code]}" for code in named)]
