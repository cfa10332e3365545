"""The words of a deployment that mean a technique: one table, made from what the built-in techniques say.

`kv_kept = 512` applies `kv-budget(tokens=512)`, `queue = "fair"` the queue of that name, `split = true` a technique
without a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.engine_options import EngineOptions
from ridgeline.scenario.fields import SERVING_FAMILIES, Field, filled, number, pick, whole, yes
from ridgeline.seams.deployment_slots import check_techniques
from ridgeline.seams.registry import built_in, listed, made, technique
from ridgeline.seams.serving import FAMILIES, ServingTechnique, applied

_OF_DEPLOYMENT = frozenset(one.name for one in fields(Deployment))
_OF_ENGINE = frozenset(one.name for one in fields(EngineOptions))


@cache
def _kinds() -> tuple[type[ServingTechnique], ...]:
    """The built-in techniques of serving that words may mean, family by family."""
    known = (one for family in FAMILIES if family.in_words for one in built_in(family.family))
    return tuple(one for one in known if issubclass(one, ServingTechnique) and one.in_words)


def _words(one: type[ServingTechnique]) -> Mapping[str, str]:
    """The words of a technique, each with its parameter; '' is that which applies it and has none."""
    found = {each.metadata["word"]: name for name, each in one.parameters().items() if each.metadata["word"]}
    return found if one.word in found or not one.word else {one.word: "", **found}


@cache
def _families() -> Mapping[str, str]:
    """The family that each word speaks of."""
    found = {word: kind.family for kind in _kinds() for word in _words(kind)}
    return found | {word: family for family, word in SERVING_FAMILIES.items()}


@cache
def word_fields() -> tuple[Field, ...]:
    """Fields of the words, each once."""
    found: dict[str, Field] = {}
    for family, word in SERVING_FAMILIES.items():
        found[word] = filled(word, family, SERVING_HELP[word])
    for one in _kinds():
        for word, name in _words(one).items():
            off = one.off if word == one.word else None
            field = yes(word, one.told_by) if not name else _field(word, one.parameters()[name], off)
            found.setdefault(word, field)
    return tuple(found.values())


SERVING_HELP = {
    "preemption": "what happens to a cache that must give way, also where an engine keeps all",
    "queue": "who is next: by arrival, the client that was served least, or the shortest prompt",
    "router": "how requests choose among instances",
}


def _field(word: str, parameter: Any, off: object) -> Field:
    told = parameter.metadata
    if isinstance(parameter.default, bool):
        return yes(word, told["help"])
    if told["choices"]:
        return pick(word, told["choices"], told["help"])
    if told["whole"]:
        least = off if isinstance(off, int) else int(max(told["low"], 1))
        return whole(word, told["help"], least=least, most=int(told["high"]))
    return Field(name=word, read=number("1", told["low"], told["high"], ends=True), help=told["help"])


def deployed(**words: Any) -> Deployment:
    """The deployment that words describe: its own fields, its engine's options, and those that mean techniques.

    Raises `PlanError` for values out of range and for what does not go together.
    """
    return replaced(Deployment(), **words)


def replaced(one: Deployment, **words: Any) -> Deployment:
    """A deployment with other values of some words; raises `PlanError` as `deployed` does."""
    own = {name: value for name, value in words.items() if name in _OF_DEPLOYMENT}
    options = {name: value for name, value in words.items() if name in _OF_ENGINE}
    if options:
        own["options"] = replace(own.get("options", one.options), **options)
    others = {name: value for name, value in words.items() if name not in own and name not in options}
    listed_ = {listed(text).family: text for text in own.get("technique", ())}
    for word, value in others.items():
        if value is not None and _families().get(word) in listed_:
            raise PlanError(f"deployment: {word} and {listed_[_families()[word]]} both say it; leave one of them out")
    if others:
        own["technique"] = _techniques(replace(one, **own), others)
    found = replace(one, **own)
    check_techniques(found)
    return found


def said(one: Deployment) -> dict[str, Any]:
    """What the techniques of a deployment amount to, word by word; what leaves a technique out that it has not."""
    found: dict[str, Any] = {}
    for kind in _kinds():
        found |= {word: kind.parameters()[name].default if name else False for word, name in _words(kind).items()}
    found |= {word: () for word, default in found.items() if isinstance(default, tuple)}
    found |= {word: one.default for family in FAMILIES for word, one in _neutral(family)}
    found |= {kind.word: kind.off for kind in _kinds() if _words(kind).get(kind.word)}
    found |= _NEUTRAL
    for each in applied(one):
        found |= _said(each)
    return found


def _neutral(family: type[ServingTechnique]) -> Iterator[tuple[str, Any]]:
    """The parameters that all of a family have, by word."""
    return ((one.metadata["word"], one) for one in family.parameters().values() if one.metadata["word"])


def _said(one: ServingTechnique) -> dict[str, Any]:
    found = {word: getattr(one, name) if name else True for word, name in _words(type(one)).items()}
    word = SERVING_FAMILIES.get(one.family)
    return found if word is None else {word: one.key, **found}


def _techniques(one: Deployment, words: Mapping[str, Any]) -> tuple[str, ...]:
    """The techniques of a deployment with those that words mean; a family that they speak of is made anew."""
    known = _families()
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None:
        raise TypeError(f"a deployment has no '{unknown}'")
    changed = {known[word] for word in words}
    mine = {each.family: each for each in applied(one)}
    others = [text for text in one.technique if text not in {each.text for each in mine.values()}]
    for family in changed:
        before = _said(mine.pop(family)) if family in mine else {}
        gone = any(
            one.word in words and (words[one.word] is None or _off(one, one.word, words[one.word]))
            for one in _kinds() if one.family == family
        )  # fmt: skip
        before = {} if gone or SERVING_FAMILIES.get(family) in words else before
        now = {**before, **{word: value for word, value in words.items() if known[word] == family}}
        made_now = _made(family, {word: value for word, value in now.items() if value is not None})
        if made_now is not None:
            mine[family] = made_now
    order = [family.family for family in FAMILIES]
    return (*others, *(mine[family].text for family in sorted(mine, key=order.index)))


def _made(family: str, words: dict[str, Any]) -> ServingTechnique | None:
    """The technique of a family that words mean; None where they leave it out."""
    word = SERVING_FAMILIES.get(family)
    if word is not None:
        words = dict(words)
        key = words.pop(word, None) or _NEUTRAL[word]
        if key is None:
            for about in words:
                raise PlanError(f"deployment: {about} {_about(about, word)}; say that, or leave it out")
            return None
        named = technique(family, str(key))
        if named.key == _NEUTRAL[word] and not words:
            return None
        return _filled(type(named), words, {name: getattr(named, name) for name in named.parameters()}, word)
    kinds = [one for one in _kinds() if one.family == family]
    stated = words
    words = {name: value for name, value in words.items() if not any(_off(one, name, value) for one in kinds)}
    leads = {one.word for one in kinds if one.word in words}
    if not leads and any(one.off is not None and stated.get(one.word) == one.off for one in kinds):
        return None
    for word, why in idle(words):
        raise PlanError(f"deployment: {word} {why}")
    if not leads:
        plain = next((one for one in kinds if not one.word and words), None)
        found = None if plain is None else _filled(plain, words, {}, plain.key)
        return None if found is None or found.text == found.key else found
    chosen = next((one for one in kinds if one.word in leads and leads <= _words(one).keys()), None)
    if chosen is None:
        both = sorted(leads)
        raise PlanError(f"deployment: {' and '.join(both)} are two of the {family}; leave {' or '.join(both)} out")
    return _filled(chosen, words, {}, chosen.word)


def _off(one: type[ServingTechnique], word: str, value: object) -> bool:
    """Whether the word that applies a technique, or a yes or no of it, leaves it out."""
    return value is False or (word == one.word and one.off is not None and value is not True and value == one.off)


_NEUTRAL = {"queue": "arrival", "preemption": None, "router": "round-robin"}


def idle(stated: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Words about a technique that no word applies, each with what to say besides."""
    for word in stated:
        about = tuple(dict.fromkeys(one.word for one in _kinds() if word in _words(one)))
        if all(about) and about and not any(stated.get(lead) is not None for lead in about):
            yield word, f"is about {about[0]}, which is not said; say {' or '.join(about)} as well, or leave it out"


