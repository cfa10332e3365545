"""How well a replay is known, and what would change it: a decode step and a prompt, priced again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.better import is_link
from ridgeline.cost.machine import Machine, of_kind
from ridgeline.facts.records import Evidence
from ridgeline.predict.what_if import GAIN, sensitivities
from ridgeline.report.evidence import Known, Sensitivity
from ridgeline.seams.serving import instance_devices
from ridgeline.serving.ends import engine_at
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import decode_parts, prefill_parts
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import Traffic

_WHOLE = 1.0 - 1.0 / GAIN


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What a replay did on average: sequences of one rank and their context, and the prompts [token]."""

    batch: float
    context: float
    prompt: float
    longest_prompt: int
    longest: int


def mean_of(engines: Sequence[Engine], found: Replay, traffic: Traffic) -> Mean:
    """What a replay of traffic on engines did on average [token]; its decode steps are those of the last engine."""
    prompt, last = float(np.mean(traffic.prompt_tokens)), engines[-1].deployment
    return Mean(
        batch=max(1.0, found.mean_sequences / (last.dp * last.pp)),
        context=found.mean_context or prompt,
        prompt=prompt,
        longest_prompt=int(np.max(traffic.prompt_tokens)),
        longest=int(np.max(traffic.prompt_tokens + traffic.output_tokens)),
    )


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a decode step and a prompt hang on: gains from a tenth more of each resource, and each part's rung."""

    what_if: tuple[tuple[Sensitivity, ...], ...]
    known: tuple[tuple[Known, ...], ...]


def held(
    engines: Sequence[Engine], build: Callable[[Machine], Sequence[Engine]] | None, machine: Machine, mean: Mean
) -> Held:
    """What the mean decode step of the last engine and the mean prompt alone of the first hang on.

    `build` makes the engines on another machine; without it gains are left out, and links count with the kernels.
    Queues are not replayed again: what waits for others is left out.
    """

    def parts(made: Sequence[Engine]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        lengths = {"longest_prompt": mean.longest_prompt, "longest": mean.longest}
        first, last = (one.tables(**lengths) for one in (made[0], made[-1]))
        answers = decode_parts(made[-1], last, mean.batch, mean.context)
        return answers, prefill_parts(made[0], first, mean.prompt)

    own, sides = parts(engines), (engines[-1], engines[0])
    if build is None:
        return Held(what_if=(), known=tuple(_told(one, made, machine) for one, made in zip(sides, own, strict=True)))

    def seconds(other: Machine) -> tuple[float, ...]:
        made = [engine_at(one, 0.0, 1.0 / other.cluster.host.quickness) for one in build(other)]
        return tuple(sum(each.values()) for each in parts(made))

    totals = tuple(sum(each.values()) for each in own)
    kinds = [one.deployment.kind for one in (engines[-1], engines[0])]
    what_if = sensitivities(of_kind(machine, kinds[0]), seconds, totals)
    if kinds[0] != kinds[1]:  # each hangs on the devices that it runs on
        what_if = (what_if[0], sensitivities(of_kind(machine, kinds[1]), seconds, totals)[1])
    known = tuple(_known(one, made, gains, machine) for one, made, gains in zip(sides, own, what_if, strict=True))
    return Held(what_if=what_if, known=known)


def _told(one: Engine, parts: Mapping[str, float], machine: Machine) -> tuple[Known, ...]:
    """Kernels with links, and the engine's host, where no gain tells them apart."""
    total = sum(parts.values()) or 1.0
    host = parts.get("host", 0.0) / total
    kernels, linked = _kernels(one), instance_devices(one.deployment) > 1
    rung = min(kernels, machine.link_evidence) if linked else kernels
    return (
        Known(part="kernels and links" if linked else "kernels", evidence=rung, share=1.0 - host),
        Known(part="host time of the engine", evidence=one.policy.evidence, share=host),
    )


def _kernels(one: Engine) -> Evidence:
    kernels = min(side.evidence_used for side in one.steps.all_prices)
    return Evidence.DERIVED if kernels is Evidence.HERE and not one.steps.prices.rungs_used else kernels


def _known(
    one: Engine, parts: Mapping[str, float], gains: Sequence[Sensitivity], machine: Machine
) -> tuple[Known, ...]:
    """Kernels, links and the engine's host, with the share of a time that hangs on each."""
    total = sum(parts.values()) or 1.0
    host = parts.get("host", 0.0) / total
    links = min(1.0 - host, sum(max(0.0, gain.gain) for gain in gains if is_link(gain.resource)) / _WHOLE)
    shares = (
        ("kernels", _kernels(one)),
        ("links", machine.link_evidence),
        ("host time of the engine", one.policy.evidence),
    )
    return tuple(
        Known(part=name, evidence=rung, share=share)
        for (name, rung), share in zip(shares, (1.0 - host - links, links, host), strict=True)
    )
