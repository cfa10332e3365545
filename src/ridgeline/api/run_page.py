"""The README beside exported files: how to start, what was predicted, what limits it, what is left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.export.target import Exported, Target

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
