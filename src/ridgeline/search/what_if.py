"""What would change the answer: the best plan priced again on slightly better machines."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.cost.machine import Machine
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor

_GAIN = 1.1  # each question asks for a tenth more


def _better(machine: Machine, what: str) -> Machine:
    device = machine.device
    if what == "matrix rate":
        return replace(machine, device=replace(device, matrix={k: v * _GAIN for k, v in device.matrix.items()}))
    if what == "memory bandwidth":
        return replace(machine, device=replace(device, memory_bytes_per_s=device.memory_bytes_per_s * _GAIN))
    chosen = slice(0, 1) if what == "link inside the node" else slice(1, None)
    tiers = list(machine.tiers)
    tiers[chosen] = [replace(tier, bytes_per_s=tier.bytes_per_s * _GAIN) for tier in tiers[chosen]]
    return replace(machine, tiers=tuple(tiers))


def what_if(predictor: Predictor, plan: Plan) -> tuple[str, ...]:
    """Sentences on how the step time answers to a tenth more of each resource, greatest effect first."""
    base = predictor.evaluate(plan).timeline.makespan_s
    questions = ["matrix rate", "memory bandwidth"]
    questions += ["link inside the node"] * (len(predictor.machine.tiers) > 0) + ["link between nodes"] * (
        len(predictor.machine.tiers) > 1
    )
    found = []
    for question in questions:
        other = Predictor(
            predictor.model, predictor.cluster, predictor.workload, resolved=_better(predictor.machine, question)
        )
        gain = 1 - other.evaluate(plan).timeline.makespan_s / base
        if gain > 0.001:
            found.append((gain, f"10 % more {question}: {gain:.1%} less step time"))
    return tuple(text for _, text in sorted(found, reverse=True))
