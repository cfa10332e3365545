"""The words of a serving scenario: the traffic, the objective and the deployment that a person may write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import PlanError, UnitError, UnknownNameError
from ridgeline.facts.engine_kernels import expert_backends
from ridgeline.scenario.fields import TECHNIQUES, count, fields_of, number, one_of, own, shown
from ridgeline.scenario.serving_words import word_fields
from ridgeline.seams.registry import technique
from ridgeline.units import parse, whole_number

_MOST_TOKENS = 10_000_000
_UNWRITTEN = {"acceptance", "draft_tree", "next_acceptance", "draft_bytes", "draft_token_bytes"} | {
    "expert_imbalance", "expert_inside", "expert_between",
}  # fmt: skip  # or found, or read above
_POOL = re.compile(r"^(\d{1,5})x((?:(?:tp|pp|dp|ep|kv|experts)\d{1,5},?)+)$")
_DEGREE = re.compile(r"(tp|pp|dp|ep|kv|experts)(\d+)")
_FIELDS = {"experts": "expert_devices", "kv": "kv_ranks"}  # of a deployment, where a pool's word is another
_BARE = re.compile(r"^\s*[-+0-9._]+(?:[eE][-+]?\d+)?\s*$")  # a number without a unit
_BOUNDS = ("ttft", "tpot", "latency")  # of every request
_LATENCIES = (*_BOUNDS, "itl")
_STATISTIC = re.compile(r"^(?:mean|p(\d{1,2}(?:\.\d{1,4})?))$")
_AN_SLO = "write ttft=1s, tpot.p90=50ms, itl.p99=80ms, latency.mean=20s, kept=95% or goodput=4"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Instances of one role and their degrees [1]."""

    instances: int
    degrees: Mapping[str, int]
    kind: str = ""  # of devices, where there are two


def _lengths(value: object) -> tuple[int, int]:
    """A length in tokens, or two between which lengths are drawn evenly."""
    parts = value.split("-") if isinstance(value, str) else [value]
    if not 1 <= len(parts) <= 2 or (len(parts) > 1 and not all(str(part).strip() for part in parts)):
        raise ValueError(f"{shown(value)} is no length in tokens; write 1024, or 800-1200 for a range")
    found = [count(1, _MOST_TOKENS)(part.strip() if isinstance(part, str) else part) for part in parts]
    if found[0] > found[-1]:
        raise ValueError(f"{shown(value)} ends before it begins")
    return found[0], found[-1]


_DRAWN = re.compile(r"lognormal\(\s*mean\s*=\s*([^,()]+),\s*cv\s*=\s*([^,()]+)\)")
_ENDS = re.compile(r"(.*?[0-9a-z])\s*-\s*([0-9.].*)")


def _lognormal(value: object, mean: Callable[[object], float]) -> Any:
    """The lognormal law that a text describes; None of any other."""
    found = _DRAWN.fullmatch(str(value).strip().casefold())
    if found is None:
        if str(value).strip().casefold().startswith("lognormal"):
            raise ValueError(f"{shown(value)} is no law; write lognormal(mean=12,cv=0.8)")
        return None
    return {"mean": mean(found[1].strip()), "cv": number("1", 0.0, 20.0, ends=True)(found[2].strip())}


def _law(value: object) -> Any:
    """A length, two between which it is drawn, or a lognormal law."""
    return _lognormal(value, number("1", 1.0, 1e7, ends=True)) or _lengths(value)


def _spans(value: object) -> Any:
    """A time, two between which it is drawn, or a lognormal law."""
    law = _lognormal(value, number("s", 1e-9, 1e8))
    if law is not None:
        return law
    ends = _ENDS.fullmatch(str(value).strip().casefold())
    low, high = (_seconds(part) for part in (ends.groups() if ends else (value, value)))
    if low > high:
        raise ValueError(f"{shown(value)} ends before it begins")
    return {"low": low, "high": high}


