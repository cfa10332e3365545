"""What comes out here for what papers report: each claim's number, its interval and a verdict."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from ridgeline.claims.arithmetic import computed
from ridgeline.claims.files import COMPUTED, PREDICTED, SLOT, Paper, PaperClaim
from ridgeline.facts.ledger import LedgerRow
from ridgeline.report.answer_values import ValueRange, value_at

Ask = Callable[[str, Mapping[str, str]], Mapping[str, Any]]
"""Answers a command of `ridgeline`, beside texts by the names of files, with its JSON; of what is refused with the text
under `error`."""
WITHIN, INSIDE, MISS, HOLDS, QUOTED, NOT_YET, REFUSED = (
    "within tolerance", "inside the range", "miss", "identity holds", "quoted", "not yet", "refused",
)  # fmt: skip
SHARED = 0.15  # of the paper's number: forward claims are counted within it, whatever their own tolerance (definition)
_ENDS = ("low", "mid", "high")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A claim as it came out: ours with its interval [the claim's unit], None where nothing is computed.

    `answered` holds each command with its path and value, `reason` what was refused.
    """

    ours: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str
    reason: str = ""
    answered: tuple[tuple[str, str, float], ...] = ()


def rows_of(row: LedgerRow, paper: Paper | None, ask: Ask) -> Iterator[dict[str, Any]]:
    """The rows of one paper, a claim each, as `claims --json` has them; one row of a paper without a file."""
    about = {"paper": row.n, "system": row.system, "title": row.title, "family": row.family, "kind": row.kind}
    if paper is None:
        claim = PaperClaim(text=row.claims, checked="not yet")
        paper = Paper(paper=row.n, status="not yet", sources=(), missing="no file of claims", claims=(claim,))
    for one in paper.claims:
        found = outcome(one, ask)
        yield {
            **about, "status": paper.status, "claim": one.text, "checked": one.checked, "theirs": one.theirs,
            "ours": found.ours, "low": found.low, "high": found.high, "verdict": found.verdict,
            "technique": paper.technique, "unit": one.unit, "bound": one.bound, "tolerance": one.tolerance,
            "place": one.place, "suspected": one.suspected, "reason": found.reason, "missing": paper.missing,
            "formula": one.ours, "settings": {name: list(values) for name, values in one.settings.items()},
            "answers": [{"command": text, "path": path, "value": value} for text, path, value in found.answered],
            "sources": list(paper.sources), "files": dict(one.files),
        }  # fmt: skip


def outcome(claim: PaperClaim, ask: Ask) -> Outcome:
    """What comes out for a claim: of a bracketed one ours is the middle of the range over its open settings."""
    if not claim.ours:
        return Outcome(verdict=claim.checked)
    found: list[ValueRange] = []
    answered: list[tuple[str, str, float]] = []
    try:
        for case in _cases(claim):
            found.append(_one(claim, case, ask, answered))
    except ValueError as error:
        return Outcome(verdict=REFUSED, reason=str(error), answered=tuple(answered))
    if claim.settings:
        low, high = min(one.mid for one in found), max(one.mid for one in found)
        range_ = ValueRange(low=low, mid=(low + high) / 2, high=high)
    else:
        (range_,) = found
    return Outcome(
        ours=range_.mid, low=range_.low, high=range_.high, verdict=_verdict(claim, range_), answered=tuple(answered)
    )


def _cases(claim: PaperClaim) -> Iterator[dict[str, float | str]]:
    """Each choice of the settings that a paper leaves open; one empty choice where it leaves none."""
    for values in product(*claim.settings.values()):
        yield dict(zip(claim.settings, values, strict=True))


