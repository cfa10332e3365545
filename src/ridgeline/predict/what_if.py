"""What would change the answer: the same work priced again on machines with a tenth more of one thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.cost.better import all_better, better, resource_text, resources
from ridgeline.cost.machine import Machine
from ridgeline.predict.predictor import Evaluation, Predictor
from ridgeline.report.evidence import EVERYTHING, Sensitivity
from ridgeline.timeline.simulate import simulate
from ridgeline.training.bounds import step_bound_s
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.pipeline import pipeline_schedule

GAIN = 1.1  # definition: each question asks for a tenth more
_CLOSED = 0.02  # tolerance: of a step's time, below which what its closed form leaves out is too little to matter


def sensitivities(
    machine: Machine, seconds: Callable[[Machine], Sequence[float]], base_s: Sequence[float]
) -> tuple[tuple[Sensitivity, ...], ...]:
    """How much shorter times are with a tenth more of each resource, the greatest effect first, and of all at once.

    `seconds` prices the work on a machine [s], `base_s` are its times on this one. Where a time is made of parts one
    after the other the gains add up to that of everything at once; this falls short of 1 - 1 / 1.1 by what hangs on no
    rate of the machine.
    """
    asked = {resource_text(machine, what): seconds(better(machine, what, GAIN)) for what in resources(machine)}
    whole = seconds(all_better(machine, GAIN))
    found = []
    for place, base in enumerate(base_s):
        each = [Sensitivity(resource=name, gain=_gain(times[place], base)) for name, times in asked.items()]
        each.sort(key=lambda one: -one.gain)
        found.append((*each, Sensitivity(resource=EVERYTHING, gain=_gain(whole[place], base))))
    return tuple(found)


def _gain(seconds: float, base_s: float) -> float:
    return 1.0 - seconds / base_s if base_s > 0 else 0.0


def plan_sensitivities(predictor: Predictor, evaluation: Evaluation) -> tuple[Sensitivity, ...]:
    """How the step time of a plan answers to a tenth more of each resource [1], the greatest effect first.

    By the closed form where that is as good as the simulation of the plan, which takes much longer.
    """
    plan, simulated_s = evaluation.plan, evaluation.timeline.makespan_s
    closed = evaluation.bound_s > (1.0 - _CLOSED) * simulated_s and not predictor.on_lanes(plan)
    base_s = evaluation.bound_s if closed else simulated_s

    def step_s(machine: Machine) -> tuple[float]:
        other = predictor.on(machine)
        held, times = other.prepare(plan)
        if closed:
            rules = exchange_rules(plan)
            schedule = pipeline_schedule(plan.schedule)
            return (float(step_bound_s(schedule, evaluation.micro_batches, times, rules)),)
        return (simulate(other.step(plan, held, times)[0]).makespan_s,)

    return sensitivities(predictor.machine, step_s, (base_s,))[0]
