"""Do the programs take what `ridgeline export` writes for them? Their own parsers, schemas and classes judge.

    PYTHONPATH=src python benchmarks/bench_export.py --judges FILE.toml [--only TARGET] [--strict]

FILE.toml has a table for each target that can be judged, as `tests/run_exports` makes it: `python`, an interpreter in
which the program is installed; `path`, folders put on its path; `source`, a checkout or a program. A target without one
is not judged, and said to be. Every example is exported to every target of its task, planned under the target's program
where it trains and has no plan of its own, judged, and read back without its plan: the second export must be the first,
byte for byte. Each judge must also refuse a file that was spoilt. Writes export.md beside this file; `--strict` fails
where a file is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from export_judges import JUDGES, NOT_A_PARSER, SPOILT

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.export.target import target, targets
from ridgeline.export.wrapper import wrapper, wrappers
from ridgeline.scenario.fields import PLAN_FIELDS

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
Words = dict[str, Any]

SERVED: dict[str, Words] = {
    "qwen3-32b, 2 x tp 2": {"subject": "qwen3-32b", "on": "4xH100-SXM", "tp": 2},
    "qwen3-30b-a3b, tp 4, ep 4": {"subject": "qwen3-30b-a3b", "on": "4xH100-SXM", "tp": 4, "ep": 4},
    "qwen3-32b, tp 8, pp 2": {"subject": "qwen3-32b", "on": "16xH100-SXM", "tp": 8, "pp": 2},
    "qwen3-32b, MI300X": {"subject": "qwen3-32b", "on": "8xMI300X", "tp": 4},
}
POOLED: dict[str, Words] = {
    "qwen3-32b, 2 x tp 4 + tp 8": {"subject": "qwen3-32b", "on": "2x8xH100-SXM", "prefill": "2xtp4", "decode": "1xtp8"},
    "deepseek-v3, dp 16 ep 16 + dp 32 ep 32": {
        "subject": "deepseek-v3", "on": "6x8xH100-SXM", "prefill": "1xtp1,dp16,ep16", "decode": "1xtp1,dp32,ep32",
    },
}  # fmt: skip
TRAINED: dict[str, Words] = {
    "llama-3.1-8b, 8 devices": {"subject": "llama-3.1-8b", "on": "8xH100-SXM", "zero": 3, "task": "full"},
    "llama-3.1-8b, 16 devices, 10B tokens": {
        "subject": "llama-3.1-8b",
        "on": "16xH100-SXM",
        "zero": 3,
        "tokens": "10B",
    },
}


@dataclass
class Row:
    """One pair of target and example: its files, what is said of them, and whether they are read back the same."""

    part: str
    target: str
    example: str
    judge: str
    files: list[str] = field(default_factory=list)
    verdict: str = ""
    left: str = ""
    trip: str = ""

    def cell(self) -> str:
        """The row in the matrix of its part."""
        if not self.files:
            return "–"
        kind = self.verdict.partition(":")[0]
        return f"{kind}, exact" if self.trip == "exact" else f"{kind}, differs" if self.trip else kind

    def told(self) -> Iterator[str]:
        """What is to be said of the row beside its cell."""
        if self.verdict not in ("accepted", "not judged"):
            yield self.verdict
        if self.left:
            yield f"left out: {self.left}"
        if self.trip not in ("", "exact"):
            yield self.trip


def examples(task: str) -> dict[str, Words]:
    """Words of every example of a task; those of `examples/` by their file."""
    found: dict[str, Words] = {}
    for path in sorted(EXAMPLES.glob("*.toml")):
        workload = tomllib.loads(path.read_text(encoding="utf-8")).get("workload", {})
        trains = "global_batch" in workload
        if trains == (task == "training") and (trains or {"trace", "slo", "output"} & workload.keys()):
            found[path.stem] = {"subject": str(path)}
    return found | (SERVED | POOLED if task == "serving" else TRAINED)


@cache
def planned(path: str, key: str) -> tuple[tuple[str, Any], ...]:
    """Words of the best plan of a training example that a target can say; none where it has its own plan."""
    one = target(key)
    if one.task == "serving" or "plan" in tomllib.loads(Path(path).read_text(encoding="utf-8")):
        return ()
    pinned = dict.fromkeys(one.no_degrees, 1)
    best = rl.plan(path, framework=one.program, **pinned).as_dict()["best"]
    if not best:
        raise RidgelineError("no plan fits")
    names = {one.name for one in PLAN_FIELDS}
    told = best[0]["plan"].items()
    return tuple((name, value) for name, value in told if name in names and value not in (None, [], ""))


def written(row: Row, words: Words, folder: Path, around: str | None = None) -> Row:
    """A row with its files in a folder, and how they are read back; or why there are none."""
    subject = str(words["subject"])
    try:
        if subject.endswith(".toml"):
            words = words | dict(planned(subject, row.target))
        answer = rl.export(to=row.target, out=str(folder), around=around, **words)
    except RidgelineError as error:
        row.verdict = f"not written: {error}".replace(str(Path(subject).parent) + "/", "").replace("\n", " ")[:230]
        return row
    wanted = [wrapper(around).file] if around else [name for name in answer["files"] if name != "README.md"]
    row.files = [str(folder / name) for name in wanted]
    row.left = ", ".join(one["word"].partition(".")[2] for one in answer["left_out"])
    if not around:
        row.trip = read_back(row, words, answer["files"], folder)
    return row


def read_back(row: Row, words: Words, files: dict[str, str], folder: Path) -> str:
    """'exact' where files, read back without the plan, are written alike; otherwise what the second say."""
    subject = str(words["subject"])
    (folder / "README.md").unlink()
    told = f"{row.target}:{row.files[0] if len(row.files) == 1 else folder}"
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=EXAMPLES, encoding="utf-8") as bare:
        if subject.endswith(".toml"):
            head, _, plan = Path(subject).read_text(encoding="utf-8").partition("\n[plan]")
            engine = [line for line in plan.splitlines() if line.startswith("engine")]
            bare.write("\n".join([head, *(["[plan]", *engine] if engine else []), ""]))
            bare.flush()
            subject = bare.name
        try:
            again = rl.export(subject, words.get("on"), to=row.target, from_config=told)["files"]
        except RidgelineError as error:
            return f"not read back: {error}".replace(f"{subject}: ", "")[:200]
    for name in map(os.path.basename, row.files):
        new = sorted(set(again.get(name, "").splitlines()) - set(files[name].splitlines()))
        if again.get(name) != files[name]:
            return "second says " + "; ".join(line.strip() for line in new)[:160]
    return "exact"


_EACH = """
import json, sys
def judge(FILE, SOURCE):
{judge}
for file in json.load(sys.stdin):
    try:
        judge(file, {source!r})
        said = "accepted"
    except (Exception, SystemExit) as error:
        missing = isinstance(error, (ImportError, FileNotFoundError)) or "is installed?" in str(error)
        lines = [line for line in str(error).strip().splitlines() if "errors.pydantic.dev" not in line] or [repr(error)]
        said = ("cannot run: " if missing else "refused: ") + lines[-1].strip()
    print("VERDICT " + json.dumps([file, said[:200]]), flush=True)