def _about(word: str, lead: str) -> str:
    owners = [one for one in _kinds() if word in _words(one)]
    return f"is about {' or '.join(one.word or f'{lead} {one.key}' for one in owners)}, which is not said"


def applying(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words without those about a technique that none of them applies, as of the other pool."""
    left = {word for word, _ in idle(words)}
    return {word: value for word, value in words.items() if word not in left}


def _filled(kind: Any, words: Mapping[str, Any], values: Mapping[str, Any], lead: str) -> ServingTechnique:
    known = _words(kind)
    for word in words:
        if word not in known:
            raise PlanError(f"deployment: {word} {_about(word, lead)}; say that, or leave it out beside {lead}")
    named = {known[word]: value for word, value in words.items() if known[word]}
    try:
        found = made(kind.family, kind.key, {**values, **named})
    except PlanError as error:
        raise PlanError(f"deployment: {_by_word(str(error), kind)}") from None
    assert isinstance(found, ServingTechnique)
    return found


def _by_word(message: str, kind: type[ServingTechnique]) -> str:
    """A message about a parameter, by the word that a person wrote."""
    for word, name in _words(kind).items():
        if message.startswith(f"{kind.key}: {name} "):
            return f"{word}{message.removeprefix(f'{kind.key}: {name}')}"
    return message


def deployment_words(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a person wrote, the words that `deployed` takes as they stand."""
    known = (_OF_DEPLOYMENT | _OF_ENGINE | _families().keys()) - _READ_APART
    return {word: value for word, value in stated.items() if word in known}


_READ_APART = {"engine", "instances", "expert_redundant", "acceptance"}
