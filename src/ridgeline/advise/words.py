"""Techniques as changes of a plan: which word names them, with which other fields they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.advise.cases import Change
from ridgeline.advise.serving_levers import ServedChoice
from ridgeline.errors import PlanError
from ridgeline.facts.records import Fact
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.scenario.fields import SERVING_FAMILIES, WORDS, WORKLOAD_FIELDS
from ridgeline.seams.registry import families, listed, names, technique
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import Technique

_OF_WORKLOAD = frozenset(field.name for field in WORKLOAD_FIELDS)


@dataclass(frozen=True, kw_only=True)
class TechniqueChange:
    """One text of a technique as a change of a training plan."""

    one: Technique
    refused: str = ""
    chunks: int | None = None
    usual_chunks: int = 1  # of the plan that it is put on
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The technique's key."""
        return self.one.key

    @property
    def slot(self) -> str:
        """What of it a stack has once: its family, or itself where several of a family go together."""
        return self.one.family if self.one.exclusive else self.one.key

    @property
    def what(self) -> str:
        """What it does, in a line."""
        return self.one.summary()

    @property
    def quality(self) -> Fact | None:
        """What it costs in accuracy."""
        return self.one.quality

    @property
    def export(self) -> Mapping[str, str]:
        """How programs call it."""
        return self.one.export

    @property
    def words(self) -> str:
        """How a person writes it on a command line."""
        word = WORDS.get(self.one.family, "technique")
        chunks = "" if self.chunks in (None, self.usual_chunks) else f" --chunks {self.chunks}"
        text = f"'{self.one.text}'" if "(" in self.one.text else self.one.text
        return f"--{word.replace('_', '-')} {text}{chunks}"

    @property
    def workload_changes(self) -> dict[str, Any]:
        """Fields of the workload that it changes."""
        word = WORDS.get(self.one.family, "")
        return {word: self.one.text} if word in _OF_WORKLOAD else {}

    def plan_changes(self, plan: Plan) -> dict[str, Any]:
        """Fields of a plan that it changes; one that has no word of its own is added to those that are applied."""
        word = WORDS.get(self.one.family, "")
        if word in _OF_WORKLOAD:
            return {}
        if word:
            changes: dict[str, Any] = {word: self.one.text}
            changes |= {"recompute_layers": None} if word == "recompute" else {}
            return changes if self.chunks is None else {**changes, "chunks": self.chunks}
        others = [text for text in plan.technique if text.partition("(")[0] != self.one.key]
        return {"technique": (*others, self.one.text)}


def every_technique(kind: str) -> Iterator[Technique]:
    """Every technique of a kind of work with its default parameters; one whose file cannot be read is left out."""
    for family in families():
        for key in names(family):
            try:
                one = technique(family, key)
            except PlanError:
                continue
            if kind in one.kinds:
                yield one


def training_techniques(setting: Setting) -> Iterator[TechniqueChange]:
    """Every technique as changes of a training plan, those that do not apply with the reason."""
    plan = setting.train_plan
    assert plan is not None
    for one in every_technique(setting.kind):
        why = one.applies(setting)
        if why:
            yield TechniqueChange(one=one, refused=why)
            continue
        for text in one.axes(setting):
            made = technique(one.family, text)
            if not isinstance(made, PipelineSchedule):
                yield TechniqueChange(one=made)
                continue
            most = max(1, len(setting.model.graph.layers) // plan.pp)
            for chunks in made.chunk_counts(plan.pp, most):
                yield TechniqueChange(one=made, chunks=chunks, usual_chunks=plan.chunks)


def serving_techniques(setting: Setting) -> Iterator[Change[ServedChoice]]:
    """Every technique as changes of deployments, those that do not apply with the reason."""
    for one in every_technique(setting.kind):
        why = one.applies(setting)
        if why:
            yield _served(one, refused=why)
            continue
        for text in one.axes(setting):
            yield _served(technique(one.family, text))


def _same(one: Technique, other: Technique) -> bool:
    """Whether a technique takes the place of another: of an exclusive family, or of one key."""
    return one.family == other.family if other.exclusive else one.key == other.key


def _served(one: Technique, refused: str = "") -> Change[ServedChoice]:
    def put(on: ServedChoice) -> ServedChoice:
        return replace(on, deployments=tuple(replace(each, technique=beside(each)) for each in on.deployments))

    def beside(each: Deployment) -> tuple[str, ...]:
        return (*(text for text in each.technique if not _same(listed(text), one)), one.text)

    word = SERVING_FAMILIES.get(one.family, "technique")
    text = f"'{one.text}'" if "(" in one.text else one.text
    return Change(
        words=f"--{word} {text}", slot=one.family if one.exclusive else one.key, what=one.summary(), key=one.key,
        quality=one.quality, export=one.export, refused=refused, put=put,
    )  # fmt: skip