"""


def judged(key: str, files: list[str], judges: dict[str, Any]) -> dict[str, str]:
    """What a target's program says of files: 'accepted', or why not; one process judges them all."""
    if key not in judges or key not in JUDGES:
        return dict.fromkeys(files, "not judged")
    own = judges[key]
    code = _EACH.replace("{judge}", textwrap.indent(JUDGES[key][1], "    "))
    code = code.replace("{source!r}", repr(own.get("source", "")))
    quiet = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "VLLM_TARGET_DEVICE": "cpu"}
    run = subprocess.run(
        [own.get("python", sys.executable), "-c", code], input=json.dumps(files), capture_output=True, text=True,
        env={**os.environ, **quiet, "PYTHONPATH": own.get("path", "")}, check=False,
    )  # fmt: skip
    lines = [line.removeprefix("VERDICT ") for line in run.stdout.splitlines() if line.startswith("VERDICT ")]
    why = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return dict.fromkeys(files, f"cannot run: {why[:160]}") | dict(json.loads(line) for line in lines)


def spoilt(key: str, files: list[str], judges: dict[str, Any], folder: Path) -> str:
    """What a judge says of a file that it accepted, with one part of it spoilt."""
    part, put = SPOILT[key]
    if key not in judges:
        return ""
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        if part in text:
            bad = folder / f"spoilt-{key}-{Path(file).name}"
            bad.write_text(text.replace(part, put), encoding="utf-8")
            return f"`{put}`: {judged(key, [str(bad)], judges)[str(bad)].partition(':')[0]}"
    return "none of its files has the part"


def all_rows(folder: Path, only: str) -> list[Row]:
    """Every pair: examples to their targets, and wrappers around them."""
    rows = []
    for key in (one for one in targets() if only in ("", one)):
        task = target(key).task
        for at, (example, words) in enumerate(examples(task).items()):
            row = Row(part=task, target=key, example=example, judge=key)
            rows.append(written(row, words, folder / f"{key}-{at}"))
            print(key, example, rows[-1].cell(), *rows[-1].told(), sep=" | ", flush=True)
        for kind in wrappers():
            if target(key).for_cluster:
                continue
            for at, (example, words) in enumerate((SERVED if task == "serving" else TRAINED).items()):
                row = Row(part="around", target=key, example=example, judge=kind)
                rows.append(written(row, words, folder / f"{key}-{kind}-{at}", kind))
    return rows