def _objective(value: object) -> dict[str, Any]:
    """Bounds such as 'ttft=1s,tpot.p90=50ms,kept=95%': of every request, of percentiles [s], and shares and rates."""
    found: dict[str, Any] = {}
    percentiles: dict[tuple[str, str], float] = {}
    for word in str(value).split(","):
        name, _, bound = word.partition("=")
        key, amount = name.strip().casefold(), bound.strip()
        metric, dot, statistic = key.partition(".")
        known = metric in _LATENCIES and (_STATISTIC.match(statistic) if dot else metric in _BOUNDS)
        if not amount or not (known or key in ("kept", "goodput")):
            least = "; ITL is of tokens, so say of which: itl.p99=80ms" if key == "itl" else ""
            raise ValueError(f"{shown(word)} is no bound; {_AN_SLO}{least}")
        field, read = _bound_of(key)
        if field in found or (metric, statistic) in percentiles:
            raise ValueError(f"{shown(value)} bounds {key} twice")
        if read is _BOUND_S and _BARE.match(amount):
            raise ValueError(f"{shown(word)} has no unit; write {key}={amount}s or {key}={amount}ms")
        if dot:
            percentiles[metric, statistic] = read(amount)
        else:
            found[field] = read(amount)
    if percentiles:
        found["percentiles"] = tuple((*name, most) for name, most in percentiles.items())
    if "least_share" in found and not any(f"{name}_s" in found for name in _BOUNDS):
        raise ValueError(f"{shown(value)} says how many requests are kept, but no bound of every request; add ttft=1s")
    return found


def _bound_of(key: str) -> tuple[str, Callable[[object], float]]:
    """The field of an objective that a word names, and its reader."""
    if key == "kept":
        return "least_share", number("1", 1e-6, 1.0, ends=True)
    if key == "goodput":
        return "least_goodput_rps", number("1", 1e-9, 1e9)
    return f"{key}_s", _BOUND_S


_BOUND_S = number("s", 1e-9, 1e9)


def _pool(value: object) -> Pool:
    text, _, kind = str(value).partition("@")
    match = _POOL.match(text.replace(" ", "").casefold())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{shown(value)} is no pool; write a count and degrees such as 2xtp4 or 1xtp1,dp8,ep8")
    degrees = {_FIELDS.get(name, name): int(degree) for name, degree in _DEGREE.findall(match[2])}
    return Pool(instances=int(match[1]), degrees=degrees, kind=kind.strip())


def _fleet(value: object) -> tuple[Pool, ...]:
    """Groups of whole instances, as '4xtp2@H100-SXM+8xtp1@H20'."""
    found = tuple(map(_pool, str(value).split("+")))
    if len(found) > 16:
        raise ValueError(f"{shown(value)} has {len(found)} groups, at most 16")
    return found


def _named(value: object, names: Mapping[str, Callable[[object], Any]], example: str) -> dict[str, Any]:
    """Named values such as 'high=16,low=4'."""
    found: dict[str, Any] = {}
    for word in str(value).split(","):
        name, _, amount = word.partition("=")
        key = name.strip().casefold()
        if key not in names or not amount:
            raise ValueError(f"{shown(word)} is none of {', '.join(names)}; write {example}")
        found[key] = names[key](amount.strip())
    return found


def _autoscale(value: object) -> dict[str, Any]:
    load = number("1", 0.0, 1e6)
    named = _RULE.match(str(value))
    rule, rest = (named[1], named[2]) if named else ("", str(value))
    names: dict[str, Callable[[object], Any]] = {
        "high": load, "low": load, "period": _seconds, "start": _start, "fewest": count(1), "step": count(1),
        "image": number("byte", 0.0, 1e13), "pull": number("byte/s", 1e3, 1e13), "load": number("byte/s", 1e3, 1e14),
    }  # fmt: skip
    found = (
        {}
        if rule and not rest
        else _named(
            rest,
            names,
            "high=16,low=4,period=10s,start=60s or start=cold,fewest=1,step=1,image=10GB,pull=0.5GB/s,load=2GB/s",
        )
    )
    cold = {"image", "pull", "load"} & found.keys()
    if cold and found.get("start", 0.0) is not None:
        raise ValueError(f"{shown(value)} says {sorted(cold)[0]} of a cold start, but not start=cold; say both")
    loads = {name: found.pop(name) for name in ("high", "low") if name in found}
    if rule and loads:
        raise ValueError(
            f"{shown(value)} says {min(loads)} beside a rule; write it in its brackets, {rule}({min(loads)}=4)"
        )
    if not rule and len(loads) < 2:
        raise ValueError(f"{shown(value)} leaves out the load at which instances start or stop; write high=16,low=4")
    words = ",".join(f"{name}={amount}" for name, amount in loads.items())
    try:
        found["rule"] = technique("autoscalers", rule or f"load-scaling({words})").text
    except (PlanError, UnknownNameError) as error:
        raise ValueError(str(error)) from None
    return {_OF_SCALING.get(name, name): amount for name, amount in found.items()}


