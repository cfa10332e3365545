"""The command `export`: a plan as the files that run it, with what was predicted and what the program cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import scenario_of, take_machine_words
from ridgeline.api.export_words import left_out, served_by, serving_words, training_words
from ridgeline.errors import InputError, RidgelineError
from ridgeline.export.target import Exported, Target, target
from ridgeline.report.blocks import Block, Line, blank, listed

if TYPE_CHECKING:
    from ridgeline.scenario.serving import ServingScenario


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A word that the program has no field for, and by how much time changes without it [1] (None: not priced)."""

    word: str
    value: Any
    change: float | None


def export(given: SimpleNamespace) -> Answer:
    """The files that run a plan; raises `InputError` for a value that the program would refuse."""
    take_machine_words(given)
    one = target(given.to)
    if one.task == "serving":
        asked = served_by(given, one)
        made, words = _of_pools(asked, one, given.release or "")
    else:
        of_training = scenario_of(given.subject, given.on, given.words, planned=True)
        words = training_words(of_training)
        made = one.exported(words, given.release or "")
    predicted = _predicted(given, one)
    missed = [_left_out(given, one, word, words[word], predicted) for word in made.left_out]
    files = {**made.files, "README.md": readme(one, made, words, predicted, missed)}
    if given.out is not None:
        _write(Path(given.out), files)
    answer = {
        "target": one.key, "release": given.release or one.release, "files": files, "command": made.command,
        "left_out": [vars(each) for each in missed], "predicted": _headline(predicted), "notes": list(made.notes),
    }  # fmt: skip
    return Answer(lambda: answer, lambda: _blocks(one, made, missed, given.out), value=made)


def _of_pools(asked: ServingScenario, one: Target, release: str) -> tuple[Exported, dict[str, Any]]:
    """The files of each deployment, a pool's with its role before their names, and the words of the first."""
    files: dict[str, str] = {}
    words: dict[str, Any] = {}
    commands: list[str] = []
    missed: list[str] = []
    notes: list[str] = []
    for deployment in asked.deployments:
        said, told = serving_words(asked, deployment, one)
        made = one.exported(said, release)
        role = said.get("pool.role", "")
        files |= {f"{role}-{name}" if role else name: text for name, text in made.files.items()}
        commands.append(made.command.replace(one.file, f"{role}-{one.file}") if role else made.command)
        notes += [f"{role}: {deployment.instances or 1} instances"] if role else []
        notes += told
        missed += left_out(made.left_out, said, asked.stated)
        words = {**said, **words}
    found = Exported(
        files=files, command="\n".join(commands), left_out=tuple(dict.fromkeys(missed)), notes=tuple(notes)
    )
    return found, words


def _predicted(given: SimpleNamespace, one: Target) -> Mapping[str, Any]:
    """What the plan is predicted to do: a step of training, or a batch of serving."""
    from ridgeline.api.planning import predict

    asked = SimpleNamespace(
        subject=given.subject, on=given.on, region=given.region, price=given.price, train=True,
        serve=one.task == "serving", evidence="measured", trace=None, longest=False, quick=True,
        words=dict(given.words),
    )  # fmt: skip
    found: Mapping[str, Any] = predict(asked).as_dict()
    return found


def _left_out(given: SimpleNamespace, one: Target, word: str, value: Any, predicted: Mapping[str, Any]) -> LeftOut:
    """A word that cannot be said, and what its absence changes of the headline [1]."""
    name = word.partition(".")[2]
    change = None
    if given.words.get(name) is not None:
        try:
            without = _predicted(SimpleNamespace(**{**vars(given), "words": {**given.words, name: None}}), one)
            before, after = _main(predicted), _main(without)
            change = None if before is None or after is None else after / before - 1.0
        except RidgelineError:
            change = None
    return LeftOut(word=word, value=value if isinstance(value, str | int | float | bool) else str(value), change=change)


def _main(answer: Mapping[str, Any]) -> float | None:
    """The number that a plan is judged by: seconds of a step, or of a token [s]."""
    for name in ("step_time_s", "tpot_s"):
        found = answer.get(name)
        if isinstance(found, Mapping):
            found = found.get("value", found.get("p50"))
        if isinstance(found, int | float):
            return float(found)
    return None


def _headline(answer: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("step_time_s", "tokens_per_s", "mfu", "fits", "ttft_s", "tpot_s", "output_tokens_per_s", "requests_per_s")
    return {name: answer[name] for name in wanted if name in answer}


def readme(
    one: Target, made: Exported, words: Mapping[str, Any], predicted: Mapping[str, Any], left_out: list[LeftOut]
) -> str:
    """A page beside the files: how to run them, what was predicted, what the program cannot say."""
    lines = [f"# {words['model.name']} with {one.title}", "", "```sh", made.command, "```", "", "Predicted:", ""]
    for name, value in _headline(predicted).items():
        lines.append(f"- {name}: {_text(value)}")
    if left_out:
        lines += ["", f"{one.title} has no field for:", ""]
        lines += [f"- {each.word} = {each.value}{_cost(each)}" for each in left_out]
    lines += ["", *(f"- {note}" for note in made.notes)]
    measure = "ridgeline check measured.tsv" if one.task == "serving" else "ridgeline measure"
    return "\n".join([*lines, f"Compare with a run: `{measure}`.", ""])


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
        return f"{value['value']:.4g} (80 % interval {value['low']:.4g} to {value['high']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cost(each: LeftOut) -> str:
    return "" if each.change is None else f": {each.change:+.1%} time without it"


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
    return listed((f"{each.word} = {each.value}{_cost(each)}" for each in left_out), f"{one.title} has no field for")