def matrix(rows: list[Row], title: str) -> list[str]:
    """The table of target x example of one part, and what is to be said of its pairs."""
    heads = list(dict.fromkeys(row.example for row in rows))
    names = list(dict.fromkeys((row.target, row.judge) for row in rows))
    cells = {(row.target, row.judge, row.example): row.cell() for row in rows}
    lines = [f"## {title}", "", f"| target | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for key, judge in names:
        name = key if key == judge else f"{key} --around {judge}"
        lines.append(f"| {name} | {' | '.join(cells.get((key, judge, head), '') for head in heads)} |")
    told = [f"- {row.target}, {row.example}: {line}" for row in rows if row.judge == row.target for line in row.told()]
    return [*lines, "", *told, *([""] if told else [])]


def summary(rows: list[Row], refusals: dict[str, str]) -> list[str]:
    """A row for each judge: how many files it took, how many were read back the same."""
    lines = ["| target | judge | written | accepted | read back exactly | a spoilt file |", "|---" * 6 + "|"]
    for key in JUDGES:
        own = [row for row in rows if row.judge == key]
        made = [row for row in own if row.files]
        taken = sum(row.verdict == "accepted" for row in made)
        trips = [row.trip for row in made if row.trip]
        exact = f"{trips.count('exact')} of {len(trips)}" if trips else ""
        judge = JUDGES[key][0] if refusals[key] else f"not judged; it would be {JUDGES[key][0]}"
        lines.append(
            f"| {key} | {judge} | {len(made)} of {len(own)} | {taken} of {len(made)} | {exact} | {refusals[key]} |"
        )
    return [*lines, ""]


def page(rows: list[Row], refusals: dict[str, str]) -> str:
    """The page of all that was judged."""
    unjudged = sorted({row.judge for row in rows} - JUDGES.keys())
    made = [row for row in rows if row.files]
    own = {key for key, said in refusals.items() if said and key not in NOT_A_PARSER and key not in wrappers()}
    serving = [key for key in own if target(key).task == "serving"]
    trips = [row.trip for row in made if row.trip]
    head = [
        "# Exports judged by the programs' own parsers", "",
        f"`bench_export.py`, run again by `tests/run_exports`: of {len(rows)} pairs of target and example {len(made)}"
        f" are written. {sum(row.verdict == 'accepted' for row in made)} are accepted,"
        f" {sum(row.verdict.startswith('refused') for row in made)} refused; the others have no judge here"
        f" ({', '.join(unjudged)}). {len(own)} targets are read by their own parser, schema or classes,"
        f" {len(serving)} of them serving."
        f" {trips.count('exact')} of {len(trips)} are read back to the same files byte for byte.", "",
        "A target without a degree refuses a plan that has it, and training examples without a plan take the best one"
        " of `ridgeline plan` that the target can say. –: not written, for the reason below its table.", "",
    ]  # fmt: skip
    parts = {"serving": "Serving", "training": "Training", "around": "Scheduler scripts around them"}
    body = [line for part, title in parts.items() for line in matrix([r for r in rows if r.part == part], title)]
    return "\n".join([*head, *summary(rows, refusals), *body]).rstrip() + "\n"


def main() -> int:
    """Judges every target and example, and writes the page; 1 where a file is refused and that is asked."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--judges", required=True)
    options.add_argument("--only", default="")
    options.add_argument("--strict", action="store_true")
    given = options.parse_args()
    judges = tomllib.loads(Path(given.judges).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = all_rows(folder, given.only)
        refusals = {}
        for key in JUDGES:
            own = [row for row in rows if row.judge == key]
            said = judged(key, [file for row in own for file in row.files], judges) if own else {}
            refusals[key] = spoilt(key, [file for file, one in said.items() if one == "accepted"], judges, folder)
            for row in own:
                verdicts = [said[file] for file in row.files] or [row.verdict]
                row.verdict = next((one for one in verdicts if one != "accepted"), "accepted")
        for row in rows:
            row.verdict = row.verdict or "not judged"
    text = page(rows, refusals)
    if not given.only:
        (HERE / "export.md").write_text(text, encoding="utf-8")
    print(text)
    bad = [row for row in rows if row.verdict.startswith(("refused", "cannot run"))]
    return 1 if given.strict and (bad or any("accepted" in one for one in refusals.values())) else 0


if __name__ == "__main__":
    sys.exit(main())