_RULE = re.compile(r"\s*([\w.-]+(?:\([^)]*\))?)\s*(?:,|$)(.*)")  # a name, then other values
_OF_SCALING = {
    "period": "period_s", "start": "start_s", "image": "image_bytes", "pull": "pull_bytes_per_s",
    "load": "load_bytes_per_s",
}  # fmt: skip


def _start(value: object) -> float | None:
    """A time [s]; None of a cold start."""
    return None if str(value).strip().casefold() == "cold" else _seconds(value)


def _failures(value: object) -> dict[str, Any]:
    names: dict[str, Callable[[object], Any]] = {"up": _seconds, "down": _seconds, "on": _text}
    found = _named(value, names, "up=30d,down=10min, or up=6h,down=10min,on=L40S")
    if not {"up", "down"} <= found.keys():
        raise ValueError(f"{shown(value)} needs both; write up=30d,down=10min")
    if found["up"] <= 0.0:
        raise ValueError(f"{shown(value)} has instances up for 0 s; needs more, as up=30d,down=10min")
    return {name if name == "on" else f"mean_{name}_s": amount for name, amount in found.items()}


def _tree(value: object) -> tuple[int, ...]:
    """Candidates after each of the place before, such as '4x2x1'."""
    found = tuple(whole_number(part) or 0 for part in str(value).casefold().split("x"))
    if not 1 <= len(found) <= 16 or not all(1 <= part <= 64 for part in found):
        raise ValueError(f"{shown(value)} is no tree; write candidates after each one of the place before, as 4x2x1")
    return found


def _acceptance(value: object) -> tuple[float, ...]:
    """The probability of a draft, or of each candidate of a place, most likely first."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if not 1 <= len(parts) <= 64:
        raise ValueError(f"{shown(value)} is no probability, nor some of them; write 0.7, or 0.6,0.15 of a tree")
    found = tuple(number("1", 0.0, 1.0, ends=True)(part.strip() if isinstance(part, str) else part) for part in parts)
    if sum(found) > 1.0 + 1e-9:
        raise ValueError(f"{shown(value)} adds up to {sum(found):g}; candidates of one place have 1 together at most")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a text")
    return value.strip()


def _seconds(value: object) -> float:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise UnitError(f"{shown(value)} is not a time")
    found = parse(value, "s")
    if not 0 <= found < 1e9:
        raise ValueError(f"{shown(value)} is out of range; needs 0 s to 1e9 s")
    return found


_KINDS = {
    "text": own(_text), "seconds": own(_seconds), "lengths": own(_lengths),
    "law": own(_law), "spans": own(_spans), "objective": own(_objective),
    "pool": own(_pool), "fleet": own(_fleet), "autoscale": own(_autoscale), "failures": own(_failures),
    "tree": own(_tree), "acceptance": own(_acceptance), "backend": one_of(expert_backends()),
    "router": lambda name, _, told: next(one for one in word_fields() if one.name == name),
}  # fmt: skip
TRAFFIC_FIELDS = fields_of("traffic", _KINDS)
BATCH_FIELDS = (*fields_of("batch"), *(one for one in TRAFFIC_FIELDS if one.name in ("prompt", "output", "seed")))
_DEPLOYMENT_FIELDS = fields_of("deployment", _KINDS)
DEPLOYMENT_FIELDS = (
    *_DEPLOYMENT_FIELDS,
    *(one for one in word_fields() if one.name not in _UNWRITTEN.union(entry.name for entry in _DEPLOYMENT_FIELDS)),
    TECHNIQUES,
)
OFFLOAD_FIELDS = fields_of("offload", _KINDS)
"""Where the weights of one static batch lie that devices do not hold (`predict --serve`)."""

HOST_FIELDS = tuple(entry for entry in OFFLOAD_FIELDS if entry.name in ("offload", "cpu", "dram", "storage"))
"""Those that a search takes: it finds the shares itself (`plan --serve --offload streamed`)."""
