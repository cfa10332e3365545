"""Techniques as changes of a plan: which word names them, with which other fields they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.advise.cases import Change, S
from ridgeline.advise.serving_levers import ServedChoice
from ridgeline.advise.training_levers import TrainedChoice, levered
from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.fields import SERVING_FAMILIES, WORDS, WORKLOAD_FIELDS
from ridgeline.seams.registry import families, listed, names, technique
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import Technique

_OF_WORKLOAD = frozenset(field.name for field in WORKLOAD_FIELDS)


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


def training_techniques(setting: Setting) -> Iterator[Change[TrainedChoice]]:
    """Every technique as changes of a training plan, those that do not apply with the reason."""
    plan = setting.train_plan
    assert plan is not None
    for one, why in _asked(setting):
        if why or not isinstance(one, PipelineSchedule):
            yield _trained(one, refused=why)
            continue
        for chunks in one.chunk_counts(plan.pp, max(1, len(setting.model.graph.layers) // plan.pp)):
            yield _trained(one, {"chunks": chunks}, "" if chunks == plan.chunks else f" --chunks {chunks}")


def serving_techniques(setting: Setting) -> Iterator[Change[ServedChoice]]:
    """Every technique as changes of deployments, those that do not apply with the reason."""
    yield from (_served(one, refused=why) for one, why in _asked(setting))


def _asked(setting: Setting) -> Iterator[tuple[Technique, str]]:
    """Every technique with parameters worth trying, or once with why it does not apply."""
    for one in every_technique(setting.kind):
        if why := one.applies(setting):
            yield one, why
            continue
        yield from ((technique(one.family, text), "") for text in one.axes(setting))


def _change(one: Technique, word: str, put: Callable[[S], S], *, refused: str, more: str = "") -> Change[S]:
    """A technique named by a word of the command line; a stack has one of an exclusive family."""
    text = f"'{one.text}'" if "(" in one.text else one.text
    return Change(
        words=f"--{word.replace('_', '-')} {text}{more}", slot=one.family if one.exclusive else one.key,
        what=one.summary(), key=one.key, quality=one.quality, export=one.export, refused=refused, put=put,
    )  # fmt: skip


def _trained(
    one: Technique, chunks: Mapping[str, int] = MappingProxyType({}), more: str = "", *, refused: str = ""
) -> Change[TrainedChoice]:
    """A technique put on a plan or its workload: by its own word, or among those that are applied."""
    word = WORDS.get(one.family, "")

    def put(on: TrainedChoice) -> TrainedChoice:
        if word in _OF_WORKLOAD:
            return levered({}, {word: one.text}, on)
        if word:
            return levered({word: one.text, **({"recompute_layers": None} if word == "recompute" else chunks)}, {}, on)
        others = (text for text in on.plan.technique if text.partition("(")[0] != one.key)
        return levered({"technique": (*others, one.text)}, {}, on)

    return _change(one, word or "technique", put, refused=refused, more=more)


def _served(one: Technique, refused: str = "") -> Change[ServedChoice]:
    def put(on: ServedChoice) -> ServedChoice:
        return replace(on, deployments=tuple(replace(each, technique=beside(each)) for each in on.deployments))

    def beside(each: Deployment) -> tuple[str, ...]:
        return (*(text for text in each.technique if not _same(listed(text), one)), one.text)

    return _change(one, SERVING_FAMILIES.get(one.family, "technique"), put, refused=refused)


def _same(one: Technique, other: Technique) -> bool:
    """Whether a technique takes the place of another: of an exclusive family, or of one key."""
    return one.family == other.family if other.exclusive else one.key == other.key
