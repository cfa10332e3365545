"""`--from-config FILE`: what a program's own config says, as words under those of the question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import cluster_words
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.export.reading import read_config
from ridgeline.export.target import Imported, target
from ridgeline.report.blocks import Block, blank, listed
from ridgeline.scenario.training import Place, cluster_in


def with_config(own: Mapping[str, Any], words: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Imported]:
    """Own options and words of a question with those of its config under them; what was said wins.

    Raises `InputError` for a config without a model where none is said, and for words that the question does not take.
    """
    found = read_config(own["from_config"])
    one = target(found.target)
    filled = {**own, "from_config": None}
    if filled.get("subject") is None:
        filled["subject"] = _model(found)
    if "serve" in filled:
        filled["serve"] = one.task == "serving"
    laid = dict(words)
    rounds = found.words.get("plan.micro_batches") if one.task == "training" else None
    for word, value in found.words.items():
        section, _, name = word.partition(".")
        if word == "plan.micro_batches" and rounds:
            continue  # of serving it is a word, of training a way to say the global batch
        if section in ("plan", "workload") and laid.get(name, "") is None:
            laid[name] = value
    if rounds and laid.get("global_batch", "") is None:
        laid["global_batch"] = _global_batch(found.words, own)
    if one.task == "serving" and laid.get("engine", "") is None:
        laid["engine"] = one.program
    if one.task == "training" and laid.get("framework", "") is None:
        laid["framework"] = one.program
    return filled, laid, found


def _global_batch(words: Mapping[str, Any], own: Mapping[str, Any]) -> int | None:
    """Sequences of a step, of a config that tells micro-batches alone; None where the devices are not said."""
    if own.get("on") is None:
        return None
    tables: dict[str, dict[str, object]] = {"cluster": cluster_words(own["on"], {"region": own.get("region")})}
    divided = math.prod(words.get(f"plan.{name}", 1) for name in ("tp", "pp", "cp"))
    ranks: int = max(1, cluster_in(tables, Place(file=None, folder=Path(), lines={})).count // divided)
    each: int = words["plan.micro_batches"] * words.get("plan.micro_batch", 1)
    return each * ranks


def _model(found: Imported) -> str:
    """The catalog's name of a config's model; raises `InputError` where it says none that is known."""
    from ridgeline.graph.load import catalog, find

    said = found.words.get("model.id")
    if said is None:
        raise InputError("names no model; say it before --from-config", field="--from-config")
    name = find(str(said).rstrip("/"))
    if name is not None:
        return name
    error = UnknownNameError("model", str(said), catalog(), hint="say the model itself, by name or config.json")
    raise InputError(str(error), field="--from-config", value=said) from error


def told(answer: Answer, found: Imported) -> Answer:
    """The answer with what was read of the config, what of it changes nothing here, and what is not known."""
    title = target(found.target).title
    parts = {
        f"Read from {title}'s config": [f"{word} = {value}" for word, value in found.words.items()],
        "Not as the file has it": list(found.notes),
        "Fields that change nothing modelled": list(found.idle),
        f"Fields that {title} has not, or that are not known here": list(found.unknown),
    }

    def blocks() -> list[Block]:
        lists = [block for head, lines in parts.items() for block in listed(lines, head)]
        return [*answer.blocks(), blank(), *lists]

    def as_dict() -> Any:
        said = {
            "target": found.target, "words": dict(found.words), "idle": list(found.idle),
            "unknown": list(found.unknown), "notes": list(found.notes),
        }  # fmt: skip
        return {**answer.as_dict(), "from_config": said}

    return replace(answer, _as_dict=as_dict, _blocks=blocks)
