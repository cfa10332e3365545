"""One check of what goes with a deployment: the slots that its degrees, options and techniques fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.registry import listed
from ridgeline.seams.resolve import together
from ridgeline.seams.serving import ServingTechnique, applied, expert_devices
from ridgeline.seams.technique import Technique


@cache
def check_techniques(one: Deployment) -> None:
    """Raises `PlanError` for techniques that do not go with each other or with the deployment's degrees."""
    chosen = tuple(map(listed, one.technique))
    for technique in chosen:
        if not isinstance(technique, ServingTechnique | GraphRewrite):
            raise PlanError(f"deployment: {technique.key} is one of the {technique.family}, which serving has not")
    _check_slots(one, chosen)
    together(chosen)
    for technique in chosen:
        refused = technique.refusal(one) if isinstance(technique, ServingTechnique) else ""
        if refused:
            raise PlanError(f"deployment: {label(technique)} {refused}")
    if one.expert_kind and not expert_devices(one):
        raise PlanError(
            f"deployment: experts on devices of another kind, {one.expert_kind}, but not on how many;"
            " say expert_devices as well, or leave beside out"
        )


def label(one: Technique) -> str:
    """A technique by its key, and by the word that applies it where that is another."""
    word = getattr(one, "word", "")
    if isinstance(one, ServingTechnique) and one.said_as:
        return f"{one.said_as} {one.key}"
    return f"{one.key} ({word})" if word not in ("", one.key) else one.key


def _check_slots(one: Deployment, chosen: Sequence[Technique]) -> None:
    """Raises where two own one slot, the deployment's own degrees and options among them."""
    owners: dict[str, str] = {}
    for name, slots in (*degree_slots(one), *((label(each), each.slots()) for each in chosen)):
        for slot in sorted(slots):
            if slot in owners:
                raise PlanError(
                    f"deployment: {owners[slot]} and {name} both fill '{slot}', which is not modelled; leave one out"
                )
            owners[slot] = name


def fills(deployment: Deployment, slot: str) -> bool:
    """Whether a technique or word of a deployment fills a slot."""
    known = (*(each.slots() for each in applied(deployment)), *(slots for _, slots in word_slots(deployment)))
    return any(slot in slots for slots in known)


def occupied(deployment: Deployment) -> frozenset[str]:
    """Slots that the degrees, options and techniques of a deployment fill."""
    chosen = map(listed, deployment.technique)
    return frozenset().union(*(slots for _, slots in degree_slots(deployment)), *(one.slots() for one in chosen))


def degree_slots(one: Deployment) -> Iterator[tuple[str, frozenset[str]]]:
    """What the degrees and options of a deployment fill, by the word that says so."""
    said: tuple[tuple[str, object, str], ...] = (
        (f"pp {one.pp}", one.pp > 1, "stages"),
        (f"dp {one.dp}", one.dp > 1, "attention ranks"),
        (f"ep {one.ep}", one.ep > 1, "expert ranks"),
        (f"kv_ranks {one.kv_ranks}", one.kv_ranks > 1, "contexts"),
        ("a pool", one.role is not Role.WHOLE, "roles"),
        ("prefix_cache", one.options.prefix_cache, "prefixes"),
    )
    yield from ((name, frozenset({slot})) for name, holds, slot in said if holds)
    yield from word_slots(one)


def word_slots(one: Deployment) -> Iterator[tuple[str, frozenset[str]]]:
    """What the words fill that are no techniques yet."""
    said: tuple[tuple[str, object, set[str]], ...] = (
        ("a pool", one.role is not Role.WHOLE, {"affinity"}),
        ("fresh_kernels", one.options.fresh_kernels, {"kernels"}),
    )  # fmt: skip
    yield from ((name, frozenset(slots)) for name, holds, slots in said if holds)
