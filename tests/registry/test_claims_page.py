"""Files of claims keep the ledger's rules, and docs/claims.md tells all papers.

`python tests/registry/test_claims_page.py` writes its tables anew, or only the rows of the papers whose numbers it is
given, in a few seconds: `python tests/registry/test_claims_page.py 62 71`. Figures of commands that take long are not
on the page, so that none can be stale: the test computes every figure that it shows.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path

import pytest

from ridgeline.api.claiming import asked
from ridgeline.claims.files import COMPUTED, PREDICTED, Paper, PaperClaim, papers
from ridgeline.claims.text import ours_text, theirs_text
from ridgeline.claims.verdicts import outcome
from ridgeline.facts.ledger import LedgerRow, ledger
from ridgeline.seams.registry import families, family_of, kind, names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "claims.md"
MARK = "<!-- What follows is written by tests/registry/test_claims_page.py. -->\n"
QUICK = {"predict", "simulate", "op", "catalog", "techniques"}
COMMON = 128  # whole numbers up to here are degrees and batches too, and may coincide
PLANNERS = {"plan", "simulate", "predict", "advise"}
every = pytest.mark.parametrize("paper", papers().values(), ids=lambda one: f"{one.paper:03d}")


def commands(claim: PaperClaim) -> list[str]:
    return [each.command for each in claim.answers.values()]


def verbs(claim: PaperClaim) -> set[str]:
    return {command.split()[0] for command in commands(claim)}


@every
def test_its_technique_is_in_the_registry(paper: Paper) -> None:
    assert not paper.technique or any(paper.technique in names(family) for family in families())


@every
def test_it_tells_where_its_numbers_stand(paper: Paper) -> None:
    assert paper.sources
    assert all(claim.place for claim in paper.claims if claim.checked in COMPUTED)


@every
def test_it_works_by_the_rule_of_its_kind(paper: Paper) -> None:
    if paper.status != "works":
        return
    computed = [claim for claim in paper.claims if claim.checked in COMPUTED]
    predicted = [claim for claim in computed if claim.checked in PREDICTED]
    match ledger()[paper.paper].kind:
        case "MODEL":
            assert predicted, "a MODEL computes its headline by a command"
        case "PLAN":
            compared = [claim for claim in predicted if len(claim.answers) > 1 and verbs(claim) & PLANNERS]
            assert compared, "a PLAN is compared with its baseline"
        case "BENCH" | "ACCURACY":
            assert any(claim.answers for claim in paper.claims), "its metric, data or cost side comes from a command"


def written(number: float) -> set[str]:
    """The forms in which a number may be written."""
    return {text for text in (f"{number:g}", f"{number:.1f}", f"{number:.2f}", str(number)) if float(text) == number}


@every
def test_what_is_predicted_does_not_use_the_claimed_number(paper: Paper) -> None:
    for claim in paper.claims:
        theirs = claim.theirs
        if claim.checked in PREDICTED and theirs is not None and not (theirs % 1 == 0 and theirs <= COMMON):
            told = " ".join([*commands(claim), claim.ours])
            found = set(re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])", told))
            assert not found & written(theirs), f"{claim.text}: its command or formula has the claimed number"


@every
def test_its_commands_can_be_run_by_anybody(paper: Paper) -> None:
    for claim in paper.claims:
        for command in commands(claim):
            words = shlex.split(command)
            assert words[0] != "claims"
            own = claim.files.keys()
            files = [
                word
                for word in words
                if re.search(r"\.(toml|json|tsv|csv)$", word) and "{" not in word and word not in own
            ]
            assert not files, f"{command}: a file that is not in the package"


def test_no_fact_rests_on_a_claim() -> None:
    """What claims say is read by the room of claims alone: no fact, recipe or policy can come from there."""
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src" / "ridgeline").rglob("*.py")
        if re.search(r"""ledger\.tsv|["']claims/|facts\.ledger|ridgeline\.claims""", path.read_text(encoding="utf-8"))
    ]
    allowed = re.compile(r"src/ridgeline/(claims/\w+|facts/ledger|api/(claiming|options|techniques))\.py")
    assert not [path for path in readers if not allowed.fullmatch(path)]


WORDS = {"ledger.tsv", "readings.tsv"}  # tables of texts and of how people write, which hold no facts