def _one(
    claim: PaperClaim, case: Mapping[str, float | str], ask: Ask, answered: list[tuple[str, str, float]]
) -> ValueRange:
    """The formula for one choice of settings.

    Predictions for one machine err together (the same rates and efficiencies are in all of them), so their values are
    taken at the low end together, or at the high end; those for different machines err apart, and all pairs of ends
    are taken.
    """
    values, machines = {}, {}
    files = {name: filled(text, case) for name, text in claim.files.items()}
    for name, question in claim.answers.items():
        text = filled(question.command, case)
        answer = ask(text, files)
        try:
            values[name] = value_at(answer, question.value)
        except ValueError as error:
            raise ValueError(f"ridgeline {text}: {answer.get('error') or error}") from None
        machines[name] = _machine(text, files)
        answered.append((text, question.value, values[name].mid))
    numbers = {name: float(value) for name, value in case.items() if not isinstance(value, str)}
    groups = sorted(set(machines.values()))

    def at(ends: Mapping[str, str]) -> float:
        return computed(claim.ours, numbers | {name: getattr(values[name], ends[machines[name]]) for name in values})

    mid = at(dict.fromkeys(groups, "mid"))
    every = [mid, *(at(dict(zip(groups, ends, strict=True))) for ends in product(_ENDS, repeat=len(groups)))]
    return ValueRange(low=min(every), mid=mid, high=max(every))


def filled(text: str, case: Mapping[str, float | str]) -> str:
    """A text with the values of settings in their places."""
    return SLOT.sub(lambda slot: str(case[slot[1]]), text)


def _machine(command: str, files: Mapping[str, str]) -> str:
    """The kind of device that a command asks about: what follows `--on` or its scenario says, without counts."""
    words = shlex.split(command)
    on = next((after for word, after in pairwise(words) if word == "--on"), "")
    if not on and (scenario := next((files[word] for word in words if word in files and word.endswith(".toml")), "")):
        on = str(tomllib.loads(scenario).get("cluster", {}).get("name", ""))
    return on.rpartition("x")[2] if on[:1].isdigit() else on


def _verdict(claim: PaperClaim, ours: ValueRange) -> str:
    theirs = claim.theirs
    if theirs is None or claim.checked == QUOTED:
        return QUOTED  # an inverted share that nobody measured, and what a quoted quality costs
    near = abs(ours.mid - theirs) <= claim.tolerance * abs(theirs)
    if claim.checked == "identity":
        return HOLDS if near else MISS
    if claim.settings:
        above = 0.0 if claim.bound == "at least" else ours.low - theirs
        gap = max(above, theirs - ours.high, 0.0)
        return MISS if gap > claim.tolerance * abs(theirs) else WITHIN if gap else INSIDE
    if near:
        return WITHIN
    none = 1.0 if claim.unit == "x" else 0.0  # no effect at all
    kept = {"up to": none < ours.mid < theirs, "at least": ours.mid > theirs}
    return INSIDE if kept.get(claim.bound, False) else MISS


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many papers and claims are how far, predicted ones apart from identities, inversions and quotations."""
    rows = list(rows)
    papers = {row["paper"]: row for row in rows}
    forward = [row for row in rows if row["checked"] == "forward"]
    misses = [row for row in rows if row["verdict"] in (MISS, REFUSED)]
    return {
        "papers": len(papers),
        "works": sum(row["status"] == "works" for row in papers.values()),
        "partly": sum(row["status"] == "partly" for row in papers.values()),
        "by_kind": {
            kind: {
                "papers": sum(row["kind"] == kind for row in papers.values()),
                "works": sum(row["kind"] == kind and row["status"] == "works" for row in papers.values()),
            }
            for kind in sorted({row["kind"] for row in papers.values()})
        },
        "claims": {word: sum(row["checked"] == word for row in rows) for word in (*COMPUTED, "quoted", "not yet")},
        "forward_within_15": sum(_near(row) for row in forward),
        "forward_within_bound": sum(row["verdict"] == INSIDE for row in forward),
        "bracketed_inside": sum(row["checked"] == "bracketed" and row["verdict"] == INSIDE for row in rows),
        "misses": [
            {key: row[key] for key in ("paper", "system", "claim", "checked", "theirs", "ours", "suspected", "reason")}
            for row in misses
            if row["checked"] in (*PREDICTED, "identity", "inverted")
        ],
    }


def _near(row: Mapping[str, Any]) -> bool:
    ours, theirs = row["ours"], row["theirs"]
    return ours is not None and abs(ours - theirs) <= SHARED * abs(theirs)
