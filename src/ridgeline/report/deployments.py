"""A deployment and an objective in words, and a deployment as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.facts.store import sources
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving_words import said
from ridgeline.seams.registry import listed
from ridgeline.seams.serving import applied, graph_texts


def counted(number: int, word: str) -> str:
    """A number of things in words."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def deployment_text(one: Deployment) -> str:
    """A deployment in one line: its count, degrees above one, formats."""
    degrees = [f"{name} {getattr(one, name)}" for name in ("tp", "pp", "dp", "ep") if getattr(one, name) > 1]
    words = [f"{one.instances} x ({', '.join(degrees) or 'one device'})"]
    words += [f"on {one.kind}"] if one.kind else []
    if one.role is not Role.WHOLE:
        words.insert(0, one.role.value)
    words += [f"contexts over {one.kv_ranks}"] if one.kv_ranks > 1 else []
    words += [one.weights] if one.weights else []
    words += [f"{one.kv} cache"] if one.kv else []
    words += [told for technique in applied(one) if (told := technique.told_of(one))]
    words += graph_texts(one)
    return " ".join(words)


def techniques_told(deployments: Sequence[Deployment]) -> list[str]:
    """Every technique that deployments apply, each with where it was published."""
    used = dict.fromkeys(text for one in deployments for text in one.technique)
    return [f"{text}: {'; '.join(_source(key) for key in listed(text).source)}" for text in used]


def _source(told: str) -> str:
    found = sources().get(told)
    return told if found is None else found.url or found.title


def deployment_as_dict(one: Deployment) -> dict[str, Any]:
    """A deployment under stable keys."""
    own = {name: getattr(value, "value", value) for name, value in one.said.items()}
    return {**own, **said(one)}
