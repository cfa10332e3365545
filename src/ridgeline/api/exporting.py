"""The command `export`: a plan as the files that run it, with what was predicted and what the program cannot say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import take_machine_words
from ridgeline.api.export_words import left_out, one_share, served_by, serving_words, trained_by, training_words
from ridgeline.api.verb import VERBS
from ridgeline.errors import InputError, RidgelineError
from ridgeline.export.target import DEGREES, Exported, Target, target
from ridgeline.export.wrapper import run_of, wrapper
from ridgeline.report.blocks import Block, Line, blank, listed
from ridgeline.scenario.training import OF_MACHINE

_HEADLINE = (
    "step_time_s", "tokens_per_s", "mfu", "fits", "run_time_s", "ttft", "tpot", "output_tokens_per_s", "requests_per_s",
    "intervals",
)  # fmt: skip
_TOP = 2  # blocks of the printed answer that a page quotes: what was asked, and the answer in brief


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A word that the program has no field for, and by how much time changes without it [1] (None: not priced)."""

    word: str
    value: Any
    change: float | None


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """What the page tells: files and command, the prediction, what was left out.

    `words` are those that run, `question` those asked.
    """

    target: Target
    made: Exported
    words: Mapping[str, Any]
    on: str | None
    predicted: Answer
    left_out: list[LeftOut]
    question: str


