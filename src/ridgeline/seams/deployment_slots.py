"""Slots that the degrees and options of a deployment fill, as techniques fill theirs (`seams.serving`)."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.deployment import Deployment, Preemption, Role


def degree_slots(one: Deployment) -> Iterator[tuple[str, frozenset[str]]]:
    """What the degrees and options of a deployment fill, by the word that says so."""
    said: tuple[tuple[str, object, str], ...] = (
        (f"pp {one.pp}", one.pp > 1, "stages"),
        (f"dp {one.dp}", one.dp > 1, "attention ranks"),
        (f"ep {one.ep}", one.ep > 1, "expert ranks"),
        (f"kv_ranks {one.kv_ranks}", one.kv_ranks > 1, "contexts"),
        ("a pool", one.role is not Role.WHOLE, "roles"),
        ("prefix_cache", one.prefix_cache, "prefixes"),
        ("preemption swap", one.preemption is Preemption.SWAP, "host copies"),
    )
    yield from ((name, frozenset({slot})) for name, holds, slot in said if holds)
    yield from word_slots(one)


def word_slots(one: Deployment) -> Iterator[tuple[str, frozenset[str]]]:
    """What the words fill that are no techniques yet."""
    said: tuple[tuple[str, object, set[str]], ...] = (
        ("draft_tokens", one.draft_tokens, {"iterations", "drafts"}),
        ("expert_devices", one.expert_devices, {"iterations", "cache", "stages", "adapters", "expert ranks"}),
        ("tokens_stay", one.tokens_stay, {"host copies", "adapters", "drafts", "affinity"}),
        ("a pool", one.role is not Role.WHOLE, {"affinity"}),
        ("fresh_kernels", one.fresh_kernels, {"kernels"}),
    )  # fmt: skip
    yield from ((name, frozenset(slots)) for name, holds, slots in said if holds)
