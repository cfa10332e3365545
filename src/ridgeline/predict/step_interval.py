"""The 80 % interval of a training step, put together from what makes its parts uncertain.

Three causes, independent of each other: each part's mechanism errs by itself; another machine with other software is
quicker or slower than the ones that were measured, in all parts together; which host drives the devices is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from ridgeline.cost.answer import interval
from ridgeline.cost.attention import attention_interval
from ridgeline.cost.machine import stream_share_range
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.facts.transfer import mechanism_spread, source_spread
from ridgeline.graph.flop import op_flop_per_token
from ridgeline.graph.model import Model
from ridgeline.graph.ops import ConvolutionOp, GemmOp
from ridgeline.predict.predictor import Predictor

Factors = tuple[float, float]
HOST, WAITING = "launch", "bubble"
_LONG_S = 1.0  # most of a step is kernels that are not short
_FAMILY = {"matrix": "gemm", "tensor link": "all_reduce", "context link": "all_reduce", "expert link": "all_reduce"} | {
    "data link": "all_reduce",
    "pipeline link": "all_reduce",
}


def step_interval(
    parts: Mapping[str, float], hosts_s: Factors, *, predictor: Predictor, evidence: Evidence
) -> tuple[float, float]:
    """Low and high end of a step whose `parts` add up to its time [s].

    With t the seconds of a part, m the factor of its mechanism and o that of other sources, beyond 1 to one side, the
    step may take so much more or less:

        sqrt( sum (t (m - 1))^2 + (sum t (o - 1))^2 + (launch there - launch)^2 )

    `hosts_s` is the launch part on the quickest and on the slowest host. Waiting for other stages grows as the rest
    does. `evidence` is the rung of the matrix rate; from a datasheet's rate the interval is that of its rung, on a
    processor whose calls were timed that of their residuals.
    """
    whole, pricer = sum(parts.values()), predictor.stages.pricer
    if evidence is Evidence.DATASHEET or pricer.own_host.calls:
        return pricer.interval(whole, evidence)
    working = {name: seconds for name, seconds in parts.items() if name not in (HOST, WAITING)}
    busy = whole - parts.get(WAITING, 0.0)
    mechanism = _mechanisms(predictor, evidence)
    shares = []
    for end, sign in ((0, -1.0), (1, 1.0)):
        alone = [seconds * _beyond(mechanism(name)[end], sign) for name, seconds in working.items()]
        together = sum(seconds * _beyond(_others(name)[end], sign) for name, seconds in working.items())
        host = max(0.0, sign * (hosts_s[end] - parts.get(HOST, 0.0)))
        shares.append(float(np.sqrt(np.square(alone).sum() + together**2 + host**2)) / busy)
    return whole * max(1.0 - shares[0], 0.0), whole * (1.0 + shares[1])


def ratio_range(
    before: Mapping[str, float], after: Mapping[str, float], *, predictor: Predictor, evidence: Evidence
) -> tuple[float, float]:
    """Low and high end of the ratio of two steps on one machine [1], `after` over `before`, whose parts err alike.

    With A and B the whole times, a and b those of a part and f an end of its mechanism's factor the ratio becomes
    (A + a (f - 1)) / (B + b (f - 1)); parts are independent, so that their deviations add as squares, and other
    sources' factors move all parts together. What both have in common so leaves no error.
    """
    mechanism = _mechanisms(predictor, evidence)
    causes = [{name: mechanism(name)} for name in {*before, *after}]
    causes.append({name: _others(name) for name in {*before, *after} - {HOST, WAITING}})
    return shared_error(before, after, causes)


def shared_error(
    before: Mapping[str, float], after: Mapping[str, float], causes: Iterable[Mapping[str, Factors]]
) -> tuple[float, float]:
    """The same for given causes: each names the parts that it moves together, and by which factors at both ends."""
    whole_before, whole_after = sum(before.values()), sum(after.values())
    middle, low, high = whole_after / whole_before, 0.0, 0.0
    for cause in causes:
        for end in (0, 1):
            moved = [
                whole + sum(parts.get(name, 0.0) * (factor[end] - 1.0) for name, factor in cause.items())
                for whole, parts in ((whole_before, before), (whole_after, after))
            ]
            away = moved[1] / max(moved[0], 1e-30) / middle - 1.0
            low, high = low + min(away, 0.0) ** 2, high + max(away, 0.0) ** 2
    return middle * max(0.0, 1.0 - float(np.sqrt(low))), middle * (1.0 + float(np.sqrt(high)))


def _beyond(factor: float, sign: float) -> float:
    """How far a factor lies beyond 1 to one side [1]."""
    return max(0.0, sign * (factor - 1.0))


def _others(name: str) -> Factors:
    """What other sources measured over what the measured ones give, for a part."""
    return source_spread("tables", _FAMILY.get(name, "other"))


def _mechanisms(predictor: Predictor, evidence: Evidence) -> Callable[[str], Factors]:
    """Measured over predicted of each part's mechanism."""
    accelerator = predictor.cluster.accelerator
    kernel = attention_interval(predictor.workload.attention_kernel, accelerator.architecture)
    device = predictor.machine.device
    slowest, fastest = stream_share_range()
    links = mechanism_spread("all_reduce", _LONG_S) or (1.0, 1.0)
    known = {
        "matrix": _products(predictor.model, evidence),
        "attention": kernel or interval(1.0, Evidence.DERIVED),
        "memory": (device.stream_share / max(fastest, device.stream_share), device.stream_share / slowest),
    }
    return lambda name: known.get(name) or (links if name in _FAMILY else (1.0, 1.0))


def _products(model: Model, evidence: Evidence) -> Factors:
    """The factors of products and of convolutions, by their share of a model's FLOP."""
    rate = (constant("interval.matrix.low"), constant("interval.matrix.high"))
    if evidence < Evidence.MEASURED:
        rate = mechanism_spread("gemm", _LONG_S) or rate
    if evidence is Evidence.ASSUMED:  # the share of peak is that of other vendors' devices
        far = constant("interval.foreign.gemm")
        rate = (rate[0] / far, rate[1] * far)
    pixels = mechanism_spread("conv2d", _LONG_S) or rate
    share = convolved(model)
    return tuple(share * a + (1.0 - share) * b for a, b in zip(pixels, rate, strict=True))  # type: ignore[return-value]


def convolved(model: Model) -> float:
    """Share of a model's products that are convolutions, by FLOP [1]."""
    graph = model.graph
    ops = [op for name in graph.layers for op in graph.blocks[name].ops] + [*graph.embedding, *graph.head]
    flop = [(float(op_flop_per_token(op, 1.0)), op) for op in ops if isinstance(op, GemmOp)]
    whole = sum(amount for amount, _ in flop)
    return (
        sum(amount for amount, op in flop if isinstance(op, ConvolutionOp) and op.pixelwise) / whole if whole else 0.0
    )