def readme(page: RunPage) -> str:
    """The page as Markdown."""
    one = page.target
    parts = [
        f"# {page.words['model.name']} with {one.title}" + (f" on {page.on}" if page.on else ""),
        _start(page), _prediction(page), _missing(page), _measure(page),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a plan is judged by, of a longer answer."""
    return {name: answer[name] for name in _HEADLINE if answer.get(name) is not None}


def cost(each: LeftOut) -> str:
    """What a word's absence costs, in words after a colon; '' where it was not priced."""
    return "" if each.change is None else f": {each.change:+.1%} time without it"


def flags_said(given: SimpleNamespace) -> str:
    """Subject and flags of a question, as the command line takes them."""
    said = [given.subject, *(["--on", given.on] if given.on else [])]
    for name, value in given.words.items():
        if value is None:
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            said.append(flag if value else f"--no-{flag[2:]}")
        else:
            listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            said += [flag, listed]
    return " ".join(shlex.quote(str(part)) for part in said)


def _start(page: RunPage) -> str:
    about = [f"- {note}" for note in page.made.notes]
    files = ", ".join(f"`{name}`" for name in page.made.files)
    return "\n".join(["## Start", "", "```sh", page.made.command, "```", "", f"Files: {files}.", *about])


def _prediction(page: RunPage) -> str:
    """The prediction in brief, as `ridgeline predict` prints it, and what more of each resource would gain."""
    top = "\n\n".join(page.predicted.table().split("\n\n")[:_TOP]).rstrip()
    answer = page.predicted.as_dict()
    told = answer.get("what_if", [])
    of_parts = told.items() if isinstance(told, Mapping) else [("", told)]
    gains = list(dict.fromkeys(line for _, lines in of_parts for line in lines))
    more = ["", "What would make it faster:", "", *(f"- {line}" for line in gains)] if gains else []
    return "\n".join(["## Predicted", "", "```text", top, "```", *more])


def _missing(page: RunPage) -> str:
    one = page.target
    if not page.left_out:
        return f"## What {one.title} cannot say\n\nNothing: every word of the plan has a field."
    rows = [
        f"| `{each.word}` | {each.value} | {'not priced' if each.change is None else f'{each.change:+.1%}'} |"
        for each in page.left_out
    ]
    head = ["| word | value | time without it |", "|---|---|---|"]
    return "\n".join([f"## What {one.title} cannot say", "", *head, *rows])


def _measure(page: RunPage) -> str:
    """The command that asks again, and the one that measures."""
    one, answer = page.target, page.predicted.as_dict()
    if one.task == "serving":
        again, traffic = f"ridgeline predict {page.question} --serve", answer.get("traffic", {})
        lengths = [
            f"--random-{side}-len {traffic[f'{name}_tokens_mean']:.0f}"
            for side, name in (("input", "prompt"), ("output", "output")) if f"{name}_tokens_mean" in traffic
        ]  # fmt: skip
        count = f"--num-prompts {traffic['requests']}" if "requests" in traffic else ""
        base = f"vllm bench serve --base-url http://127.0.0.1:{one.port} --model {page.words['model.id']}"
        measured = " ".join([base, "--dataset-name random --ignore-eos", *lengths, count]).rstrip()
        told = "Any OpenAI-compatible server is measured by the same client. Its TTFT, TPOT and throughput are rows of"
    else:
        again = f"ridgeline predict {page.question}"
        measured = f"ridgeline measure {page.question} --device cuda --append measured.tsv"
        told = "`measure` runs the plan on the devices of one machine. The program's own step times are rows of"
    check = f"{told} `measured.tsv`, and `ridgeline check measured.tsv` says how wrong the prediction was."
    return "\n".join(["## Measure", "", "```sh", f"{again}   # asks again", measured, "```", "", check])


_OFFERED = ("tp", "pp", "cp", "ep", "zero", "micro_batch", "recompute")


def export(given: SimpleNamespace) -> Answer:
    """The files that run a plan; raises `InputError` for a value that the program would refuse."""
    take_machine_words(given)
    one = target(given.to)
    notes: list[str] = []
    if one.task == "serving":
        asked = served_by(given, one)
        of_pools = [serving_words(asked, deployment, one) for deployment in asked.deployments]
        roles, notes = [words for words, _ in of_pools], [note for _, told in of_pools for note in told]
        notes += one_share(given, asked, one, roles)
        if roles[0].get("plan.token_budget") and given.words.get("token_budget") is None:
            given.words["token_budget"] = roles[0]["plan.token_budget"]  # a server's, where a batch is known beforehand
    else:
        roles = [training_words(trained_by(given, one))]
    words = {word: value for role in reversed(roles) for word, value in role.items()}
    made = one.pooled(roles, given.release or "")
    _refuse_dropped(given, one, made, roles)
    missed = left_out(made.left_out, words, asked.stated) if one.task == "serving" else made.left_out
    made = replace(made, left_out=missed, notes=(*made.notes, *notes))
    predicted = _predicted(given, one)
    if given.around is not None:
        made = wrapper(given.around).wrapped(one, made, run_of(one, made, roles, _longest_s(predicted.as_dict())))
    without = [_left_out(given, one, word, words[word], predicted.as_dict()) for word in missed]
    page = RunPage(target=one, made=made, words=words, on=given.on, predicted=predicted, left_out=without,
                   question=flags_said(given))  # fmt: skip
    files = {**made.files, "README.md": readme(page)}
    if given.out is not None:
        _write(Path(given.out), files)
    answer = {
        "target": one.key, "release": given.release or one.release, "files": files, "command": made.command,
        "left_out": [vars(each) for each in without], "predicted": headline(predicted.as_dict()),
        "notes": list(made.notes),
    }  # fmt: skip
    return Answer(lambda: answer, lambda: _blocks(one, made, without, given.out), value=made)


def _refuse_dropped(given: SimpleNamespace, one: Target, made: Exported, roles: Sequence[Mapping[str, Any]]) -> None:
    """Raises `InputError` where a degree has no field, with the best plan that the target can say."""
    dropped = [(name, words[f"plan.{name}"]) for words in roles for name in (*DEGREES, "dp")
               if f"plan.{name}" in made.left_out and words.get(f"plan.{name}", 1) > 1
               and (name != "dp" or one.task == "serving")]  # fmt: skip
    if not dropped:
        return
    said = ", ".join(f"{name} {value}" for name, value in dict(dropped).items())
    told = f"{one.title} cannot say {said}: without it another plan would run; "
    raise InputError(told + _offered(given, one, [name for name, _ in dropped]), field=f"--{dropped[0][0]}")


def _offered(given: SimpleNamespace, one: Target, dropped: list[str]) -> str:
    """The best plan of training without degrees, in flags; of serving, what to say."""
    from ridgeline.api.planning import plan

    if one.task == "serving":
        return f"say {' '.join(f'--{name} 1' for name in dict.fromkeys(dropped))}, or another target"
    pinned = " ".join(f"--{name} 1" for name in dict.fromkeys((*one.no_degrees, *dropped)))
    own = {name: option.default for name, option in VERBS["plan"].own.items()}
    asked = {name: getattr(given, name) for name in ("subject", "on", *OF_MACHINE)}
    words = {name: given.words.get(name) for name in ("seq_len", "global_batch", "task", "precision", "optimizer")}
    words |= dict.fromkeys((*one.no_degrees, *dropped), "1") | {"framework": one.program}
    try:
        best = plan(SimpleNamespace(**own | asked, words=words)).as_dict()["best"][0]
    except (RidgelineError, IndexError):
        return f"no plan with {pinned} fits under {one.program}; take another target"
    flags = " ".join(f"--{name.replace('_', '-')} {best['plan'][name]}" for name in _OFFERED if name in best["plan"])
    return f"the best that it can: {flags} ({best['step_time_s']['value']:.3g} s a step)"


def _predicted(given: SimpleNamespace, one: Target, *, quick: bool = False) -> Answer:
    """What the plan is predicted to do: a step of training, or a batch of serving."""
    from ridgeline.api.planning import predict

    own = {name: option.default for name, option in VERBS["predict"].own.items()}
    asked = {name: getattr(given, name) for name in ("subject", "on", *OF_MACHINE)}
    asked |= {"serve": one.task == "serving", "quick": quick}
    return predict(SimpleNamespace(**own | asked, words=dict(given.words)))


def _longest_s(answer: Mapping[str, Any]) -> float | None:
    """How long the whole run takes at the upper end of its interval [s]; None where its tokens were not told."""
    run, step = answer.get("run_time_s"), answer.get("step_time_s")
    if not isinstance(run, int | float) or not isinstance(step, Mapping):
        return None
    return float(run) * float(step["high"]) / float(step["value"])


def _left_out(given: SimpleNamespace, one: Target, word: str, value: Any, predicted: Mapping[str, Any]) -> LeftOut:
    """A word that cannot be said, and what its absence changes of the headline [1]."""
    name = word.partition(".")[2]
    change = None
    if given.words.get(name) is not None:
        changed = SimpleNamespace(**{**vars(given), "words": {**given.words, name: None}})
        try:
            before, after = _main(predicted), _main(_predicted(changed, one, quick=True).as_dict())
            change = None if before is None or after is None else after / before - 1.0
        except RidgelineError:
            change = None
    return LeftOut(word=word, value=value if isinstance(value, str | int | float | bool) else str(value), change=change)


def _main(answer: Mapping[str, Any]) -> float | None:
    """The number that a plan is judged by: seconds of a step, or mean seconds of a token [s]."""
    for name, inside in (("step_time_s", "value"), ("tpot", "mean_s")):
        found = answer.get(name)
        found = found.get(inside) if isinstance(found, Mapping) else found
        if isinstance(found, int | float):
            return float(found)
    return None


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=str(folder)) from None


def _blocks(one: Target, made: Exported, left_out: list[LeftOut], out: str | None) -> list[Block]:
    blocks: list[Block] = [Line(text=f"{one.title}: {made.command}", strong=True), blank()]
    if out is not None:
        return [
            *blocks,
            *listed((f"{out}/{name}" for name in (*made.files, "README.md")), "Written"),
            *_told(one, left_out),
        ]
    for name, text in made.files.items():
        blocks += [Line(text=name, strong=True), *(Line(text=line, indent=2) for line in text.splitlines()), blank()]
    return [*blocks, *_told(one, left_out)]


def _told(one: Target, left_out: list[LeftOut]) -> list[Block]:
    return listed((f"{each.word} = {each.value}{cost(each)}" for each in left_out), f"{one.title} has no field for")
