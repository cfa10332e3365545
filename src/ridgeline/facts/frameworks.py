"""Policies of training frameworks, one TOML file each: what a version can run, and how it holds and launches it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ridgeline.facts.policy_files import Policies, names_in
from ridgeline.facts.user_files import FRAMEWORK

if TYPE_CHECKING:
    from ridgeline.facts.framework_schema import FrameworkPolicy

_FOLDER = "frameworks"


@cache
def frameworks() -> Policies:
    """The policy files of training frameworks; their schema loads with the first question."""
    from ridgeline.facts.framework_schema import KEYS

    return Policies(what="framework", folder=_FOLDER, user_file=FRAMEWORK, keys=KEYS)


def framework_names() -> tuple[str, ...]:
    """Names of the training frameworks whose policies ship with the package, sorted."""
    return names_in(_FOLDER)


@cache
def framework_policy(name: str) -> FrameworkPolicy:
    """The policy of a framework: `NAME` (its newest) or `NAME@VERSION`; a NAME that ends in .toml is a person's file.

    Raises `UnknownNameError` for an unknown name and `InputError` for a defective file.

    >>> framework_policy("megatron@0.10").schedules
    ('1f1b', 'interleaved')
    """
    from ridgeline.facts.framework_schema import FrameworkPolicy

    word, version = name, ""
    if "@" in name and not name.endswith(".toml"):
        word, _, version = name.rpartition("@")
    program = frameworks().from_file(word) if word.endswith(".toml") else frameworks().named(word)
    values, facts = frameworks().in_force(program, version, lambda conditions: True)
    return FrameworkPolicy(name=program.name, version=version, facts=facts, **values)