def constants(folder: Path) -> list[tuple[str, str]]:
    """Lines of the tables of facts, of engines' and frameworks' policies and of fits, each with its file and place."""
    found = [
        *folder.glob("*.tsv"),
        *(one for name in ("engines", "frameworks") for one in (folder / name).glob("*.toml")),
    ]
    found += [*(folder / "fits").glob("*.tsv"), *(folder / "fits").glob("*.toml")]
    return [
        (f"{file.name}:{place}", line)
        for file in found
        if file.name not in WORDS
        for place, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1)
    ]


def borrowed(paper: Paper, lines: list[tuple[str, str]]) -> list[str]:
    """Lines that have a predicted claim's number, of three digits or more, and name a source of its paper."""
    found = []
    for claim in paper.claims:
        number = f"{claim.theirs or 0.0:.10g}"
        if claim.checked in PREDICTED and len(number.replace(".", "").strip("0")) >= 3:
            word = re.compile(rf"(?<![\w.-]){re.escape(number)}(?![\w.-])")
            found += [at for at, line in lines if word.search(line) and any(key in line for key in paper.sources)]
    return found


def test_no_claimed_number_is_a_constant_from_its_paper() -> None:
    lines = constants(ROOT / "src" / "ridgeline" / "data")
    assert len(lines) > 5000
    assert not [(paper.paper, at) for paper in papers().values() for at in borrowed(paper, lines)]


def test_a_constant_that_is_a_claimed_number_is_found() -> None:
    paper = next(one for one in papers().values() if one.paper == 11)
    assert borrowed(paper, [("x.tsv:1", f"serve.gain\t1.91\t1\tmeasured\t{paper.sources[0]}")]) == ["x.tsv:1"]
    assert not borrowed(paper, [("x.tsv:1", "serve.gain\t1.91\t1\tmeasured\tanother")])


# the tables of docs/claims.md ----------------------------------------------------------------------


def listed(kept: dict[int, list[str]]) -> str:
    """All papers as Markdown, a table for each family; the lines of `kept` stay."""
    parts = []
    for family in sorted({row.family for row in ledger().values()}):
        head = "| paper | kind, status | claim | checked | paper's | ours |"
        rows = [row for row in ledger().values() if row.family == family]
        lines = [line for row in rows for line in kept.get(row.n) or _lines(row)]
        parts.append("\n".join([f"## {family}", "", head, "|---|---|---|---|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def _lines(row: LedgerRow) -> list[str]:
    paper, system = papers().get(row.n), f"{row.n} {row.system}"
    if paper is None:
        return [_row(system, f"{row.kind}, not yet", row.claims, "not yet", "", "")]
    state = f"{row.kind}, {paper.status}" + (f": {paper.missing}" if paper.missing else "")
    found = [
        _row("", "", claim.text, claim.checked, theirs_text(claim.theirs, claim.bound, claim.unit), _ours(row, claim))
        for claim in paper.claims
    ]
    return [found[0].replace("|  |  |", f"| {system} | {state} |", 1), *found[1:]]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _solved(key: str) -> bool:
    """Whether a technique hands a program to a solver, whose versions find unlike solutions of one."""
    file = inspect.getsourcefile(kind(family_of(key), key)) if key else None
    return file is not None and "from ridgeline.programs import" in Path(file).read_text(encoding="utf-8")


def _ours(row: LedgerRow, claim: PaperClaim) -> str:
    if not claim.ours:
        return ""
    if verbs(claim) - QUICK or _solved(papers()[row.n].technique):
        return f"`ridgeline claims --paper {row.n}`"
    found = outcome(claim, asked)
    told = found.reason if found.ours is None else ours_text(found.ours, found.low, found.high, claim.checked)
    return f"{told}: {found.verdict}"


def test_the_page_tells_every_paper() -> None:
    told = PAGE.read_text(encoding="utf-8").partition(MARK)[2]
    assert told == "\n" + listed({}), "run python tests/registry/test_claims_page.py"


def told_before(page: str) -> dict[int, list[str]]:
    """The page's lines by paper: one that begins with its number, and those below that begin with none."""
    found: dict[int, list[str]] = {}
    paper = 0
    for line in page.splitlines():
        if begins := re.match(r"\| (\d+) ", line):
            paper = int(begins[1])
        if begins or line.startswith("|  |"):
            found.setdefault(paper, []).append(line)
    return found


def renew(only: list[int]) -> None:
    """Writes the tables of the page, or only the rows of some papers."""
    head, _, page = PAGE.read_text(encoding="utf-8").partition(MARK)
    kept = {n: lines for n, lines in told_before(page).items() if n not in only} if only else {}
    PAGE.write_text(head + MARK + "\n" + listed(kept), encoding="utf-8")


if __name__ == "__main__":
    renew([int(word) for word in sys.argv[1:]])
