"""Degrees of the pools that a benchmark ran, where its rows tell those of a configuration that its scripts overrode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.plan.deployment import Deployment
from ridgeline.validate.serving_settings import RunSettings

KEYS = ("attention_ranks", "expert_ranks")


def as_divided(
    pools: Mapping[str, Deployment | None], settings_of: Callable[[str, Deployment], RunSettings]
) -> tuple[dict[str, Deployment], tuple[str, ...]]:
    """The pools with the degrees that they ran with, and what tells of them; each has the devices of its row.

    Raises `InputError` where its devices are no multiple of them.
    """
    found: dict[str, Deployment] = {}
    said: list[str] = []
    for role, pool in pools.items():
        if pool is None:
            continue
        settings = settings_of(role, pool)
        ranks, devices = settings.attention_ranks or pool.dp, pool.tp * pool.dp
        experts = settings.expert_ranks or pool.ep
        if devices % ranks or devices % experts:
            raise InputError(f"{ranks} attention and {experts} expert ranks on {devices} devices", field="note")
        found[role] = replace(pool, tp=devices // ranks, dp=ranks, ep=experts)
        if found[role] != pool:
            said += [f"{role}: {line}" for line in settings.told if line.startswith(KEYS)]
    return found, tuple(said)
